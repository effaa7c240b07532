"""What the segment of one rank does to S, whole or with packed sequences in it, as the exchange between ranks needs it.

A `Summary` holds the affine map from the state before the segment to the state after it, and the reverse of it and of
the outputs. It is computed without gradients: those come from the operator itself, run from the right state.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .packed import (
    Chunked,
    Chunks,
    Maps,
    chunk_size,
    chunks_of,
    segment_maps,
    states_of,
    to_chunks,
    turned,
    without_padding,
)
from .shape import Shape

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Whole:
    """Every rank has T tokens of each of B sequences."""

    chunked: Chunked
    shape: Shape
    chunk: int

    @property
    def through(self) -> None:
        """Every sequence goes on over every border."""
        return None

    def summary(self, tensors: Tensors, S0: Tensor) -> WholeSummary:
        """tensors [B, T, H, ...] of the shape; S0 [B, H, K, V] is the state before the first rank."""
        return WholeSummary(segment_maps(self.chunked, self.shape, tensors, S0, self.chunk), S0)

    def enter(self, S: Tensor, S0: Tensor) -> Tensor:
        """The operator's initial state, from the state before the segment."""
        return S

    def leave(self, dS: Tensor, after: Tensor) -> Tensor:
        """The gradient of the operator's states after, from those of what goes to the next rank and what stays."""
        return dS + after

    def start_gradient(self, gradient: Tensor, first: bool) -> Tensor:
        """The share of S0 in the gradient of the operator's initial state."""
        return gradient if first else torch.zeros_like(gradient)


@dataclass(frozen=True)
class WholeSummary:
    """The segment's maps, and the state before the first rank."""

    maps: Maps
    start: Tensor

    @property
    def turn(self) -> Tensor:
        return self.maps.turn

    @property
    def add(self) -> Tensor:
        return self.maps.add

    def pull(self, gradient: Tensor, after: Tensor) -> Tensor:
        """The gradient of the state before from those of the output [B, T, H, V] and of the state after."""
        return self.maps.pull(gradient) + transposed(self.turn, after)


@dataclass(frozen=True)
class Borders:
    """Where the sequences of all ranks begin and end, from offsets [N + 1] over all of them and T tokens a rank.

    local [N + 1]: offsets within this rank; incoming, outgoing [N]: the sequence that goes on over the border before
    and behind it, if any; owned [N]: those that end here; through: for each rank whether one goes on over both.
    """

    local: Tensor
    incoming: Tensor
    outgoing: Tensor
    owned: Tensor
    through: list[Tensor]


def borders_of(offsets: Tensor, T: int, rank: int, ranks: int) -> Borders:
    """The borders of a rank; nothing is read by the host."""
    offsets = offsets.long()
    begin, end = offsets[:-1], offsets[1:]
    first, last = rank * T, (rank + 1) * T
    owned = (end > first) & (end <= last)
    through = [((begin < r * T) & (end > (r + 1) * T)).any() for r in range(ranks)]
    return Borders(
        (offsets - first).clamp(0, T),
        (begin < first) & (end > first),
        (begin < last) & (end > last),
        owned | (end == 0) if rank == 0 else owned,
        through,
    )


@dataclass(frozen=True)
class Packed:
    """Every rank has T tokens of N packed sequences, one of which may go on over each border."""

    chunked: Chunked
    shape: Shape
    largest: int
    borders: Borders

    @property
    def through(self) -> list[Tensor]:
        """For each rank whether a sequence goes on over both of its borders."""
        return self.borders.through

    def summary(self, tensors: Tensors, S0: Tensor) -> PackedSummary:
        """tensors [1, T, H, ...] of the shape; S0 [N, H, K, V] are the states before every sequence."""
        T, N = next(iter(tensors.values())).shape[1], S0.shape[0]
        chunks = chunks_of(self.borders.local, T, chunk_size(T, N, self.largest))
        chunked = {name: without_padding(to_chunks(x, chunks), chunks) for name, x in tensors.items()}
        maps = segment_maps(self.chunked, self.shape, chunked, S0, chunks.C)
        K, incoming = S0.shape[2], _rows(self.borders.incoming, 4)
        eye = torch.eye(K, dtype=S0.dtype, device=S0.device).expand(*S0.shape[:2], K, K)
        start = torch.cat((torch.where(incoming, 0.0, S0), torch.where(incoming, eye, 0.0)), -1)
        starts, last = states_of(maps.turn, F.pad(maps.add, (0, K)), start, chunks)
        return PackedSummary(maps, chunks, self.borders, starts[..., -K:], last)

    def enter(self, S: Tensor, S0: Tensor) -> Tensor:
        return torch.where(_rows(self.borders.incoming, 4), S, S0)

    def leave(self, dS: Tensor, after: Tensor) -> Tensor:
        return after + torch.where(_rows(self.borders.outgoing, 4), dS, 0.0)

    def start_gradient(self, gradient: Tensor, first: bool) -> Tensor:
        return torch.where(_rows(self.borders.incoming, 4), 0.0, gradient)


@dataclass(frozen=True)
class PackedSummary:
    """starts [n, H, K, K]: the turn from the state before the segment to that before each chunk; last
    [N, H, K, V + K]: what is after each sequence, and the turn to it."""

    maps: Maps
    chunks: Chunks
    borders: Borders
    starts: Tensor
    last: Tensor

    @property
    def turn(self) -> Tensor:
        """[1, H, K, K], or [1, H, K, 1] where it is diagonal."""
        turn = self._one(self.borders.outgoing, self.last)[..., -self.starts.shape[-1] :]
        return turn.sum(-1, keepdim=True) if self.maps.turn.shape[-1] == 1 else turn

    @property
    def add(self) -> Tensor:
        return self._one(self.borders.outgoing, self.last)[..., : -self.starts.shape[-1]]

    @property
    def start(self) -> Tensor:
        return torch.zeros_like(self.add)

    def pull(self, gradient: Tensor, after: Tensor) -> Tensor:
        dS = self.maps.pull(without_padding(to_chunks(gradient, self.chunks), self.chunks))
        own = _rows(self.borders.incoming[self.chunks.sequence], 4)
        through_outputs = torch.where(own, self.starts.mT @ dS, 0.0).sum(0, keepdim=True)
        turn = self.last[..., -self.starts.shape[-1] :]
        return through_outputs + self._one(self.borders.incoming, turn.mT @ after)

    def _one(self, which: Tensor, x: Tensor) -> Tensor:
        """The row [1, ...] of x [N, ...] that is marked; zeros without one."""
        return torch.where(_rows(which, x.ndim), x, 0.0).sum(0, keepdim=True)


def transposed(turn: Tensor, S: Tensor) -> Tensor:
    """The transposed turn, applied."""
    return turned(turn if turn.shape[-1] == 1 else turn.mT, S)


def _rows(mask: Tensor, ndim: int) -> Tensor:
    return mask.view(-1, *[1] * (ndim - 1))
