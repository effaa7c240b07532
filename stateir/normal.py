"""The normal form: what a rule does to S in one token, whatever lines it was written in (docs/design.md).

The update lines of S are numbered 0, 1, ... in time order ("line" below). Line l does, all at once,

    S <- exp(decays[l]) * S + sum over its rows of  outer(p, u)          u = y - e @ (S just before line l)

and the read sees S after the lines 0 .. read_line - 1:

    o = sum over reads of  factor * (q @ S)  +  rest

Expressions refer to inputs, params, lets and vector states (`ir.Ref`, with versions); no matrix state occurs in them.
`core()` turns this into the form that the generators use, in which every row reads the state before the token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .ir import Expr, Rule


@dataclass(frozen=True)
class Row:
    """One rank-one write. p: key; y: value or None (0); e: key or None (reads nothing: a pure write)."""

    line: int
    p: Expr
    y: Expr | None
    e: Expr | None


@dataclass(frozen=True)
class Readout:
    """factor * (q @ S); factor is a scalar, a value vector or None (1)."""

    q: Expr
    factor: Expr | None


@dataclass(frozen=True)
class NormalForm:
    """`decays` holds one log decay a line (scalar or key, None: no decay); `rows` are in time order."""

    rule: Rule
    decays: tuple[Expr | None, ...]
    rows: tuple[Row, ...]
    reads: tuple[Readout, ...]
    read_line: int
    rest: Expr | None


@dataclass(frozen=True)
class CoreRow:
    """A row of the core form: u = y - e~ . S_{t-1} - sum over i of couplings[i] * u_i.

    p is p~, scaled by the decays after its line. If `post`, all of the token's decays stand above the row's line: then
    e is the plain covector, it reads exp(g) * S_{t-1}, and the coupling to an earlier visible row i is just e . p~_i.
    Otherwise e is e~ (scaled by the decays above it) and reads S_{t-1}. `couplings` has (i, c) for each earlier row i
    of this token that this row sees; c is a scalar expression, None where it is e . p~_i.
    `p_same` is the first row whose p is the same expression (possibly the row itself).
    """

    p: Expr
    y: Expr | None
    e: Expr | None
    post: bool
    couplings: tuple[tuple[int, Expr | None], ...]
    p_same: int


@dataclass(frozen=True)
class CoreRead:
    """q~ at level G_t if `post` (q plain), else at G_{t-1}; `couplings` as in CoreRow, over the rows above the read."""

    q: Expr
    factor: Expr | None
    post: bool
    couplings: tuple[tuple[int, Expr | None], ...]


@dataclass(frozen=True)
class Core:
    """What the generators consume. g: total log decay of a token, or None."""

    g: Expr | None
    rows: tuple[CoreRow, ...]
    reads: tuple[CoreRead, ...]
    rest: Expr | None

    def expressions(self) -> Iterator[Expr]:
        """Everything that is there."""
        rows = [x for row in self.rows for x in (row.p, row.y, row.e, *(c for _, c in row.couplings))]
        reads = [x for read in self.reads for x in (read.q, read.factor, *(c for _, c in read.couplings))]
        yield from (x for x in (self.g, *rows, *reads, self.rest) if x is not None)
