"""The log of a decay, found in the decay's own expression (language rule 15).

exp(g) gives g, and logs pass through products, quotients, powers, roots, sigmoid, min and max, so that a decay of
exp(-900) keeps its log although it underflows as a number. Anything else is floored at the smallest normal fp32.
"""

from __future__ import annotations

from collections.abc import Mapping

from .build import call, is_num, mul, neg, plus
from .ir import Bin, Call, Expr, Num, Ref
from .ranges import Ranges

FLOOR = 1.2e-38


def log(decay: Expr, lets: Mapping[str, Expr], ranges: Ranges) -> Expr | None:
    """The log of a decay that is proved >= 0; None for the decay 1."""
    if is_num(decay, 1.0):
        return None
    found = _log(decay, lets, ranges)
    return None if is_num(found, 0.0) else found


def _log(a: Expr, lets: Mapping[str, Expr], ranges: Ranges) -> Expr:
    def positive(x: Expr, strictly: bool = False) -> bool:
        interval = ranges.of(x)
        return interval.lo > 0 or (interval.lo == 0 and (interval.lo_open or not strictly))

    match a:
        case Num(value) if value > 0:
            return Num(0.0) if value == 1 else call("log", a)
        case Call("exp", (x,)):
            return x
        case Call("sigmoid"):
            return call("log", a)
        case Call("sqrt", (x,)):
            return mul(Num(0.5), _log(x, lets, ranges))
        case Call("rsqrt", (x,)):
            return mul(Num(-0.5), _log(x, lets, ranges))
        case Call(("min" | "max") as fn, (x, y)) if positive(x) and positive(y):
            return call(fn, _log(x, lets, ranges), _log(y, lets, ranges))
        case Bin("*", x, y) if positive(x) and positive(y):
            return plus(_log(x, lets, ranges), _log(y, lets, ranges)) or Num(0.0)
        case Bin("/", x, y) if positive(x) and positive(y, strictly=True):
            return plus(_log(x, lets, ranges), neg(_log(y, lets, ranges))) or Num(0.0)
        case Bin("^", x, y) if positive(x):
            return mul(y, _log(x, lets, ranges))
        case Ref(name) if name in lets and _recognised(lets[name], lets):
            return _log(lets[name], lets, ranges)
    return call("log", call("max", a, Num(FLOOR)))


def _recognised(a: Expr, lets: Mapping[str, Expr]) -> bool:
    """Whether looking into a let helps: some exponential or root stands at its head."""
    match a:
        case Call("exp" | "sigmoid" | "sqrt" | "rsqrt"):
            return True
        case Call("min" | "max", (x, y)) | Bin("*" | "/", x, y):
            return _recognised(x, lets) or _recognised(y, lets)
        case Bin("^", x, _):
            return _recognised(x, lets)
        case Ref(name) if name in lets:
            return _recognised(lets[name], lets)
    return False
