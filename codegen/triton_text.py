"""Small pieces of text that every kernel emitter needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .triton_tiles import Group, Pair, Tiles

WIDTH = 120


@dataclass(frozen=True)
class Kernel:
    """A kernel's source, and its arguments in order: pointers, the sizes T and H, compile-time constants."""

    name: str
    pointers: tuple[str, ...]
    constants: tuple[str, ...]
    source: str


class Text:
    """Lines of source under construction."""

    def __init__(self, depth: int = 0) -> None:
        self.lines: list[str] = []
        self.depth = depth

    def __call__(self, *lines: str) -> None:
        self.lines += ["    " * self.depth + line if line else "" for line in lines]

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """`head`, and what is written inside the `with` one level deeper."""
        self(head)
        self.depth += 1
        yield
        self.depth -= 1

    def call(self, head: str, arguments: Iterable[str], tail: str = "") -> None:
        """`head(arguments)tail`, broken over lines where it is too long for one."""
        self(*_call(head, list(arguments), tail, WIDTH - 4 * self.depth))

    def __str__(self) -> str:
        return "\n".join(self.lines)


def _call(head: str, arguments: list[str], tail: str, width: int) -> list[str]:
    one = f"{head}({', '.join(arguments)}){tail}"
    if len(one) <= width:
        return [one]
    lines, current = [f"{head}("], "   "
    for argument in arguments:
        if len(current) + len(argument) + 2 > width:
            lines.append(current)
            current = "   "
        current += f" {argument},"
    return [*lines, current, f"){tail}"]


class KernelText(Text):
    """A kernel under construction, its head written."""

    def __init__(
        self, name: str, docstring: str, pointers: Iterable[str], constants: Iterable[str], comments: Iterable[str] = ()
    ) -> None:
        super().__init__()
        self.name = name
        self.pointers = tuple(dict.fromkeys(pointers))
        self.constants = tuple(constants)
        self('@triton.jit(do_not_specialize=["T", "H"])')
        self.call(f"def {name}", [*self.pointers, "T", "H", *(f"{c}: tl.constexpr" for c in constants)], ":")
        self.depth = 1
        self(f'"""{docstring}"""', *comments)

    def kernel(self) -> Kernel:
        return Kernel(self.name, self.pointers, self.constants, str(self))


def blocks_of(text: Text, blocks: str, number: str) -> None:
    """Programs that share data are neighbours, so that they find it in the cache: blocks run fastest."""
    text(
        f"block = tl.program_id(0) % {blocks}",
        f"{number} = (tl.program_id(0) // {blocks}).to(tl.int64)",
    )


def chunk_program(text: Text, blocks: str = "") -> None:
    """One program a chunk (and block): which sequence and head, which chunk, and the chunk's tokens."""
    if blocks:
        blocks_of(text, blocks, "pid")
    else:
        text("pid = tl.program_id(0).to(tl.int64)")
    text(
        "sequence = pid // tl.cdiv(T, C)",
        "first = pid % tl.cdiv(T, C) * C",
        "tau = tl.arange(0, C)",
    )


def locate(text: Text, groups: Iterable[Group]) -> None:
    """The tokens of the groups' tile rows, where the rows lie in memory, and which of them exist."""
    done: set[str] = set()
    for x in groups:
        if x.token not in done:
            rows = "tau" if x.slots == 1 else f"tl.arange(0, {x.size}) // {x.slots}"
            text(f"{x.token} = {rows}")
            done.add(x.token)
            if x.slots > 1:
                text(f"{x.slot} = tl.arange(0, {x.size}) % {x.slots}")
        if x.at not in done:
            text(f"{x.at}, {x.live} = _locate(sequence, first, {x.token}, {x.slot}, T, H, {x.rows})")
            done.add(x.at)
        if x.end not in done:
            text(f"{x.end} = {_end(x)}")
            done.add(x.end)


def _end(x: Group) -> str:
    if not any(x.post):
        return f"{x.token} - 1"
    early = " | ".join(f"({x.slot} == {i})" for i, post in enumerate(x.post) if not post)
    return f"{x.token} - ({early}).to(tl.int32)"


def same_token(text: Text, pair: Pair, cells: Iterable[tuple[int, int]], transposed: bool = False) -> None:
    """`same`: a mask of the given (left slot, right slot) cells of equal tokens."""
    left, right, cells = pair.left, pair.right, set(cells)
    rows, columns = ("[None, :]", "[:, None]") if transposed else ("[:, None]", "[None, :]")
    text(f"same = {left.token}{rows} == {right.token}{columns}")
    if cells == {(i, j) for i in range(left.rows) for j in range(right.rows)}:
        return
    if left.members == right.members and cells == {(i, j) for i in range(left.rows) for j in range(i)}:
        text(f"same &= {right.slot}{columns} < {left.slot}{rows}")
        return
    for n, (i, j) in enumerate(sorted(cells)):
        parts = [f"({left.slot} == {i}){rows}"] if left.rows > 1 else []
        parts += [f"({right.slot} == {j}){columns}"] if right.rows > 1 else []
        text(f"cells {'|=' if n else '='} {' & '.join(parts)}")
    text("same &= cells")


def log_decay(tiles: Tiles) -> list[str]:
    """The load of a chunk's log decays; of scalar ones also their sums up to each token."""
    if tiles.decay == "key":
        return ["decay = _log_decay(g, sequence, first, tau, T, H, col, K)"]
    return ["decay = _log_decay(g, sequence, first, tau, T, H)", "sums = tl.cumsum(decay, 0)"]


def level(x: Group) -> str:
    """The sum of scalar log decays up to the level of each row."""
    if x.slots == 1 and not any(x.post):
        return "sums - decay"
    return "sums" if x.slots == 1 else f"_at(sums, {x.end})"


def from_start(tiles: Tiles, x: Group) -> str:
    """exp of the decays up to the level at which each row of a group reads."""
    sums = f"{level(x)}, " if tiles.decay == "scalar" else ""
    return f"_from_start({sums}decay, {x.end}, tau, dtype)"


def to_end(tiles: Tiles, x: Group) -> str:
    """exp of the decays after each row's token."""
    sums = f"{level(x)}, " if tiles.decay == "scalar" else ""
    return f"_to_end({sums}decay, {x.token}, tau, dtype)"


def wide(group: Group) -> bool:
    """Whether a tile of the group has 128 rows (a chunk has 16 tokens or more)."""
    return group.slots >= 8
