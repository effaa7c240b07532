"""Interval analysis: what a rule's declarations say about the value of every expression (rules 7, 16 and 17)."""

from __future__ import annotations

import math
from collections import Counter

from . import intervals as iv
from .consts import evaluate
from .ir import (
    Axis,
    Bin,
    Call,
    Contract,
    Dim,
    Expr,
    Head,
    Input,
    Interval,
    Let,
    Neg,
    Num,
    Outer,
    Param,
    Prev,
    Ref,
    Rule,
    State,
    Update,
)

MAX_DIM = 256
SMALLEST_NORMAL = 2.0**-126  # of float32 and bfloat16
_SIMPLE = {
    "exp": iv.exp,
    "log": iv.log,
    "sqrt": iv.sqrt,
    "sigmoid": iv.sigmoid,
    "softplus": iv.softplus,
    "tanh": iv.tanh,
    "abs": iv.absolute,
}


class Ranges:
    """Ranges of the expressions of one rule; a vector's range is that of each of its entries.

    States are tracked by version: version 0 has the declared range, version i what the i-th update makes of it.
    """

    def __init__(self, rule: Rule) -> None:
        self._declared: dict[str, Input | Param | State] = {d.name: d for d in rule.declared}
        self._values: dict[tuple[str, int], tuple[Interval, float, bool]] = {}
        self._memo: dict[int, tuple[Expr, Interval]] = {}
        versions: Counter[str] = Counter()
        for line in rule.lines:
            if isinstance(line, Let):
                self._values[line.name, 0] = self._all(line.value)
            elif isinstance(line, Update):
                versions[line.state] += 1
                made, norm, unit = self._all(line.value)
                declared = self._declared[line.state]
                made = made if declared.range is None else iv.meet(made, declared.range)
                self._values[line.state, versions[line.state]] = made, norm, unit or declared.unit

    def _all(self, e: Expr) -> tuple[Interval, float, bool]:
        return self.of(e), self.norm(e), self.is_unit(e)

    def of(self, e: Expr) -> Interval:
        """The range of e (of its entries, for a vector or matrix)."""
        known = self._memo.get(id(e))
        if known is not None:
            return known[1]
        made = self._of(e)
        if e.axis in (Axis.KEY, Axis.VALUE, Axis.PAIR):
            bound = self.norm(e)
            if math.isfinite(bound):
                made = iv.meet(made, Interval(-bound, bound))
        self._memo[id(e)] = e, made
        return made

    def norm(self, e: Expr) -> float:
        """An upper bound of the 2-norm of a vector, of the magnitude of a scalar; inf if none is known."""
        if e.axis is Axis.MATRIX:
            return math.inf
        if e.axis is Axis.SCALAR:
            return iv.magnitude(self.of(e))
        match e:
            case Ref():
                return self._norm_of_name(e)
            case Prev(of):
                return self.norm(of)
            case Neg(x) | Call("rotate" | "abs" | "tanh", (x, *_)):
                return self.norm(x)
            case Call("unit"):
                return 1.0
            case Call("min" | "max", (a, b)) if b == Num(0.0):
                return self.norm(a)
            case Call("min" | "max", (a, b)) if a.axis is b.axis:
                return self.norm(a) + self.norm(b)
            case Bin("+" | "-", a, b) if a.axis is b.axis:
                return self.norm(a) + self.norm(b)
            case Bin("/", a, b) if a.axis is not Axis.SCALAR:
                return _product(self.norm(a), iv.magnitude(iv.reciprocal(self.of(b)))) if self._nonzero(b) else math.inf
            case Bin("*", a, b):
                if Axis.SCALAR in (a.axis, b.axis):
                    return _product(self.norm(a), self.norm(b))
                gated = (
                    _product(iv.magnitude(self.of(a)), self.norm(b)),
                    _product(self.norm(a), iv.magnitude(self.of(b))),
                )
                return min(gated)
        return math.inf

    def is_unit(self, e: Expr) -> bool:
        """e has norm 1, or is the zero vector of padding."""
        match e:
            case Ref(name, _, _, version):
                value = self._values.get((name, version))
                declared = self._declared.get(name)
                return value[2] if value is not None else declared is not None and declared.unit
            case Prev(x) | Neg(x) | Call("rotate", (x, *_)):
                return self.is_unit(x)
        return False

    def needs_clamp(self, e: Expr) -> bool:
        """Whether e (a division, log, sqrt, rsqrt or power) has no value or no derivative where its operand underflows.

        Generated code clamps such an operand at the smallest normal number, so that underflow makes no NaN. An operand
        underflows if its range excludes 0 but reaches numbers below those of float32; under sqrt, which has a value
        but no derivative at 0, its range may include 0 too.
        """
        operand = guarded_operand(e)
        if operand is None:
            return False
        a = self.of(operand)
        if isinstance(e, Call) and e.fn == "sqrt":
            return a.lo < SMALLEST_NORMAL
        return (iv.positive(a) and a.lo < SMALLEST_NORMAL) or (iv.negative(a) and a.hi > -SMALLEST_NORMAL)

    def _nonzero(self, e: Expr) -> bool:
        a = self.of(e)
        return iv.positive(a) or iv.negative(a)

    def _of(self, e: Expr) -> Interval:
        match e:
            case Num(value):
                return iv.point(value)
            case Dim():
                return Interval(1.0, float(MAX_DIM))
            case Head():
                return Interval(0.0, math.inf, False, True)
            case Ref():
                return self._range_of_name(e)
            case Prev(of):
                return iv.join(self.of(of), iv.ZERO)
            case Neg(x):
                return iv.neg(self.of(x))
            case Bin("+", a, b):
                return iv.add(self.of(a), self.of(b))
            case Bin("-", a, b):
                return iv.add(self.of(a), iv.neg(self.of(b)))
            case Bin("*"):
                return self._product_of(_factors(e))
            case Bin("/", a, b):
                return iv.mul(self.of(a), iv.reciprocal(self.of(b)))
            case Bin("^", a, b):
                n = evaluate(b)
                whole = n is not None and n.is_integer() and abs(n) <= 1e6
                return iv.whole_power(self.of(a), int(n or 0)) if whole else iv.power(self.of(a), self.of(b))
            case Contract(a, b):
                return self._contraction(a, b)
            case Call(fn, args):
                return self._call(fn, args)
            case Outer(key, value):
                return self._product_of([*_factors(key), *_factors(value)])
        raise TypeError(f"not an expression: {e!r}")

    def _product_of(self, factors: list[Expr]) -> Interval:
        """The range of an elementwise product, in which equal factors are one power."""
        made = iv.point(1.0)
        for factor, count in Counter(factors).items():
            made = iv.mul(made, iv.whole_power(self.of(factor), count))
        return made

    def _contraction(self, a: Expr, b: Expr) -> Interval:
        """A sum of at least one entry: a sum of numbers of one sign keeps the sign, and Cauchy-Schwarz bounds it."""
        if Axis.MATRIX in (a.axis, b.axis):
            return iv.REALS
        entry = self._product_of([*_factors(a), *_factors(b)])
        lo = (entry.lo, entry.lo_open) if entry.lo >= 0 else (-math.inf, True)
        hi = (entry.hi, entry.hi_open) if entry.hi <= 0 else (math.inf, True)
        bound = _product(self.norm(a), self.norm(b))
        return iv.meet(iv.of_ends(lo, hi), iv.of_ends((-bound, False), (bound, False)))

    def _call(self, fn: str, args: tuple[Expr, ...]) -> Interval:
        a = self.of(args[0])
        match fn:
            case "max":
                return iv.maximum(a, self.of(args[1]))
            case "min":
                return iv.minimum(a, self.of(args[1]))
            case "rsqrt":
                return iv.reciprocal(iv.sqrt(a))
            case "unit":
                return _signed(a)
            case "rotate":
                return iv.REALS if iv.magnitude(a) else iv.ZERO
        return _SIMPLE[fn](a)

    def _range_of_name(self, e: Ref) -> Interval:
        value = self._values.get((e.name, e.version))
        if value is not None:
            return value[0]
        declared = self._declared.get(e.name)
        if declared is None or e.axis is Axis.MATRIX:
            return iv.REALS
        return declared.range or iv.REALS

    def _norm_of_name(self, e: Ref) -> float:
        value = self._values.get((e.name, e.version))
        if value is not None:
            return min(value[1], 1.0) if value[2] else value[1]
        declared = self._declared.get(e.name)
        if declared is not None and declared.unit:
            return 1.0
        return 0.0 if self._range_of_name(e) == iv.ZERO else math.inf


def guarded_operand(e: Expr) -> Expr | None:
    """The operand of e on which it depends whether e is defined: a denominator, the argument of log, a base."""
    match e:
        case Bin("/", _, b):
            return b
        case Call("log" | "sqrt" | "rsqrt", (x,)):
            return x
        case Bin("^", a, b):
            n = evaluate(b)
            return None if n is not None and n.is_integer() and n >= 0 else a
    return None


def _factors(e: Expr) -> list[Expr]:
    """The factors of a product, left to right."""
    if isinstance(e, Bin) and e.op == "*":
        return [*_factors(e.a), *_factors(e.b)]
    return [e]


def _product(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _signed(a: Interval) -> Interval:
    """The range of a vector of norm at most 1 whose entries have the signs of a's."""
    return Interval(0.0 if a.lo >= 0 else -1.0, 0.0 if a.hi <= 0 else 1.0)
