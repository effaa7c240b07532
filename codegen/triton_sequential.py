"""A sequential scan as Triton text: the rule's own lines for one token after the other, forward and in reverse.

One program walks the tokens of one sequence and head with the states in registers. What of the lines does not depend
on the states is computed beforehand, for all tokens at once; these tensors are x0, x1, ... The reverse kernel reads the
states that the forward one has stored, and computes each token's derivatives from them (`reverse`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stateir.ir import Axis, Call, Expr, Input, Let, Num, Ref, Rule, Update, children, rebuild, walk
from stateir.ranges import Ranges

from .reverse import reverse
from .tape import Level, Lowering
from .tape_text import Writer
from .triton_expr import COLUMNS, TILES, called
from .triton_text import Text


@dataclass(frozen=True)
class Token:
    """One token of the states: what its lines need beside them, by name, and the lines in these names.

    `states` have their own names; `lines` are lets of their versions and of what stands between, `last` the names of
    the states after the token. A pair is a key vector here: no line has both.
    """

    states: dict[str, Axis]
    needs: dict[str, Expr]
    rule: Rule
    last: dict[str, Ref]


def token_of(rule: Rule, states: Sequence[str], lines: Sequence[Let | Update]) -> Token | None:
    """The token of some states whose lines are given, lets between them among them; None where tiles have no text."""
    axes = {s.name: s.axis for s in rule.states if s.name in states}
    own = {*states, *(line.name for line in lines if isinstance(line, Let))}
    needs: dict[Expr, str] = {}
    free = (x for n in itertools.count() if (x := f"x{n}") not in own)

    def named(e: Expr) -> Expr:
        if isinstance(e, Ref) and e.name in states:
            return Ref(e.name if e.version == 0 else f"{e.name} {e.version}", e.axis)
        if isinstance(e, Num) or (isinstance(e, Ref) and e.name in own):
            return e
        if any(isinstance(x, Ref) and x.name in own for x in walk(e)):
            return rebuild(e, tuple(named(x) for x in children(e)))
        if e not in needs:
            needs[e] = next(free)
        return Ref(needs[e], e.axis)

    counts = dict.fromkeys(states, 0)
    lets: list[Let] = []
    for line in lines:
        if isinstance(line, Update):
            counts[line.state] += 1
        name = line.name if isinstance(line, Let) else f"{line.state} {counts[line.state]}"
        lets.append(Let(name, named(line.value), line.span))
    every = [x for line in lets for x in walk(line.value)] + [Ref(s, axis) for s, axis in axes.items()]
    used = {x.axis for x in every}
    turns = any(isinstance(x, Call) and x.fn == "rotate" for x in every)
    if turns or Axis.MATRIX in used or {Axis.PAIR, Axis.KEY} <= used:
        return None
    ranges = Ranges(rule)
    declared = {s.name: s for s in rule.states}
    inputs = [Input(s, _key(axis), unit=declared[s].unit, range=declared[s].range) for s, axis in axes.items()]
    inputs += [Input(name, _key(e.axis), unit=ranges.is_unit(e), range=ranges.of(e)) for e, name in needs.items()]
    body = tuple(replace(line, value=_with_keys(line.value)) for line in lets)
    last = {s: Ref(f"{s} {n}", _key(axes[s])) for s, n in counts.items()}
    return Token(axes, {x: e for e, x in needs.items()}, Rule(rule.name, "", tuple(inputs), (), (), body), last)


def _key(axis: Axis) -> Axis:
    return Axis.KEY if axis is Axis.PAIR else axis


def _with_keys(e: Expr) -> Expr:
    """e with keys in place of pairs."""
    below = children(e)
    e = rebuild(e, tuple(_with_keys(x) for x in below)) if below else e
    return replace(e, axis=Axis.KEY) if e.axis is Axis.PAIR and not isinstance(e, Num) else e


@dataclass(frozen=True)
class _Scan:
    """The entries of a token: leaves by name, the states after it, and the gradients of the leaves."""

    lowering: Lowering
    leaves: dict[str, int]
    after: dict[str, int]
    gradients: dict[str, int | None]


def _entries(token: Token) -> _Scan:
    lowering = Lowering(token.rule)
    tape = lowering.tape
    leaves = {x.name: tape.leaf(x.name, x.axis, Level.TOKEN) for x in token.rule.inputs}
    after = {s: tape.spread(lowering.lower(ref), ref.axis) for s, ref in token.last.items()}
    cotangents: dict[int, list[int]] = {}
    for s, entry in after.items():
        cotangents.setdefault(entry, []).append(tape.leaf(f"d {s}", _key(token.states[s]), Level.TOKEN))
    found = reverse(tape, cotangents, list(leaves.values()))
    return _Scan(lowering, leaves, after, {name: found[entry] for name, entry in leaves.items()})


def sequential_source(token: Token, name: str) -> list[str]:
    """The definitions of `name.apply(T, x0, x1, ..., start of each state)`, which gives every state over all tokens.

    x are [B, T, H, ...], starts [B, H, ...], all in float32; the results [B, 1 + T, H, ...] with the start first.
    """
    scan = _entries(token)
    kernels = [_forward(token, scan, f"{name}_kernel"), _reverse(token, scan, f"reverse{name}_kernel")]
    return [*called(kernels), *kernels, _host(token, name)]


def _axes(token: Token) -> list[Axis]:
    """The vector axes of a token, as tiles have them."""
    present = {x.axis for x in token.rule.inputs} | {line.value.axis for line in token.rule.lines}
    return [axis for axis in COLUMNS if axis in present]


def _kernel(token: Token, name: str, docstring: str, pointers: list[str]) -> Text:
    text = Text()
    constants = [c for axis in _axes(token) for c in (COLUMNS[axis].upper(), f"{COLUMNS[axis].upper()}P")]
    text('@triton.jit(do_not_specialize=["T", "H"])')
    text.call(f"def {name}", [*pointers, "T", "H", *(f"{c}: tl.constexpr" for c in constants)], ":")
    text.depth = 1
    text(f'"""{docstring}"""')
    text("sequence, head = tl.program_id(0).to(tl.int64) // H, tl.program_id(0).to(tl.int64) % H")
    text("one = tl.zeros([1, 1], tl.int64)")
    for axis in _axes(token):
        c = COLUMNS[axis]
        text(f"col_{c} = tl.arange(0, {c.upper()}P)[None, :]", f"in_{c} = col_{c} < {c.upper()}")
        text(f"dim_{c} = tl.full([1, 1], {c.upper()}, tl.float32)")
    return text


def _at(pointer: str, row: str, axis: Axis) -> tuple[str, str]:
    """Where a row of a tensor lies, and the mask of its columns."""
    if axis is Axis.SCALAR:
        return f"{pointer} + {row} + one", ""
    c, row = COLUMNS[axis], row if row.isidentifier() else f"({row})"
    return f"{pointer} + {row} * {c.upper()} + col_{c}", f", mask=in_{c}"


def _load(pointer: str, row: str, axis: Axis) -> str:
    at, mask = _at(pointer, row, axis)
    return f"tl.load({at}{mask}{', other=0.0' if mask else ''})"


def _store(pointer: str, row: str, axis: Axis, value: str) -> str:
    at, mask = _at(pointer, row, axis)
    return f"tl.store({at}, {value}{mask})"


def _masked(value: str, axis: Axis) -> str:
    """A tile whose columns past the last are 0, as those of a value that has been loaded."""
    if axis is Axis.SCALAR:
        return f"{value} + tl.zeros([1, 1], tl.float32)"
    return f"tl.where(in_{COLUMNS[axis]}, {value}, 0.0)"


def _writer(scan: _Scan, names: dict[int, str]) -> Writer:
    count = iter(range(10_000))
    return Writer(scan.lowering.tape, TILES, names, lambda: f"r{next(count)}")


def _forward(token: Token, scan: _Scan, name: str) -> str:
    states = {s: _key(axis) for s, axis in token.states.items()}
    pointers = [*(f"{x}_in" for x in token.needs), *(f"{s}_start" for s in states), *(f"{s}_all" for s in states)]
    text = _kernel(token, name, "The states of all tokens of a sequence and head.", pointers)
    for s, axis in states.items():
        text(f"{s}_now = {_load(f'{s}_start', 'sequence * H + head', axis)}")
        text(_store(f"{s}_all", "sequence * (T + 1) * H + head", axis, f"{s}_now"))
    tape, roots = scan.lowering.tape, list(scan.after.values())
    names = {entry: x if x in token.needs else f"{x}_now" for x, entry in scan.leaves.items()}
    writer = _writer(scan, names)
    with text.block("for token in range(T):"):
        text("row = (sequence * T + token) * H + head", "after = (sequence * (T + 1) + token + 1) * H + head")
        for entry in writer.leaves(roots):
            x = tape[entry].key[0]
            if x in token.needs:
                text(f"{x} = {_load(f'{x}_in', 'row', tape[entry].axis)}")
        text(*(statement for _, statement in writer.statements(roots) if statement))
        text(*(f"{s}_next = {_masked(writer.text(entry), states[s])}" for s, entry in scan.after.items()))
        for s, axis in states.items():
            text(f"{s}_now = {s}_next", _store(f"{s}_all", "after", axis, f"{s}_now"))
    return str(text)


def _reverse(token: Token, scan: _Scan, name: str) -> str:
    states = {s: _key(axis) for s, axis in token.states.items()}
    pointers = [*(f"{x}_in" for x in token.needs), *(f"{s}_all" for s in states), *(f"{s}_dall" for s in states)]
    pointers += [*(f"{x}_dout" for x in token.needs), *(f"{s}_dstart" for s in states)]
    text = _kernel(token, name, "The gradients of a sequence and head, against time.", pointers)
    tape = scan.lowering.tape
    roots = [d for d in scan.gradients.values() if d is not None]
    names = {entry: x if x in token.needs else f"{x}_now" for x, entry in scan.leaves.items()}
    names |= {tape.leaf(f"d {s}", axis, Level.TOKEN): f"{s}_dnow" for s, axis in states.items()}
    writer = _writer(scan, names)
    for s, axis in states.items():
        shape = "[1, 1]" if axis is Axis.SCALAR else f"[1, {COLUMNS[axis].upper()}P]"
        text(f"{s}_dnow = tl.zeros({shape}, tl.float32)")
    with text.block("for step in range(T):"):
        text("token = T - 1 - step", "row = (sequence * T + token) * H + head")
        text("before = (sequence * (T + 1) + token) * H + head")
        for s, axis in states.items():
            text(f"{s}_now = {_load(f'{s}_all', 'before', axis)}")
            text(f"{s}_dnow += {_load(f'{s}_dall', 'before + H', axis)}")
        for x, e in token.needs.items():
            text(f"{x} = {_load(f'{x}_in', 'row', _key(e.axis))}")
        text(*(statement for _, statement in writer.statements(roots) if statement))
        for x, e in token.needs.items():
            d = scan.gradients[x]
            axis = _key(e.axis)
            text(_store(f"{x}_dout", "row", axis, _masked("0.0" if d is None else writer.text(d), axis)))
        for s, axis in states.items():
            d = scan.gradients[s]
            text(f"{s}_dnext = {_masked('0.0' if d is None else writer.text(d), axis)}")
        text(*(f"{s}_dnow = {s}_dnext" for s in states))
    for s, axis in states.items():
        text(f"{s}_dnow += {_load(f'{s}_dall', 'sequence * (T + 1) * H + head', axis)}")
        text(_store(f"{s}_dstart", "sequence * H + head", axis, f"{s}_dnow"))
    return str(text)


def _sizes(token: Token) -> tuple[list[str], list[str]]:
    """Statements that find the sizes of a token's axes among its tensors, and the kernels' constants."""
    lines, constants = [], []
    for axis in _axes(token):
        c = COLUMNS[axis].upper()
        among = [f"{x}_start" for x, a in token.states.items() if _key(a) is axis]
        among += [x for x, e in token.needs.items() if _key(e.axis) is axis]
        lines.append(f"{c} = {among[0]}.shape[-1]")
        constants += [f"{c}={c}", f"{c}P=triton.next_power_of_2({c})"]
    return lines, constants


def _host(token: Token, name: str) -> str:
    needs, states = list(token.needs), list(token.states)
    starts, every = [f"{s}_start" for s in states], [f"{s}_all" for s in states]
    lines, constants = _sizes(token)
    text = Text()
    with text.block(f"class {name}(torch.autograd.Function):"):
        text(f'"""{", ".join(states)} for every token; the gradients are not differentiable again."""')
        text("", "@staticmethod")
        head = ["ctx", "T: int", *(f"{x}: Tensor" for x in [*needs, *starts])]
        text.call("def forward", head, " -> tuple[Tensor, ...]:")
        text.depth += 1
        text(f"B, H = {starts[0]}.shape[:2]", *lines)
        text(*(f"{x} = {x}.contiguous()" for x in [*needs, *starts]))
        text(*(f"{s}_all = {s}_start.new_empty(B, T + 1, *{s}_start.shape[1:])" for s in states))
        with text.block(f"with torch.cuda.device_of({starts[0]}):"):
            text.call(f"{name}_kernel[(B * H,)]", [*needs, *starts, *every, "T", "H", *constants, "num_warps=1"])
        text.call("ctx.save_for_backward", [*needs, *every])
        text(f"return {_tuple(every)}")
        text.depth -= 1
        text("", "@staticmethod", "@_once")
        given = [f"{s}_dall" for s in states]
        text.call("def backward", ["ctx", *(f"{x}: Tensor" for x in given)], " -> tuple[Tensor | None, ...]:")
        text.depth += 1
        text(f"{_tuple([*needs, *every])} = ctx.saved_tensors")
        text(f"B, T, H = {every[0]}.shape[0], {every[0]}.shape[1] - 1, {every[0]}.shape[2]")
        text(*(x.replace("_start", "_all") for x in lines))
        text(*(f"{x} = {x}.contiguous()" for x in given))
        text(*(f"{x}_dout = torch.empty_like({x})" for x in needs))
        text(*(f"{s}_dstart = {s}_all.new_empty(B, *{s}_all.shape[2:])" for s in states))
        results = [*(f"{x}_dout" for x in needs), *(f"{s}_dstart" for s in states)]
        with text.block(f"with torch.cuda.device_of({every[0]}):"):
            arguments = [*needs, *every, *given, *results, "T", "H", *constants, "num_warps=1"]
            text.call(f"reverse{name}_kernel[(B * H,)]", arguments)
        text(f"return None, {', '.join(results)}")
    return str(text)


def _tuple(names: list[str]) -> str:
    return f"{', '.join(names)}{',' if len(names) == 1 else ''}"
