"""Expressions: syntax tree -> typed tree, with axes checked. None stands for a part whose error is reported already."""

from __future__ import annotations

import math
from typing import Literal, cast

from . import syntax as syn
from .axes import KEY, MATRIX, SCALAR, VALUE, ambiguity, contracted, joined, named
from .calls import call
from .consts import number, overflowing
from .ir import Axis, Bin, Contract, Expr, Head, Neg, Num, Ref, Span, walk
from .names import TRANSPOSES, Entry, nearest, reserved
from .report import Report

# `line`: any value. `start`: constants, and `dim`. `head`: the same with `head`. `bound`: numbers alone.
Where = Literal["line", "start", "head", "bound"]
_PLACES = {"start": "a start value", "head": "a start value", "bound": "the bound of a range"}
_VECTORS = ("input", "param", "let")
Op = Literal["+", "-", "*", "/", "^"]


class Typer:
    """Types expressions in the scope of one moment: `versions` counts the updates of each state so far."""

    def __init__(self, text: str, scope: dict[str, Entry], versions: dict[str, int], report: Report) -> None:
        self.lines = text.split("\n")
        self.scope = scope
        self.versions = versions
        self.report = report
        self.where: Where = "line"

    def source(self, span: Span) -> str:
        return self.lines[span.line - 1][span.column - 1 : span.end - 1]

    def expression(self, e: syn.Expr, where: Where = "line") -> Expr | None:
        self.where = where
        typed = self.type(e)
        if typed is None or where != "line":
            return typed
        infinite = overflowing(typed)
        if infinite is None:
            return typed
        self.report.add("E406", infinite.span, what=f"`{self.source(infinite.span)}`")
        return None

    def type(self, e: syn.Expr) -> Expr | None:
        match e:
            case syn.Number(text, span):
                return Num(float(text), span)
            case syn.Name():
                return self.name(e)
            case syn.Item():
                return self.item(e)
            case syn.Group(x):
                return self.type(x)
            case syn.Negate(x, span):
                inner = self.type(x)
                return None if inner is None else Neg(inner, inner.axis, span)
            case syn.Power(base, exponent, span):
                a, b = self.type(base), self.type(exponent)
                return None if a is None or b is None else self.binary("^", a, b, span)
            case syn.Sum():
                return self.sum(e)
            case syn.Chain():
                return self.chain(e)
        return call(self, e)

    # names

    def name(self, e: syn.Name) -> Expr | None:
        if e.id == "inf":
            if self.where != "line":
                return Num(math.inf, e.span)
            self.report.add("E104", e.span, what="`inf` may stand only in start values and ranges")
            return None
        if e.id == "head":
            if self.where == "head":
                return Head(e.span)
            self.report.add("E104", e.span, what="`head` may stand only in the start value of a param")
            return None
        entry = self.lookup(e.id, e.span)
        if entry is None:
            return None
        if entry.kind in ("const", "loop"):
            return number(entry.value, e.span)
        if not self._variable(e.id, e.span):
            return None
        if entry.size is not None:
            self.report.add("E209", e.span, what=f"`{e.id}` is an array of {entry.size}: it needs an index")
            return None
        return Ref(e.id, entry.axis, version=self.versions.get(e.id, 0), span=e.span)

    def lookup(self, name: str, span: Span) -> Entry | None:
        """The entry of a name that must be defined; None, reported unless its own line is broken."""
        what = reserved(name) if name != "S" else None
        if what is not None:
            self.report.add("E103", span, name=name, what=what)
            return None
        entry = self.scope.get(name)
        if entry is None:
            close = nearest(name, self.scope)
            help = f"did you mean `{close[0]}`?" if close else None
            if name in TRANSPOSES:
                help = "there is no transpose: write `outer(k, v)` for k vᵀ, `k @ S` for Sᵀk"
            self.report.add("E101", span, what="the name", name=name, help=help)
            return None
        if entry.kind == "output":
            help = "write what is read instead, or name it by a `let` above both lines"
            self.report.add("E104", span, what=f"`{name}` is the output, which no line can use", help=help)
            return None
        return None if entry.kind == "broken" else entry

    def _variable(self, name: str, span: Span) -> bool:
        if self.where == "line":
            return True
        self.report.add("E104", span, what=f"`{name}` is not a constant: {_PLACES[self.where]} is made of constants")
        return False

    def item(self, e: syn.Item) -> Expr | None:
        if e.id in ("head", "inf"):
            self.report.add("E103", e.span, name=e.id, what="a reserved word")
            return None
        entry = self.lookup(e.id, e.span)
        if entry is None or not self._variable(e.id, e.span):
            return None
        if entry.kind == "state":
            self.report.add(
                "E203",
                e.span,
                name=e.id,
                rewrites=[e.id],
                help=f"time is the order of the lines: `{e.id}` is the state just before its line",
            )
            return None
        if entry.size is None:
            self.report.add(
                "E209",
                e.span,
                what=f"`{e.id}` is not an array",
                help="an index selects an element of an array, not a time; `prev(x, n)` looks back",
            )
            return None
        index = self.place(e.place)
        if index is None:
            return None
        if not 0 <= index < entry.size:
            self.report.add(
                "E208",
                e.place.span,
                what=f"the index {index} is outside `{e.id}[{entry.size}]`",
                help=f"indices of `{e.id}` run from 0 to {entry.size - 1}",
            )
            return None
        return Ref(e.id, entry.axis, index=index, span=e.span)

    def place(self, p: syn.Place) -> int | None:
        """The whole number that a place stands for."""
        if p.name is None:
            return p.offset
        entry = self.scope.get(p.name)
        if entry is not None and entry.kind == "broken":
            return None
        if entry is None or entry.kind not in ("const", "loop") or not entry.value.is_integer():
            self.report.add(
                "E208",
                p.span,
                what=f"`{p.name}` is not a whole number known at compile time",
                help="use a literal, the variable of `for`, or a `let` that is a whole number",
            )
            return None
        return int(entry.value) + p.offset

    # arithmetic

    def sum(self, e: syn.Sum) -> Expr | None:
        typed = [self.type(x) for x in e.terms]
        if any(x is None for x in typed):
            return None
        result, *rest = cast("list[Expr]", typed)
        for op, x in zip(e.ops, rest, strict=True):
            made = self.binary(cast(Op, op), result, x, Span(e.span.line, e.span.column, x.span.end))
            if made is None:
                return None
            result = made
        return result

    def chain(self, e: syn.Chain) -> Expr | None:
        maybe = [self.type(x) for x in e.factors]
        if any(x is None for x in maybe):
            return None
        typed = cast("list[Expr]", maybe)
        unclear = ambiguity([x.axis for x in typed], e.ops, [self.source(x.span) for x in e.factors])
        if unclear is not None:
            what, left, right = unclear
            self.report.add("E215", e.span, what=what, help=f"write `{left}` or `{right}`", rewrites=[left, right])
            return None
        result = typed[0]
        for op, written, x in zip(e.ops, e.factors[1:], typed[1:], strict=True):
            span = Span(e.span.line, e.span.column, written.span.end)
            made = self.contract(result, x, span) if op == "@" else self.binary(cast(Op, op), result, x, span)
            if made is None:
                return None
            result = made
        return result

    def binary(self, op: Op, a: Expr, b: Expr, span: Span) -> Expr | None:
        axis = joined(op, a.axis, b.axis)
        if axis is not None:
            return Bin(op, a, b, axis, span)
        help = None
        if {a.axis, b.axis} == {KEY, VALUE} and op == "*":
            help = "`outer(key, value)` joins a key and a value vector to a matrix"
        elif MATRIX in (a.axis, b.axis) and op in "+-":
            help = "only a matrix is added to a matrix: write `outer(key, value)`"
        self.misfit(op, a, b, span, f"`{op}` of {named(a.axis)} and {named(b.axis)}", help)
        return None

    def contract(self, a: Expr, b: Expr, span: Span) -> Expr | None:
        axis = contracted(a.axis, b.axis)
        if axis is not None:
            return Contract(a, b, axis, span)
        scalar = SCALAR in (a.axis, b.axis)
        shared = "two axes" if a.axis is b.axis is MATRIX else "no axis"
        help = "a product with a scalar is written `*`" if scalar else "`@` sums over the one axis that both share"
        self.misfit("@", a, b, span, f"`@` of {named(a.axis)} and {named(b.axis)}: they share {shared}", help)
        return None

    def misfit(self, op: str, a: Expr, b: Expr, span: Span, what: str, help: str | None) -> None:
        """Reports axes that do not fit, or that a matrix state was contracted over value, if that is why."""
        culprit = next((x for e in (a, b) for x in walk(e) if self.sums_over_value(x)), None)
        if culprit is not None:
            self.report.add("E303", culprit.span)
            return
        from .rewrites.axes import operands

        def vectors(axis: Axis) -> list[str]:
            return [n for n, e in self.scope.items() if e.axis is axis and e.size is None and e.kind in _VECTORS]

        texts = self.source(a.span), self.source(b.span)
        rewrites = operands(op, (a.axis, b.axis), texts, vectors(KEY), vectors(VALUE))
        self.report.add("E202", span, what=what, help=help, rewrites=rewrites)

    def sums_over_value(self, e: Expr) -> bool:
        """Whether e is `S @ v`, for S any matrix state."""
        return (
            isinstance(e, Contract)
            and e.axis is KEY
            and any(isinstance(x, Ref) and x.axis is MATRIX and x.name in self.versions for x in walk(e))
        )
