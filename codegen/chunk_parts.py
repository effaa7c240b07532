"""The fixed pieces of the chunked PyTorch form; `chunked.py` puts into a source text those that a shape needs."""

from __future__ import annotations

IMPORTS = """
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
"""

TO_CHUNKS = '''
def to_lines(x: Tensor) -> Tensor:
    """Zeros behind the last axis, up to a multiple of 16: whole cache lines.

    The bits of a matrix product may depend on how its operands are aligned, so on a chunk's place in the sequence.
    """
    missing = -x.shape[-1] % 16
    return F.pad(x, (0, missing)) if missing else x


def to_chunks(x: Tensor, n: int, chunk: int) -> Tensor:
    """[B, T, H] or [B, T, H, D] to [B * H * n, chunk, D]; what fills up the last chunk is zero and so does nothing."""
    B, T, H = x.shape[:3]
    x = (to_lines(x) if x.dim() == 4 else x[..., None]).transpose(1, 2)
    if n * chunk > T:
        x = F.pad(x, (0, 0, 0, n * chunk - T))
    return x.reshape(B * H * n, chunk, -1).contiguous()
'''

TO_POWER_OF_TWO = '''
def to_power_of_two(x: Tensor) -> Tensor:
    """[Z, C, D] to [Z, 2^m, D] by zeros behind every chunk."""
    C = x.shape[1]
    missing = (1 << (C - 1).bit_length()) - C
    return F.pad(x, (0, 0, 0, missing)) if missing else x
'''

FROM_CHUNKS = '''
def from_chunks(x: Tensor, B: int, H: int, T: int, chunk: int) -> Tensor:
    """[B * H * n, chunk or more, V] to [B, T, H, V]."""
    x = x[:, :chunk].reshape(B, H, -1, x.shape[-1])
    return x[:, :, :T].transpose(1, 2)
'''

NOT_BEFORE = '''
def not_before(x: Tensor, r: int, w: int) -> Tensor:
    """The mask [C * r, C * w] of directions that do not belong to an earlier token; x is [Z, C * r, D]."""
    C = x.shape[1] // r
    mask = torch.ones(C, C, dtype=torch.bool, device=x.device).triu()
    return mask.repeat_interleave(r, 0).repeat_interleave(w, 1)
'''

DOT = '''
def dot(x: Tensor, p: Tensor) -> Tensor:
    """[Z, C, K] each to [Z, C, 1]."""
    return (x * p).sum(-1, keepdim=True)
'''

ON_DIAGONAL = '''
def on_diagonal(own: Tensor) -> Tensor:
    """Couplings within a token, [Z, C, r, w], as the diagonal blocks of [Z, C * r, C * w]."""
    Z, C, r, w = own.shape
    eye = torch.eye(C, dtype=own.dtype, device=own.device)
    return (eye[:, None, :, None] * own[:, :, :, None]).reshape(Z, C * r, C * w)
'''

LEVELS = '''
def between(g: Tensor) -> Tensor:
    """[Z, C] to [Z, C + 1, C + 1]: entry (i, j) is exp(g_j + ... + g_(i - 1)) for i >= j, else 0.

    That is the decay from level j to level i; level i is where the state stands after i tokens of the chunk. Each entry
    sums its own terms, so no difference of large sums occurs, and the mask comes before the exponential.
    """
    C = g.shape[1]
    later = torch.ones(C + 1, C + 1, dtype=torch.bool, device=g.device).tril(-1)
    steps = F.pad(g, (1, 0))[:, :, None].expand(-1, -1, C + 1).masked_fill(~later, 0.0)
    return torch.exp(steps.cumsum(1).masked_fill(later.mT, -torch.inf))
'''

PAIRS = '''
def decayed_pairs(
    g: Tensor, covectors: list[Tensor], directions: list[Tensor]
) -> tuple[list[list[Tensor]], list[Tensor], list[Tensor], Tensor]:
    """Products of covectors with the directions of earlier tokens of a chunk, through the key-wise decays between.

    g is [Z, C, K], C a power of two. A covector x, [Z, C * r, K], stands before the decay of its own token, a
    direction p, [Z, C * w, K], after it. Returns

        for each x and p:  sum_k x_t exp(g_(s+1) + ... + g_(t-1)) p_s  where s < t, else 0      [Z, C * r, C * w]
        for each x:        x_t exp(g_0 + ... + g_(t-1)), moved to the start of the chunk         [Z, C * r, K]
        for each p:        exp(g_(s+1) + ... + g_(C-1)) p_s, moved to its end                    [Z, C * w, K]
        the decay of the whole chunk                                                             [Z, K]

    Neighbouring blocks of tokens merge into blocks of twice their size. Between t in the upper and s in the lower
    block the decay splits at their border: x_t has been moved to it from above, p_s from below, so one matrix product
    serves all their pairs. Only products of decays occur: no division, no difference of sums, no reference after t.
    """
    Z, C, K = g.shape
    decay = torch.exp(g)
    pairs = [[g.new_zeros(Z * C, x.shape[1] // C, p.shape[1] // C) for p in directions] for x in covectors]
    size = 1
    while size < C:
        blocks = Z * C // size
        xs = [x.reshape(blocks // 2, 2, -1, K) for x in covectors]
        ps = [p.reshape(blocks // 2, 2, -1, K) for p in directions]
        pairs = [[merge(m, x[:, 1] @ p[:, 0].mT) for m, p in zip(row, ps)] for row, x in zip(pairs, xs)]
        lower, upper = decay.view(blocks // 2, 2, 1, K).unbind(1)
        one = torch.ones_like(lower)
        to_start, to_end = torch.stack((one, lower), 1), torch.stack((upper, one), 1)
        covectors = [x * to_start for x in xs]
        directions = [p * to_end for p in ps]
        decay = lower * upper
        size *= 2
    pairs = [[m.view(Z, *m.shape[1:]) for m in row] for row in pairs]
    return pairs, [x.view(Z, -1, K) for x in covectors], [p.view(Z, -1, K) for p in directions], decay.view(Z, K)


def merge(m: Tensor, cross: Tensor) -> Tensor:
    """Diagonal blocks m [2 N, R, W], two and two, with what leads from the lower to the upper one: [N, 2 R, 2 W]."""
    lower, upper = m.unflatten(0, (-1, 2)).unbind(1)
    return torch.cat((F.pad(lower, (0, cross.shape[-1])), torch.cat((cross, upper), -1)), -2)
'''
