"""What each kernel of a rule moves and multiplies, and how long that alone would take on a card.

Bytes are those that a kernel must read and write if each tensor crosses memory once: programs that share a tensor run
beside each other and find it in the cache. Flops are those of its matrix products, as dense tiles. The time is the
larger of the two, at the card's copy bandwidth and at the rate of its tensor cores for bfloat16. It is a bound, not an
estimate of what limits a kernel: exponentials, masks and barriers are left out, and docs/kernels.md has what was
measured beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from stateir.ir import Axis, Rule
from stateir.normal import Core
from stateir.plan import unfused

from .shape import shape_of
from .tape_rule import OUTPUT, READS, RuleTape, tape_of
from .triton_config import Launch, chunk_size, launches
from .triton_launch import kernels_of
from .triton_prologue import RowKernel, row_kernels
from .triton_tiles import Group, Tiles, tiles_of


@dataclass(frozen=True)
class Card:
    """Bytes a second of a copy, reads and writes together; flops a second of dense bfloat16 products."""

    name: str
    bandwidth: float
    flops: float


# The bandwidth of the H200 was measured (benchmarks/peer.py); the other numbers are the vendor's, never measured here.
CARDS = {
    "h200": Card("NVIDIA H200", 4.24e12, 9.89e14),
    "h100": Card("NVIDIA H100 SXM", 3.35e12, 9.89e14),
    "a100": Card("NVIDIA A100 80GB SXM", 2.04e12, 3.12e14),
}


@dataclass(frozen=True)
class Sizes:
    """A call: sequences, tokens, heads, channels; bytes of an input's number."""

    B: int = 8
    T: int = 4096
    H: int = 16
    K: int = 128
    V: int = 128
    itemsize: int = 2


@dataclass(frozen=True)
class KernelCost:
    """One kernel of one call. `pass_` is "forward" or "backward"; `launch` its tiles in bfloat16, if it has tiles."""

    name: str
    pass_: str
    bytes: int
    flops: int
    launch: Launch | None

    def seconds(self, card: Card) -> float:
        return max(self.bytes / card.bandwidth, self.flops / card.flops)


def kernel_costs(rule: Rule, core: Core, sizes: Sizes) -> list[KernelCost]:
    """All kernels of a call with gradients, the prologue's first. ValueError for a rule without kernels."""
    tiles = tiles_of(shape_of(core))
    return [*_row_costs(rule, core, tiles, sizes), *chunk_costs(tiles, sizes)]


def _row_costs(rule: Rule, core: Core, tiles: Tiles, sizes: Sizes) -> list[KernelCost]:
    """The prologue's and epilogue's kernels; none where PyTorch computes them."""
    if unfused(rule, core) is not None:
        return []
    tape = tape_of(rule, core, tiles)
    found = []
    for x in row_kernels(tape).all:
        numbers = sum(_source(tape, s, sizes) for s in x.sources) + _targets(x, sizes)
        moved = numbers * sizes.itemsize * sizes.B * sizes.T * sizes.H
        found.append(KernelCost(x.kernel.name, "backward" if "grad" in x.kernel.name else "forward", moved, 0, None))
    return found


def _width(axis: Axis, sizes: Sizes) -> int:
    return {Axis.KEY: sizes.K, Axis.VALUE: sizes.V}.get(axis, 1)


def _source(tape: RuleTape, name: str, sizes: Sizes) -> int:
    """Numbers a token of what a kernel reads; a param's are few."""
    if name in (READS, OUTPUT):
        return sizes.V * (len(tape.reads) if name == READS else 1)
    if name.startswith("d "):
        members = tape.packed[name[2:]]
        axis = next(tape.tape[x].axis for x in members if x is not None)
        return len(members) * _width(axis, sizes)
    d = tape.argument(name)
    return 0 if d in tape.rule.params else (d.size or 1) * _width(d.axis, sizes)


def _targets(x: RowKernel, sizes: Sizes) -> int:
    return sum(len(t.entries) * _width(t.axis, sizes) for t in x.targets if not t.sums)


def chunk_costs(tiles: Tiles, sizes: Sizes) -> list[KernelCost]:
    """The chunk kernels of a shape in the order of their launches, with gradients."""
    counted = _Counter(tiles, sizes)
    table = launches(tiles)["torch.bfloat16"]
    found = []
    for name in kernels_of(tiles).names:
        if name != "decode":
            moved, multiplied = getattr(counted, name)()
            backward = name in ("reverse_scan", "couplings_grad", "local_grad")
            chunks = sizes.B * sizes.H * -(-sizes.T // counted.C)
            cost = KernelCost(
                name, "backward" if backward else "forward", moved * chunks, multiplied * chunks, table[name]
            )
            found.append(cost)
    return found


class _Counter:
    """Bytes and flops of one chunk, by kernel."""

    def __init__(self, tiles: Tiles, sizes: Sizes) -> None:
        self.tiles, self.s = tiles, sizes.itemsize
        self.K, self.V, self.C = sizes.K, sizes.V, chunk_size(tiles)
        self.g = {"none": 0, "scalar": 4 * self.C, "key": self.s * self.C * self.K}[tiles.decay]
        # what the scans read of the decays
        self.decays = {"none": 0, "scalar": self.g, "key": 4 * self.K}[tiles.decay]
        self.state = self.K * self.V * self.s
        self.pairs = sum(self._area(x.left, x.right) for x in tiles.pairs) * self.s

    def _rows(self, *groups: Group | None) -> int:
        return sum(x.rows for x in groups if x) * self.C

    def _tall(self, x: Group) -> int:
        return x.slots * self.C

    def _area(self, left: Group, right: Group) -> int:
        return self._tall(left) * self._tall(right)

    def intra(self) -> tuple[int, int]:
        t = self.tiles
        products = sum(2 * self._area(x.left, x.right) * self.K for x in t.pairs)
        if t.decay == "key":  # from the chunk's middle; levels, where decays are extreme, take more
            products += 2 * self.C * self.C * self.K
        solve = 4 * self._tall(t.e) ** 3 * (self._tall(t.e).bit_length() - 2) if t.e else 0
        return self._rows(*t.groups) * self.K * self.s + self.g + self.pairs, products + solve

    def keys(self) -> tuple[int, int]:
        t = self.tiles
        moved = self._rows(*(t.groups if t.decay == "key" else t.lefts[:1])) * self.K * self.s
        inverse = self._tall(t.e) ** 2 if t.e else 0
        decays = 4 * self.C * self.C * self.K if t.decay == "key" else 0
        total = self.decays if t.decay == "key" else 0
        return 2 * moved + self.g + total + inverse * self.s, 2 * inverse * self.K + decays

    def values(self) -> tuple[int, int]:
        t = self.tiles
        assert t.p is not None
        b = self._area(t.p, t.w) if t.w else 0
        matrices = self._tall(t.p) ** 2 + b
        rows = 2 * self._rows(t.p) + self._rows(t.w)
        return rows * self.V * self.s + matrices * self.s, 2 * matrices * self.V

    def _through_state(self) -> int:
        return sum(2 * self._tall(x) * self.K * self.V for x in self.tiles.groups)

    def scan(self) -> tuple[int, int]:
        t = self.tiles
        moved = (self._rows(*t.groups) * self.K + self._rows(t.p, t.p, t.w, t.q) * self.V) * self.s
        reads = sum(self._area(x.left, x.right) for x in t.pairs if x.transposed)
        stored, formed = self._matrices(reads)
        return moved + stored + self.decays + self.state, self._through_state() + 2 * reads * self.V + formed

    def reverse_scan(self) -> tuple[int, int]:
        t = self.tiles
        moved = (self._rows(*t.groups) * self.K + self._rows(t.p, t.w, t.q) * self.V) * self.s
        every = self.pairs // self.s
        stored, formed = self._matrices(every)
        return moved + stored + self.decays + self.state, self._through_state() + 2 * every * self.V + formed

    def _matrices(self, numbers: int) -> tuple[int, int]:
        """Bytes and flops of a scan's matrices: read, or formed anew."""
        return (0, 2 * numbers * self.K) if self.tiles.inline else (numbers * self.s, 0)

    def couplings_grad(self) -> tuple[int, int]:
        t = self.tiles
        rows = self._rows(t.p, t.p, t.w, t.q)
        return rows * self.V * self.s + self.pairs, 2 * (self.pairs // self.s) * self.V

    def local_grad(self) -> tuple[int, int]:
        t = self.tiles
        moved = (2 * self._rows(*t.groups) * self.K + self._rows(*t.groups) * self.V) * self.s
        products = 4 * (self.pairs // self.s) * self.K
        if t.decay == "key":
            one = 2 * self.C * self.C * self.K
            products += 5 * one
        return moved + 2 * self.g + self.pairs + 2 * self.state, self._through_state() + products


def describe(costs: list[KernelCost], sizes: Sizes, card: Card) -> list[str]:
    """A table of the kernels: tiles, bytes, flops, and the least time."""
    at = f"B={sizes.B} T={sizes.T} H={sizes.H} K={sizes.K} V={sizes.V}"
    lines = [
        f"kernels on a card like the {card.name}, {at}, {sizes.itemsize} bytes a number, with gradients",
        f"{'':16}{'block':>6}{'warps':>6}{'stages':>7}{'MB':>9}{'GFLOP':>9}{'least ms':>10}",
    ]
    for c in costs:
        least = c.seconds(card) * 1e3
        tiles = f"{c.launch.block:>6}{c.launch.warps:>6}{c.launch.stages:>7}" if c.launch else f"{'':19}"
        lines.append(f"{c.name:16}{tiles}{c.bytes / 1e6:>9.0f}{c.flops / 1e9:>9.1f}{least:>10.3f}")
    for name in ("forward", "backward"):
        least = sum(c.seconds(card) for c in costs if c.pass_ == name) * 1e3
        lines.append(f"{name:16}{'':19}{'':9}{'':9}{least:>10.3f}")
    return lines
