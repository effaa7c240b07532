"""Packed sequences: several in a batch of one, at offsets that stay on their device.

Each sequence is cut into chunks of its own, so no chunk has tokens of two; at most cdiv(T, C) + N chunks hold them all,
whatever the offsets, so that shapes never depend on their values. A chunk is then a batch element: it is run from the
zero state for what it adds, and with further value columns from the identity for what it makes of the state before,

    S' = turn S + add        o = o_0 + reach S

and the states go from chunk to chunk of a sequence by these maps. Nothing here knows how the chunk itself is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .shape import Shape

Chunked = Callable[[dict[str, Tensor], Tensor, int], tuple[Tensor, Tensor]]
Prologue = Callable[..., tuple[dict[str, Tensor], dict[str, Tensor]]]


@dataclass(frozen=True)
class Pieces:
    """What the segments of a call are run by: prologue, scan of its tensors, their `shape`, and the largest chunk.

    args: the inputs and params in their order, in the dtype of the states and with H heads; `state` is what is before.
    """

    prologue: Prologue
    chunked: Chunked
    shape: Shape
    chunk: int
    args: list[Tensor]
    state: Tensor | dict[str, Tensor]


@dataclass(frozen=True)
class Chunks:
    """The chunks of N packed sequences, n of C tokens each; those behind the last sequence's are `used` by none.

    sequence [n]: to which sequence a chunk belongs; first [n]: whether it begins it; last [N]: the last chunk of each
    sequence, where it has tokens (`some` [N]); token [n * C]: the token at each place, at padding another of the same
    sequence; live [n, C]: where it is no padding; place [T]: where each token is.
    """

    C: int
    sequence: Tensor
    first: Tensor
    last: Tensor
    some: Tensor
    token: Tensor
    live: Tensor
    place: Tensor
    offsets: Tensor

    @property
    def n(self) -> int:
        return self.sequence.shape[0]


def chunk_size(T: int, N: int, largest: int) -> int:
    """Tokens of a chunk: no more than `largest`, and fewer where the sequences are short on average."""
    size = 16
    while size < largest and size * N < T:
        size *= 2
    return min(size, largest)


def segment_size(T: int, N: int, largest: int) -> int:
    """Tokens of a chunk where a step from chunk to chunk costs more than padding, as on a GPU: a power of two more.

    With N * C at most T / 2, padding is a quarter of the tokens on average.
    """
    size = chunk_size(T, N, largest)
    while 4 * N * size <= T:
        size *= 2
    return size


def chunks_of(cu_seqlens: Tensor, T: int, C: int) -> Chunks:
    """The chunks of T >= 1 tokens at offsets [N + 1], N >= 1. Wrong offsets give wrong results but no wrong access."""
    offsets = cu_seqlens.long().clamp(0, T)
    N, device = offsets.shape[0] - 1, offsets.device
    n = -(-T // C) + N
    lengths = offsets.diff()
    counts = (lengths + C - 1).div(C, rounding_mode="floor")
    ends = counts.cumsum(0)
    starts = ends - counts
    chunk = torch.arange(n, device=device)
    sequence = torch.searchsorted(ends, chunk, right=True)
    used = sequence < N
    sequence = sequence.clamp(max=N - 1)
    token = (offsets[sequence] + (chunk - starts[sequence]) * C)[:, None] + torch.arange(C, device=device)
    live = (token < offsets[sequence + 1][:, None]) & used[:, None]
    token = torch.minimum(token, (offsets[sequence + 1] - 1)[:, None]).clamp(0, T - 1).flatten()
    t = torch.arange(T, device=device)
    own = torch.searchsorted(offsets[1:], t, right=True).clamp(max=N - 1)
    place = (starts[own] * C + t - offsets[own]).clamp(0, n * C - 1)
    first = used & (chunk == starts[sequence])
    last = (ends - 1).clamp(0, n - 1)
    return Chunks(C, sequence, first, last, lengths > 0, token, live, place, offsets)


class _Moved(torch.autograd.Function):
    """x [1, M, ...] at the places `there` [M'] of its dimension 1; the gradient is read back at `back` [M].

    Both are gathers, so no gradient is added up in an order that the device chooses. Where a place is taken more than
    once, only the one that `back` names has a gradient.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, there: Tensor, back: Tensor) -> Tensor:
        return x.index_select(1, there)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        there, back = ctx.saved_tensors
        return _moved(gradient, back, there), None, None


def _moved(x: Tensor, there: Tensor, back: Tensor) -> Tensor:
    moved: Tensor = _Moved.apply(x, there, back)  # type: ignore[no-untyped-call]
    return moved


def to_chunks(x: Tensor, chunks: Chunks) -> Tensor:
    """[1, T, ...] to [n, C, ...]; padding has the values of another token and no gradient."""
    return _moved(x, chunks.token, chunks.place).view(chunks.n, chunks.C, *x.shape[2:])


def from_chunks(x: Tensor, chunks: Chunks) -> Tensor:
    """[n, C, ...] to [1, T, ...]."""
    return _moved(x.reshape(1, -1, *x.shape[2:]), chunks.place, chunks.token)


def without_padding(x: Tensor, chunks: Chunks) -> Tensor:
    """x [n, C, ...] with zeros at padding: a token without decay that reads, erases and writes nothing."""
    return x.masked_fill(~chunks.live.view(*chunks.live.shape, *[1] * (x.ndim - 2)), 0.0)


def windows(x: Tensor, start: Tensor, token: Tensor, sequence: Tensor, offsets: Tensor) -> Tensor:
    """What is before `token` [M] of `sequence` [M]: [M, W, H, ...], of x [1, T, H, ...] and start [N, W, H, ...]."""
    N, W = start.shape[:2]
    behind = torch.arange(-W, 0, device=x.device)
    place = token[:, None] + behind
    in_start = W * sequence[:, None] + W + place - offsets[sequence][:, None]
    every = torch.cat((start.flatten(0, 1), x[0]))
    index = torch.where(place >= offsets[sequence][:, None], N * W + place, in_start)
    found = every.index_select(0, index.clamp(0, every.shape[0] - 1).flatten())
    return found.view(-1, W, *start.shape[2:])


@dataclass(frozen=True)
class Before:
    """What a rule carries beside S through its prologue, over packed sequences.

    inputs: by name, [1, T, H, ...]; params in their order; start: vector states [N, H, ...] and "prev.x" windows.
    """

    prologue: Prologue
    inputs: dict[str, Tensor]
    params: list[Tensor]
    start: dict[str, Tensor]
    chunks: Chunks

    def run(self, after: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The prologue's tensors [n, C, H, ...] and, if asked for, the states and windows after each sequence."""
        chunks = self.chunks
        inputs = {name: to_chunks(x, chunks) for name, x in self.inputs.items()}
        past = self._windows(chunks.token.view(chunks.n, chunks.C)[:, 0], chunks.sequence)
        states = {name: x.index_select(0, chunks.sequence) for name, x in self.start.items() if name not in past}
        carried = {name: x[:1] for name, x in states.items()}
        found: list[dict[str, Tensor]] = []
        before: list[dict[str, Tensor]] = []
        for c in range(chunks.n):
            one = slice(c, c + 1)
            carried = {n: _chosen(chunks.first[one], x[one], carried[n]) for n, x in states.items()}
            before.append(carried)
            now = [x[one] for x in inputs.values()]
            tensors, carried = self.prologue(
                *now, *self.params, carried | {n: x[one] for n, x in past.items()}, chunks.C
            )
            found.append(tensors)
        every = {name: torch.cat([x[name] for x in found]) for name in found[0]}
        return every, self._after(inputs, before) if after else {}

    def _after(self, inputs: dict[str, Tensor], before: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """The last chunk of every sequence again, token by token: padding behind the last token changes nothing."""
        chunks = self.chunks
        N, device = chunks.last.shape[0], chunks.last.device
        token, live = chunks.token.view(chunks.n, chunks.C)[chunks.last], chunks.live[chunks.last]
        own = torch.arange(N, device=device)
        tails = [x.index_select(0, chunks.last) for x in inputs.values()]
        states = {n: torch.cat([x[n] for x in before]).index_select(0, chunks.last) for n in before[0]}
        for i in range(chunks.C if states else 0):
            now = states | self._windows(token[:, i], own)
            _, moved = self.prologue(*(x[:, i : i + 1] for x in tails), *self.params, now, 1)
            states = {n: _chosen(live[:, i], moved[n], x) for n, x in states.items()}
        ends = {n: _chosen(chunks.some, x, self.start[n]) for n, x in states.items()}
        return ends | self._windows(chunks.offsets[1:], own)

    def _windows(self, token: Tensor, sequence: Tensor) -> dict[str, Tensor]:
        return {
            name: windows(self.inputs[name.removeprefix("prev.")], x, token, sequence, self.chunks.offsets)
            for name, x in self.start.items()
            if name.startswith("prev.")
        }


def _chosen(which: Tensor, x: Tensor, other: Tensor) -> Tensor:
    """x where `which` [M] holds along the first dimension, else the other."""
    return torch.where(which.view(-1, *[1] * (x.ndim - 1)), x, other)


@dataclass(frozen=True)
class Maps:
    """What each of n segments makes of the state before it: S' = turn S + add, o = o_0 + the sum of factor (reach S).

    turn [n, H, K, K], or [n, H, K, 1] where it is diagonal; add [n, H, K, V]; o_0 [n, C, H, V]; every reach
    [n, C, H, K] with its factor [n, C, H, 1] or [n, C, H, V], None for 1.
    """

    turn: Tensor
    add: Tensor
    o_0: Tensor
    reaches: tuple[tuple[Tensor | None, Tensor], ...]

    def output(self, S: Tensor) -> Tensor:
        """The output [n, C, H, V] from the states before [n, H, K, V]."""
        o = self.o_0
        for factor, reach in self.reaches:
            part = (reach.transpose(1, 2) @ S).transpose(1, 2)
            o = o + (part if factor is None else factor * part)
        return o

    def pull(self, gradient: Tensor) -> Tensor:
        """What a gradient of the output [n, C, H, V] is for the states before, [n, H, K, V]."""
        dS = torch.zeros_like(self.add)
        for factor, reach in self.reaches:
            part = gradient if factor is None else factor * gradient
            dS = dS + reach.permute(0, 2, 3, 1) @ part.transpose(1, 2)
        return dS


def turned(turn: Tensor, S: Tensor) -> Tensor:
    """turn S, for a whole or a diagonal turn."""
    return turn * S if turn.shape[-1] == 1 else turn @ S


def segment_maps(chunked: Chunked, shape: Shape, tensors: Mapping[str, Tensor], S0: Tensor, C: int) -> Maps:
    """The maps of n segments, computed C tokens at a time.

    `tensors` are those of the shape, [n, T, H, ...]; of S0 [.., H, K, V] the sizes and the dtype are taken. Without an
    erase the turn is the decay alone; otherwise it is what the segment makes of the identity, in K more value columns.
    """
    n = next(iter(tensors.values())).shape[0]
    H, K, V = S0.shape[1:]
    if not shape.erasing:
        o, add = chunked(dict(tensors), S0.new_zeros(n, H, K, V), C)
        return Maps(_decayed(shape, tensors, add), add, o, _reaches(shape, tensors))
    output: Tensor | None = None
    reaches: list[tuple[Tensor | None, Tensor]] = []
    turn = add = S0
    for factor, some in _readings(shape, tensors):
        o, after = _both(chunked, some, S0, n, C)
        if output is None:
            add, turn = after.split((V, K), -1)
        part = o[..., :V] if factor is None else factor * o[..., :V]
        output = part if output is None else output + part
        reaches.append((factor, o[..., V:]))
    assert output is not None
    return Maps(turn, add, output, tuple(reaches))


def _decayed(shape: Shape, tensors: Mapping[str, Tensor], add: Tensor) -> Tensor:
    """The diagonal turn [n, H, K, 1] of segments without an erase."""
    if shape.decay == "none":
        return torch.ones_like(add[..., :1])
    g = tensors["g"].sum(1)
    return (g[..., None] if shape.decay == "scalar" else g).exp()[..., None].expand_as(add[..., :1])


def _reaches(shape: Shape, tensors: Mapping[str, Tensor]) -> tuple[tuple[Tensor | None, Tensor], ...]:
    """Each read's covector with the decays since the start of a segment without an erase, and its factor."""
    found: list[tuple[Tensor | None, Tensor]] = []
    for r, read in enumerate(shape.reads):
        reach = tensors[f"q{r}"]
        if shape.decay != "none":
            level = tensors["g"].cumsum(1)
            level = level if read.post else torch.cat((torch.zeros_like(level[:, :1]), level[:, :-1]), 1)
            reach = reach * (level[..., None] if shape.decay == "scalar" else level).exp()
        factor = None if read.factor == "none" else tensors[f"f{r}"]
        found.append((factor[..., None] if factor is not None and factor.ndim == 3 else factor, reach))
    return tuple(found)


def run_chunks(
    chunked: Chunked, shape: Shape, tensors: Mapping[str, Tensor], S0: Tensor, chunks: Chunks, largest: int
) -> tuple[Tensor, Tensor]:
    """The output [n, C, H, V] and the last state of each sequence [N, H, K, V].

    `tensors` are those of the shape, [n, C, H, ...], zero at padding; S0 is [N, H, K, V]. `largest` is the most tokens
    that are computed at a time.
    """
    maps = segment_maps(chunked, shape, tensors, S0, min(chunks.C, largest))
    starts, last = states_of(maps.turn, maps.add, S0, chunks)
    return maps.output(starts), last


def _readings(shape: Shape, tensors: Mapping[str, Tensor]) -> list[tuple[Tensor | None, dict[str, Tensor]]]:
    """Factors with a value axis, and tensors for what each multiplies: with V + K columns it stands outside."""
    outside = [r for r, read in enumerate(shape.reads) if read.factor == "value"]
    silent = [_silent(tensors, [x for x in range(len(shape.reads)) if x != r]) for r in outside]
    found: list[tuple[Tensor | None, dict[str, Tensor]]] = []
    for r, some in zip(outside, silent, strict=True):
        rest = {"rest": torch.zeros_like(some["rest"])} if shape.rest else {}
        factors = {f"f{x}": torch.ones_like(some[f"f{x}"]) for x in outside}
        found.append((tensors[f"f{r}"], some | rest | factors))
    if len(outside) < len(shape.reads) or shape.rest:
        factors = {f"f{x}": torch.ones_like(tensors[f"f{x}"]) for x in outside}
        found.append((None, _silent(tensors, outside) | factors))
    return found


def _silent(tensors: Mapping[str, Tensor], reads: Sequence[int]) -> dict[str, Tensor]:
    """The tensors with these reads reading nothing."""
    names = [name for name in tensors if any(name == f"q{r}" or name.startswith(f"m{r}_") for r in reads)]
    return dict(tensors) | {name: torch.zeros_like(tensors[name]) for name in names}


def _both(chunked: Chunked, tensors: dict[str, Tensor], S0: Tensor, n: int, C: int) -> tuple[Tensor, Tensor]:
    """Every segment from the zero state, with K further value columns from the identity."""
    H, K, V = S0.shape[1:]
    wide = {
        name: F.pad(x, (0, K)) if name[0] == "y" or name == "rest" else _ones_beside(x, V, K) if name[0] == "f" else x
        for name, x in tensors.items()
    }
    eye = torch.eye(K, V + K, dtype=S0.dtype, device=S0.device).roll(V, 1)
    return chunked(wide, eye.expand(n, H, K, V + K), C)


def _ones_beside(x: Tensor, V: int, K: int) -> Tensor:
    """A factor of a read [n, C, H], or of its values [n, C, H, V], which are ones here, for K more columns."""
    return x if x.ndim == 3 else F.pad(x, (0, K), value=1.0)


def states_of(turn: Tensor, add: Tensor, S0: Tensor, chunks: Chunks) -> tuple[Tensor, Tensor]:
    """The state before each chunk [n, H, K, V] and after each sequence [N, H, K, V]."""
    begin = S0.index_select(0, chunks.sequence)
    first = chunks.first.view(-1, 1, 1, 1)
    S, whole = torch.zeros_like(S0[0]), turn.shape[-1] > 1
    before, after = [], []
    for fresh, own, turn_c, add_c in zip(first.unbind(), begin.unbind(), turn.unbind(), add.unbind(), strict=True):
        S = torch.where(fresh, own, S)
        before.append(S)
        S = torch.baddbmm(add_c, turn_c, S) if whole else turn_c * S + add_c
        after.append(S)
    last = torch.stack(after).index_select(0, chunks.last)
    return torch.stack(before), torch.where(chunks.some.view(-1, 1, 1, 1), last, S0)


def run_packed(
    prologue: Prologue, chunked: Chunked, shape: Shape, inputs: dict[str, Tensor], params: list[Tensor],
    state: Tensor | dict[str, Tensor], chunks: Chunks, largest: int, after: bool,
) -> tuple[Tensor, Tensor | dict[str, Tensor]]:  # fmt: skip
    """The output [1, T, H, V] and the state after each sequence; of a dict only S where it is not asked for.

    `shape` is that of the prologue's tensors. inputs: [1, T, H, ...] by name; params in their order.
    """
    ends: dict[str, Tensor] = {}
    if isinstance(state, Tensor):
        plain: dict[str, Tensor] = prologue(*inputs.values(), *params)  # type: ignore[assignment]
        tensors, S0 = {n: to_chunks(x, chunks) for n, x in plain.items()}, state
    else:
        S0, start = state["S"], {name: x for name, x in state.items() if name != "S"}
        tensors, ends = Before(prologue, inputs, params, start, chunks).run(after)
    tensors = {name: without_padding(x, chunks) for name, x in tensors.items()}
    o, S = run_chunks(chunked, shape, tensors, S0, chunks, largest)
    return from_chunks(o, chunks), S if isinstance(state, Tensor) else {"S": S, **ends}


def by_kernels(scan: Callable[..., tuple[Tensor, Tensor]], shape: Shape, dtype: torch.dtype) -> Chunked:
    """The kernels' scan, which gives the reads [B, T, H, reads, V], as one that gives the output."""

    def chunked(tensors: dict[str, Tensor], S0: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
        reads, last = scan(tensors, S0, dtype)
        o = tensors["rest"] if shape.rest else torch.zeros_like(reads[..., 0, :])
        for r, read in enumerate(shape.reads):
            factor = tensors[f"f{r}"] if read.factor != "none" else None
            part = reads[..., r, :]
            o = o + (part if factor is None else (factor[..., None] if factor.ndim == 3 else factor) * part)
        return o, last

    return chunked
