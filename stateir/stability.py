"""What can be said of a token's transition, the linear map that one token applies to S.

Two facts, each by its own name: the spectral radius and the 2-norm of the transition are at most 1. Each is proved,
refuted by numbers that a search found inside the declared ranges, or not proved. A radius for each token bounds no
product over tokens; a norm does.

The proofs, with a line's map D - sum p e^T (D its decay, diagonal):
- no erasing row: the map is the product of the decays.
- one erasing row, decays without a key axis: the eigenvalues are d and d - e.p.
- one erasing row with e = w * p, w >= 0: by the similarity diag(w)^(1/2), D - p e^T becomes the symmetric D - h h^T
  with h.h = e.p, and the other decays, diagonal too, stay as they are; so the radius is at most the product of norms.
- any number of rows, one a line, with w a scalar: the maps themselves are symmetric, and their norms multiply.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np

from .build import contract, exp
from .evaluate import Values, draw, token
from .ir import Axis, Interval, Rule
from .normal import NormalForm, Row
from .proofs import Token, key_dimension
from .ranges import Ranges
from .symbolic import Algebra, with_algebra

Status = Literal["proved", "refuted", "not proved"]


@dataclass(frozen=True)
class Fact:
    """`witness` has the values of a token (K = 2) at which the quantity is `value`, more than 1."""

    claim: str
    status: Status
    reason: str
    value: float | None = None
    witness: dict[str, Any] | None = None


def stability(nf: NormalForm) -> tuple[Fact, Fact]:
    """The facts on the spectral radius and on the norm."""
    ranges, keys = Ranges(nf.rule), key_dimension(nf.rule)
    found = [with_algebra(lambda a: _Transition(a, nf, ranges).proofs(), K, V) for K, V in ((keys, 2), (keys + 2, 3))]
    # a bound that grows with the axes is none
    radius, norm = found[0][:2] if found[0] == found[1] else (None, None)
    return (
        _fact("spectral radius of a token's transition <= 1", radius, nf.rule, _radius),
        _fact("norm of a token's transition <= 1", norm, nf.rule, _norm),
    )


def _fact(claim: str, reason: str | None, rule: Rule, measure: Any) -> Fact:
    if reason is not None:
        return Fact(claim, "proved", reason)
    value, values = _search(rule, measure)
    if value > 1 + 1e-6:
        witness = {n if i is None else f"{n}[{i}]": np.asarray(v).tolist() for (n, i), v in values.items()}
        return Fact(claim, "refuted", f"it is {value:.4f} at the witness", value, witness)
    return Fact(claim, "not proved", f"no proof found; the search reached {value:.4f}")


def _radius(transition: Any) -> float:
    return float(np.max(np.abs(np.linalg.eigvals(transition))))


def _norm(transition: Any) -> float:
    return float(np.linalg.norm(transition, 2))


@dataclass(frozen=True)
class _Transition:
    algebra: Algebra
    nf: NormalForm
    ranges: Ranges

    def proofs(self) -> tuple[str | None, str | None, list[Interval]]:
        """(why the radius is at most 1, why the norm is), None where not proved, and the bounds of e.p used."""
        decays = [exp(d) for d in self.nf.decays]
        if any(d is not None and self.ranges.of(d).hi > 1 for d in decays):
            return None, None, []
        rows = [r for r in self.nf.rows if r.e is not None]
        if not rows:
            return "the decays are at most 1", "the decays are at most 1", []
        norm = None
        if len({r.line for r in rows}) == len(rows) and all(self._contracts(r, scalar=True) for r in rows):
            norm = "each line's map is symmetric with eigenvalues in [-1, 1]"
        radius = norm
        if radius is None and len(rows) == 1:
            radius = self._one_row(rows[0])
        return radius, norm, [self._dot(row) for row in rows]

    def _one_row(self, row: Row) -> str | None:
        if all(d is None or d.axis is Axis.SCALAR for d in self.nf.decays):
            d, dot = self._line_decay(row), self._dot(row)
            if d.lo - dot.hi >= -1 and d.hi - dot.lo <= 1:
                return "the eigenvalues are the decay times 1 or times 1 - e.p, which lies in [-1, 1]"
        if self._contracts(row, scalar=False):
            return "similar, by the root of e / p, to a product of symmetric contractions"
        return None

    def _line_decay(self, row: Row) -> Interval:
        decay = exp(self.nf.decays[row.line])
        return Interval(1.0, 1.0) if decay is None else self.ranges.of(decay)

    def _contracts(self, row: Row, scalar: bool) -> bool:
        """Whether e = w * p with w >= 0 (and w a scalar), and D - h h^T with h.h = e.p lies between -1 and 1."""
        assert row.e is not None
        token = Token(self.algebra, self.nf.rule)
        weights = []
        for e, p in zip(token.of(row.e), token.of(row.p), strict=True):
            quotient, remainder = e.div(p)
            if remainder != 0:
                return False
            weights.append(quotient)
        if scalar and any(w != weights[0] for w in weights):
            return False
        if any(self._bound(w).lo < 0 for w in weights):
            return False
        return self._line_decay(row).lo - self._dot(row).hi >= -1

    def _dot(self, row: Row) -> Interval:
        """A range of e.p: the better of interval analysis and of the polynomial at the corners of the unit vectors."""
        assert row.e is not None
        first = self.ranges.of(contract(row.e, row.p))
        token = Token(self.algebra, self.nf.rule)
        dot = sum((a * b for a, b in zip(token.of(row.e), token.of(row.p), strict=True)), self.algebra.ring.zero)
        second = self._corner_bound(dot)
        if second is None:
            return first
        return Interval(max(first.lo, second.lo), min(first.hi, second.hi))

    def _corner_bound(self, dot: Any) -> Interval | None:
        """The range of a polynomial that is affine in the squares of each unit vector: the hull over its corners.

        A unit vector is zero, or has norm 1 and then its squares lie in a simplex, whose corners are the coordinates.
        """
        used = {i for monomial in dot.monoms() for i, p in enumerate(monomial) if p}
        units = []
        for x in self.nf.rule.arguments:
            if x.unit and x.size is None:
                keys = [("name", x.name, None, 0, i) for i in range(self.algebra.length(x.axis))]
                vector = [self.algebra.known[k] for k in keys if k in self.algebra.known]
                if used & set(vector):
                    units.append(vector)
        bounds = []
        for zero in product((False, True), repeat=len(units)):
            rest = dot
            for i in (i for vector, gone in zip(units, zero, strict=True) if gone for i in vector):
                rest = rest.subs(self.algebra.gens[i], 0)
            bound = self._on_spheres(rest, [vector for vector, gone in zip(units, zero, strict=True) if not gone])
            if bound is None:
                return None
            bounds.append(bound)
        return Interval(min(b.lo for b in bounds), max(b.hi for b in bounds))

    def _on_spheres(self, dot: Any, units: list[list[int]]) -> Interval | None:
        """The range where every one of the vectors has norm 1."""
        norms = [sum((self.algebra.gens[i] ** 2 for i in vector), self.algebra.ring.zero) - 1 for vector in units]
        known = [*norms, *self.algebra.relations]
        dot = dot.rem(known) if known else dot
        for vector in units:
            for monomial in dot.monoms():
                if [monomial[i] for i in vector if monomial[i]] not in ([], [2]):
                    return None
        lo, hi = math.inf, -math.inf
        for corner in product(*units):
            at = dot
            for vector, one in zip(units, corner, strict=True):
                for i in vector:
                    at = at.subs(self.algebra.gens[i], 1 if i == one else 0)
            bound = self._bound(at)
            lo, hi = min(lo, bound.lo), max(hi, bound.hi)
        return Interval(lo, hi)

    def _bound(self, polynomial: Any) -> Interval:
        """Interval arithmetic over the monomials; symbols that are no entry of a declared name are unbounded."""
        lo = hi = 0.0
        for monomial, coefficient in polynomial.terms():
            term = Interval(float(coefficient), float(coefficient))
            for i, power in enumerate(monomial):
                for _ in range(power // 2):
                    term = _times(term, _square(self._symbol_range(i)))
                if power % 2:
                    term = _times(term, self._symbol_range(i))
            lo, hi = lo + term.lo, hi + term.hi
        return Interval(lo, hi)

    def _symbol_range(self, generator: int) -> Interval:
        key: Any = next(k for k, i in self.algebra.known.items() if i == generator)
        declared = {x.name: x for x in self.nf.rule.arguments}
        if key[0] == "name" and key[1] in declared:
            x = declared[key[1]]
            if x.range is not None:
                return x.range
            if x.unit:
                return Interval(-1.0, 1.0)
        if key[0] == "exp":
            return Interval(0.0, float("inf"))
        return Interval(float("-inf"), float("inf"))


def _times(a: Interval, b: Interval) -> Interval:
    ends = [0.0 if 0 in (x, y) else x * y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    return Interval(min(ends), max(ends))


def _square(a: Interval) -> Interval:
    ends = (a.lo * a.lo, a.hi * a.hi)
    return Interval(0.0 if a.lo <= 0 <= a.hi else min(ends), max(ends))


def _after(rule: Rule, values: Values, S: Any, dims: Mapping[Axis, int]) -> Any:
    return token(rule, values, S, dims)[1]["S"]


def _search(rule: Rule, measure: Any, tries: int = 400, climbs: int = 600) -> tuple[float, Values]:
    """The largest value found at K = 2, by random draws that favour the ends of the ranges, then by small moves."""
    rng = np.random.default_rng(0)
    K = 2
    dims = {Axis.KEY: K, Axis.VALUE: K, Axis.PAIR: 1}

    def at(values: Values) -> float:
        moved = _after(rule, values, np.eye(K), dims) - _after(rule, values, np.zeros((K, K)), dims)
        return measure(moved) if np.all(np.isfinite(moved)) else -1.0

    best, values = -1.0, {}
    for _ in range(tries):
        candidate = draw(rule, rng, dims, ends=True)
        if (found := at(candidate)) > best:
            best, values = found, candidate
    declared = {x.name: x for x in rule.declared}
    for step in range(climbs):
        candidate = dict(values)
        size = 0.3 * 0.99**step
        for name, v in values.items():
            x = declared.get(name[0])
            if x is None or rng.random() < 0.5:
                continue
            moved = np.asarray(v) + size * rng.standard_normal(np.shape(v))
            if x.range is not None:
                moved = np.clip(moved, x.range.lo, x.range.hi)
            if x.unit:
                moved = moved / max(float(np.linalg.norm(moved)), 1e-12)
            candidate[name] = moved
        if (found := at(candidate)) > best:
            best, values = found, candidate
    return best, values
