"""Interval arithmetic with exact open and closed ends. An end at infinity is always open; 0 times infinity is 0.

The ends are float64: a lower bound that overflows is the largest finite number, an upper one infinity.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

from .consts import sigmoid as sigmoid_of
from .consts import softplus as softplus_of
from .ir import Interval

REALS = Interval(-math.inf, math.inf, True, True)
POSITIVE = Interval(0.0, math.inf, True, True)
ZERO = Interval(0.0, 0.0)
LARGEST = sys.float_info.max

# One end of an interval: its bound and whether the bound is excluded.
End = tuple[float, bool]


def point(x: float) -> Interval:
    return Interval(x, x)


def of_ends(lo: End, hi: End) -> Interval:
    """The interval between two ends; no number is above infinity or below minus infinity."""
    low, high = min(lo[0], LARGEST), max(hi[0], -LARGEST)
    return Interval(low, high, lo[1] or math.isinf(lo[0]), hi[1] or math.isinf(hi[0]))


def is_empty(a: Interval) -> bool:
    return a.lo > a.hi or (a.lo == a.hi and (a.lo_open or a.hi_open))


def inside(a: Interval, b: Interval) -> bool:
    """Every number of a is in b."""
    above = a.lo > b.lo or (a.lo == b.lo and (a.lo_open or not b.lo_open or math.isinf(a.lo)))
    below = a.hi < b.hi or (a.hi == b.hi and (a.hi_open or not b.hi_open or math.isinf(a.hi)))
    return above and below


def meet(a: Interval, b: Interval) -> Interval:
    """The numbers in both; a if there are none (two sound bounds cannot be disjoint)."""
    lo = max((a.lo, a.lo_open), (b.lo, b.lo_open))
    hi = min((a.hi, not a.hi_open), (b.hi, not b.hi_open))
    made = Interval(lo[0], hi[0], lo[1], not hi[1])
    return a if is_empty(made) else made


def join(a: Interval, b: Interval) -> Interval:
    """The smallest interval that contains both."""
    lo = min((a.lo, a.lo_open), (b.lo, b.lo_open))
    hi = max((a.hi, not a.hi_open), (b.hi, not b.hi_open))
    return Interval(lo[0], hi[0], lo[1], not hi[1])


def positive(a: Interval) -> bool:
    return a.lo > 0 or (a.lo == 0 and a.lo_open)


def negative(a: Interval) -> bool:
    return a.hi < 0 or (a.hi == 0 and a.hi_open)


def magnitude(a: Interval) -> float:
    return max(abs(a.lo), abs(a.hi))


def neg(a: Interval) -> Interval:
    return Interval(-a.hi, -a.lo, a.hi_open, a.lo_open)


def add(a: Interval, b: Interval) -> Interval:
    lo, hi = a.lo + b.lo, a.hi + b.hi
    if math.isnan(lo) or math.isnan(hi):  # infinities of both signs at one end: nothing is known
        return REALS
    return of_ends((lo, a.lo_open or b.lo_open), (hi, a.hi_open or b.hi_open))


def _times(x: End, y: End) -> End:
    """A corner of a product. It is attained if both ends are, or if one is an attained 0."""
    zero = x == (0.0, False) or y == (0.0, False)
    value = 0.0 if x[0] == 0 or y[0] == 0 else x[0] * y[0]
    underflow = value == 0 and x[0] != 0 and y[0] != 0
    return value, not zero and (x[1] or y[1] or underflow)


def mul(a: Interval, b: Interval) -> Interval:
    corners = [
        _times(x, y) for x in ((a.lo, a.lo_open), (a.hi, a.hi_open)) for y in ((b.lo, b.lo_open), (b.hi, b.hi_open))
    ]
    lo = min(corners)
    hi = max(corners, key=lambda end: (end[0], not end[1]))
    return of_ends(lo, hi)


def reciprocal(a: Interval) -> Interval:
    """1 / a; all numbers if a may be 0 in its inside or on both sides."""
    if a.lo >= 0 and a.hi > 0:
        low = (0.0, True) if math.isinf(a.hi) else (1 / a.hi, a.hi_open)
        high = (math.inf, True) if a.lo == 0 else (1 / a.lo, a.lo_open)
        return of_ends(low, high)
    return neg(reciprocal(neg(a))) if a.hi <= 0 and a.lo < 0 else REALS


def whole_power(a: Interval, n: int) -> Interval:
    """x^n for one x: an even power is not negative, whatever the sign of x."""
    if n < 0:
        return reciprocal(whole_power(a, -n))
    if n == 0:
        return point(1.0)
    lo, hi = (_raise(a.lo, n), a.lo_open), (_raise(a.hi, n), a.hi_open)
    if n % 2 or a.lo >= 0:
        return of_ends(lo, hi)
    if a.hi <= 0:
        return of_ends(hi, lo)
    return of_ends((0.0, False), max(lo, hi, key=lambda end: (end[0], not end[1])))


def _raise(x: float, n: int) -> float:
    try:
        return x**n
    except OverflowError:
        return -math.inf if x < 0 and n % 2 else math.inf


def power(a: Interval, b: Interval) -> Interval:
    """a^b for positive a."""
    return exp(mul(log(a), b)) if positive(a) else REALS


def _monotone(f: Callable[[float], float], a: Interval, lo: float, hi: float) -> Interval:
    """The image under a rising f with the open range (lo, hi): rounding may reach its ends, the function does not."""
    low, high = f(a.lo), f(a.hi)
    return of_ends((low, a.lo_open or low <= lo or low >= hi), (high, a.hi_open or high >= hi or high <= lo))


def _exp(x: float) -> float:
    return math.inf if x > 709 else math.exp(x)


def _log(x: float) -> float:
    return -math.inf if x <= 0 else math.log(x)


def _root(x: float) -> float:
    return math.sqrt(max(x, 0.0))


def exp(a: Interval) -> Interval:
    return _monotone(_exp, a, 0.0, math.inf)


def log(a: Interval) -> Interval:
    return _monotone(_log, a, -math.inf, math.inf)


def sqrt(a: Interval) -> Interval:
    return of_ends((_root(a.lo), a.lo_open and a.lo >= 0), (_root(a.hi), a.hi_open))


def sigmoid(a: Interval) -> Interval:
    return _monotone(sigmoid_of, a, 0.0, 1.0)


def softplus(a: Interval) -> Interval:
    return _monotone(lambda x: softplus_of(x) if math.isfinite(x) else max(x, 0.0), a, 0.0, math.inf)


def tanh(a: Interval) -> Interval:
    return _monotone(math.tanh, a, -1.0, 1.0)


def absolute(a: Interval) -> Interval:
    if a.lo >= 0:
        return a
    if a.hi <= 0:
        return neg(a)
    return of_ends((0.0, False), max((-a.lo, a.lo_open), (a.hi, a.hi_open), key=lambda end: (end[0], not end[1])))


def maximum(a: Interval, b: Interval) -> Interval:
    """max(x, y): the lower end is attained only if both reach it, the upper if either does."""
    lo = max((a.lo, a.lo_open), (b.lo, b.lo_open))
    hi = max((a.hi, not a.hi_open), (b.hi, not b.hi_open))
    return of_ends(lo, (hi[0], not hi[1]))


def minimum(a: Interval, b: Interval) -> Interval:
    return neg(maximum(neg(a), neg(b)))


def text(a: Interval) -> str:
    """The interval as the language writes it."""
    left, right = "(" if a.lo_open else "[", ")" if a.hi_open else "]"
    return f"{left}{a.lo:g}, {a.hi:g}{right}"
