"""Normal form -> core form: every row reads the state before the token, so that a chunk's algebra needs no lines.

With D(a, b) the product of the decays on lines a .. b-1, a row on line l has

    e~ = e * D(0, l)      p~ = p * D(l + 1, end)      coupling to a row i on an earlier line m: (e * D(m + 1, l)) @ p_i

and where no decay stands on line l or below it, e reads exp(g) * S_{t-1} as it is and its couplings are e @ p~_i.
"""

from __future__ import annotations

from .build import contract, exp, inline, times, total
from .ir import Expr
from .normal import Core, CoreRead, CoreRow, NormalForm


def core(nf: NormalForm) -> Core:
    """The core form of a normal form."""
    lets = nf.rule.lets
    end = len(nf.decays)

    def decay(first: int, last: int) -> Expr | None:
        return exp(total(list(nf.decays[first:last])))

    def scaled(vector: Expr, factor: Expr | None) -> Expr:
        out = times(vector, factor)
        assert out is not None
        return out

    def reading(vector: Expr, line: int) -> tuple[Expr, bool, tuple[tuple[int, Expr | None], ...]]:
        """A covector that stands just before `line`: its core form, whether it is `post`, its couplings."""
        post = all(d is None for d in nf.decays[line:])
        couplings: list[tuple[int, Expr | None]] = []
        for i, row in enumerate(nf.rows):
            if row.line < line:
                between = scaled(vector, decay(row.line + 1, line))
                couplings.append((i, None if post else contract(between, row.p)))
        return vector if post else scaled(vector, decay(0, line)), post, tuple(couplings)

    rows: list[CoreRow] = []
    directions: list[Expr] = []
    for row in nf.rows:
        p = scaled(row.p, decay(row.line + 1, end))
        directions.append(inline(p, lets))
        e, post, couplings = (None, True, ()) if row.e is None else reading(row.e, row.line)
        rows.append(CoreRow(p, row.y, e, post, couplings, directions.index(directions[-1])))
    reads = []
    for read in nf.reads:
        q, post, couplings = reading(read.q, nf.read_line)
        reads.append(CoreRead(q, read.factor, post, couplings))
    return Core(total(list(nf.decays)), tuple(rows), tuple(reads), nf.rest)
