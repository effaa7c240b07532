"""Exact algebra for proofs: expressions as polynomials over symbols, at a small key and value dimension.

Inputs are symbols. exp(x) is a product of symbols, one for each monomial of x, so that exp(a + b) = exp(a) exp(b) holds
by construction; logs are turned into sums the same way; any other function of an argument is one opaque symbol for each
polynomial it is applied to. Equality is decided by normal form after reduction by the known relations (inverses, unit
norms, cos^2 + sin^2), so "equal" is a proof and "not equal" may only mean that a relation is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeVar

from sympy import QQ
from sympy.polys.rings import PolyElement, ring

from .ir import Axis, Bin, Call, Contract, Dim, Expr, Head, Neg, Num, Outer, Prev, Ref
from .logform import FLOOR

Entries = Any  # a polynomial, a list of them (vector), or a list of lists (matrix, key first)
Lookup = Callable[[Ref | Prev], Entries]
R = TypeVar("R")

EXP_UNIT = 12  # exp(c * m) is a power of the symbol exp(m / 12) where 12 c is whole: halves, thirds and quarters meet


class PoolExhausted(Exception):
    """The ring has no generator left; run again in a larger one."""


def with_algebra(job: Callable[[Algebra], R], keys: int = 3, values: int = 2) -> R:
    """job(algebra) in the smallest ring that has generators enough."""
    size = 64
    while True:
        try:
            return job(Algebra(size, keys, values))
        except PoolExhausted:
            size *= 2


@dataclass
class Algebra:
    """A ring with `size` generators, handed out on demand by key."""

    size: int
    keys: int
    values: int
    known: dict[Hashable, int] = field(default_factory=dict)
    log_of: dict[int, PolyElement] = field(default_factory=dict)
    exponentials: set[int] = field(default_factory=set)
    extrema: dict[int, tuple[str, PolyElement, PolyElement]] = field(default_factory=dict)
    log_argument: dict[int, PolyElement] = field(default_factory=dict)
    relations: list[PolyElement] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ring, *self.gens = ring(f"x:{self.size}", QQ)

    def symbol(self, *key: Hashable) -> PolyElement:
        return self.gens[self._index(key)]

    def _index(self, key: Hashable) -> int:
        if key not in self.known:
            if len(self.known) == self.size:
                raise PoolExhausted
            self.known[key] = len(self.known)
        return self.known[key]

    def number(self, value: float) -> PolyElement:
        fraction = Fraction(str(value))
        return self.ring(QQ(fraction.numerator, fraction.denominator))

    def length(self, axis: Axis) -> int:
        return {Axis.KEY: self.keys, Axis.VALUE: self.values, Axis.PAIR: self.keys // 2}[axis]

    def fresh(self, axis: Axis, *key: Hashable) -> Entries:
        """New symbols for a whole value of an axis."""
        if axis is Axis.SCALAR:
            return self.symbol(*key)
        if axis is Axis.MATRIX:
            return [[self.symbol(*key, i, j) for j in range(self.values)] for i in range(self.keys)]
        return [self.symbol(*key, i) for i in range(self.length(axis))]

    def is_zero(self, x: Entries) -> bool:
        if isinstance(x, list):
            return all(self.is_zero(y) for y in x)
        return x == 0 or (bool(self.relations) and x.rem(self.relations) == 0)

    def equal(self, a: Entries, b: Entries) -> bool:
        return self.is_zero(self.zip(lambda x, y: x - y, a, b))

    def zip(self, fn: Callable[[PolyElement, PolyElement], PolyElement], a: Entries, b: Entries) -> Entries:
        """Elementwise with broadcasting of a scalar over everything and of vectors over lists of the same length."""
        if isinstance(a, list) and isinstance(b, list):
            return [self.zip(fn, x, y) for x, y in zip(a, b, strict=True)]
        if isinstance(a, list):
            return [self.zip(fn, x, b) for x in a]
        if isinstance(b, list):
            return [self.zip(fn, a, y) for y in b]
        return fn(a, b)

    def map(self, fn: Callable[[PolyElement], PolyElement], a: Entries) -> Entries:
        return [self.map(fn, x) for x in a] if isinstance(a, list) else fn(a)

    def unit_norm(self, vector: list[PolyElement]) -> None:
        """Assume norm 1, as proofs of equality may (language rule 7)."""
        self.relations.append(sum((x**2 for x in vector), self.ring.zero) - 1)

    def opaque(self, name: str, *args: Hashable) -> PolyElement:
        return self.symbol(name, *args)

    def log(self, x: PolyElement) -> PolyElement:
        """The log of what is positive: only exponentials are taken out, since log(x^2) is not 2 log(x) for x < 0."""
        if len(x) != 1:
            return self._log_symbol(x)
        ((monomial, coefficient),) = x.terms()
        out, rest = self.ring.zero, self.ring(coefficient)
        for i, power in enumerate(monomial):
            if power and i in self.log_of:
                out += power * self.log_of[i]
            elif power:
                rest *= self.gens[i] ** power
        return out if rest == 1 else out + self._log_symbol(rest)

    def _log_symbol(self, x: PolyElement) -> PolyElement:
        index = self._index(("log", x))
        self.log_argument[index] = x
        return self.gens[index]

    def exp(self, x: PolyElement) -> PolyElement:
        out = self.ring.one
        for monomial, coefficient in x.terms():
            (*rest,) = [(i, p) for i, p in enumerate(monomial) if p]
            alone = rest[0][0] if len(rest) == 1 and rest[0][1] == 1 else None
            if alone in self.log_argument:
                out *= self._power(self.log_argument[alone], coefficient)
            elif alone in self.extrema and coefficient == 1:
                fn, a, b = self.extrema[alone]  # exp is increasing
                out *= self._extremum(fn, self.exp(a), self.exp(b))
            else:
                out *= self._exp_term(tuple(rest), coefficient)
        return out

    def _exp_term(self, monomial: tuple[tuple[int, int], ...], coefficient: Any) -> PolyElement:
        steps = coefficient * EXP_UNIT
        sign = 1 if steps > 0 else -1
        unit, power = (QQ(sign, EXP_UNIT), abs(int(steps))) if steps.denominator == 1 else (coefficient, 1)
        argument = self.ring(unit)
        for i, p in monomial:
            argument *= self.gens[i] ** p
        index = self._index(("exp", argument))
        if index not in self.log_of:
            self.log_of[index] = argument
            self.exponentials.add(index)
            mirror = self.known.get(("exp", -argument))
            if mirror is not None:
                self.relations.append(self.gens[index] * self.gens[mirror] - 1)
        return self.gens[index] ** power

    def _power(self, x: PolyElement, coefficient: Any) -> PolyElement:
        """x ** coefficient for a rational coefficient."""
        if coefficient.denominator == 1 and coefficient > 0:
            return x ** int(coefficient)
        if coefficient.denominator == 1:
            return self.inverse(x) ** -int(coefficient)
        if len(x) == 1 and x.LC == 1 and all(i in self.log_of for i, p in enumerate(x.LM) if p):
            return self.exp(coefficient * self.log(x))
        new = ("root", x, coefficient.denominator) not in self.known
        index = self._index(("root", x, coefficient.denominator))
        if new:
            self.log_of[index] = self.log(x) * QQ(1, coefficient.denominator)
            self.relations.append(self.gens[index] ** int(coefficient.denominator) - x)
        root = self.gens[index]
        if coefficient > 0:
            return root ** int(coefficient.numerator)
        return self.inverse(root) ** -int(coefficient.numerator)

    def inverse(self, x: PolyElement) -> PolyElement:
        if len(x) == 1:
            ((monomial, coefficient),) = x.terms()
            out = self.ring(1 / coefficient)
            for i, p in enumerate(monomial):
                if p:
                    exponential = i in self.exponentials
                    out *= (self.exp(-self.log_of[i]) if exponential else self._inverse_symbol(self.gens[i])) ** p
            return out
        return self._inverse_symbol(x)

    def _inverse_symbol(self, x: PolyElement) -> PolyElement:
        new = ("inverse", x) not in self.known
        symbol = self.symbol("inverse", x)
        if new:
            self.relations.append(x * symbol - 1)
        return symbol

    def of(self, e: Expr, lookup: Lookup) -> Entries:
        """The entries of an expression; `lookup` gives those of names."""
        match e:
            case Num(value):
                return self.number(value)
            case Dim(axis):
                return self.symbol("dim", axis)
            case Head():
                return self.symbol("head")
            case Ref() | Prev():
                return lookup(e)
            case Neg(x):
                return self.map(lambda a: -a, self.of(x, lookup))
            case Contract(a, b):
                return self._contract(e, self.of(a, lookup), self.of(b, lookup))
            case Outer(key, value):
                values = self.of(value, lookup)
                return [[k * v for v in values] for k in self.of(key, lookup)]
            case Call("log", (Call("max", (x, Num(value))),)) if value == FLOOR:
                # the floor under a decay's log stands for a decay that is proved >= 0: exact arithmetic has none
                return self._call("log", [self.of(x, lookup)])
            case Call(fn, args):
                return self._call(fn, [self.of(x, lookup) for x in args])
            case Bin():
                return self._bin(e, self.of(e.a, lookup), self.of(e.b, lookup))

    def _contract(self, e: Contract, a: Entries, b: Entries) -> Entries:
        def dot(x: list[PolyElement], y: list[PolyElement]) -> PolyElement:
            return sum((p * q for p, q in zip(x, y, strict=True)), self.ring.zero)

        if e.a.axis is Axis.MATRIX and e.b.axis is Axis.MATRIX:
            raise TypeError("a contraction of two matrices has no single axis")
        if e.b.axis is Axis.MATRIX or e.a.axis is Axis.MATRIX:
            matrix, vector, axis = (b, a, e.a.axis) if e.b.axis is Axis.MATRIX else (a, b, e.b.axis)
            rows = matrix if axis is Axis.VALUE else [list(column) for column in zip(*matrix, strict=True)]
            return [dot(vector, row) for row in rows]
        return dot(a, b)

    def _bin(self, e: Bin, a: Entries, b: Entries) -> Entries:
        if e.axis is Axis.MATRIX and Axis.VALUE in (e.a.axis, e.b.axis):
            # a value vector runs along the rows of the matrix, a key vector (the plain case of zip) along its columns
            if e.a.axis is Axis.VALUE:
                a = [a] * self.keys
            else:
                b = [b] * self.keys
        match e.op:
            case "+":
                return self.zip(lambda x, y: x + y, a, b)
            case "-":
                return self.zip(lambda x, y: x - y, a, b)
            case "*":
                return self.zip(lambda x, y: x * y, a, b)
            case "/":
                return self.zip(lambda x, y: x * self.inverse(y), a, b)
        return self.zip(self._elementwise_power, a, b)

    def _elementwise_power(self, x: PolyElement, y: PolyElement) -> PolyElement:
        if y.is_ground:
            return self._power(x, QQ(y.LC) if y else QQ(0)) if y else self.ring.one
        return self.exp(y * self.log(x))

    def _call(self, fn: str, args: list[Entries]) -> Entries:
        match fn:
            case "exp":
                return self.map(self.exp, args[0])
            case "log":
                return self.map(self.log, args[0])
            case "sqrt":
                return self.map(lambda x: self._power(x, QQ(1, 2)), args[0])
            case "rsqrt":
                return self.map(lambda x: self._power(x, QQ(-1, 2)), args[0])
            case "min" | "max":
                return self.zip(lambda x, y: self._extremum(fn, x, y), *args)
            case "unit":
                square = sum((x * x for x in args[0]), self.number(1e-6))
                return [x * self._power(square, QQ(-1, 2)) for x in args[0]]
            case "rotate":
                return self._rotate(*args)
        return self.map(lambda x: self.opaque(fn, x), args[0])

    def _extremum(self, fn: str, x: PolyElement, y: PolyElement) -> PolyElement:
        if x == y:
            return x
        index = self._index((fn, frozenset((x, y))))
        self.extrema[index] = (fn, x, y)
        return self.gens[index]

    def _rotate(self, x: list[PolyElement], angle: Entries) -> list[PolyElement]:
        out = []
        for i in range(len(x) // 2):
            a = angle[i] if isinstance(angle, list) else angle
            odd = -1 if a and a.LC < 0 else 1
            known = ("cos", a * odd) in self.known
            c, s = self.opaque("cos", a * odd), self.opaque("sin", a * odd)
            if not known:
                self.relations.append(c**2 + s**2 - 1)
            s = s * odd
            out += [c * x[2 * i] - s * x[2 * i + 1], s * x[2 * i] + c * x[2 * i + 1]]
        return out
