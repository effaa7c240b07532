"""Is rule A, with some of its names replaced, the same recurrence as rule B? Exactly, or with numbers that refute it.

Both rules run one token from the same symbolic states. If the new states and the outputs are equal polynomials, the
rules agree on every sequence by induction; this is shown at two sizes of the axes, so that an identity of one size is
not taken for one of all. Every state of A must be a state of B with the same start. Otherwise random values inside the
declared ranges are tried: a difference is a counter-example to paste; none means "not decided".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .evaluate import Values, draw, evaluate, past, run_lines, token
from .ir import Axis, Expr, Prev, Ref, Rule, Update, walk
from .proofs import Token, key_dimension
from .symbolic import Algebra, Entries, with_algebra

Name = tuple[str, int | None]


@dataclass(frozen=True)
class CounterExample:
    """Values of B's names (and A's free ones), and what the two rules make of them. S is the state before the token."""

    values: dict[str, Any]
    S: Any
    where: str
    a: Any
    b: Any


@dataclass(frozen=True)
class Verdict:
    """`equal` is True (proved), False (refuted, with numbers) or None (neither)."""

    equal: bool | None
    counter_example: CounterExample | None = None


def prove(a: Rule, b: Rule, replace: Mapping[Name, Expr] | None = None, state_only: bool = False) -> Verdict:
    """Decide whether A with `replace` (A's names -> expressions in B's names) equals B; `state_only` leaves reads out.

    A name of A that is not replaced is B's name of the same axis kind, or free. An array of one is its element.
    ValueError: a name that A does not have, or a replacement whose axis does not fit.
    """
    replace = dict(replace or {})
    _check(a, b, replace)
    if not _comparable(a, b):
        return Verdict(None)
    keys = max(key_dimension(a), key_dimension(b))
    sizes = [(keys, 2), (keys + 2, 4)]
    if all(with_algebra(lambda alg: _equal(alg, a, b, replace, state_only), K, V) for K, V in sizes):
        return Verdict(True)
    found = _search(a, b, replace, state_only)
    return Verdict(None if found is None else False, found)


def _declared(rule: Rule) -> dict[Name, Axis]:
    out: dict[Name, Axis] = {}
    for x in rule.declared:
        size = getattr(x, "size", None)
        for index in [None] if size is None else range(size):
            out[x.name, index] = x.axis
    return out


def _counterpart(name: Name, names: Mapping[Name, Axis]) -> Name | None:
    """The same name in another rule, an array of one standing for its element."""
    if name in names:
        return name
    for other in ((name[0], 0), (name[0], None)):
        if other in names and (name[1] in (None, 0)):
            return other
    return None


def _check(a: Rule, b: Rule, replace: Mapping[Name, Expr]) -> None:
    names = _declared(a)
    for name, e in replace.items():
        own = _counterpart(name, names)
        if own is None:
            raise ValueError(
                f"{a.name} has no input, param or state `{name[0]}`; it has {', '.join(n for n, _ in names)}"
            )
        if e.axis is not names[own] and e.axis is not Axis.SCALAR:
            raise ValueError(f"`{name[0]}` of {a.name} is a {names[own].value}, its replacement a {e.axis.value}")
    theirs = _declared(b)
    for own, axis in names.items():
        other = _counterpart(own, theirs)
        if _replacement(own, replace) is None and other is not None and theirs[other] not in (axis, Axis.SCALAR):
            raise ValueError(
                f"`{own[0]}` is a {axis.value} in {a.name} and a {theirs[other].value} in {b.name}: say what it is, "
                f"{own[0]}=..."
            )


def _replacement(name: Name, replace: Mapping[Name, Expr]) -> Expr | None:
    other = _counterpart(name, {n: e.axis for n, e in replace.items()})
    return None if other is None else replace[other]


def _comparable(a: Rule, b: Rule) -> bool:
    """Whether A's states and fixed params start as B's of the same name do, so that equal tokens mean equal rules."""
    theirs = {s.name: s for s in b.states}
    states = all(
        s.name in theirs and (theirs[s.name].axis, theirs[s.name].start) == (s.axis, s.start) for s in a.states
    )
    fixed = {p.name: p.start for p in b.params if p.fixed}
    return states and all(fixed.get(p.name, p.start) == p.start for p in a.params if p.fixed)


class _Replaced(Token):
    """Rule A at a token of rule B: replaced names are B's expressions, common names B's, others free."""

    def __init__(self, algebra: Algebra, a: Rule, b: Token, rule_b: Rule, replace: Mapping[Name, Expr]) -> None:
        super().__init__(algebra, a)
        self.b, self.replace, self.theirs = b, replace, _declared(rule_b)

    def lookup(self, e: Ref | Prev) -> Entries:
        if isinstance(e, Prev):
            return self._wide(self.b.lookup(_earlier(e, self.replace, self.theirs)), e.axis)
        if e.name in self.lets or (e.name, e.version) in self.values:
            return super().lookup(e)
        name = (e.name, e.index)
        given = _replacement(name, self.replace)
        other = _counterpart(name, self.theirs)
        if given is not None:
            value = self.b.of(given)
        elif other is not None:
            value = self.b.lookup(Ref(other[0], self.theirs[other], other[1], e.version))
        else:
            return self.algebra.fresh(e.axis, "free", e.name, e.index, e.version)
        return self._wide(value, e.axis)

    def _wide(self, value: Entries, axis: Axis) -> Entries:
        if isinstance(value, list) or axis is Axis.SCALAR:
            return value
        return [value] * self.algebra.length(axis)


def _earlier(e: Prev, replace: Mapping[Name, Expr], theirs: Mapping[Name, Axis]) -> Prev:
    """A's look-back as one of B. ValueError: the name is replaced by more than a name, which has no past of its own."""
    name = (e.of.name, e.of.index)
    given = _replacement(name, replace)
    if given is None:
        other = _counterpart(name, theirs)
        return e if other is None else Prev(Ref(other[0], theirs[other], other[1]), e.n, theirs[other])
    if not isinstance(given, Ref):
        raise ValueError(f"`{name[0]}` stands in a prev(): its replacement must be a name")
    return Prev(given, e.n, given.axis)


def _run(token: Token, rule: Rule, starts: Mapping[str, Entries]) -> tuple[Entries, dict[str, Entries]]:
    """(o, the states after the token) of the lines as written."""
    counts = dict.fromkeys(starts, 0)
    token.values = {(name, 0): value for name, value in starts.items()}
    axes = {s.name: s.axis for s in rule.states}
    o: Entries = None
    for line in rule.lines:
        if isinstance(line, Update):
            counts[line.state] += 1
            value = token.of(line.value)
            if not isinstance(value, list) and axes[line.state] is not Axis.SCALAR:
                value = [value] * token.algebra.length(axes[line.state])
            token.values[line.state, counts[line.state]] = value
        elif line is rule.read:
            o = token.of(line.value)
    return o, {name: token.values[name, count] for name, count in counts.items()}


def _equal(algebra: Algebra, a: Rule, b: Rule, replace: Mapping[Name, Expr], state_only: bool) -> bool:
    token_b = Token(algebra, b)
    token_a = _Replaced(algebra, a, token_b, b, replace)
    theirs = _declared(b)
    for rule, names in ((b, token_b), (a, token_a)):
        for x in rule.arguments:
            for index in [None] if x.size is None else range(x.size):
                own = (x.name, index)
                if x.unit and (rule is b or (_counterpart(own, theirs) is None and _replacement(own, replace) is None)):
                    algebra.unit_norm(names.lookup(Ref(x.name, x.axis, index)))
    starts = {s.name: algebra.fresh(s.axis, "start", s.name) for s in b.states}
    o_b, after_b = _run(token_b, b, starts)
    o_a, after_a = _run(token_a, a, {s.name: starts[s.name] for s in a.states})
    same = all(algebra.equal(value, after_b[name]) for name, value in after_a.items())
    return same and (state_only or algebra.equal(o_a, o_b))


def _search(
    a: Rule, b: Rule, replace: Mapping[Name, Expr], state_only: bool, tries: int = 100
) -> CounterExample | None:
    """Values inside the ranges on which the rules differ, rounded to be pasted."""
    rng = np.random.default_rng(0)
    keys = 2
    dims = {Axis.KEY: keys, Axis.VALUE: 1, Axis.PAIR: keys // 2}
    for _ in range(tries):
        given_b = {name: np.round(v, 3) for name, v in draw(b, rng, dims).items()}
        given_a = {name: np.round(v, 3) for name, v in draw(a, rng, dims).items()}
        S = np.round(rng.standard_normal((keys, 1)), 3)
        free = _fill(a, b, given_a, given_b, S, replace, dims)
        o_b, S_b = token(b, given_b, S, dims)
        o_a, S_a = token(a, given_a, S, dims)
        pairs: list[tuple[str, Any, Any]] = [(_where(name), x, S_b[name]) for name, x in S_a.items()]
        if not state_only:
            pairs.append(("output", o_a, o_b))
        for where, x, y in pairs:
            if np.max(np.abs(x - y)) > 1e-6 * (1 + np.max(np.abs(y))):
                values = {_label(n): np.asarray(v).tolist() for n, v in {**given_b, **free}.items()}
                return CounterExample(values, S.tolist(), where, np.asarray(x).tolist(), np.asarray(y).tolist())
    return None


def _where(name: str) -> str:
    return "state" if name == "S" else f"state {name}"


def _label(name: Name) -> str:
    return name[0] if name[1] is None else f"{name[0]}[{name[1]}]"


def _fill(
    a: Rule, b: Rule, given_a: Values, given_b: Values, S: Any, replace: Mapping[Name, Expr], dims: Mapping[Axis, int]
) -> Values:
    """Overwrite A's values by their replacements and by B's names; returns A's free ones."""
    names = run_lines(b, given_b, S, dims)
    theirs, free = _declared(b), {}
    for own, axis in _declared(a).items():
        if own == ("S", None):
            continue
        given, other = _replacement(own, replace), _counterpart(own, theirs)
        if given is not None:
            value = evaluate(given, names, dims)
        elif other is not None:
            value = given_b[other]
        else:
            free[own] = given_a[own]
            continue
        given_a[own] = value if axis in (Axis.SCALAR, Axis.MATRIX) else np.broadcast_to(value, (dims[axis],))
    for line in a.lines:
        for e in walk(line.value):
            if isinstance(e, Prev):
                theirs_e = _earlier(e, replace, theirs)
                label = (past(theirs_e), theirs_e.of.index)
                before: Any = given_b.setdefault(label, given_a[past(e), e.of.index])
                wide = before if e.axis is Axis.SCALAR else np.broadcast_to(before, (dims[e.axis],))
                given_a[past(e), e.of.index] = wide
    return free
