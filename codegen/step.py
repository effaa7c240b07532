"""The step reference: a rule's own lines, one PyTorch statement each, looped over the tokens.

It follows the text literally and knows nothing of the normal form, so it runs every rule of the language, and the other
backends are measured against it.
"""

from __future__ import annotations

from stateir.ir import Axis, Let, Line, Read, Rule, Update
from stateir.scans import turning

from .carried import carries_s_alone, prev_windows, run_source, start_source
from .expr import Scope, element, scope_of, torch_text
from .text import arguments_of, assignment, expanded, function, helpers, line_comment, module, sizes, varies

LEADING = ("B", "H")


def step_source(rule: Rule) -> str:
    """Source of a module with `start(B, H, K, V)`, `step(state, token...)` and `run(sequence..., state=None)`."""
    scope = scope_of(rule)
    step = step_function(rule, scope)
    docstring = f"{rule.name}, token by token: each line of the rule is one statement of `step`."
    if rule.title:
        docstring = f"{rule.title}\n\n{docstring}\n"
    return module(docstring, [*helpers(scope), start_source(rule), step, run_source(rule, _loop)])


def step_function(rule: Rule, scope: Scope) -> str:
    """Text of `step(state, token...)`; the scope then knows the helpers that it calls."""
    windows = {name: scope.fresh(f"prev_{scope.names[name]}") for name in prev_windows(rule)}
    scope.prev = lambda e: element(f"{windows[e.of.name]}[:, -{e.n}]", e.axis, e.of.index)
    state = scope.names["S"] if carries_s_alone(rule) else scope.fresh("state")
    carried = {s.name: scope.names[s.name] for s in rule.states}
    carried |= {f"prev.{name}": window for name, window in windows.items()}

    body: list[str] = []
    varying = {i.name for i in rule.inputs} | {s.name for s in rule.states}
    angles = turning(rule)
    for line in rule.lines:
        body += [line_comment(rule, line), _statement(rule, line, scope, varying, angles)]
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


def _statement(rule: Rule, line: Line, scope: Scope, varying: set[str], angles: frozenset[str]) -> str:
    e = line.value
    match line:
        case Let(name):
            return assignment(scope.names[name], torch_text(e, scope))
        case Update(name):
            target = scope.names[name]
            axis = next(s.axis for s in rule.states if s.name == name)
            text = torch_text(e, scope, axis)
            if scope.is_const(e):
                text = f"torch.full_like({target}, {text})"
            elif not varies(e, varying) or e.axis is not axis:
                text = f"({text}).expand_as({target})"
            if name in angles:
                text = f"torch.remainder({text}, 2 * math.pi)"
            return assignment(target, text)
        case Read(name):
            text = torch_text(e, scope, Axis.VALUE)
            if not varies(e, varying):
                text = expanded(text, e, Axis.VALUE, rule, scope, LEADING)
            return assignment(scope.names[name], text)


def _loop(rule: Rule, scope: Scope) -> list[str]:
    """The body of `run` after its preamble: the step for each token."""
    state, outputs, token, each = (scope.fresh(name) for name in ("state", "outputs", "token", "x"))
    output = scope.names[rule.read.name]
    inputs = ", ".join(scope.names[i.name] for i in rule.inputs) + ("," if len(rule.inputs) == 1 else "")
    params = "".join(f", {scope.names[p.name]}" for p in rule.params)
    # unbind, not x[:, t]: the gradient of a slice is a tensor of the whole sequence, for every token
    return [
        f"{outputs} = []",
        f"for {token} in zip(*({each}.unbind(1) for {each} in ({inputs})), strict=True):",
        f"    {output}, {state} = step({state}, *{token}{params})",
        f"    {outputs}.append({output})",
        f"{output} = torch.stack({outputs}, 1)",
    ]
