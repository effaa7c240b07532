"""Building expressions: the algebra of the compiler's passes, with the simplifications that keep its results readable.

None stands for zero in sums and for one in products, as the nodes of the normal form use it.
"""

from __future__ import annotations

from collections.abc import Mapping

from .ir import NOWHERE, Axis, Bin, Call, Contract, Expr, Neg, Num, Ref, Span, children, rebuild

ONE = Num(1.0)
ZERO = Num(0.0)


def join(a: Span, b: Span) -> Span:
    """The span from the start of one to the end of the other, on one line; else the first that is somewhere."""
    if a == NOWHERE or b == NOWHERE:
        return b if a == NOWHERE else a
    if a.line != b.line:
        return a
    return Span(a.line, min(a.column, b.column), max(a.end, b.end))


def is_num(e: Expr | None, value: float) -> bool:
    return isinstance(e, Num) and e.value == value


def wider(a: Axis, b: Axis) -> Axis:
    """The axis of an elementwise product of operands that the checker has admitted."""
    if a is Axis.SCALAR:
        return b
    if b is Axis.SCALAR or b is a:
        return a
    return Axis.MATRIX


def neg(a: Expr) -> Expr:
    match a:
        case Num(value):
            return Num(-value, a.span)
        case Neg(x):
            return x
    return Neg(a, a.axis, a.span)


def mul(a: Expr, b: Expr) -> Expr:
    if is_num(a, 1.0):
        return b
    if is_num(b, 1.0):
        return a
    if is_num(a, -1.0):
        return neg(b)
    if is_num(b, -1.0):
        return neg(a)
    if isinstance(a, Neg):
        return neg(mul(a.x, b))
    if isinstance(b, Neg):
        return neg(mul(a, b.x))
    if isinstance(a, Num) and isinstance(b, Num):
        return Num(a.value * b.value, join(a.span, b.span))
    return Bin("*", a, b, wider(a.axis, b.axis), join(a.span, b.span))


def times(a: Expr | None, b: Expr | None) -> Expr | None:
    """A product in which None is one."""
    if a is None or b is None:
        return b if a is None else a
    return mul(a, b)


def div(a: Expr, b: Expr) -> Expr:
    if is_num(b, 1.0):
        return a
    if isinstance(a, Neg):
        return neg(div(a.x, b))
    return Bin("/", a, b, wider(a.axis, b.axis), join(a.span, b.span))


def plus(a: Expr | None, b: Expr | None) -> Expr | None:
    """A sum in which None is zero."""
    if a is None or is_num(a, 0.0):
        return b
    if b is None or is_num(b, 0.0):
        return a
    if isinstance(b, Neg):
        return Bin("-", a, b.x, wider(a.axis, b.axis), join(a.span, b.span))
    if isinstance(a, Num) and isinstance(b, Num):
        return Num(a.value + b.value, join(a.span, b.span))
    return Bin("+", a, b, wider(a.axis, b.axis), join(a.span, b.span))


def total(terms: list[Expr | None]) -> Expr | None:
    out: Expr | None = None
    for term in terms:
        out = plus(out, term)
    return out


def contract(a: Expr, b: Expr) -> Expr:
    """a @ b of two vectors of one axis."""
    return Contract(a, b, Axis.SCALAR, join(a.span, b.span))


def call(fn: str, *args: Expr) -> Expr:
    axis = args[0].axis
    for arg in args[1:]:
        axis = wider(axis, arg.axis)
    return Call(fn, args, axis, args[0].span)


def exp(x: Expr | None) -> Expr | None:
    """exp(x), one for a log decay that is not there."""
    return None if x is None else call("exp", x)


def inline(e: Expr, lets: Mapping[str, Expr]) -> Expr:
    """e with every let replaced by its value, all the way down."""
    if isinstance(e, Ref) and e.name in lets:
        return inline(lets[e.name], lets)
    below = children(e)
    new = tuple(inline(x, lets) for x in below)
    return e if all(x is y for x, y in zip(below, new, strict=True)) else rebuild(e, new)
