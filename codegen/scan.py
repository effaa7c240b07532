"""The states beside S in the vectorised prologue: their scans over all tokens, and the look-back windows.

Every version of such a state that the prologue uses becomes a tensor over all tokens: version 0 is the scan's result
shifted by a token, the last is the scan's result, and those between follow from version 0 by the rule's own lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stateir.build import ZERO
from stateir.ir import Axis, Expr, Let, Num, Prev, Ref, Rule, State, Update, walk
from stateir.scans import Scan, scans, turning

from .carried import prev_windows
from .expr import Scope, element, torch_text
from .text import assignment, call, expanded, line_comment, varies
from .triton_sequential import Token, sequential_source, token_of
from .triton_vector_scans import TRITON
from .vector_scans import TORCH, Kind

LEADING = ("B", "T", "H")


class Demand:
    """Writes the statements of a prologue on demand: a let, a state or a window once something needs it.

    `body` collects the statements, `varying` the names that have the dimensions of a sequence, `carried` what goes on
    to the next call, `helpers` the definitions that the text needs, in order. `state` and `chunk` are the names of
    those arguments. With `kernels` the scans are Triton kernels, else PyTorch.
    """

    def __init__(self, rule: Rule, scope: Scope, state: str, chunk: str, kernels: bool = False) -> None:
        self.rule, self.scope, self.state, self.chunk = rule, scope, state, chunk
        self.kernels = kernels
        self.body: list[str] = []
        self.carried: dict[str, str] = {}
        self.helpers: list[str] = []
        self.states = {s.name: s for s in rule.states if s.axis is not Axis.MATRIX}
        self.varying = {i.name for i in rule.inputs} | set(self.states)
        self.groups = {name: scan for scan in scans(rule) for name in scan.states}
        self.updates = {n: [x for x in rule.lines if isinstance(x, Update) and x.state == n] for n in self.states}
        self.windows = prev_windows(rule)
        self.back: dict[tuple[str, int], str] = {}
        self.versions: dict[tuple[str, int], str] = {}
        self.results: dict[str, str] = {}
        self.done: set[str] = set()
        scope.prev = self._look_back
        scope.state = lambda ref: self.versions.get((ref.name, ref.version))

    def need(self, e: Expr, within: Sequence[str] = ()) -> None:
        """Write what e needs before it can be written itself; the states and lets `within` are there already."""
        for x in walk(e):
            if isinstance(x, Ref) and x.name in within:
                continue
            if isinstance(x, Ref) and x.name in self.rule.lets:
                self._need_let(x.name)
            elif isinstance(x, Ref) and x.name in self.states:
                self._need_version(x)
            elif isinstance(x, Prev):
                self._need_window(x)

    def need_carried(self, but: Sequence[str] = ()) -> None:
        """Write whatever goes on to the next call, used in this one or not, but the states that others carry."""
        states = [name for name in self.states if name not in but]
        for name in states:
            self._need_state(name)
        for name in self.windows:
            self._need_past(name)
        order = [*states, *(f"prev.{name}" for name in self.windows)]
        self.carried = {name: self.carried[name] for name in order}

    def _need_let(self, name: str) -> None:
        if name in self.done:
            return
        self.done.add(name)
        line = next(x for x in self.rule.lines if isinstance(x, Let) and x.name == name)
        self.need(line.value)
        text = assignment(self.scope.names[name], torch_text(line.value, self.scope))
        self.body += [line_comment(self.rule, line), text]
        if varies(line.value, self.varying):
            self.varying.add(name)

    def _need_past(self, name: str) -> str:
        """The window before the sequence and the sequence, joined; what is left at its end is carried."""
        past = f"{self.scope.names[name]}_past"
        if name not in self.done:
            self.done.add(name)
            self.scope.used |= {"B", "T", "H"}
            window = f'{self.state}["prev.{name}"]'
            self.body.append(f"{past} = torch.cat(({window}, {self.scope.names[name]}), 1)")
            self.carried[f"prev.{name}"] = f"{past}[:, {self.scope.fresh('T')}:]"
        return past

    def _need_window(self, e: Prev) -> None:
        key = (e.of.name, e.n)
        if key not in self.back:
            past = self._need_past(e.of.name)
            self.back[key] = self.scope.new(f"{self.scope.names[e.of.name]}_back{e.n}")
            first, T = self.windows[e.of.name] - e.n, self.scope.fresh("T")
            piece = f"[:, {first} : {first} + {T}]" if first else f"[:, :{T}]"
            self.body.append(f"{self.back[key]} = {past}{piece}")

    def _look_back(self, e: Prev) -> str:
        return element(self.back[e.of.name, e.n], e.axis, e.of.index)

    def _need_version(self, ref: Ref) -> None:
        self._need_state(ref.name)
        if (ref.name, ref.version) in self.versions:
            return
        updates = self.updates[ref.name]
        target = self.scope.new(f"{self.scope.names[ref.name]}_{ref.version}")
        if ref.version in (0, len(updates)):
            piece = "[:, :-1]" if ref.version == 0 else "[:, 1:]"
            self.body.append(f"{target} = {self.results[ref.name]}{piece}")
        else:
            line = updates[ref.version - 1]
            self.need(line.value)
            text = self.over_tokens(line.value, self.states[ref.name])
            self.body += [line_comment(self.rule, line), assignment(target, text)]
        self.versions[ref.name, ref.version] = target

    def _need_state(self, name: str) -> None:
        if name in self.results:
            return
        scan = self.groups[name]
        self.results |= self._sequential(scan) if scan.kind == "sequential" else {name: self._parallel(scan)}
        for state in scan.states:
            self.carried[state] = f"{self.results[state]}[:, -1]"

    def over_tokens(self, e: Expr, state: State) -> str:
        """The text of e over all tokens, in the shape of the state."""
        text = torch_text(e, self.scope, state.axis)
        if e.axis is state.axis and varies(e, self.varying):
            return text
        return expanded(text, e, state.axis, self.rule, self.scope, LEADING)

    def operands(self, scan: Scan) -> tuple[Kind, str, str]:
        """The kind of a parallel scan and the texts of its a and b over all tokens; what they need is written."""
        (name,) = scan.states
        state = self.states[name]
        kind: Kind = "max-plus" if scan.kind == "max-plus" else "angle" if name in turning(self.rule) else "affine"
        a, b = scan.a or Num(TORCH[kind].one), scan.b or Num(TORCH[kind].zero)
        self.need(a)
        self.need(b)
        # b alone gives the result its shape: a scalar factor of a vector stays as small as it is.
        factor = torch_text(a, self.scope, state.axis) if varies(a, self.varying) else self.over_tokens(a, state)
        return kind, factor, self.over_tokens(b, state)

    def _parallel(self, scan: Scan) -> str:
        """A scan by chunks; the name of its result."""
        (name,) = scan.states
        start = f'{self.state}["{name}"]'
        kind, factor, value = self.operands(scan)
        helper = (TRITON if self.kernels else TORCH)[kind]
        target = self.scope.new(f"{self.scope.names[name]}_all")
        self.body += [line_comment(self.rule, line) for line in self.updates[name]]
        if scan.kind == "affine" and scan.a == ZERO:
            self.body.append(f"{target} = torch.cat(({start}[:, None], {value}), 1)")
            return target
        self.helpers += [x for x in helper.definitions if x not in self.helpers]
        self.body.append(call(f"{target} = {helper.name}", [factor, value, start, self.chunk]))
        return target

    def _sequential(self, scan: Scan) -> dict[str, str]:
        """The states' own lines, token by token; the names of their values over all tokens, the start first.

        So are the lets between them that depend on the states: each line is written once, however often it is used.
        """
        inner = self._inner_lets(scan.states)
        lines = [
            x for x in self.rule.lines
            if (isinstance(x, Update) and x.state in scan.states) or (isinstance(x, Let) and x.name in inner)
        ]  # fmt: skip
        for line in lines:
            self.need(line.value, within=(*scan.states, *inner))
        if self.kernels and (token := token_of(self.rule, scan.states, lines)):
            return self._sequential_kernel(token, lines)
        t = self.scope.new("t")
        now = {
            (n, v): self.scope.new(f"{self.scope.names[n]}_now{v or ''}")
            for n in scan.states
            for v in range(len(self.updates[n]) + 1)
        }
        every = {n: self.scope.new(f"{self.scope.names[n]}_all") for n in scan.states}

        def at_token(ref: Ref) -> str | None:
            if (ref.name, ref.version) in now:
                return now[ref.name, ref.version]
            over = self.versions.get((ref.name, ref.version))
            return None if over is None else f"{over}[:, {t}]"

        names = {n: f"{x}[:, {t}]" if n in self.varying else x for n, x in self.scope.names.items()}
        names |= {n: self.scope.new(f"{self.scope.names[n]}_now") for n in inner}
        scope = replace(self.scope, names=names, state=at_token)
        scope.prev = lambda e: element(f"{self.back[e.of.name, e.n]}[:, {t}]", e.axis, e.of.index)
        self.scope.used |= {"B", "T", "H"}
        for n in scan.states:
            self.body += [f'{now[n, 0]} = {self.state}["{n}"]', f"{every[n]} = [{now[n, 0]}]"]
        self.body.append(f"for {t} in range({self.scope.fresh('T')}):")
        counts = dict.fromkeys(scan.states, 0)
        for line in lines:
            if isinstance(line, Let):
                target, text = names[line.name], torch_text(line.value, scope)
            else:
                counts[line.state] += 1
                text = torch_text(line.value, scope, self.states[line.state].axis)
                target, before = now[line.state, counts[line.state]], now[line.state, 0]
                constant = scope.is_const(line.value)
                text = f"torch.full_like({before}, {text})" if constant else f"({text}).expand_as({before})"
            self.body += [f"    {line_comment(self.rule, line)}", f"    {target} = {text}"]
        self.body += [f"    {now[n, 0]} = {now[n, counts[n]]}" for n in scan.states]
        self.body += [f"    {every[n]}.append({now[n, 0]})" for n in scan.states]
        self.body += [f"{every[n]} = torch.stack({every[n]}, 1)" for n in scan.states]
        return every

    def _sequential_kernel(self, token: Token, lines: Sequence[Let | Update]) -> dict[str, str]:
        """The call of the kernel for some states; the names of their values over all tokens, the start first."""
        name = self.scope.new(f"_sequential_{'_'.join(token.states)}")
        self.helpers += [x for x in sequential_source(token, name) if x not in self.helpers]
        every = {n: self.scope.new(f"{self.scope.names[n]}_all") for n in token.states}
        arguments = []
        for e in token.needs.values():
            text = torch_text(e, self.scope)
            arguments.append(
                text if varies(e, self.varying) else expanded(text, e, e.axis, self.rule, self.scope, LEADING)
            )
        self.scope.used |= {"B", "T", "H"}
        self.body += [line_comment(self.rule, line) for line in lines]
        arguments = [self.scope.fresh("T"), *arguments, *(f'{self.state}["{n}"]' for n in token.states)]
        targets = ", ".join(every.values()) + ("," if len(every) == 1 else "")
        self.body.append(call(f"{targets} = {name}.apply", arguments))
        return every

    def _inner_lets(self, states: Sequence[str]) -> list[str]:
        """The lets that the updates of the states need and that depend on one of them, in the order of their lines."""
        lets = self.rule.lets
        depend: list[str] = []
        for name, value in lets.items():
            if any(isinstance(x, Ref) and (x.name in states or x.name in depend) for x in walk(value)):
                depend.append(name)
        used = {x.name for n in states for line in self.updates[n] for x in walk(line.value) if isinstance(x, Ref)}
        for name in reversed(depend):
            if name in used:
                used |= {x.name for x in walk(lets[name]) if isinstance(x, Ref)}
        return [name for name in depend if name in used]
