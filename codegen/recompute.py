"""Less memory between the passes: a call by segments of its tokens, whose forward pass the backward pass runs again.

Kept are the arguments and the state before each segment. The backward pass goes from the last segment to the first:
it runs the segment again, differentiates it, and hands the gradient of the state before it on. So no more than one
segment's intermediates are ever alive. Nothing here knows what a segment is computed by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .arguments import State

Run = Callable[..., tuple[Tensor, State]]


def by_segments(run: Run, tokens: int, args: Sequence[Tensor], inputs: int, state: State) -> tuple[Tensor, State]:
    """`run(*args, state)`, `tokens` at a time.

    The first `inputs` of args are [B, T, ...], T >= 1, the others the same for all tokens; `run` gives the output
    [B, T, ...] and the state after it. Gradients are those of `run` up to the order of sums; there is no second one.
    """
    names = list(state) if isinstance(state, dict) else None
    parts = list(state.values()) if isinstance(state, dict) else [state]
    segments = _Segments(run, tokens, len(args), inputs, names)
    o, *after = _Recomputed.apply(segments, *args, *parts)  # type: ignore[no-untyped-call]
    return o, dict(zip(segments.after, after, strict=True)) if segments.after else after[0]


class _Segments:
    """How a call is cut: `count` arguments of which `inputs` have tokens, then the parts of the state by name.

    after: the names of the parts that the last segment gave; S alone where the others were not asked for.
    """

    def __init__(self, run: Run, tokens: int, count: int, inputs: int, names: list[str] | None) -> None:
        self.run, self.tokens, self.count, self.inputs, self.names = run, tokens, count, inputs, names
        self.after: list[str] = []

    def ranges(self, T: int) -> list[slice]:
        return [slice(first, min(first + self.tokens, T)) for first in range(0, T, self.tokens)]

    def own(self, args: Sequence[Tensor], part: slice) -> list[Tensor]:
        """The arguments of a segment."""
        return [x[:, part].contiguous() if n < self.inputs else x for n, x in enumerate(args)]

    def __call__(self, args: Sequence[Tensor], parts: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        before: State = parts[0] if self.names is None else dict(zip(self.names, parts, strict=True))
        o, after = self.run(*args, before)
        if not isinstance(after, dict):
            return o, [after]
        self.after = [name for name in self.names or () if name in after]
        return o, [after[name] for name in self.after]


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, segments: _Segments, *tensors: Tensor) -> tuple[Tensor, ...]:
        args, parts = tensors[: segments.count], list(tensors[segments.count :])
        T = args[0].shape[1]
        kept, o = [], None
        for part in segments.ranges(T):
            kept += parts
            piece, parts = segments(segments.own(args, part), parts)
            parts = [x.clone() if x.untyped_storage().nbytes() > x.nbytes else x for x in parts]  # no more is kept
            o = piece.new_empty(piece.shape[0], T, *piece.shape[2:]) if o is None else o
            o[:, part] = piece
        assert o is not None, "a call without tokens has no segments"
        ctx.segments = segments
        ctx.save_for_backward(*args, *kept)
        return o, *parts

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("create_graph=True: cannot differentiate twice through recompute; leave it out")
        segments: _Segments = ctx.segments
        saved = ctx.saved_tensors
        args, states = saved[: segments.count], saved[segments.count :]
        wanted = ctx.needs_input_grad[1:]
        do, dstate = gradients[0], list(gradients[1:])
        ranges = segments.ranges(args[0].shape[1])
        carried = len(states) // len(ranges)
        found: list[Tensor | None] = [None] * segments.count
        with torch.enable_grad(), torch.autocast(do.device.type, enabled=False):
            for n, part in reversed(list(enumerate(ranges))):
                needs = [*wanted[: segments.count], *(wanted[segments.count :] if n == 0 else [True] * carried)]
                parts = states[n * carried : (n + 1) * carried]
                own = zip((*segments.own(args, part), *parts), needs, strict=True)
                leaves = [x.detach().requires_grad_(need) for x, need in own]
                o, after = segments(leaves[: segments.count], leaves[segments.count :])
                pairs = [(x, g) for x, g in zip((o, *after), (do[:, part], *dstate), strict=True) if x.requires_grad]
                there = [x for x in leaves if x.requires_grad]
                pulled = iter(
                    torch.autograd.grad(
                        [x for x, _ in pairs], there, [g.contiguous() for _, g in pairs], allow_unused=True,
                        materialize_grads=True,
                    )
                )  # fmt: skip
                own_gradients = [next(pulled) if need else None for need in needs]
                for i, g in enumerate(own_gradients[: segments.count]):
                    found[i] = _gathered(found[i], g, args[i], part if i < segments.inputs else None)
                dstate = own_gradients[segments.count :]  # type: ignore[assignment]
        found = [g if g is None else g.to(x.dtype) for g, x in zip(found, args, strict=False)]
        return None, *found, *dstate


def _gathered(whole: Tensor | None, g: Tensor | None, like: Tensor, part: slice | None) -> Tensor | None:
    """The gradient of an argument with that of one segment in it: at its tokens, or added."""
    if g is None:
        return None
    if part is None:
        wide = g.to(torch.promote_types(g.dtype, torch.float32))
        return wide if whole is None else whole + wide
    whole = torch.empty_like(like) if whole is None else whole
    whole[:, part] = g
    return whole
