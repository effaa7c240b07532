"""Calls of functions: `outer`, `prev`, `dim` and those of `ir.FUNCTIONS`."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from . import syntax as syn
from .axes import KEY, MATRIX, PAIR, SCALAR, VALUE, joined, named
from .ir import FUNCTIONS, Axis, Call, Dim, Expr, Outer, Prev, Ref, Span
from .names import BUILTINS, MAX_COUNT, Entry, nearest, reserved

if TYPE_CHECKING:
    from .expressions import Typer


def call(typer: Typer, e: syn.Apply) -> Expr | None:
    fn = e.fn.id
    if fn not in BUILTINS:
        typer.report.add("E101", e.fn.span, what="the function", name=fn, help=_unknown_function(typer, fn))
        return None
    if fn == "dim":
        return _dim(typer, e)
    if fn == "prev":
        return _prev(typer, e)
    maybe = [typer.type(x) for x in e.args]
    count = FUNCTIONS.get(fn, 2)
    if len(e.args) != count:
        typer.report.add("E212", e.span, what=f"`{fn}` takes {count} argument{'s' * (count > 1)}, not {len(e.args)}")
        return None
    if any(x is None for x in maybe):
        return None
    args = tuple(cast("list[Expr]", maybe))
    return _apply(typer, fn, args, e.span)


def _unknown_function(typer: Typer, fn: str) -> str:
    from .rewrites.idioms import words

    if fn in typer.scope or reserved(fn) is not None:
        return f"`{fn}` is a name, not a function"
    close = [f"did you mean `{near}`?" for near in nearest(fn, BUILTINS)]
    return words(fn) or next(iter(close), "functions are " + ", ".join(sorted(BUILTINS)))


def _apply(typer: Typer, fn: str, args: tuple[Expr, ...], span: Span) -> Expr | None:
    axes = [x.axis for x in args]
    axis: Axis | None = axes[0]
    if fn == "outer":
        if set(axes) == {KEY, VALUE}:
            key, value = args if axes[0] is KEY else args[::-1]
            return Outer(key, value, span)
        axis, wanted = None, "one key and one value vector"
        if set(axes) == {KEY}:
            wanted += ": (1 - β k kᵀ) S is `S - outer(beta * k, k @ S)`"
    elif fn == "unit":
        if axis in (SCALAR, MATRIX):
            typer.report.add("E211", span, what=f"`unit` of {named(axes[0])}; it takes a vector")
            return None
    elif fn == "rotate":
        axis = KEY if axes[0] is KEY and axes[1] in (PAIR, SCALAR) else None
        wanted = "a key vector and an angle (pair or scalar)"
    elif len(args) == 2:
        axis = joined("+", *axes)
        wanted = "equal axes, or a vector and a scalar"
    if axis is None:
        typer.report.add(
            "E202", span, what=f"`{fn}` of {named(axes[0])} and {named(axes[1])}", help=f"`{fn}` takes {wanted}"
        )
        return None
    return Call(fn, args, axis, span)


def _dim(typer: Typer, e: syn.Apply) -> Expr | None:
    if typer.where == "bound":
        typer.report.add("E104", e.span, what="`dim` may not stand in the bound of a range")
        return None
    if len(e.args) == 1 and isinstance(e.args[0], syn.Name) and e.args[0].id in ("key", "value"):
        return Dim(Axis(e.args[0].id), e.span)
    typer.report.add("E212", e.span, what="`dim` takes the word `key` or `value`")
    return None


def _prev(typer: Typer, e: syn.Apply) -> Expr | None:
    if len(e.args) > 2:
        typer.report.add("E212", e.span, what=f"`prev` takes one or two arguments, not {len(e.args)}")
        return None
    n = 1
    if len(e.args) == 2:
        steps = e.args[1]
        if (
            not isinstance(steps, syn.Number)
            or not float(steps.text).is_integer()
            or not 1 <= float(steps.text) <= MAX_COUNT
        ):
            typer.report.add(
                "E214",
                steps.span,
                what=f"`{typer.source(steps.span)}` tokens ago",
                help=f"`prev(x, n)` takes a literal n from 1 to {MAX_COUNT}",
            )
            return None
        n = int(float(steps.text))
    x = e.args[0]
    if not isinstance(x, syn.Name | syn.Item):
        typer.report.add(
            "E214",
            x.span,
            what="`prev` takes an input, not an expression",
            help="apply `prev` to each input inside",
        )
        return None
    entry = typer.scope.get(x.id)
    if entry is not None and entry.kind not in ("input", "broken"):
        typer.report.add("E214", x.span, what=f"`prev` takes an input; `{x.id}` is {_kind(entry)}")
        return None
    of = typer.type(x)
    return Prev(of, n, of.axis, e.span) if isinstance(of, Ref) else None


def _kind(entry: Entry) -> str:
    return {"input": "an input", "param": "a param", "state": "a state", "loop": "the variable of a loop"}.get(
        entry.kind, "a let"
    )
