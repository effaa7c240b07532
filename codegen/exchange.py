"""What ranks tell each other about their segments of one sequence: affine maps of states, forward and in reverse.

Rank r turns the state S before its segment into turn_r S + add_r. One all-gather of these gives every rank the state
before its own segment. In reverse, with x_r the gradient of that state from rank r's results alone, one all-gather of
the x_r gives every rank the gradient of the state after its segment. Nothing here knows a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .packed import turned


@dataclass
class Traffic:
    """Bytes that a rank has received from others, by what they were for, and the number of exchanges."""

    received: dict[str, int] = field(default_factory=dict)
    exchanges: dict[str, int] = field(default_factory=dict)

    def add(self, what: str, count: int) -> None:
        self.received[what] = self.received.get(what, 0) + count
        self.exchanges[what] = self.exchanges.get(what, 0) + 1

    def __str__(self) -> str:
        parts = [f"{what} {count:,} bytes in {self.exchanges[what]}" for what, count in self.received.items()]
        return "received by one rank: " + (", ".join(parts) or "nothing")


@dataclass(frozen=True)
class Ranks:
    """The ranks of a process group, in the order of their segments."""

    group: dist.ProcessGroup | None
    rank: int
    count: int
    traffic: Traffic

    def gather(self, x: Tensor, what: str) -> tuple[Tensor, ...]:
        """The x of every rank."""
        x = x.contiguous()
        every = [torch.empty_like(x) for _ in range(self.count)]
        dist.all_gather(every, x, group=self.group)
        self.traffic.add(what, (self.count - 1) * x.numel() * x.element_size())
        return tuple(every)

    def total(self, x: Tensor, what: str) -> Tensor:
        """The sum over all ranks."""
        x = x.contiguous().clone()
        dist.all_reduce(x, group=self.group)
        self.traffic.add(what, 2 * (self.count - 1) * x.numel() * x.element_size() // self.count)
        return x

    def shifted(self, x: Tensor, by: int, what: str) -> Tensor | None:
        """The x of the rank `by` before this one, where there is one; this rank's goes `by` ahead."""
        there, here = self.rank + by, self.rank - by
        received = torch.empty_like(x, memory_format=torch.contiguous_format)
        requests = []
        if 0 <= there < self.count:
            requests.append(dist.P2POp(dist.isend, x.contiguous(), self._global(there), self.group))
        if 0 <= here < self.count:
            requests.append(dist.P2POp(dist.irecv, received, self._global(here), self.group))
        for work in dist.batch_isend_irecv(requests) if requests else ():
            work.wait()
        if not 0 <= here < self.count:
            return None
        self.traffic.add(what, x.numel() * x.element_size())
        return received

    def _global(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)


def folded(
    S: Tensor, turns: Sequence[Tensor], adds: Sequence[Tensor], through: Sequence[Tensor] | None = None
) -> Tensor:
    """The state after some ranks' maps. Where `through` is given, a map with False there forgets the state before."""
    for r, (turn, add) in enumerate(zip(turns, adds, strict=True)):
        moved = turned(turn, S)
        S = (moved if through is None else torch.where(through[r], moved, 0.0)) + add
    return S


class Windows(torch.autograd.Function):
    """The last W tokens of the rank before, of x [B, T, H, ...]; on the first rank `start` [B, W, H, ...]."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, x: Tensor, start: Tensor) -> Tensor:
        ctx.ranks, ctx.shape = ranks, x.shape
        before = ranks.shifted(x[:, x.shape[1] - start.shape[1] :].detach(), 1, "forward")
        return start.clone() if before is None else before

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor]:
        after = ctx.ranks.shifted(gradient, -1, "backward")
        dx = gradient.new_zeros(ctx.shape)
        if after is not None:
            dx[:, dx.shape[1] - after.shape[1] :] = after
        return None, dx, gradient if ctx.ranks.rank == 0 else torch.zeros_like(gradient)


Scanned = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class VectorMap:
    """How the maps of a vector state are put together.

    `scan(a, b, start)` is the state after a segment; `product` says that two maps join by a product (else by a sum,
    and the larger one is taken); `zero` is the state that adds nothing.
    """

    scan: Scanned
    product: bool
    zero: float

    def apply(self, a: Tensor, b: Tensor, z: Tensor) -> Tensor:
        """A whole segment's map; one that overwrites the state does so whatever it was."""
        return torch.where(a == 0, b, a * z + b) if self.product else torch.maximum(z + a, b)


class States(torch.autograd.Function):
    """The vector state before this rank's segment, from a, b [B, T, H, ...] of its tokens and the start [B, H, ...].

    Backward, the map of each rank is linear around the state that it had: a diagonal, found by differentiating its scan.
    """

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, how: VectorMap, a: Tensor, b: Tensor, start: Tensor) -> Tensor:
        joined = (a.prod(1) if how.product else a.sum(1)).expand_as(start)
        maps = ranks.gather(torch.stack((joined, how.scan(a, b, torch.full_like(start, how.zero)))), "forward")
        z = start.clone()
        for r in range(ranks.rank):
            z = how.apply(*maps[r].unbind(), z)
        ctx.ranks, ctx.how = ranks, how
        ctx.save_for_backward(a, b, z)
        return z

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        ranks: Ranks = ctx.ranks
        with torch.enable_grad():
            a, b, z = (x.detach().requires_grad_() for x in ctx.saved_tensors)
            after = ctx.how.scan(a, b, z)
        (diagonal,) = torch.autograd.grad(after, z, torch.ones_like(after), retain_graph=True)
        every = ranks.gather(torch.stack((gradient, diagonal)), "backward")
        ahead = torch.zeros_like(gradient)
        for r in range(ranks.count - 1, ranks.rank, -1):
            own, slope = every[r].unbind()
            ahead = own + slope * ahead
        da, db = torch.autograd.grad(after, (a, b), ahead, allow_unused=True)
        first = ranks.rank == 0
        return None, None, da, db, gradient + diagonal * ahead if first else torch.zeros_like(gradient)


class Owned(torch.autograd.Function):
    """x of the rank that owns it, on every rank: `owned` is a mask over the first dimension of x."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, owned: Tensor, x: Tensor) -> Tensor:
        ctx.ranks, ctx.owned = ranks, owned.view(-1, *[1] * (x.ndim - 1))
        return ranks.total(torch.where(ctx.owned, x, 0.0), "state after")

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor]:
        return None, None, torch.where(ctx.owned, ctx.ranks.total(gradient, "backward of the state after"), 0.0)
