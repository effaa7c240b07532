"""The step reference: a rule's own lines, one PyTorch statement each, looped over the tokens.

It follows the text literally and knows nothing of the normal form, so it runs every rule of the language, and the other
backends are measured against it.
"""

from __future__ import annotations

from stateir.ir import Axis, Let, Line, Prev, Read, Rule, S, State, Update, walk

from .expr import Scope, element, scope_of, torch_text
from .text import arguments_of, expanded, function, helpers, line_comment, module, sizes, varies

LEADING = ("B", "H")


def prev_windows(rule: Rule) -> dict[str, int]:
    """How many tokens back the rule looks at each input, for those it looks back at."""
    windows: dict[str, int] = {}
    for line in rule.lines:
        for x in walk(line.value):
            if isinstance(x, Prev):
                windows[x.of.name] = max(x.n, windows.get(x.of.name, 0))
    return {i.name: windows[i.name] for i in rule.inputs if i.name in windows}


def carries_s_alone(rule: Rule) -> bool:
    """Whether the carried state is the tensor S; otherwise it is a dict by name."""
    return rule.states == (S,) and not prev_windows(rule)


def step_source(rule: Rule) -> str:
    """Source of a module with `start(B, H, K, V)`, `step(state, token...)` and `run(sequence..., state=None)`."""
    scope = scope_of(rule)
    step = _step(rule, scope)
    docstring = f"{rule.name}, token by token: each line of the rule is one statement of `step`."
    if rule.title:
        docstring = f"{rule.title}\n\n{docstring}\n"
    return module(docstring, [*helpers(scope), _start(rule), step, _run(rule)])


def _step(rule: Rule, scope: Scope) -> str:
    windows = {name: scope.fresh(f"prev_{scope.names[name]}") for name in prev_windows(rule)}
    scope.prev = lambda e: element(f"{windows[e.of.name]}[:, -{e.n}]", e.axis, e.of.index)
    state = scope.names["S"] if carries_s_alone(rule) else scope.fresh("state")
    carried = {s.name: scope.names[s.name] for s in rule.states}
    carried |= {f"prev.{name}": window for name, window in windows.items()}

    body: list[str] = []
    varying = {i.name for i in rule.inputs} | {s.name for s in rule.states}
    for line in rule.lines:
        body += [line_comment(rule, line), _statement(rule, line, scope, varying)]
        if isinstance(line, Let) and varies(line.value, varying):
            varying.add(line.name)
    body += [
        f"{window} = torch.cat(({window}[:, 1:], {scope.names[name]}[:, None]), 1)" for name, window in windows.items()
    ]
    body = [*sizes(rule, scope, LEADING), *body]
    output = scope.names[rule.read.name]
    if carries_s_alone(rule):
        kind = "Tensor"
        body.append(f"return {output}, {state}")
    else:
        kind = "dict[str, Tensor]"
        body = [*(f'{name} = {state}["{key}"]' for key, name in carried.items()), *body]
        entries = ", ".join(f'"{key}": {name}' for key, name in carried.items())
        body.append(f"return {output}, {{{entries}}}")
    arguments = [f"{state}: {kind}", *(f"{scope.names[d.name]}: Tensor" for d in arguments_of(rule))]
    docstring = "One token: vectors [B, H, D], scalars [B, H], params [H, ...]; S is [B, H, K, V]."
    return function("step", arguments, f"tuple[Tensor, {kind}]", docstring, body)


def _statement(rule: Rule, line: Line, scope: Scope, varying: set[str]) -> str:
    e = line.value
    match line:
        case Let(name):
            return f"{scope.names[name]} = {torch_text(e, scope)}"
        case Update(name):
            target = scope.names[name]
            axis = next(s.axis for s in rule.states if s.name == name)
            text = torch_text(e, scope, axis)
            if scope.is_const(e):
                text = f"torch.full_like({target}, {text})"
            elif not varies(e, varying) or e.axis is not axis:
                text = f"({text}).expand_as({target})"
            return f"{target} = {text}"
        case Read(name):
            text = torch_text(e, scope, Axis.VALUE)
            if not varies(e, varying):
                text = expanded(text, e, Axis.VALUE, rule, scope, LEADING)
            return f"{scope.names[name]} = {text}"


def _start(rule: Rule) -> str:
    """The state before the first token. No name of the rule occurs in it."""
    scope = Scope({})
    entries = {s.name: _filled(s, scope) for s in rule.states}
    for i in rule.inputs:
        if n := prev_windows(rule).get(i.name):
            shape = ", ".join(["B", str(n), "H", *([] if i.size is None else [str(i.size)]), *_dims(i.axis)])
            entries[f"prev.{i.name}"] = f"torch.zeros({shape}, dtype=dtype, device=device)"
    if carries_s_alone(rule):
        kind, body = "Tensor", [f"return {entries['S']}"]
    else:
        kind = "dict[str, Tensor]"
        body = ["return {", *(f'    "{key}": {text},' for key, text in entries.items()), "}"]
    arguments = [f"{size}: int" for size in "BHKV"]
    arguments += ["dtype: torch.dtype = torch.float32", "device: torch.device | str | None = None"]
    return function("start", arguments, kind, "The state before the first token.", body)


def _dims(axis: Axis) -> list[str]:
    return {
        Axis.SCALAR: [], Axis.KEY: ["K"], Axis.VALUE: ["V"], Axis.PAIR: ["K // 2"], Axis.MATRIX: ["K", "V"]
    }[axis]  # fmt: skip


def _filled(state: State, scope: Scope) -> str:
    shape = ", ".join(["B", "H", *_dims(state.axis)])
    if state.start is None:
        return f"torch.zeros({shape}, dtype=dtype, device=device)"
    return f"torch.full(({shape}), {torch_text(state.start, scope)}, dtype=dtype, device=device)"


def _run(rule: Rule) -> str:
    scope = scope_of(rule)
    state, outputs, t, dtype = (scope.fresh(name) for name in ("state", "outputs", "t", "dtype"))
    names = [scope.names[d.name] for d in arguments_of(rule)]
    first = names[0]
    value = next((scope.names[i.name] for i in rule.inputs if i.axis is Axis.VALUE), first)
    scope.used |= {"K", "V", "H"}
    token = [f"{scope.names[i.name]}[:, {t}]" for i in rule.inputs] + [scope.names[p.name] for p in rule.params]
    output = scope.names[rule.read.name]
    B, T, H, K, V = (scope.fresh(name) for name in "BTHKV")
    every = ", ".join(names) + ("," if len(names) == 1 else "")
    body = [
        f"{dtype} = {value}.dtype",
        f"{every} = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in ({every}))",
        *sizes(rule, scope, ("B", "T", "H")),
        f"if {state} is None:",
        f"    {state} = start({B}, {H}, {K}, {V}, {first}.dtype, {first}.device)",
        f"{outputs} = []",
        f"for {t} in range({T}):",
        f"    {output}, {state} = step({state}, {', '.join(token)})",
        f"    {outputs}.append({output})",
        f"return torch.stack({outputs}, 1).to({dtype}), {state}",
    ]
    kind = "Tensor" if carries_s_alone(rule) else "dict[str, Tensor]"
    arguments = [*(f"{name}: Tensor" for name in names), f"{state}: {kind} | None = None"]
    docstring = "A sequence: inputs [B, T, H, ...], params [H, ...]; the output [B, T, H, V] and the state after it."
    return function("run", arguments, f"tuple[Tensor, {kind}]", docstring, body)
