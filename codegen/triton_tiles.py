"""Which tiles the kernels of a shape work on: its rows and reads in groups, and the matrices between the groups.

A tile holds all rows of one group for the tokens of a chunk, interleaved with time: tile row r is slot r % slots of
token r // slots, so the lower triangle of a tile-by-tile matrix is "earlier in time", within a token too. Slots are
rows padded to a power of two.

    left groups read the state:    e  erasing rows          q  reads
    right groups write it:         p  erasing rows          w  pure writes, which need no solve

    matrices (left x right):       a = e x p   b = e x w   m = q x p   n = q x w
"""

from __future__ import annotations

from dataclasses import dataclass

from .shape import Coupling, Shape

MAX_ROWS = 8  # a chunk of 16 tokens then solves 128 x 128


@dataclass(frozen=True)
class Group:
    """`members` are indices into the shape's rows (or reads, for q); `post` says which stand at level G_t."""

    name: str
    members: tuple[int, ...]
    post: tuple[bool, ...]

    @property
    def rows(self) -> int:
        return len(self.members)

    @property
    def slots(self) -> int:
        """Rows of a token in a tile: a power of two."""
        return 1 << (self.rows - 1).bit_length()

    @property
    def size(self) -> str:
        """Rows of a tile, as text."""
        return "C" if self.slots == 1 else f"{self.slots} * C"

    @property
    def token(self) -> str:
        """The variable that holds each tile row's token within the chunk."""
        return f"t{self.slots}"

    @property
    def slot(self) -> str:
        """The variable that holds each tile row's slot within its token."""
        return "0" if self.slots == 1 else f"slot{self.slots}"

    @property
    def end(self) -> str:
        """The variable that holds the last token whose decay a row has seen."""
        return self.token if all(self.post) else f"end_{self.name}"

    @property
    def at(self) -> str:
        return f"at{self.rows}"

    @property
    def live(self) -> str:
        return f"live{self.rows}"


@dataclass(frozen=True)
class Pair:
    """One matrix. `implicit` couplings of a token are e . p~; `explicit` ones have a column of the tensor c."""

    name: str
    left: Group
    right: Group
    implicit: tuple[tuple[int, int], ...]
    explicit: tuple[tuple[int, int, int], ...]

    @property
    def transposed(self) -> bool:
        """Whether the matrix is kept as [right, left]: those of reads are, as the scans want them."""
        return self.left.name == "q"


@dataclass(frozen=True)
class Tiles:
    """Everything that the emitters ask about a shape."""

    shape: Shape
    e: Group | None
    w: Group | None
    q: Group | None
    pairs: tuple[Pair, ...]
    couplings: tuple[str, ...]

    @property
    def decay(self) -> str:
        return self.shape.decay

    @property
    def decays(self) -> bool:
        return self.shape.decay != "none"

    @property
    def p(self) -> Group | None:
        """The erasing rows on the writing side: level G_t, whatever level they read at."""
        return Group("p", self.e.members, (True,) * self.e.rows) if self.e else None

    @property
    def lefts(self) -> tuple[Group, ...]:
        return tuple(x for x in (self.e, self.q) if x)

    @property
    def rights(self) -> tuple[Group, ...]:
        return tuple(x for x in (self.p, self.w) if x)

    @property
    def groups(self) -> tuple[Group, ...]:
        return (*self.lefts, *self.rights)

    @property
    def merged(self) -> bool:
        """Whether one square product meets all pairs of rows at a dyadic level (see `triton_intra`).

        That takes one row of a group a token, all at level G_t, and one right group.
        """
        alike = all(x.slots == 1 and all(x.post) for x in self.groups)
        return self.decay == "key" and alike and len(self.rights) == 1 and bool(self.pairs)

    @property
    def inline(self) -> bool:
        """Whether the scans form the matrices themselves: nothing is solved, and the decay leaves the sum over k."""
        return self.e is None and self.decay != "key"

    def pair(self, name: str) -> Pair | None:
        return next((x for x in self.pairs if x.name == name), None)


def tiles_of(shape: Shape) -> Tiles:
    """The tiles of a shape. ValueError where a token has more rows than the kernels hold."""
    rows = shape.rows
    e = _group("e", shape.erasing, tuple(rows[i].post for i in shape.erasing))
    w = _group("w", shape.writing, (True,) * len(shape.writing))
    q = _group("q", tuple(range(len(shape.reads))), tuple(read.post for read in shape.reads))
    for group in (e, w, q):
        if group and group.rows > MAX_ROWS:
            raise ValueError(f"E502: it has {group.rows} rows of a kind a token; the kernels hold at most {MAX_ROWS}")

    if not rows:
        raise ValueError("E503: it writes nothing to S")

    columns: list[str] = []
    pairs: list[Pair] = []
    right = {"p": e, "w": w}
    for left, letter, names in ((e, "c", "ab"), (q, "m", "mn")):
        if left is None:
            continue
        sources = [rows[i].couplings if letter == "c" else shape.reads[i].couplings for i in left.members]
        for name, side in zip(names, ("p", "w"), strict=True):
            members = right[side]
            if members is None:
                continue
            group = Group(side, members.members, (True,) * members.rows)
            pairs.append(_pair(name, left, group, sources, letter, columns))
    return Tiles(shape, e, w, q, tuple(pairs), tuple(columns))


def _group(name: str, members: tuple[int, ...], post: tuple[bool, ...]) -> Group | None:
    return Group(name, members, post) if members else None


def _pair(
    name: str, left: Group, right: Group, sources: list[tuple[Coupling, ...]], letter: str, columns: list[str]
) -> Pair:
    """The couplings between two groups; explicit ones take the next columns."""
    implicit: list[tuple[int, int]] = []
    explicit: list[tuple[int, int, int]] = []
    for slot, couplings in enumerate(sources):
        for coupling in couplings:
            if coupling.row not in right.members:
                continue
            other = right.members.index(coupling.row)
            if coupling.explicit:
                explicit.append((slot, other, len(columns)))
                columns.append(f"{letter}{left.members[slot]}_{coupling.row}")
            else:
                implicit.append((slot, other))
    return Pair(name, left, right, tuple(implicit), tuple(explicit))
