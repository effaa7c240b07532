"""A key state that S carries along as one more value column, where its recurrence is S's with a scalar for the value.

A normaliser is such a state: of S <- D S + outer(k, v) it is the column whose value is 1, z <- D z + k, and its read
q @ z is one more column of q @ S. So it needs no scan of its own, which would write a key vector for every token.

The state's lines are written as those of a matrix with one column, in place of S's, and lowered to a core form as S's
are; the two core forms must have the same decay, the same erasing rows and the same read. Where they have not, the
state is scanned by itself (`scans`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .affine import normal_form
from .build import ONE, ZERO, contract, div, inline, mul, neg, plus, times
from .core import core as core_of
from .diagnostics import RuleError
from .ir import (
    Axis,
    Bin,
    Contract,
    Expr,
    Let,
    Line,
    Neg,
    Outer,
    Read,
    Ref,
    Rule,
    S,
    State,
    Update,
    children,
    rebuild,
    walk,
)
from .normal import Core

# The one value column; what the read finds in it, and in S. No rule has such names.
_UNIT = Ref("1", Axis.VALUE)
READ = Ref("the column", Axis.SCALAR)
VALUES = Ref("the values", Axis.VALUE)


@dataclass(frozen=True)
class Column:
    """A state kept as a column of S. `values` has the column's value for each row of the core, a scalar, None for 0.

    `read` is q @ state, with the q of the core's one read; in `output` it is `READ`, and q @ S is `VALUES`.
    """

    state: str
    values: tuple[Expr | None, ...]
    read: Expr
    output: Expr


class _OfOtherForm(Exception):
    """The state is not a column of S."""


def column(rule: Rule, core: Core) -> Column | None:
    """The first state of a rule that is a column of S, given the rule's core form; None if there is none."""
    for state in rule.states:
        if state.axis is Axis.KEY and len(core.reads) == 1:
            try:
                return _column(rule, core, state)
            except (_OfOtherForm, RuleError):
                continue
    return None


def without_column(core: Core, found: Column) -> Core:
    """The core form of S with its column: every row that writes to either has a value, and the read stands alone."""
    rows = tuple(
        replace(row, y=ZERO if row.y is None and value is not None else row.y)
        for row, value in zip(core.rows, found.values, strict=True)
    )
    return Core(core.g, rows, (replace(core.reads[0], factor=None),), None)


def _column(rule: Rule, core: Core, state: State) -> Column:
    lets = rule.lets
    lift = _Lift(state.name, lets)
    lines: list[Line] = []
    q: Expr | None = None
    for line in rule.lines:
        if isinstance(line, Update) and line.state == state.name:
            lines.append(Update("S", lift(line.value), line.span))
            lift.version += 1
        elif isinstance(line, Read):
            lift.read_version = lift.version
            q = lift.covector(line.value)
            if q is None:
                raise _OfOtherForm
            lines.append(Read(line.name, Contract(q, Ref("S", Axis.MATRIX), Axis.VALUE), line.span))
        elif lift.uses(line.value):
            if not isinstance(line, Let):
                raise _OfOtherForm  # S or another state needs the state itself
        elif not (isinstance(line, Update) and line.state == "S"):
            lines.append(line)
    if q is None or not lift.version:
        raise _OfOtherForm
    others = tuple(s for s in rule.states if s.name not in ("S", state.name))
    form = normal_form(replace(rule, states=(S, *others), lines=tuple(lines)))
    if form is None:
        raise _OfOtherForm
    values = _matched(core, core_of(form), lets)
    factor, rest = (None if e is None else lift.with_read(e) for e in (core.reads[0].factor, core.rest))
    output = plus(times(factor, VALUES), rest)
    assert output is not None
    z = Ref(state.name, Axis.KEY, version=lift.read_version)
    return Column(state.name, values, contract(q, z), output)


def _matched(core: Core, own: Core, lets: Mapping[str, Expr]) -> tuple[Expr | None, ...]:
    """The column's value for each row of S, if all but these values is the same."""

    def same(a: Expr | None, b: Expr | None) -> bool:
        return a is b if a is None or b is None else inline(a, lets) == inline(b, lets)

    def same_couplings(a: tuple[tuple[int, Expr | None], ...], b: tuple[tuple[int, Expr | None], ...]) -> bool:
        """Of couplings to rows that the column has too; to a row that writes nothing there, any will do."""
        left = [(i, c) for i, c in a if i in place.values()]
        right = [(place[i], c) for i, c in b]
        return [i for i, _ in left] == [i for i, _ in right] and all(
            same(c, d) for (_, c), (_, d) in zip(left, right, strict=True)
        )

    place: dict[int, int] = {}
    for j, row in enumerate(own.rows):
        for i, candidate in enumerate(core.rows):
            free = i not in place.values() and i > max(place.values(), default=-1)
            level = row.e is None or row.post == candidate.post
            if free and level and same(row.p, candidate.p) and same(row.e, candidate.e):
                place[j] = i
                break
        else:
            raise _OfOtherForm
    erasing = {i for i, row in enumerate(core.rows) if row.e is not None}
    read, own_read = core.reads[0], own.reads[0]
    alike = (
        same(core.g, own.g)
        and erasing <= set(place.values())
        and all(same_couplings(core.rows[i].couplings, own.rows[j].couplings) for j, i in place.items() if i in erasing)
        and same(read.q, own_read.q)
        and read.post == own_read.post
        and same_couplings(read.couplings, own_read.couplings)
        and own_read.factor is None
        and own.rest is None
    )
    if not alike:
        raise _OfOtherForm
    values: list[Expr | None] = [None] * len(core.rows)
    for j, i in place.items():
        y = own.rows[j].y
        values[i] = None if y is None else _scalar(y)
    return tuple(values)


def _scalar(e: Expr) -> Expr:
    """A value-axis expression of the one column as the number in it."""
    match e:
        case Ref() if e == _UNIT:
            return ONE
        case Neg(x):
            return neg(_scalar(x))
        case Bin("*", a, b):
            return mul(_scalar(a), _scalar(b))
        case Bin("/", a, b):
            return div(_scalar(a), _scalar(b))
        case Bin(("+" | "-") as op, a, b) if e.axis is Axis.VALUE:
            return plus(_scalar(a), _scalar(b) if op == "+" else neg(_scalar(b))) or ZERO
    return e


class _Lift:
    """Expressions of a key state as those of a matrix with one column: key vectors become matrices, scalars values.

    `version` is the state's at the line that is being lifted; an older one, kept by a let, has no such form.
    """

    def __init__(self, name: str, lets: Mapping[str, Expr]) -> None:
        self.name, self.lets, self.version, self.read_version = name, lets, 0, 0

    def uses(self, e: Expr) -> bool:
        """Whether the state occurs in e, through lets too."""
        return any(
            isinstance(x, Ref) and (x.name == self.name or (x.name in self.lets and self.uses(self.lets[x.name])))
            for x in walk(e)
        )

    def __call__(self, e: Expr) -> Expr:
        if not self.uses(e):
            return Outer(e, _UNIT) if e.axis is Axis.KEY else Bin("*", e, _UNIT, Axis.VALUE)
        made = Axis.MATRIX if e.axis is Axis.KEY else Axis.VALUE
        match e:
            case Ref(name, _, _, version) if name == self.name and version == self.version:
                return Ref("S", Axis.MATRIX)
            case Ref(name) if name in self.lets:
                return self(self.lets[name])
            case Neg(x):
                return Neg(self(x), made)
            case Bin(("+" | "-") as op, a, b) if a.axis is b.axis:
                return Bin(op, self(a), self(b), made)
            case Bin("*", a, b) if self.uses(a) != self.uses(b):
                factor, body = (b, a) if self.uses(a) else (a, b)
                if factor.axis is Axis.KEY and body.axis is Axis.SCALAR:
                    return Outer(factor, self(body))
                return Bin("*", factor, self(body), made)
            case Bin("/", a, b) if not self.uses(b) and a.axis is e.axis:
                return Bin("/", self(a), b, made)
            case Contract(a, b) if self.uses(a) != self.uses(b) and a.axis is Axis.KEY:
                covector, body = (b, a) if self.uses(a) else (a, b)
                return Contract(covector, self(body), Axis.VALUE)
        raise _OfOtherForm

    def covector(self, e: Expr) -> Expr | None:
        """The q of every q @ state in e, the only form in which the state may occur there; None if it does not."""
        found = self._covectors(e)
        if any(inline(x, self.lets) != inline(found[0], self.lets) for x in found):
            raise _OfOtherForm
        return found[0] if found else None

    def _covectors(self, e: Expr) -> list[Expr]:
        if not self.uses(e):
            return []
        match e:
            case Ref(name) if name in self.lets:
                return self._covectors(self.lets[name])
            case Contract() if (q := self._read_by(e)) is not None:
                return [q]
            case Ref():
                raise _OfOtherForm
        return [q for x in children(e) for q in self._covectors(x)]

    def _read_by(self, e: Contract) -> Expr | None:
        """The q of e = q @ state, as it is at the read."""
        for q, z in ((e.a, e.b), (e.b, e.a)):
            if isinstance(z, Ref) and z.name == self.name and z.version == self.read_version and not self.uses(q):
                return q
        return None

    def with_read(self, e: Expr) -> Expr:
        """e with `READ` in place of q @ state."""
        if not self.uses(e):
            return e
        if isinstance(e, Ref):
            return self.with_read(self.lets[e.name])
        if isinstance(e, Contract) and self._read_by(e) is not None:
            return READ
        return rebuild(e, tuple(self.with_read(x) for x in children(e)))
