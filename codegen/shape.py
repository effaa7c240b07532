"""What the generated code of a rule depends on: the structure of its core form, without the expressions in it.

Two rules of equal shape share their generated scan; only the prologue, which computes the tensors named here, differs.

Names of those tensors (B sequences, T tokens, H heads):

    g            log decay                            [B, T, H] or [B, T, H, K]
    p{i}         direction of row i, p~               [B, T, H, K]    only where rows[i].p_same == i
    e{i}, y{i}   erase covector and value of row i    [B, T, H, K], [B, T, H, V]
    c{j}_{i}     explicit coupling of row j to row i  [B, T, H]
    q{r}, f{r}   covector and factor of read r        [B, T, H, K]; [B, T, H] or [B, T, H, V]
    m{r}_{i}     explicit coupling of read r to row i [B, T, H]
    rest         what the output adds to the reads    [B, T, H, V]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from stateir.ir import Axis, Expr
from stateir.normal import Core, CoreRead, CoreRow

Decay = Literal["none", "scalar", "key"]
Factor = Literal["none", "scalar", "value"]


@dataclass(frozen=True)
class Coupling:
    """A row or read sees `row` of its own token: through a tensor of its own if `explicit`, else through e . p~."""

    row: int
    explicit: bool


@dataclass(frozen=True)
class RowShape:
    """See `CoreRow`. `couplings` is empty unless the row erases."""

    erases: bool
    has_y: bool
    post: bool
    couplings: tuple[Coupling, ...]
    p_same: int


@dataclass(frozen=True)
class ReadShape:
    """See `CoreRead`. `couplings` holds the rows of its own token that the read sees."""

    factor: Factor
    post: bool
    couplings: tuple[Coupling, ...]


@dataclass(frozen=True)
class Shape:
    """The structure of a `Core`; hashable, so generated code can be cached by it."""

    decay: Decay
    rows: tuple[RowShape, ...]
    reads: tuple[ReadShape, ...]
    rest: bool

    @property
    def erasing(self) -> tuple[int, ...]:
        """Indices of the rows that read the state; only they take part in the solve."""
        return tuple(i for i, row in enumerate(self.rows) if row.erases)

    @property
    def writing(self) -> tuple[int, ...]:
        """Indices of the pure writes."""
        return tuple(i for i, row in enumerate(self.rows) if not row.erases)

    def tensors(self) -> Iterator[tuple[str, str]]:
        """(name, axis) of every tensor that the prologue has to provide; the axis is scalar, key or value."""
        if self.decay != "none":
            yield "g", self.decay
        for j, row in enumerate(self.rows):
            if row.p_same == j:
                yield f"p{j}", "key"
            if row.erases:
                yield f"e{j}", "key"
            if row.has_y:
                yield f"y{j}", "value"
            for c in row.couplings:
                if c.explicit:
                    yield f"c{j}_{c.row}", "scalar"
        for r, read in enumerate(self.reads):
            yield f"q{r}", "key"
            if read.factor != "none":
                yield f"f{r}", read.factor
            for c in read.couplings:
                if c.explicit:
                    yield f"m{r}_{c.row}", "scalar"
        if self.rest:
            yield "rest", "value"


def shape_of(core: Core) -> Shape:
    """The structure of a core form."""
    return Shape(
        decay=_decay(core.g),
        rows=tuple(_row(row) for row in core.rows),
        reads=tuple(_read(read) for read in core.reads),
        rest=core.rest is not None,
    )


def _decay(g: Expr | None) -> Decay:
    if g is None:
        return "none"
    return "key" if g.axis is Axis.KEY else "scalar"


def _couplings(pairs: tuple[tuple[int, Expr | None], ...]) -> tuple[Coupling, ...]:
    return tuple(Coupling(i, c is not None) for i, c in pairs)


def _row(row: CoreRow) -> RowShape:
    erases = row.e is not None
    couplings = _couplings(row.couplings) if erases else ()
    return RowShape(erases, row.y is not None, row.post, couplings, row.p_same)


def _read(read: CoreRead) -> ReadShape:
    factor: Factor = "none"
    if read.factor is not None:
        factor = "value" if read.factor.axis is Axis.VALUE else "scalar"
    return ReadShape(factor, read.post, _couplings(read.couplings))
