"""The prologue: everything of a rule that does not depend on S, for all tokens at once, as PyTorch source text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from stateir.build import ZERO
from stateir.column import Column
from stateir.ir import Axis, Bin, Call, Contract, Expr, Let, Ref, Rule, children, rebuild, walk
from stateir.normal import Core

from .carried import carries_s_alone
from .column_text import terms_of_output
from .expr import Scope, scope_of, torch_text
from .scan import Demand
from .text import arguments_of, assignment, expanded, function, helpers, sizes, varies

# exp of it is exactly 0 in every dtype, and sums of it stay finite: -inf would make NaN of differences.
LOWEST_LOG_DECAY = -10000

LEADING = ("B", "T", "H")


def core_tensors(core: Core) -> dict[str, tuple[Expr, Axis]]:
    """The core's expressions by the keys of the prologue's result, each with the axis of its tensor.

    g; for row j: p{j} (where it is not an earlier row's p), e{j}, y{j}, c{j}_{i} (coupling to row i); for read r: q{r},
    f{r} (factor), m{r}_{i} (coupling to row i); rest. What the core has as None is absent.
    """
    found: dict[str, Expr | None] = {"g": core.g}
    for j, row in enumerate(core.rows):
        if row.p_same == j:
            found[f"p{j}"] = row.p
        found |= {f"e{j}": row.e, f"y{j}": row.y}
        found |= {f"c{j}_{i}": c for i, c in row.couplings}
    for r, read in enumerate(core.reads):
        found |= {f"q{r}": read.q, f"f{r}": read.factor}
        found |= {f"m{r}_{i}": c for i, c in read.couplings}
    found["rest"] = core.rest
    axes = {"p": Axis.KEY, "e": Axis.KEY, "q": Axis.KEY, "y": Axis.VALUE, "rest": Axis.VALUE}
    return {key: (e, axes.get(key.rstrip("0123456789"), e.axis)) for key, e in found.items() if e is not None}


def prologue_source(rule: Rule, core: Core, column: Column | None = None, *, kernels: bool = False) -> str:
    """Source of `prologue(inputs..., params...) -> dict[str, Tensor]` and of the helpers that it calls.

    The arguments are the rule's inputs [B, T, H, ...] and params [H, ...] in the order of their declarations, all of
    one dtype and with one head count. The result has the keys of `core_tensors`: scalars [B, T, H], vectors
    [B, T, H, D]. `text.module` puts the imports above it.

    A rule that carries more than S has `prologue(inputs..., params..., state, chunk)` instead. It takes the carried
    state, a dict by name, and how many tokens a scan takes at a time, and gives the dict of tensors and the carried
    state after the sequence, without S. With `kernels` the states' scans are Triton kernels.

    With a `column`, `core` is that of `without_column`: values have the column beside them, the tensors include
    `terms_of_output`, and the carried state is without the column's state too.
    """
    scope = scope_of(rule)
    state, chunk = scope.new("state"), scope.new("chunk")
    demand = Demand(rule, scope, state, chunk, kernels)
    tensors = core_tensors(core)
    beside = {} if column is None else {f"y{j}": x or ZERO for j, x in enumerate(column.values) if f"y{j}" in tensors}
    tensors |= {} if column is None else {name: (e, e.axis) for name, e in terms_of_output(column).items()}
    roots = [*(e for e, _ in tensors.values()), *beside.values()]
    needed = needed_lets(rule, roots)
    for line in rule.lines:
        if isinstance(line, Let) and line.name in needed:
            demand.need(Ref(line.name, line.value.axis))
    for e in roots:
        demand.need(e)
    demand.need_carried(() if column is None else (column.state,))
    body, varying = demand.body, demand.varying

    shared, tensors = _hoist(tensors, scope, varying)
    body += [assignment(scope.names[name], torch_text(e, scope)) for name, e in shared.items()]
    results = []

    def over_tokens(e: Expr, axis: Axis) -> str:
        text = torch_text(e, scope, axis)
        return text if varies(e, varying) else expanded(text, e, axis, rule, scope, LEADING)

    for key, (e, axis) in tensors.items():
        text = over_tokens(e, axis)
        if key in beside:
            text = f"widened({text}, {over_tokens(beside[key], Axis.SCALAR)})"
        if key == "g":
            text = f"torch.clamp({text}, min={LOWEST_LOG_DECAY})"
        results.append(f'"{key}": {text},')

    docstring = f"What the tokens of {rule.name} need beside S, for all tokens at once."
    arguments = [f"{scope.names[d.name]}: Tensor" for d in arguments_of(rule)]
    kind = "dict[str, Tensor]"
    body = [*sizes(rule, scope, LEADING), *body]
    if carries_s_alone(rule):
        body += ["return {", *(f"    {line}" for line in results), "}"]
    else:
        carried = [f'"{name}": {text},' for name, text in demand.carried.items()]
        found = scope.new("tensors")
        body += [f"{found} = {{", *(f"    {line}" for line in results), "}"]
        body += [f"return {found}, {{", *(f"    {line}" for line in carried), "}"]
        arguments += [f"{state}: {kind}", f"{chunk}: int"]
        kind = f"tuple[{kind}, {kind}]"
    text = function("prologue", arguments, kind, docstring, body)
    scans = [definition.strip("\n") for definition in demand.helpers]
    return "\n\n\n".join([*helpers(scope), *scans, text]) + "\n"


def needed_lets(rule: Rule, roots: list[Expr]) -> set[str]:
    """The lets that the roots refer to, directly or through other lets."""
    found: set[str] = set()
    stack = list(roots)
    while stack:
        for x in walk(stack.pop()):
            if isinstance(x, Ref) and x.name in rule.lets and x.name not in found:
                found.add(x.name)
                stack.append(rule.lets[x.name])
    return found


def _hoist(
    tensors: dict[str, tuple[Expr, Axis]], scope: Scope, varying: set[str]
) -> tuple[dict[str, Expr], dict[str, tuple[Expr, Axis]]]:
    """Name the calls, contractions and whole tensors that occur more than once; the scope learns the new names."""
    counts: Counter[Expr] = Counter()
    for e, _ in tensors.values():
        counts.update(x for x in walk(e) if isinstance(x, Call | Contract) or x is e)
    repeated = [x for x, n in counts.items() if n > 1 and not isinstance(x, Ref) and not scope.is_const(x)]
    shared: dict[str, Expr] = {}
    refs: dict[Expr, Ref] = {}

    def replaced(e: Expr) -> Expr:
        return refs[e] if e in refs else _within(e, replaced)

    for x in sorted(repeated, key=lambda x: sum(1 for _ in walk(x))):
        name = scope.fresh(f"{x.fn if isinstance(x, Call) else 'x'}{len(shared)}")
        value = _within(x, replaced)
        if varies(value, varying):
            varying.add(name)
        scope.names[name] = name
        shared[name] = value
        refs[x] = Ref(name, x.axis)
    return shared, {key: (replaced(e), axis) for key, (e, axis) in tensors.items()}


def _within(e: Expr, replaced: Callable[[Expr], Expr]) -> Expr:
    """e with `replaced` applied below it, but not to a call that e's text makes part of a sharper form or clamps."""
    keep = isinstance(e, Call) or (isinstance(e, Bin) and e.op in "-/^")
    parts = [_within(x, replaced) if keep and isinstance(x, Call) else replaced(x) for x in children(e)]
    return rebuild(e, tuple(parts)) if parts else e
