"""Expressions: syntax tree -> typed tree, with axes checked. None stands for a part whose error is reported already."""

from __future__ import annotations

import math
from typing import Literal, cast

from . import syntax as syn
from .consts import evaluate, number
from .ir import FUNCTIONS, Axis, Bin, Call, Contract, Dim, Expr, Head, Neg, Num, Outer, Prev, Ref, Span
from .names import BUILTINS, Entry, nearest, reserved
from .report import Report

MAX_COUNT = 64
SCALAR, KEY, VALUE, PAIR, MATRIX = Axis.SCALAR, Axis.KEY, Axis.VALUE, Axis.PAIR, Axis.MATRIX

# `line`: any value. `start`: constants, and `dim`. `head`: the same with `head`. `bound`: numbers alone.
Where = Literal["line", "start", "head", "bound"]
_PLACES = {"start": "a start value", "head": "a start value", "bound": "the bound of a range"}
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
        if typed is None or self._finite(typed):
            return typed
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
        return self.call(e)

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
            self.report.add(
                "E209", e.span, what=f"`{e.id}` is an array of {entry.size}: it needs an index", rewrites=[f"{e.id}[0]"]
            )
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
            self.report.add(
                "E101",
                span,
                what="the name",
                name=name,
                rewrites=close,
                help=f"did you mean `{close[0]}`?" if close else None,
            )
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
                rewrites=[e.id],
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
        if not self._grouping_is_clear(e, typed):
            return None
        result = typed[0]
        for op, written, x in zip(e.ops, e.factors[1:], typed[1:], strict=True):
            span = Span(e.span.line, e.span.column, written.span.end)
            made = self.contract(result, x, span) if op == "@" else self.binary(cast(Op, op), result, x, span)
            if made is None:
                return None
            result = made
        return result

    def _grouping_is_clear(self, e: syn.Chain, typed: list[Expr]) -> bool:
        """Rule 9: at most one @ in a run, and every factor but its operands is a scalar."""
        at = [i for i, op in enumerate(e.ops) if op == "@"]
        if not at:
            return True
        source = [self.source(x.span) for x in e.factors]

        def join(lo: int, hi: int) -> str:
            return " ".join(
                [source[lo], *(f"{op} {x}" for op, x in zip(e.ops[lo:hi], source[lo + 1 : hi + 1], strict=True))]
            )

        def group(lo: int, hi: int) -> str:
            return source[lo] if lo == hi else f"({join(lo, hi)})"

        i, last = at[0], len(source) - 1
        if len(at) > 1:
            j = at[1]
            before = f"{join(0, i - 1)} {e.ops[i - 1]} " if i else ""
            after = f" {e.ops[j + 1]} {join(j + 2, last)}" if j + 1 < last else ""
            left = f"{before}({join(i, j)}) @ {source[j + 1]}{after}"
            right = f"{before}{source[i]} @ ({join(i + 1, j + 1)}){after}"
            what = "two `@` in one run of products: they can be grouped in different ways"
        else:
            others = [n for n in range(last + 1) if n not in (i, i + 1)]
            vector = next((n for n in others if typed[n].axis is not SCALAR), None)
            divided = i > 0 and e.ops[i - 1] == "/"
            if vector is None and not divided:
                return True
            before = f"{join(0, i - 1)} {e.ops[i - 1]} " if i else ""
            after = f" {e.ops[i + 1]} {join(i + 2, last)}" if i + 1 < last else ""
            left, right = f"{group(0, i)} @ {group(i + 1, last)}", f"{before}({join(i, i + 1)}){after}"
            what = (
                f"`{source[i]}` both divides and is an operand of `@`"
                if vector is None
                else f"`{source[vector]}` is {named(typed[vector].axis)} in a run with `@`: groupings of it differ"
            )
        self.report.add("E215", e.span, what=what, help=f"write `{left}` or `{right}`", rewrites=[left, right])
        return False

    def binary(self, op: Op, a: Expr, b: Expr, span: Span) -> Expr | None:
        axis = _joined(op, a.axis, b.axis)
        if axis is not None:
            return Bin(op, a, b, axis, span)
        help = None
        if {a.axis, b.axis} == {KEY, VALUE} and op == "*":
            help = "`outer(key, value)` joins a key and a value vector to a matrix"
        elif MATRIX in (a.axis, b.axis) and op in "+-":
            help = "only a matrix is added to a matrix: write `outer(key, value)`"
        rewrites = [f"outer({self.source(a.span)}, {self.source(b.span)})"] if {a.axis, b.axis} == {KEY, VALUE} else []
        self.report.add(
            "E202", span, what=f"`{op}` of {named(a.axis)} and {named(b.axis)}", help=help, rewrites=rewrites
        )
        return None

    def contract(self, a: Expr, b: Expr, span: Span) -> Expr | None:
        shared = _parts(a.axis) & _parts(b.axis)
        if len(shared) == 1:
            left = (_parts(a.axis) | _parts(b.axis)) - shared
            return Contract(a, b, next(iter(left), SCALAR), span)
        text = f"{self.source(a.span)} * {self.source(b.span)}"
        scalar = SCALAR in (a.axis, b.axis)
        self.report.add(
            "E202",
            span,
            what=f"`@` of {named(a.axis)} and {named(b.axis)}: they share {'no axis' if not shared else 'two axes'}",
            help="a product with a scalar is written `*`"
            if scalar
            else "`@` sums over the one axis that both sides share",
            rewrites=[text] if scalar else [],
        )
        return None

    # calls

    def call(self, e: syn.Apply) -> Expr | None:
        fn = e.fn.id
        if fn not in BUILTINS:
            if fn in self.scope or reserved(fn) is not None:
                self.report.add(
                    "E101", e.fn.span, what="the function", name=fn, help=f"`{fn}` is a name, not a function"
                )
            else:
                self.report.add(
                    "E101",
                    e.fn.span,
                    what="the function",
                    name=fn,
                    rewrites=nearest(fn, BUILTINS),
                    help="functions are " + ", ".join(sorted(BUILTINS)),
                )
            return None
        if fn == "dim":
            return self.dim(e)
        if fn == "prev":
            return self.prev(e)
        maybe = [self.type(x) for x in e.args]
        count = FUNCTIONS.get(fn, 2)
        if len(e.args) != count:
            self.report.add("E212", e.span, what=f"`{fn}` takes {count} argument{'s' * (count > 1)}, not {len(e.args)}")
            return None
        if any(x is None for x in maybe):
            return None
        args = tuple(cast("list[Expr]", maybe))
        return self.apply(fn, args, e.span)

    def apply(self, fn: str, args: tuple[Expr, ...], span: Span) -> Expr | None:
        axes = [x.axis for x in args]
        axis: Axis | None = axes[0]
        if fn == "outer":
            if set(axes) == {KEY, VALUE}:
                return Outer(*(args if axes[0] is KEY else args[::-1]), span=span)
            axis, wanted = None, "one key and one value vector"
        elif fn == "unit":
            if axis in (SCALAR, MATRIX):
                self.report.add("E211", span, what=f"`unit` of {named(axes[0])}; it takes a vector")
                return None
        elif fn == "rotate":
            axis = KEY if axes[0] is KEY and axes[1] in (PAIR, SCALAR) else None
            wanted = "a key vector and an angle (pair or scalar)"
        elif len(args) == 2:
            axis = _joined("+", *axes)
            wanted = "equal axes, or a vector and a scalar"
        if axis is None:
            self.report.add(
                "E202", span, what=f"`{fn}` of {named(axes[0])} and {named(axes[1])}", help=f"`{fn}` takes {wanted}"
            )
            return None
        return Call(fn, args, axis, span)

    def dim(self, e: syn.Apply) -> Expr | None:
        if self.where == "bound":
            self.report.add("E104", e.span, what="`dim` may not stand in the bound of a range")
            return None
        if len(e.args) == 1 and isinstance(e.args[0], syn.Name) and e.args[0].id in ("key", "value"):
            return Dim(Axis(e.args[0].id), e.span)
        self.report.add("E212", e.span, what="`dim` takes the word `key` or `value`")
        return None

    def prev(self, e: syn.Apply) -> Expr | None:
        if len(e.args) > 2:
            self.report.add("E212", e.span, what=f"`prev` takes one or two arguments, not {len(e.args)}")
            return None
        n = 1
        if len(e.args) == 2:
            steps = e.args[1]
            if (
                not isinstance(steps, syn.Number)
                or not float(steps.text).is_integer()
                or not 1 <= float(steps.text) <= MAX_COUNT
            ):
                self.report.add(
                    "E214",
                    steps.span,
                    what=f"`{self.source(steps.span)}` tokens ago",
                    help=f"`prev(x, n)` takes a literal n from 1 to {MAX_COUNT}",
                )
                return None
            n = int(float(steps.text))
        x = e.args[0]
        if not isinstance(x, syn.Name | syn.Item):
            self.report.add(
                "E214",
                x.span,
                what="`prev` takes an input, not an expression",
                help="apply `prev` to each input inside",
            )
            return None
        entry = self.scope.get(x.id)
        if entry is not None and entry.kind not in ("input", "broken"):
            self.report.add("E214", x.span, what=f"`prev` takes an input; `{x.id}` is {_kind(entry)}")
            return None
        of = self.type(x)
        return Prev(of, n, of.axis, e.span) if isinstance(of, Ref) else None

    def _finite(self, e: Expr) -> bool:
        """Reports constants that overflow; an `inf` that is written, in a start value or a bound, stays."""
        match e:
            case Num(value, span) if math.isinf(value) and self.source(span) != "inf":
                self.report.add("E406", span, what=f"`{self.source(span)}`")
                return False
            case Neg(x):
                return self._finite(x)
            case Bin(_, a, b) | Contract(a, b) | Outer(a, b):
                inside = all([self._finite(a), self._finite(b)])
            case Call(_, args):
                inside = all([self._finite(x) for x in args])
            case _:
                return True
        value_of = evaluate(e) if inside and self.where == "line" else None
        if value_of is not None and math.isinf(value_of):
            self.report.add("E406", e.span, what=f"`{self.source(e.span)}`")
            return False
        return inside


def _parts(axis: Axis) -> frozenset[Axis]:
    """An axis as a set: a scalar has none, a matrix two."""
    if axis is MATRIX:
        return frozenset({KEY, VALUE})
    return frozenset() if axis is SCALAR else frozenset({axis})


def _joined(op: str, a: Axis, b: Axis) -> Axis | None:
    """The axis of a elementwise `a op b`, None if they do not fit (rule 10)."""
    if a is b:
        return a
    small, large = sorted((a, b), key=lambda axis: len(_parts(axis)))
    if op in "*/":
        return large if _parts(small) <= _parts(large) else None
    return large if small is SCALAR and large is not MATRIX else None


def named(axis: Axis) -> str:
    """The axis of a value in words."""
    return {SCALAR: "a scalar", MATRIX: "a matrix"}.get(axis, f"a {axis.value} vector")


def _kind(entry: Entry) -> str:
    return {"input": "an input", "param": "a param", "state": "a state", "loop": "the variable of a loop"}.get(
        entry.kind, "a let"
    )
