"""The proofs behind a rule's chunk form, at K = 3, V = 2 and three tokens, in exact arithmetic.

Three steps, each an identity of polynomials with the written values u as symbols (expanding the solved form instead
takes minutes): every line does what its row of the normal form says; the lines of a token compose to the core form;
the core form composes over the tokens of a chunk to (I + A) U = Y - E~ e^L S_0 and what follows from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from .build import ONE, exp
from .column import READ, VALUES, Column, column
from .ir import Axis, Call, Expr, Prev, Read, Ref, Rule, Update, walk
from .normal import Core, CoreRead, CoreRow, NormalForm
from .symbolic import Algebra, Entries, with_algebra

TOKENS = 3


@dataclass(frozen=True)
class Proof:
    """One obligation: what was claimed, whether it was shown, and in how many seconds."""

    claim: str
    holds: bool
    seconds: float


def prove_rule(nf: NormalForm, core: Core) -> list[Proof]:
    """All obligations of a rule, in order."""
    out = []
    jobs: list[tuple[str, Callable[[Algebra], bool]]] = [
        ("each line equals its rows of the normal form", lambda a: _lines(a, nf)),
        ("the lines of a token compose to the core form", lambda a: _token(a, nf, core)),
        (f"{TOKENS} tokens compose to the chunk form", lambda a: _chunk(a, core)),
    ]
    found = column(nf.rule, core)
    if found is not None:
        jobs.append((f"{found.state} is one more column of S", lambda a: column_holds(a, nf, core, found)))
    for claim, job in jobs:
        start = time.perf_counter()
        holds = with_algebra(job, keys=key_dimension(nf.rule))
        out.append(Proof(claim, holds, time.perf_counter() - start))
    return out


def key_dimension(rule: Rule) -> int:
    """3, or 4 for a rule with pairs of key channels."""
    has_pairs = any(x.axis is Axis.PAIR for x in rule.declared)
    turns = any(isinstance(x, Call) and x.fn == "rotate" for line in rule.lines for x in walk(line.value))
    return 4 if has_pairs or turns else 3


class Token:
    """The names of a rule at one token as symbols, its lets as their values.

    `values` holds what is known of a state, by name and version; without it S is whatever `S` is set to, and a version
    of another state is a symbol of its own.
    """

    def __init__(self, algebra: Algebra, rule: Rule) -> None:
        self.algebra, self.lets = algebra, rule.lets
        self.S: Entries = None
        self.values: dict[tuple[str, int], Entries] = {}

    def lookup(self, e: Ref | Prev) -> Entries:
        if isinstance(e, Prev):
            return self.algebra.fresh(e.axis, "prev", e.of.name, e.of.index, e.n)
        if e.name in self.lets:
            return self.of(self.lets[e.name])
        if (e.name, e.version) in self.values:
            return self.values[e.name, e.version]
        if e.axis is Axis.MATRIX:
            return self.S
        return self.algebra.fresh(e.axis, "name", e.name, e.index, e.version)

    def of(self, e: Expr) -> Entries:
        return self.algebra.of(e, self.lookup)

    def key(self, e: Expr | None) -> list[Entries]:
        """A scalar or key expression on every key channel; None is one."""
        value = self.of(ONE if e is None else e)
        return value if isinstance(value, list) else [value] * self.algebra.keys

    def value(self, e: Expr | None) -> list[Entries]:
        """A value expression, None is zero."""
        return [self.algebra.ring.zero] * self.algebra.values if e is None else self.of(e)


def scale(decay: list[Entries], matrix: Entries) -> Entries:
    return [[d * x for x in row] for d, row in zip(decay, matrix, strict=True)]


def add(a: Entries, b: Entries) -> Entries:
    return [[x + y for x, y in zip(r, s, strict=True)] for r, s in zip(a, b, strict=True)]


def outer(p: list[Entries], u: list[Entries]) -> Entries:
    return [[x * y for y in u] for x in p]


def read(q: list[Entries], matrix: Entries) -> list[Entries]:
    return [sum((a * b for a, b in zip(q, column, strict=True)), 0 * q[0]) for column in zip(*matrix, strict=True)]


def _lines(algebra: Algebra, nf: NormalForm) -> bool:
    """On a state of fresh symbols, a line as written equals exp(decay) * S + sum outer(p, y - e @ S)."""
    token = Token(algebra, nf.rule)
    token.S = S = algebra.fresh(Axis.MATRIX, "S")
    number = 0
    for line in nf.rule.lines:
        if isinstance(line, Update) and line.state == "S":
            claimed = scale(token.key(exp(nf.decays[number])), S)
            for row in (r for r in nf.rows if r.line == number):
                u = token.value(row.y)
                if row.e is not None:
                    u = [a - b for a, b in zip(u, read(token.of(row.e), S), strict=True)]
                claimed = add(claimed, outer(token.of(row.p), u))
            if not algebra.equal(token.of(line.value), claimed):
                return False
            number += 1
        elif isinstance(line, Read):
            o = token.value(nf.rest)
            for r in nf.reads:
                o = _accumulate(algebra, o, token, r.factor, read(token.of(r.q), S))
            if not algebra.equal(token.value(line.value), o):
                return False
    return True


def _accumulate(algebra: Algebra, o: Entries, token: Token, factor: Expr | None, r: Entries) -> Entries:
    scaled = r if factor is None else algebra.zip(lambda x, y: x * y, token.of(factor), r)
    return [a + b for a, b in zip(o, scaled, strict=True)]


def _token(algebra: Algebra, nf: NormalForm, core: Core) -> bool:
    """With the u as symbols, running the lines equals the core form's rows, state and reads."""
    token = Token(algebra, nf.rule)
    S = algebra.fresh(Axis.MATRIX, "S")
    written = [algebra.fresh(Axis.VALUE, "u", j) for j in range(len(nf.rows))]
    decayed = scale(token.key(exp(core.g)), S)

    def claimed(form: CoreRow | CoreRead, covector: Expr) -> list[Entries]:
        out = read(token.of(covector), decayed if form.post else S)
        for i, coupling in form.couplings:
            c = dot(token.of(covector), token.of(core.rows[i].p)) if coupling is None else token.of(coupling)
            out = [a + c * b for a, b in zip(out, written[i], strict=True)]
        return out

    def dot(a: list[Entries], b: list[Entries]) -> Entries:
        return sum((x * y for x, y in zip(a, b, strict=True)), algebra.ring.zero)

    state = S
    for number in range(len(nf.decays) + 1):
        if number == nf.read_line:
            for r, form in zip(nf.reads, core.reads, strict=True):
                if not algebra.equal(read(token.of(r.q), state), claimed(form, form.q)):
                    return False
        if number == len(nf.decays):
            break
        here = [j for j, r in enumerate(nf.rows) if r.line == number]
        for j in here:
            e, row = nf.rows[j].e, core.rows[j]
            if (e is None) != (row.e is None) or nf.rows[j].y != row.y:
                return False
            if e is None or row.e is None:
                continue
            if not algebra.equal(read(token.of(e), state), claimed(row, row.e)):
                return False
        state = scale(token.key(exp(nf.decays[number])), state)
        for j in here:
            state = add(state, outer(token.of(nf.rows[j].p), written[j]))
    final = decayed
    for j, row in enumerate(core.rows):
        final = add(final, outer(token.of(row.p), written[j]))
    return algebra.equal(state, final)


def column_holds(algebra: Algebra, nf: NormalForm, core: Core, found: Column) -> bool:
    """A token of the state's own lines equals the core form with the column's values; so do its read and the output."""
    token, name = Token(algebra, nf.rule), found.state
    z = token.values[name, 0] = algebra.fresh(Axis.KEY, "z")
    versions = 0
    for line in nf.rule.lines:
        if isinstance(line, Update) and line.state == name:
            versions += 1
            token.values[name, versions] = token.of(line.value)
    decayed = [a * b for a, b in zip(token.key(exp(core.g)), z, strict=True)]
    written: list[Entries] = []

    def dot(a: Expr, b: list[Entries]) -> Entries:
        return sum((x * y for x, y in zip(token.of(a), b, strict=True)), algebra.ring.zero)

    def reads(form: CoreRow | CoreRead, covector: Expr) -> Entries:
        out = dot(covector, decayed if form.post else z)
        for i, coupling in form.couplings:
            c = dot(covector, token.of(core.rows[i].p)) if coupling is None else token.of(coupling)
            out = out + c * written[i]
        return out

    for row, value in zip(core.rows, found.values, strict=True):
        y = algebra.ring.zero if value is None else token.of(value)
        written.append(y if row.e is None else y - reads(row, row.e))
    after = decayed
    for row, u in zip(core.rows, written, strict=True):
        after = [a + p * u for a, p in zip(after, token.of(row.p), strict=True)]
    own = reads(core.reads[0], core.reads[0].q)
    token.S = S = algebra.fresh(Axis.MATRIX, "S")
    token.values[READ.name, 0] = token.of(found.read)
    token.values[VALUES.name, 0] = read(token.of(nf.reads[0].q), S)
    return (
        algebra.equal(after, token.values[name, versions])
        and algebra.equal(own, token.of(found.read))
        and algebra.equal(token.of(nf.rule.read.value), token.of(found.output))
    )


def _chunk(algebra: Algebra, core: Core) -> bool:
    """The core form token by token equals the chunk's rows, outputs and final state; its tensors are symbols here."""
    K = algebra.keys
    count = len(core.rows)
    shared = core.g is not None and core.g.axis is Axis.SCALAR

    def decay(t: int) -> list[Entries]:
        if core.g is None:
            return [algebra.ring.one] * K
        return [algebra.symbol("decay", t, None if shared else i) for i in range(K)]

    def product(first: int, last: int) -> list[Entries]:
        """exp(G_last - G_first): the decays of tokens first + 1 .. last."""
        out = [algebra.ring.one] * K
        for t in range(first + 1, last + 1):
            out = [a * b for a, b in zip(out, decay(t), strict=True)]
        return out

    def vec(axis: Axis, *key: Hashable) -> list[Entries]:
        entries: list[Entries] = algebra.fresh(axis, *key)
        return entries

    def coupled(form: CoreRow | CoreRead, tag: tuple[Hashable, ...], t: int, i: int, c: Expr | None) -> Entries:
        if c is not None:
            return algebra.symbol("c", *tag, t, i)
        pairs = zip(vec(Axis.KEY, *tag, t), vec(Axis.KEY, "p", i, t), strict=True)
        return sum((a * b for a, b in pairs), algebra.ring.zero)

    def token_read(form: CoreRow | CoreRead, tag: tuple[Hashable, ...], t: int, state: Entries) -> list[Entries]:
        """What a covector of token t reads, from the state before the token and the rows it sees."""
        out = read(vec(Axis.KEY, *tag, t), scale(decay(t), state) if form.post else state)
        for i, c in form.couplings:
            factor = coupled(form, tag, t, i, c)
            out = [a + factor * b for a, b in zip(out, vec(Axis.VALUE, "u", i, t), strict=True)]
        return out

    def chunk_read(form: CoreRow | CoreRead, tag: tuple[Hashable, ...], t: int, S0: Entries) -> list[Entries]:
        """The same from S_0 and the whole chunk's U: a row of e^L S_0 and of A (or M)."""
        level = t if form.post else t - 1
        q = vec(Axis.KEY, *tag, t)
        out = read([a * b for a, b in zip(q, product(-1, level), strict=True)], S0)
        for s in range(t):
            for i in range(count):
                weights = zip(q, product(s, level), vec(Axis.KEY, "p", i, s), strict=True)
                A = sum((a * b * c for a, b, c in weights), algebra.ring.zero)
                out = [a + A * b for a, b in zip(out, vec(Axis.VALUE, "u", i, s), strict=True)]
        for i, c in form.couplings:
            factor = coupled(form, tag, t, i, c)
            out = [a + factor * b for a, b in zip(out, vec(Axis.VALUE, "u", i, t), strict=True)]
        return out

    S0 = algebra.fresh(Axis.MATRIX, "S")
    state = S0
    for t in range(TOKENS):
        forms: list[tuple[CoreRow | CoreRead, tuple[object, ...]]] = [
            (row, ("e", j)) for j, row in enumerate(core.rows) if row.e is not None
        ]
        forms += [(r, ("q", j)) for j, r in enumerate(core.reads)]
        for form, tag in forms:
            if not algebra.equal(token_read(form, tag, t, state), chunk_read(form, tag, t, S0)):
                return False
        state = scale(decay(t), state)
        for i in range(count):
            state = add(state, outer(vec(Axis.KEY, "p", i, t), vec(Axis.VALUE, "u", i, t)))
    final = scale(product(-1, TOKENS - 1), S0)
    for s in range(TOKENS):
        for i in range(count):
            p = [a * b for a, b in zip(product(s, TOKENS - 1), vec(Axis.KEY, "p", i, s), strict=True)]
            final = add(final, outer(p, vec(Axis.VALUE, "u", i, s)))
    return algebra.equal(state, final)
