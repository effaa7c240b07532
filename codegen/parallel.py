"""Sequence parallelism: a rule over sequences whose tokens are spread over the ranks of a process group.

Every rank holds T consecutive tokens. What crosses the borders is derived from the rule alone:

    S                    the segment's turn, K x K (K numbers where no row erases), and its add: one all-gather
    affine, (max, +)     the two numbers of the segment's map for each element: one all-gather for each level of states
    look-back windows    the last tokens, from the neighbour

Then the operator itself runs each segment from the right state, so results are those of one rank but for the rounding
of the states at the borders. Backward likewise: the reverse exchange gives each rank the gradient of the state after
its segment, and the operator's own backward pass does the rest.

The price on a rank is one more pass without gradients, with K more value columns where a row erases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from stateir.ir import Rule

from .arguments import State, check_offsets
from .carried_maps import Level, carried_maps, sequential_states
from .exchange import Owned, Ranks, States, Traffic, VectorMap, Windows, folded
from .operator import BackendError, Operator
from .packed import Pieces
from .segments import Borders, Packed, Whole, borders_of

_CHUNK = 64  # tokens that a vector state's scan takes at a time


def lacks_parallel(rule: Rule) -> str | None:
    """Why a rule cannot be run over the ranks of a group; None if it can."""
    if states := sequential_states(rule):
        return f"what a token makes of {', '.join(states)} does not compose with the next token: no summary exists"
    return None


class SequenceParallel:
    """An operator over all ranks of a group (default: all processes), in the order of their segments.

    `traffic` counts what this rank has received.

    Raises:
        BackendError: for a rule with a state that is scanned token by token, or without a chunked form.
    """

    def __init__(self, op: Operator, group: dist.ProcessGroup | None = None) -> None:
        reason = op.backends["chunked"] or lacks_parallel(op.rule)
        if op.backend == "step":
            reason = "the step backend has no maps of segments"
        if reason is not None:
            raise BackendError(f"{op.rule.name} cannot be run over several ranks: {reason}")
        self.op = op
        self.traffic = Traffic()
        self.ranks = Ranks(group, dist.get_rank(group), dist.get_world_size(group), self.traffic)
        self._module, self._levels = carried_maps(op.rule) if op.carries_dict else (None, ())

    def __call__(
        self, *, initial_state: State | None = None, return_state: bool = False, cu_seqlens: Tensor | None = None,
        **tensors: Tensor,
    ) -> tuple[Tensor, State | None]:  # fmt: skip
        """The outputs of this rank's tokens and, if asked for, the state after the last rank's.

        Called by every rank at the same place, and so is backward. Arguments are as those of the operator, with:

        tensors: inputs hold the T >= 1 tokens of this rank, the same number on each; params are equal on all ranks.
        initial_state: the state before the first rank's tokens, equal on all.
        return_state: the state after the last rank's, on all.
        cu_seqlens: offsets over the tokens of all ranks, from 0 to ranks * T, equal on all; of rules that carry S alone.

        A gradient of a param or of the initial state is this rank's share: the shares of all ranks sum to the whole.
        """
        op = self.op
        pieces = op.pieces(tensors, initial_state, cu_seqlens)
        T, device = pieces.args[0].shape[1], pieces.args[0].device
        if T == 0:
            raise ValueError(f"{op.rule.name}: over several ranks each needs tokens, got T = 0")
        borders = None if cu_seqlens is None else self._borders(cu_seqlens, T, device)
        state = pieces.state if isinstance(pieces.state, dict) else {"S": pieces.state}
        if op.carries_dict:
            state = self._before(pieces, state)
        job = _Job(op, self.ranks, pieces, borders, tuple(tensors), tuple(state))
        o, *after = _Segment.apply(job, *tensors.values(), *state.values())  # type: ignore[no-untyped-call]
        if not return_state:
            return o, None
        last = torch.full((state["S"].shape[0],), self.ranks.rank == self.ranks.count - 1, device=device)
        owned = last if borders is None else borders.owned
        every: dict[str, Tensor] = {
            name: Owned.apply(self.ranks, owned, x)  # type: ignore[no-untyped-call]
            for name, x in zip(state, after, strict=True)
        }
        return o, every if op.carries_dict else every["S"]

    def _borders(self, cu_seqlens: Tensor, T: int, device: torch.device) -> Borders:
        op, ranks = self.op, self.ranks
        if op.carries_dict:
            carried = ", ".join(n for n in op.signature.parts if n != "S")
            raise BackendError(
                f"{op.rule.name}: argument 'cu_seqlens': over several ranks sequences can be packed for rules that "
                f"carry S alone; this one carries {carried} too, whose exchange does not stop at a sequence's end"
            )
        if cu_seqlens.device.type == "cpu":
            check_offsets(op.signature, cu_seqlens.tolist(), T * ranks.count)
        return borders_of(cu_seqlens.to(device), T, ranks.rank, ranks.count)

    def _before(self, pieces: Pieces, start: dict[str, Tensor]) -> dict[str, Tensor]:
        """The windows and vector states before this rank's tokens; S is still that before the first rank's."""
        found = {"S": start["S"]}
        inputs = dict(zip(self.op.signature.inputs, pieces.args, strict=False))
        for name, window in start.items():
            if name.startswith("prev."):
                x, W = inputs[name.removeprefix("prev.")], window.shape[1]
                if x.shape[1] < W:
                    raise ValueError(
                        f"{self.op.rule.name}: it looks back {W} tokens at {name.removeprefix('prev.')}, so over several "
                        f"ranks each needs as many, got T = {x.shape[1]}"
                    )
                found[name] = Windows.apply(self.ranks, x, window)  # type: ignore[no-untyped-call]
        for level in self._levels:
            with torch.autocast(pieces.args[0].device.type, enabled=False):
                maps = getattr(self._module, level.maps)(*pieces.args, found, _CHUNK)
            for name, (a, b) in maps.items():
                how = self._how(level, name)
                found[name] = States.apply(self.ranks, how, a, b, start[name])  # type: ignore[no-untyped-call]
        return {name: found[name] for name in start}

    def _how(self, level: Level, name: str) -> VectorMap:
        kind = level.scans[name]
        scan = getattr(self._module, kind.name)
        return VectorMap(lambda a, b, z: scan(a, b, z, _CHUNK)[:, -1], kind.one == 1.0, kind.zero)


@dataclass(frozen=True)
class _Job:
    """A call: its pieces, and what its tensors and parts of the state are, in order."""

    op: Operator
    ranks: Ranks
    pieces: Pieces
    borders: Borders | None
    names: tuple[str, ...]
    parts: tuple[str, ...]

    def run(self, given: list[Tensor]) -> list[Tensor]:
        """The operator on this rank's tokens: the output and the states after."""
        state = dict(zip(self.parts, given[len(self.names) :], strict=True))
        o, after = self.op(
            **dict(zip(self.names, given, strict=False)),
            initial_state=state if self.op.carries_dict else state["S"],
            return_state=True,
            cu_seqlens=None if self.borders is None else self.borders.local,
        )
        assert after is not None
        return [o, *(after[name] for name in self.parts)] if isinstance(after, dict) else [o, after]

    def segment(self) -> Whole | Packed:
        """How S goes through this rank's segment."""
        pieces = self.pieces
        if self.borders is None:
            return Whole(pieces.chunked, pieces.shape, pieces.chunk)
        return Packed(pieces.chunked, pieces.shape, pieces.chunk, self.borders)

    def core(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of the core form of this rank's tokens."""
        found = self.pieces.prologue(*self.pieces.args, *([state, _CHUNK] if self.op.carries_dict else []))
        return found[0] if isinstance(found, tuple) else found


class _Segment(torch.autograd.Function):
    """The operator on this rank's segment, from the state that the ranks before it leave."""

    @staticmethod
    def forward(ctx: Any, job: _Job, *given: Tensor) -> tuple[Tensor, ...]:
        needs, r = ctx.needs_input_grad[1:], job.ranks.rank
        state = dict(zip(job.parts, given[len(job.names) :], strict=True))
        segment = job.segment()
        with torch.no_grad(), torch.autocast(given[0].device.type, enabled=False):
            summary = segment.summary(job.core(state), state["S"])
            columns = summary.turn.shape[-1]
            every = job.ranks.gather(torch.cat((summary.turn, summary.add), -1), "forward")
            turns = [x[..., :columns] for x in every]
            S = folded(summary.start, turns[:r], [x[..., columns:] for x in every[:r]], segment.through)
            state["S"] = segment.enter(S, state["S"])
        before = (*given[: len(job.names)], *state.values())
        leaves = [x.detach().requires_grad_(n) for x, n in zip(before, needs, strict=True)]
        with torch.set_grad_enabled(any(needs)):
            results = job.run(leaves)
        if any(needs):
            ctx.job, ctx.segment, ctx.summary, ctx.turns = job, segment, summary, turns
            ctx.leaves, ctx.results = leaves, results
        return tuple(x.detach() for x in results)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dO: Tensor, *after: Tensor) -> tuple[Tensor | None, ...]:
        job, ranks, S = ctx.job, ctx.job.ranks, ctx.job.parts.index("S")
        every = ranks.gather(ctx.summary.pull(dO.to(after[S].dtype), after[S]), "backward")
        behind = slice(ranks.rank + 1, ranks.count)
        turns = [x if x.shape[-1] == 1 else x.mT for x in ctx.turns[behind]]
        through = None if ctx.segment.through is None else ctx.segment.through[behind][::-1]
        ahead = folded(torch.zeros_like(every[0]), turns[::-1], every[behind][::-1], through)
        given = [dO, *after]
        given[1 + S] = ctx.segment.leave(ahead, after[S])
        pairs = [(x, g) for x, g in zip(ctx.results, given, strict=True) if x.requires_grad]
        wanted = [x for x in ctx.leaves if x.requires_grad]
        found = iter(torch.autograd.grad([x for x, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True))
        gradients = [next(found) if x.requires_grad else None for x in ctx.leaves]
        start = len(job.names) + S
        if (own := gradients[start]) is not None:
            gradients[start] = ctx.segment.start_gradient(own, ranks.rank == 0)
        return None, *gradients
