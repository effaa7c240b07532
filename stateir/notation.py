"""Expressions in mathematical notation: one walk, two styles (unicode.py, latex.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .ir import Axis, Bin, Call, Contract, Dim, Expr, Head, Neg, Num, Outer, Prev, Ref

GREEK = ("alpha", "beta", "gamma", "delta", "eta", "theta", "kappa", "lam", "mu", "sigma", "tau", "phi")

# How tightly an expression binds: a sum, a product, a scalar multiple, what may stand in a product, what needs no care.
SUM, PRODUCT, MULTIPLE, FACTOR, ATOM = 1, 2, 3, 4, 5


@dataclass(frozen=True)
class Style:
    """How the parts are written. The functions take text; `name` takes the reference and the tokens it looks back."""

    name: Callable[[Ref, int], str]
    number: Callable[[float], str]
    dim: Callable[[str], str]
    paren: Callable[[str], str]
    power: Callable[[str, str], str]
    exp: Callable[[str], str]
    root: Callable[[str], str]
    call: Callable[[str, Sequence[str]], str]
    transpose: Callable[[str], str]
    minus: str
    hadamard: str
    scale: str
    dot: str
    fraction: Callable[[str, str], str] | None = None
    """None: a slash."""
    transposed_reads: bool = False
    """q @ S as the field's S^T q in place of q . S."""


def expression(e: Expr, style: Style) -> str:
    """e in the given style."""
    return _write(e, style)[0]


def factor(e: Expr, style: Style) -> str:
    """e as it stands in a product or in front of a dot: in parentheses if it needs them."""
    return _at_least(e, FACTOR, style)


def _at_least(e: Expr, level: int, style: Style) -> str:
    text, own = _write(e, style)
    return text if own >= level else style.paren(text)


def _write(e: Expr, style: Style) -> tuple[str, int]:
    """The text of e and how tightly it binds."""
    match e:
        case Num(value):
            return style.number(value), ATOM if value >= 0 else SUM
        case Dim(of):
            return style.dim("K" if of is Axis.KEY else "V"), ATOM
        case Head():
            return style.dim("h"), ATOM
        case Ref():
            return style.name(e, 0), ATOM
        case Prev(of, n):
            return style.name(of, n), ATOM
        case Neg(x):
            return style.minus + _at_least(x, PRODUCT, style), SUM
        case Outer(key, value):
            return f"{_at_least(key, MULTIPLE, style)} {style.transpose(_at_least(value, ATOM, style))}", PRODUCT
        case Contract(a, b):
            return _contract(a, b, style), PRODUCT
        case Call(fn, args):
            return _call(fn, args, style)
        case Bin(op, a, b):
            return _binary(op, a, b, style)


def _binary(op: str, a: Expr, b: Expr, style: Style) -> tuple[str, int]:
    match op, a:
        case "+" | "-", _:
            sign = "+" if op == "+" else style.minus
            right, level = _write(b, style)
            bare = level > SUM or (op == "+" and not right.startswith(style.minus))
            return f"{_at_least(a, SUM, style)} {sign} {right if bare else style.paren(right)}", SUM
        case "*" | "/", Neg(x):
            return style.minus + _binary(op, x, b, style)[0], SUM
        case "*", _:
            return _product(a, b, style)
        case "/", _ if style.fraction:
            return style.fraction(expression(a, style), expression(b, style)), FACTOR
        case "/", _:
            return f"{_at_least(a, PRODUCT, style)} / {_at_least(b, FACTOR, style)}", PRODUCT
    return style.power(_at_least(a, ATOM, style), expression(b, style)), FACTOR


def _product(a: Expr, b: Expr, style: Style) -> tuple[str, int]:
    """A scalar is written in front of what it scales, a product of equal axes with the elementwise sign."""
    if Axis.SCALAR not in (a.axis, b.axis):
        left = FACTOR if isinstance(a, Contract | Outer) else PRODUCT
        return f"{_at_least(a, left, style)}{style.hadamard}{_at_least(b, FACTOR, style)}", PRODUCT
    scalar, body = (b, a) if a.axis is not Axis.SCALAR else (a, b)
    return f"{_at_least(scalar, MULTIPLE, style)}{style.scale}{_at_least(body, MULTIPLE, style)}", MULTIPLE


def _contract(a: Expr, b: Expr, style: Style) -> str:
    if Axis.MATRIX not in (a.axis, b.axis) or not style.transposed_reads:
        if style.transposed_reads:
            return f"{style.transpose(_at_least(a, ATOM, style))} {_at_least(b, FACTOR, style)}"
        return f"{_at_least(a, FACTOR, style)}{style.dot}{_at_least(b, FACTOR, style)}"
    vector, matrix = (b, a) if a.axis is Axis.MATRIX else (a, b)
    of_keys = vector.axis is Axis.KEY
    written = _at_least(matrix, ATOM, style)
    return f"{style.transpose(written) if of_keys else written} {_at_least(vector, FACTOR, style)}"


def _call(fn: str, args: tuple[Expr, ...], style: Style) -> tuple[str, int]:
    match fn, args:
        case "exp", (x,):
            return style.exp(expression(x, style)), FACTOR
        case "sqrt", (x,):
            return style.root(_at_least(x, ATOM, style) if not style.fraction else expression(x, style)), ATOM
        case "rsqrt", (x,):
            return _binary("/", Num(1.0), Call("sqrt", (x,), x.axis), style)
    return style.call(fn, [expression(x, style) for x in args]), ATOM
