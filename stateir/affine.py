"""Typed rule -> normal form: each update line of S as a decay and rank-one rows (docs/design.md, "The normal form").

The affine check is bottom-up: an expression that contains a matrix state is kept as its coefficients, and the first
operation that would leave that form is the smallest culprit and is what the diagnostic points at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from . import logform
from .build import ONE, contract, div, inline, is_num, mul, neg, plus, times, total
from .diagnostics import Diagnostic, RuleError
from .errors import diagnostic
from .ir import Axis, Bin, Call, Contract, Expr, Neg, Outer, Read, Ref, Rule, Span, Update, walk
from .normal import NormalForm, Readout, Row
from .ranges import Ranges


@dataclass(frozen=True)
class Covector:
    """factor * (q @ state): what an expression takes from a matrix state. factor None is one."""

    state: str
    q: Expr
    factor: Expr | None
    span: Span


@dataclass(frozen=True)
class Vector:
    """A value-axis expression: const + the covectors' reads."""

    const: Expr | None
    reads: tuple[Covector, ...]


@dataclass(frozen=True)
class Matrix:
    """A matrix-axis expression: sum of coefficient * state, plus outer(p, vector) terms."""

    states: tuple[tuple[str, Expr], ...]
    terms: tuple[tuple[Expr, Vector], ...]


Scaling = Callable[[Expr], Expr]


class _Refused(Exception):
    def __init__(self, diagnostic: Diagnostic) -> None:
        self.diagnostic = diagnostic


def normal_form(rule: Rule) -> NormalForm | None:
    """The normal form of a rule, None if it has other matrix states beside S. RuleError: a line is not affine (E3xx),
    forgets its state (E306), or has a decay of unknown sign (E404) or without bound (E405)."""
    lets = rule.lets
    ranges = Ranges(rule)
    matrices = {s.name for s in rule.states if s.axis is Axis.MATRIX}
    decays: list[Expr | None] = []
    rows: list[Row] = []
    reads: tuple[Readout, ...] = ()
    rest: Expr | None = None
    read_line = 0
    found: list[Diagnostic] = []
    for line in rule.lines:
        try:
            if isinstance(line, Update) and line.state in matrices:
                form = _Affine(lets, matrices, in_read=False).matrix(line.value)
                decay = _decay(line, form, ranges, lets)
                if line.state == "S":
                    rows += _rows(form, len(decays), lets)
                    decays.append(decay)
            elif isinstance(line, Read):
                form_read = _Affine(lets, matrices, in_read=True).vector(line.value)
                reads, rest, read_line = _merge_reads(form_read), form_read.const, len(decays)
        except _Refused as refused:
            found.append(refused.diagnostic)
    if found:
        raise RuleError(found, rule.text)
    if len(matrices) > 1:
        return None
    return NormalForm(rule, tuple(decays), tuple(rows), reads, read_line, rest)


@dataclass(frozen=True)
class _Affine:
    lets: Mapping[str, Expr]
    matrices: set[str]
    in_read: bool

    def has_state(self, e: Expr) -> bool:
        return any(isinstance(x, Ref) and x.axis is Axis.MATRIX and x.name in self.matrices for x in walk(e))

    def matrix(self, e: Expr) -> Matrix:
        match e:
            case Ref(name) if name in self.matrices:
                return Matrix(((name, ONE),), ())
            case Ref(name) if name in self.lets:
                return self.matrix(self.lets[name])
            case Neg(x):
                return _scale(self.matrix(x), neg)
            case Bin("+", a, b):
                return _add(self.matrix(a), self.matrix(b))
            case Bin("-", a, b):
                return _add(self.matrix(a), _scale(self.matrix(b), neg))
            case Bin("*", a, b):
                return self.matrix_product(e, a, b)
            case Bin("/", a, b) if a.axis is Axis.MATRIX and not self.has_state(b):
                self.no_value_factor(e, b, a)
                form = self.matrix(a)
                if b.axis is Axis.VALUE:
                    return _scale_values(form, lambda c: div(c, b))
                return _scale(form, lambda c: div(c, b))
            case Outer(key, value):
                if self.has_state(key):
                    self.refuse_key(key)
                return Matrix((), ((key, self.vector(value)),))
        if self.has_state(e):
            raise self.nonlinear(e)
        raise _Refused(diagnostic("E307", e.span))

    def matrix_product(self, e: Expr, a: Expr, b: Expr) -> Matrix:
        if self.has_state(a) and self.has_state(b):
            self.refuse_scalar(a)
            self.refuse_scalar(b)
            raise _Refused(diagnostic("E302", e.span))
        body, factor = (a, b) if a.axis is Axis.MATRIX and not (b.axis is Axis.MATRIX and self.has_state(b)) else (b, a)
        if self.has_state(factor):
            self.refuse_scalar(factor)
        if factor.axis is Axis.MATRIX:
            raise _Refused(diagnostic("E304" if self.has_state(body) else "E307", factor.span))
        self.no_value_factor(e, factor, body)
        form = self.matrix(body)
        if factor.axis is Axis.VALUE:
            return _scale_values(form, lambda c: mul(factor, c))
        return _scale(form, lambda c: mul(factor, c))

    def vector(self, e: Expr) -> Vector:
        if not self.has_state(e):
            return Vector(e, ())
        match e:
            case Neg(x):
                return _scale_vector(self.vector(x), neg)
            case Bin("+", a, b):
                return _add_vectors(self.vector(a), self.vector(b))
            case Bin("-", a, b):
                return _add_vectors(self.vector(a), _scale_vector(self.vector(b), neg))
            case Bin("*", a, b):
                if self.has_state(a) and self.has_state(b):
                    self.refuse_scalar(a)
                    self.refuse_scalar(b)
                    raise _Refused(diagnostic("E302", e.span))
                body, factor = (a, b) if self.has_state(a) else (b, a)
                self.refuse_scalar(body)
                self.no_value_factor(e, factor, body)
                return _scale_vector(self.vector(body), lambda c: mul(factor, c))
            case Bin("/", a, b) if not self.has_state(b):
                self.no_value_factor(e, b, a)
                return _scale_vector(self.vector(a), lambda c: div(c, b))
            case Contract(a, b):
                key, matrix = (a, b) if b.axis is Axis.MATRIX else (b, a)
                if self.has_state(key):
                    self.refuse_key(key)
                return self.read(key, self.matrix(matrix), e.span)
        raise self.nonlinear(e)

    def read(self, key: Expr, form: Matrix, span: Span) -> Vector:
        """key @ form, for a form that may be more than a bare state."""
        out = Vector(None, tuple(Covector(s, mul(key, c), None, span) for s, c in form.states))
        for p, term in form.terms:
            out = _add_vectors(out, _scale_vector(term, partial(mul, contract(key, p))))
        return out

    def no_value_factor(self, whole: Expr, factor: Expr, body: Expr) -> None:
        if factor.axis is Axis.VALUE and self.has_state(body) and not (self.in_read and body.axis is Axis.VALUE):
            raise _Refused(diagnostic("E304", whole.span))

    def refuse_key(self, e: Expr) -> None:
        """A key-axis expression that contains a state has contracted it over value."""
        for x in walk(e):
            if isinstance(x, Contract) and x.axis is Axis.KEY and self.has_state(x):
                raise _Refused(diagnostic("E303", x.span))
        raise self.nonlinear(e)

    def refuse_scalar(self, e: Expr) -> None:
        """A scalar that contains a state has been contracted over value as well."""
        for x in walk(e):
            if isinstance(x, Contract) and x.axis in (Axis.SCALAR, Axis.KEY) and self.has_state(x):
                raise _Refused(diagnostic("E303", x.span))

    def nonlinear(self, e: Expr) -> _Refused:
        """The innermost operation that is not affine in a state it is given."""
        culprit = e
        for x in walk(e):
            below = isinstance(x, Call | Bin) and self.has_state(x)
            if below and (isinstance(x, Call) or (isinstance(x, Bin) and x.op in "^/")):
                culprit = x
        return _Refused(diagnostic("E301", culprit.span))


def _decay(line: Update, form: Matrix, ranges: Ranges, lets: Mapping[str, Expr]) -> Expr | None:
    """The log decay of an update line, after the checks of language rules 13 and 15."""
    own = dict(form.states).get(line.state)
    if not form.states:
        raise _Refused(diagnostic("E306", line.value.span))
    if own is None:
        return None
    interval = ranges.of(own)
    span = own.span if own.span.line else line.value.span
    if not interval.lo >= 0:
        raise _Refused(diagnostic("E404", span, lo=interval.lo, hi=interval.hi))
    if not interval.hi < float("inf"):
        raise _Refused(diagnostic("E405", span, lo=interval.lo, hi=interval.hi))
    return logform.log(own, lets, ranges)


def _rows(form: Matrix, line: int, lets: Mapping[str, Expr]) -> list[Row]:
    """The terms of one line, those that share an output direction up to a scalar merged into one row."""
    merged: dict[Expr, Row] = {}
    for p, term in form.terms:
        coefficient, direction = split_scalar(p, lets)
        y = None if term.const is None else mul(coefficient, term.const)
        e: Expr | None = None
        for read in term.reads:
            # u = y - e @ S, so a read enters e with its sign turned
            e = plus(e, neg(mul(times(coefficient, read.factor) or ONE, read.q)))
        if y is not None and any(is_num(x, 0.0) for x in walk_product(y)):
            y = None
        same = inline(direction, lets)
        if same in merged:
            row = merged[same]
            merged[same] = replace(row, y=plus(row.y, y), e=plus(row.e, e))
        else:
            merged[same] = Row(line, direction, y, e)
    return list(merged.values())


def walk_product(e: Expr) -> list[Expr]:
    """The factors of a product."""
    if isinstance(e, Bin) and e.op == "*":
        return walk_product(e.a) + walk_product(e.b)
    return [e]


def split_scalar(p: Expr, lets: Mapping[str, Expr]) -> tuple[Expr, Expr]:
    """p as scalar * direction, looking into a let only where that takes a scalar out."""
    match p:
        case Neg(x):
            c, d = split_scalar(x, lets)
            return neg(c), d
        case Bin("*", a, b) if a.axis is Axis.SCALAR:
            c, d = split_scalar(b, lets)
            return mul(a, c), d
        case Bin("*", a, b) if b.axis is Axis.SCALAR:
            c, d = split_scalar(a, lets)
            return mul(c, b), d
        case Bin("/", a, b) if b.axis is Axis.SCALAR:
            c, d = split_scalar(a, lets)
            return div(c, b), d
        case Ref(name) if name in lets:
            c, d = split_scalar(lets[name], lets)
            return (ONE, p) if c is ONE and not isinstance(d, Ref) else (c, d)
    return ONE, p


def _merge_reads(form: Vector) -> tuple[Readout, ...]:
    """One readout for each value factor; scalar factors go into the covector where several reads share a readout."""
    groups: dict[Expr | None, list[Covector]] = {}
    for read in form.reads:
        key = read.factor if read.factor is not None and read.factor.axis is Axis.VALUE else None
        groups.setdefault(key, []).append(read)
    out = []
    for value_factor, reads in groups.items():
        if len(reads) == 1:
            out.append(Readout(reads[0].q, reads[0].factor))
        else:
            scalars = [mul(r.factor, r.q) if r.factor is not None and value_factor is None else r.q for r in reads]
            q = total(list(scalars))
            assert q is not None
            out.append(Readout(q, value_factor))
    return tuple(out)


def _scale(form: Matrix, by: Scaling) -> Matrix:
    states = tuple((s, by(c)) for s, c in form.states)
    return Matrix(states, tuple((by(p), v) for p, v in form.terms))


def _scale_values(form: Matrix, by: Scaling) -> Matrix:
    return Matrix(form.states, tuple((p, _scale_vector(v, by)) for p, v in form.terms))


def _add(a: Matrix, b: Matrix) -> Matrix:
    states = dict(a.states)
    for name, c in b.states:
        summed = plus(states.get(name), c)
        assert summed is not None
        states[name] = summed
    return Matrix(tuple(states.items()), a.terms + b.terms)


def _scale_vector(v: Vector, by: Scaling) -> Vector:
    const = None if v.const is None else by(v.const)
    return Vector(const, tuple(replace(r, factor=by(r.factor or ONE)) for r in v.reads))


def _add_vectors(a: Vector, b: Vector) -> Vector:
    return Vector(plus(a.const, b.const), a.reads + b.reads)
