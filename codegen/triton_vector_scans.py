"""The scans of vector states as Triton text, forward and reverse: helpers named and called as in `vector_scans`.

A token's numbers, all heads together, are N columns; a program takes a block of them and walks a sequence by chunks. In
a chunk each token's map is composed with those before it (`tl.associative_scan`):

    affine      z -> a z + b         (a, b) then (a', b')  =  (a a', a' b + b')
    (max, +)    m -> max(m + a, b)                            (a + a', max(b + a', b'))
    angle       z -> z + b modulo 2 pi, a sum

The gradient d of a state is an affine scan against time, d_t = g_t + w_{t+1} d_{t+1}, where w is how much of a state
the next one takes: a, one, or for a maximum the step's share, a half where both are equal. The order depends on the
place within a chunk alone, so a run split at a chunk's end has the same bits.
"""

from __future__ import annotations

import math

from .vector_scans import Kind, VectorScan

_KERNELS = '''
@triton.jit
def _affine_after(a, b, a_next, b_next):
    """Two tokens' maps z -> a z + b in one."""
    return a * a_next, a_next * b + b_next


@triton.jit
def _max_plus_after(a, b, a_next, b_next):
    """Two tokens' maps m -> max(m + a, b) in one."""
    return a + a_next, tl.maximum(b + a_next, b_next)


@triton.jit
def _strided(x, sequence, token, column, D, stride_b, stride_t, stride_h, stride_d):
    """Pointers to columns of tokens of a [B, T, H, D] tensor of any strides; column = head * D + channel."""
    head, channel = (column // D).to(tl.int64), (column % D).to(tl.int64)
    row = x + sequence * stride_b + token.to(tl.int64) * stride_t
    return row[:, None] + (head * stride_h + channel * stride_d)[None, :]


@triton.jit
def _own_share(before, a, b):
    """How much of the gradient of max(before + a, b) its first candidate takes: a half where they are equal."""
    moved = before + a
    return 0.5 * ((moved > b).to(tl.float32) + (moved >= b).to(tl.float32))


@triton.jit(do_not_specialize=["T"])
def vector_scan(
    a, b, start, out, a_b, a_t, a_h, a_d, b_b, b_t, b_h, b_d, T, N, D,
    KIND: tl.constexpr, C: tl.constexpr, BN: tl.constexpr,
):
    """The states of all tokens, [B, 1 + T, N] with `start` [B, N] first, for a block of columns."""
    TURN: tl.constexpr = 6.283185307179586
    sequence = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    row = tl.arange(0, C)
    inside = column < N
    state = tl.load(start + sequence * N + column, mask=inside, other=0.0)
    tl.store(out + sequence * (T + 1) * N + column, state, mask=inside)
    for first in range(0, T, C):
        token = first + row
        live = (token < T)[:, None] & inside[None, :]
        b_at = _strided(b, sequence, token, column, D, b_b, b_t, b_h, b_d)
        b_tile = tl.load(b_at, mask=live, other=float("-inf") if KIND == "max-plus" else 0.0)
        if KIND == "angle":
            x = state[None, :] + tl.cumsum(b_tile, 0)
            x -= tl.floor(x / TURN) * TURN
        else:
            a_at = _strided(a, sequence, token, column, D, a_b, a_t, a_h, a_d)
            a_tile = tl.load(a_at, mask=live, other=0.0 if KIND == "max-plus" else 1.0)
            if KIND == "affine":
                factors, values = tl.associative_scan((a_tile, b_tile), 0, _affine_after)
                x = factors * state[None, :] + values
            else:
                factors, values = tl.associative_scan((a_tile, b_tile), 0, _max_plus_after)
                x = tl.maximum(state[None, :] + factors, values)
        at = sequence * (T + 1) * N + (1 + token.to(tl.int64))[:, None] * N + column[None, :]
        tl.store(out + at, x, mask=live)
        state = tl.sum(tl.where((row == C - 1)[:, None], x, 0.0), 0)


@triton.jit(do_not_specialize=["T"])
def reverse_vector_scan(
    a, b, out, dout, da, db, dstart, a_b, a_t, a_h, a_d, b_b, b_t, b_h, b_d, T, N, D,
    KIND: tl.constexpr, C: tl.constexpr, BN: tl.constexpr,
):
    """The gradients of a and b [B, T, N] and of the start, against time, for a block of columns."""
    sequence = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    row = tl.arange(0, C)
    inside = column < N
    dstate = tl.zeros([BN], tl.float32)  # of the last token done, and what that token takes of the state before it
    taken = tl.zeros([BN], tl.float32)
    for first in range(0, T, C):
        token = T - 1 - first - row
        live = (token >= 0)[:, None] & inside[None, :]
        at = sequence * (T + 1) * N + token.to(tl.int64)[:, None] * N + column[None, :]
        given = tl.load(dout + at + N, mask=live, other=0.0)
        if KIND == "angle":
            d = dstate[None, :] + tl.cumsum(given, 0)
        else:
            later = live & (token < T - 1)[:, None]
            a_at = _strided(a, sequence, token, column, D, a_b, a_t, a_h, a_d)
            before = tl.load(out + at, mask=live, other=0.0)
            own = tl.load(a_at, mask=live, other=1.0)
            onward = tl.load(a_at + a_t, mask=later, other=1.0)
            if KIND == "max-plus":
                b_at = _strided(b, sequence, token, column, D, b_b, b_t, b_h, b_d)
                own = _own_share(before, own, tl.load(b_at, mask=live, other=0.0))
                state = tl.load(out + at + N, mask=live, other=0.0)
                onward = _own_share(state, onward, tl.load(b_at + b_t, mask=later, other=0.0))
                onward = tl.where(later, onward, 1.0)
            factors, values = tl.associative_scan((onward, given), 0, _affine_after)
            d = factors * dstate[None, :] + values
            taken = tl.sum(tl.where((token == 0)[:, None], own, 0.0), 0)
        flat = sequence * T * N + token.to(tl.int64)[:, None] * N + column[None, :]
        if KIND == "affine":
            tl.store(da + flat, d * before, mask=live)
            tl.store(db + flat, d, mask=live)
        elif KIND == "max-plus":
            tl.store(da + flat, d * own, mask=live)
            tl.store(db + flat, d * (1.0 - own), mask=live)
        else:
            tl.store(db + flat, d, mask=live)
        dstate = tl.sum(tl.where((row == C - 1)[:, None], d, 0.0), 0)
    if KIND == "angle":
        taken += 1.0
    at_start = sequence * (T + 1) * N + column
    dfirst = tl.load(dout + at_start, mask=inside, other=0.0) + taken * dstate
    tl.store(dstart + sequence * N + column, dfirst, mask=inside)
'''

_HOST = '''
class _VectorScan(torch.autograd.Function):
    """A vector state over all tokens, a, b [B, T, H, D]; its gradients are not differentiable again."""

    @staticmethod
    def forward(ctx, a: Tensor, b: Tensor, start: Tensor, kind: str, chunk: int) -> Tensor:
        B, T, H, D = b.shape
        out = b.new_empty(B, T + 1, H, D)
        ctx.sizes = dict(T=T, N=H * D, D=D, KIND=kind, C=chunk, BN=min(32, triton.next_power_of_2(H * D)))
        ctx.grid = B, triton.cdiv(H * D, ctx.sizes["BN"])
        with torch.cuda.device_of(b):
            vector_scan[ctx.grid](a, b, start.contiguous(), out, *a.stride(), *b.stride(), **ctx.sizes)
        ctx.save_for_backward(a, b, out)
        return out

    @staticmethod
    @_once
    def backward(ctx, dout: Tensor) -> tuple[Tensor | None, ...]:
        a, b, out = ctx.saved_tensors
        angle = ctx.sizes["KIND"] == "angle"
        db, dstart = b.new_empty(b.shape), torch.empty_like(out[:, 0])
        da = db if angle else torch.empty_like(db)
        arguments = a, b, out, dout.contiguous(), da, db, dstart
        with torch.cuda.device_of(b):
            reverse_vector_scan[ctx.grid](*arguments, *a.stride(), *b.stride(), **ctx.sizes)
        return None if angle else da, db, dstart, None, None


def _vector_scan(a: Tensor, b: Tensor, start: Tensor, kind: str, chunk: int) -> Tensor:
    """[B, 1 + T, H, ...] for a, b [B, T, H, ...], scalars with a channel of their own; `start` is [B, H, ...]."""
    if b.shape[1] == 0:
        return start[:, None]
    if start.dim() == 2:
        return _vector_scan(a[..., None], b[..., None], start[..., None], kind, chunk)[..., 0]
    return _VectorScan.apply(a.expand_as(b), b, start, kind, max(16, chunk))
'''


def _helper(name: str, what: str, kind: Kind) -> str:
    return f'''
def {name}(a: Tensor, b: Tensor, start: Tensor, chunk: int) -> Tensor:
    """{what} for every token: [B, 1 + T, H, ...], with `start` first; chunk is a power of two."""
    return _vector_scan(a, b, start, "{kind}", chunk)
'''


def _scan(name: str, what: str, kind: Kind, one: float, zero: float) -> VectorScan:
    return VectorScan(name, (_KERNELS, _HOST, _helper(name, what, kind)), one, zero)


TRITON: dict[Kind, VectorScan] = {
    "angle": _scan("angle_scan", "z = z + b modulo 2 pi", "angle", 1.0, 0.0),
    "affine": _scan("affine_scan", "z = a * z + b", "affine", 1.0, 0.0),
    "max-plus": _scan("max_plus_scan", "m = max(m + a, b)", "max-plus", 0.0, -math.inf),
}
