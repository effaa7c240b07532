"""The scans of vector states as PyTorch text: helpers that a prologue calls, all of one signature.

    name(a, b, start, chunk) -> Tensor

a, b are [B, T, H, ...] (a may have one column for all of b's), start is [B, H, ...]; the result [B, 1 + T, H, ...] has
`start` first. The Triton backend has kernels of the same names and signature (`triton_vector_scans`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["affine", "max-plus", "angle"]


@dataclass(frozen=True)
class VectorScan:
    """A helper's name, the definitions that it needs in order, and the a and b that change nothing."""

    name: str
    definitions: tuple[str, ...]
    one: float
    zero: float


# The scan's association depends on the place within a chunk alone, so a run split at a chunk's end has the same bits.
_SCAN = '''
def {name}(a: Tensor, b: Tensor, start: Tensor, chunk: int) -> Tensor:
    """{what} for every token: [B, 1 + T, H, ...], with `start` first."""
    T = b.shape[1]
    if T == 0:
        return start[:, None]
    chunk = max(1, min(chunk, T))
    pad = -T % chunk
    a = torch.cat((a, torch.full_like(a[:, :1], {one}).expand(-1, pad, *a.shape[2:])), 1).unflatten(1, (-1, chunk))
    b = torch.cat((b, torch.full_like(b[:, :1], {zero}).expand(-1, pad, *b.shape[2:])), 1).unflatten(1, (-1, chunk))
    factors, values = [a[:, :, 0]], [b[:, :, 0]]
    for i in range(1, chunk):
        factors.append({factor})
        values.append({value})
    carried = [start]
    for n in range(a.shape[1]):
        carried.append({carry})
    before = torch.stack(carried[:-1], 1)[:, :, None]
    inside = {inside}
    return torch.cat((start[:, None], inside.flatten(1, 2)[:, :T]), 1)
'''


def _scan(
    name: str, what: str, one: str, zero: str, act: Callable[[str, str, str], str], join: str, after: str = "{}"
) -> str:
    return _SCAN.format(
        name=name,
        what=what,
        one=one,
        zero=zero,
        factor=f"a[:, :, i] {join} factors[-1]",
        value=act("a[:, :, i]", "values[-1]", "b[:, :, i]"),
        carry=after.format(act("factors[-1][:, n]", "carried[-1]", "values[-1][:, n]")),
        inside=after.format(act("torch.stack(factors, 2)", "before", "torch.stack(values, 2)")),
    )


_ANGLE = _scan(
    "angle_scan", "z = z + b modulo 2 pi", "1", "0", lambda a, z, b: f"{z} + {b}", "*",
    "torch.remainder({}, 2 * math.pi)",
)  # fmt: skip
_AFFINE = _scan("affine_scan", "z = a * z + b", "1", "0", lambda a, z, b: f"{a} * {z} + {b}", "*")
_MAXIMA = _scan("maxima", "m = max(m + a, b)", "0", "-torch.inf", lambda a, m, b: f"torch.maximum({m} + {a}, {b})", "+")

# Where m + a equals b, a step shares the gradient between them. The composed maxima would share it in other parts where
# three are equal, and their graph has a node for every token of a chunk; so the gradient is a scan of its own.
_MAX_PLUS = '''
class _MaxPlus(torch.autograd.Function):
    """m = max(m + a, b), its gradient split as the step's: to the larger one, in halves where they are equal."""

    @staticmethod
    def forward(ctx, a: Tensor, b: Tensor, start: Tensor, chunk: int) -> Tensor:
        m = maxima(a, b, start, chunk)
        ctx.save_for_backward(a, b, m)
        ctx.chunk = chunk
        return m

    @staticmethod
    def backward(ctx, dm: Tensor) -> tuple[Tensor | None, ...]:
        a, b, m = ctx.saved_tensors
        moved = m[:, :-1] + a
        share = ((moved > b).to(b.dtype) + (moved >= b).to(b.dtype)) / 2
        after = torch.cat((share[:, 1:], torch.zeros_like(share[:, :1])), 1)
        d = affine_scan(after.flip(1), dm[:, 1:].flip(1), torch.zeros_like(dm[:, 0]), ctx.chunk)[:, 1:].flip(1)
        da = (share * d).sum_to_size(a.shape)
        return da, (1 - share) * d, dm[:, 0] + share[:, 0] * d[:, 0], None


def max_plus_scan(a: Tensor, b: Tensor, start: Tensor, chunk: int) -> Tensor:
    """m = max(m + a, b) for every token: [B, 1 + T, H, ...], with `start` first."""
    return _MaxPlus.apply(a, b, start, chunk) if b.shape[1] else start[:, None]
'''

TORCH: dict[Kind, VectorScan] = {
    "angle": VectorScan("angle_scan", (_ANGLE,), 1.0, 0.0),
    "affine": VectorScan("affine_scan", (_AFFINE,), 1.0, 0.0),
    "max-plus": VectorScan("max_plus_scan", (_AFFINE, _MAXIMA, _MAX_PLUS), 0.0, -math.inf),
}
