"""Constants: their values, computed in double precision without ever raising."""

from __future__ import annotations

import math
from collections.abc import Callable

from .ir import Bin, Call, Expr, Neg, Num, Span, children


def number(value: float, span: Span) -> Expr:
    """The expression of a constant; the text has no negative numbers, only the negation of one."""
    return Num(value, span) if math.copysign(1.0, value) > 0 else Neg(Num(-value, span), Num(0).axis, span)


def evaluate(e: Expr) -> float | None:
    """The value of a constant expression; inf where it overflows, nan where it is undefined, None if not a constant."""
    match e:
        case Num(value):
            return value
        case Neg(x):
            inner = evaluate(x)
            return None if inner is None else -inner
        case Bin(op, a, b):
            left, right = evaluate(a), evaluate(b)
            return None if left is None or right is None else binary(op, left, right)
        case Call(fn, args) if fn in _CALLS:
            values = [evaluate(a) for a in args]
            known = [v for v in values if v is not None]
            return call(fn, *known) if len(known) == len(values) else None
    return None


def overflowing(e: Expr) -> Expr | None:
    """The smallest constant part of e that is not finite."""
    for x in children(e):
        inside = overflowing(x)
        if inside is not None:
            return inside
    value = evaluate(e)
    return e if value is not None and math.isinf(value) else None


def _safe(f: Callable[..., float], *args: float) -> float:
    try:
        result = f(*args)
    except OverflowError:
        return math.inf
    except (ValueError, ZeroDivisionError):
        return math.nan
    return result if isinstance(result, float) else math.nan


def _power(a: float, b: float) -> float:
    result: float | complex = a**b
    if isinstance(result, complex):
        raise ValueError
    return result


def binary(op: str, a: float, b: float) -> float:
    match op:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "/":
            return _safe(lambda: a / b)
    return _safe(_power, a, b)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


_CALLS: dict[str, Callable[..., float]] = {
    "exp": math.exp,
    "log": math.log,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "sigmoid": sigmoid,
    "softplus": softplus,
    "tanh": math.tanh,
    "abs": abs,
    "min": min,
    "max": max,
}


def call(fn: str, *args: float) -> float:
    """fn of FUNCTIONS but `unit` and `rotate`, for numbers."""
    return _safe(_CALLS[fn], *args)
