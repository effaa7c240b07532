"""Fixed pieces of the chunked PyTorch form: layout and solve; `chunked.py` puts those that a shape needs into a text.

In these texts Z is the number of chunks of all heads, C that of the tokens in one, D the size of a vector's axis.
"""

from __future__ import annotations

IMPORTS = """
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

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


def to_chunks(xs: Sequence[Tensor], n: int, C: int) -> Tensor:
    """r tensors, [B, T, H] or [B, T, H, D] each, side by side for each token: a new [B * H * n, C, r, D].

    What fills up the last chunk is zero and so does nothing.
    """
    B, T, H = xs[0].shape[:3]
    rows = [(to_lines(x) if x.dim() == 4 else x[..., None]).transpose(1, 2) for x in xs]
    if n * C > T:
        rows = [F.pad(x, (0, 0, 0, n * C - T)) for x in rows]
    return torch.stack(rows, 3).view(B * H * n, C, len(xs), -1)
'''

FROM_CHUNKS = '''
def from_chunks(x: Tensor, B: int, T: int, H: int, D: int) -> Tensor:
    """[B * H * n, C, D or more] to [B, T, H, D]."""
    return x.reshape(B, H, -1, x.shape[-1])[:, :, :T, :D].transpose(1, 2)
'''

MATRIX = '''
def matrix(x: Tensor) -> Tensor:
    """Rows and columns interleaved with time: [Z, C, r, D] to [Z, C * r, D], [Z, C, r, C, w] to [Z, C * r, C * w]."""
    return x.flatten(1, 2).flatten(2)
'''

BY_CHUNK = '''
def by_chunk(x: Tensor, n: int) -> tuple[Tensor, ...]:
    """[B * H * n, ...] to n times [B * H, ...]: what each step of the scan needs."""
    return x.unflatten(0, (-1, n)).unbind(1)
'''

OWN = '''
def own(pairs: Tensor, j: int, i: int) -> Tensor:
    """The part [Z, C] of [Z, C, r, C, w] that couples covector j to direction i of the same token, to be written to."""
    return pairs[:, :, j, :, i].diagonal(dim1=1, dim2=2)

'''

DOT = '''
def dot(x: Tensor, p: Tensor) -> Tensor:
    """[Z, C, K] each to [Z, C]."""
    return (x * p).sum(-1)
'''

INVERSE = '''
def inverse(A: Tensor) -> Tensor:
    """(I + A)^-1 for A [Z, N, N] strictly lower triangular, by block substitution."""
    N = A.shape[1]
    if N <= 16 or N % 2:
        eye = torch.eye(N, dtype=A.dtype, device=A.device)
        return torch.linalg.solve_triangular(A, eye, upper=False, unitriangular=True)
    h = N // 2
    first, second = inverse(torch.cat((A[:, :h, :h], A[:, h:, h:]))).chunk(2)
    result = torch.zeros_like(A)
    result[:, :h, :h], result[:, h:, h:] = first, second
    result[:, h:, :h] = -second @ (A[:, h:, :h] @ first)
    return result
'''

STATE = '''
def to_state(S: Tensor) -> Tensor:
    """[B, H, keys, values] to [B * H, K, V], each axis up to whole lines."""
    return to_lines(to_lines(S).mT).mT.flatten(0, 1).contiguous()


def from_state(S: Tensor, B: int, keys: int, values: int) -> Tensor:
    """[B * H, K, V] to [B, H, keys, values]."""
    return S.unflatten(0, (B, -1))[..., :keys, :values]
'''
