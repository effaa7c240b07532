"""Text for a state that is a column of S (`stateir.column`): the two side by side, and the output from what both read.

`EXTRA` equal columns stand beside S: one, or as many as keep a row of bfloat16 aligned in memory.
"""

from __future__ import annotations

from stateir.column import READ, VALUES, Column
from stateir.ir import Axis, Expr, Input, Num, Read, Ref, Rule, children, rebuild, walk
from stateir.ranges import Ranges

from .expr import scope_of, torch_text
from .text import assignment, function, helpers, sizes


def widened_source(extra: int) -> str:
    """Text of `widened(x, column)` and of EXTRA, the number of columns beside S."""
    return f'''
EXTRA = {extra}  # columns beside S


def widened(x: Tensor, column: Tensor) -> Tensor:
    """x [..., V] with `column` [...] beside it, EXTRA times."""
    return torch.cat((x, column[..., None].expand(*column.shape, EXTRA)), -1)
'''


def state_before(state: str, column: Column | None) -> str:
    """The text of S with its column, from the carried state."""
    return f'{state}["S"]' if column is None else f'widened({state}["S"], {state}["{column.state}"])'


def state_after(S: str, carried: str, column: Column | None) -> str:
    """The text of the carried state, from S with its column and from the rest."""
    if column is None:
        return f'{{"S": {S}, **{carried}}}'
    return f'{{"S": {S}[..., :-EXTRA], "{column.state}": {S}[..., -EXTRA], **{carried}}}'


def terms_of_output(column: Column) -> dict[str, Expr]:
    """The parts of the output that S and the column have no part in, by the names of their tensors: h0, h1, ..."""
    return {name: e for e, name in _terms(column)[0].items()}


def output_source(rule: Rule, column: Column) -> str:
    """Text of `output(reads, tensors)`: the output [..., V] from what S and the columns read, and `terms_of_output`."""
    terms, output = _terms(column)
    ranges = Ranges(rule)
    # The text is that of a rule whose inputs are these, so that it is guarded as the rule's own read.
    reads = [Input(VALUES.name, Axis.VALUE), Input(READ.name, Axis.SCALAR, range=ranges.of(column.read))]
    inputs = [*reads, *(Input(name, e.axis, range=ranges.of(e)) for e, name in terms.items())]
    epilogue = Rule(rule.name, "", tuple(inputs), (), (), (Read("o", output),))
    scope = scope_of(epilogue)
    scope.names |= {VALUES.name: "values", READ.name: "column"}
    body = [f'{name} = tensors["{name}"]' for name in terms.values()]
    text = assignment("o", torch_text(output, scope, Axis.VALUE))
    body = ["values, column = reads[..., :-EXTRA], reads[..., -EXTRA]", *body, *sizes(epilogue, scope, ()), text]
    docstring = "The output, from what S and its column have read and from the tensors of the prologue."
    made = function("output", ["reads: Tensor", "tensors: dict[str, Tensor]"], "Tensor", docstring, [*body, "return o"])
    return "\n\n\n".join([*helpers(scope), made])


def _terms(column: Column) -> tuple[dict[Expr, str], Expr]:
    """The largest parts of the output without `READ` and `VALUES`, named, and the output in terms of these names."""
    found: dict[Expr, str] = {}

    def named(e: Expr) -> Expr:
        if isinstance(e, Num) or e in (READ, VALUES):
            return e
        if any(x in (READ, VALUES) for x in walk(e)):
            return rebuild(e, tuple(named(x) for x in children(e)))
        return Ref(found.setdefault(e, f"h{len(found)}"), e.axis)

    output = named(column.output)
    return found, output
