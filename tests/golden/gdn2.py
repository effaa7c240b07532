"""Gated DeltaNet-2 (arXiv:2605.22791)

    gdn2.rule:5  update S = exp(g) * S
    gdn2.rule:6  update S += outer(k, w * v - (b * k) @ S)
    gdn2.rule:7  read o = q @ S / sqrt(dim(key))

which is

    S    ← e^g ⊙ S
    S    ← S + k u₀ᵀ
      u₀ = w ⊙ v − (b ⊙ k)·S
    o    = q·S / √K

The kernels see rows, each of which reads the state before its token, and chunks of CHUNK tokens.
1 erasing row(s) a token: S += outer(p, u), where u is y less e @ S and less what the row sees
of the rows above it; all u of a chunk are solved at once.
g is the log decay of a token (key); p and w are decayed to the end of their token.
"""

import functools
import math

import torch
import triton
import triton.language as tl
from torch import Tensor


def _once(backward):
    """A backward pass that cannot be differentiated: to ask for that is an error, never zero."""

    @functools.wraps(backward)
    def wrapper(ctx, *gradients):
        if torch.is_grad_enabled():
            raise RuntimeError("create_graph=True: cannot differentiate twice; the chunked form and the kernels have "
                               "first derivatives alone, backend='step' has all")
        return backward(ctx, *gradients)

    return wrapper


CHUNK = 32  # tokens
# Columns of a block, warps and pipeline stages of each kernel, as measured on an H200.
LAUNCHES = {
    torch.bfloat16: {
        "intra": (32, 1, 1),
        "keys": (64, 2, 1),
        "values": (128, 2, 1),
        "scan": (64, 4, 3),
        "reverse_scan": (64, 4, 3),
        "couplings_grad": (64, 2, 3),
        "local_grad": (64, 4, 3),
    },
    torch.float32: {
        "intra": (32, 4, 1),
        "keys": (32, 4, 1),
        "values": (32, 4, 1),
        "scan": (32, 4, 1),
        "reverse_scan": (32, 4, 1),
        "couplings_grad": (32, 4, 1),
        "local_grad": (32, 4, 1),
    },
}
OVER_VALUES = ("values", "scan", "reverse_scan", "couplings_grad",)  # kernels whose blocks are of V


def _shared_memory(device: torch.device) -> int:
    """Bytes of shared memory of a program; without a GPU, those of a small one."""
    if device.type != "cuda":
        return 99 * 1024
    index = torch.cuda.current_device() if device.index is None else device.index
    return triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"]


@functools.cache
def _launches(K: int, V: int, dtype: torch.dtype, device: torch.device) -> dict[str, dict[str, int]]:
    """The launch of each kernel: the table's, its blocks no wider than K or V, its stages as shared memory allows."""
    KP, VP = max(16, triton.next_power_of_2(K)), max(16, triton.next_power_of_2(V))
    found = {}
    for name, (block, warps, stages) in LAUNCHES[dtype].items():
        columns = {"BV": min(VP, block)} if name in OVER_VALUES else {"BK": min(KP, block)}
        if "scan" in name:
            rows = 3 * CHUNK * KP * dtype.itemsize  # of a chunk; values and matrices take half as much again
            stages = max(1, min(stages, int(0.6 * _shared_memory(device)) // rows))
            # The state stays in registers. Without stages, Triton 3.6.0 miscompiles its products of 64 rows on Hopper.
            columns["BV"] = min(columns["BV"], max(16, (8192 if stages > 1 else 4096) // KP))
        if name == "local_grad":
            columns["BV"] = min(VP, 64 if dtype == torch.bfloat16 else block)
        found[name] = {**columns, "num_warps": warps, "num_stages": stages}
    return found


@triton.jit
def _locate(sequence, first, token, slot, T, H, ROWS: tl.constexpr):
    """Row numbers in a [B, T, H, ROWS, D] tensor of a slot of tokens after `first`, and whether there is such a row.

    Only where the chunk begins is a number of 64 bits; within it 32 do.
    """
    begin = ((sequence // H * T + first) * H + sequence % H) * ROWS
    return begin + (token * (H * ROWS) + slot), (token < T - first) & (slot < ROWS)


@triton.jit
def _mask(live, col, D: tl.constexpr):
    """Which elements of a [row, col] tile there are; a whole number of blocks of columns needs no look at them."""
    if (D + col.shape[0] - 1) // col.shape[0] * col.shape[0] == D:
        return live[:, None]
    else:
        return live[:, None] & (col < D)[None, :]


@triton.jit
def _mask_t(live, col, D: tl.constexpr):
    if (D + col.shape[0] - 1) // col.shape[0] * col.shape[0] == D:
        return live[None, :]
    else:
        return live[None, :] & (col < D)[:, None]


@triton.jit
def _load(x, row, live, col, D: tl.constexpr):
    """Rows of x as a [row, col] tile, zero where there is none."""
    return tl.load(x + row[:, None] * D + col[None, :], mask=_mask(live, col, D), other=0.0)


@triton.jit
def _load_t(x, row, live, col, D: tl.constexpr):
    """Rows of x as a [col, row] tile. A tile needed both ways is loaded twice, never transposed in registers."""
    return tl.load(x + row[None, :] * D + col[:, None], mask=_mask_t(live, col, D), other=0.0)


@triton.jit
def _store(x, row, live, col, D: tl.constexpr, tile):
    tl.store(x + row[:, None] * D + col[None, :], tile, mask=_mask(live, col, D))


@triton.jit
def _store_t(x, row, live, col, D: tl.constexpr, tile):
    tl.store(x + row[None, :] * D + col[:, None], tile, mask=_mask_t(live, col, D))


@triton.jit
def _matrix(x, number, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The addresses of matrix `number` of x."""
    return x + number * (ROWS * COLUMNS) + tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]


@triton.jit
def _matrix_t(x, number, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The addresses of the transpose of matrix `number` of x."""
    return x + number * (ROWS * COLUMNS) + tl.arange(0, ROWS)[None, :] * COLUMNS + tl.arange(0, COLUMNS)[:, None]


@triton.jit
def _dot(a, b):
    """A product summed in float32: of bfloat16 tiles as they are, of float32 tiles as three TF32 products."""
    return tl.dot(a, b, input_precision="tf32x3")


@triton.jit
def _dot_for(a, b, dtype: tl.constexpr):
    """A product of float32 tiles, as exact as tiles of `dtype` deserve: one TF32 product, or three."""
    return tl.dot(a, b, input_precision="tf32" if dtype == tl.bfloat16 else "tf32x3")


@triton.jit
def _exp(x):
    return tl.exp2(x * 1.4426950408889634)


@triton.jit
def _meet(left, right, level):
    """Pairs (left after right) whose highest differing bit is `level`: each such pair has exactly one level."""
    upper = ((left >> level) & 1) != 0
    return upper[:, None] & (((left >> level) ^ 1)[:, None] == (right >> level)[None, :])


@triton.jit
def _scaled(tile, x):
    """tile * x in the tile's dtype; bfloat16 in pairs."""
    if tile.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(
            "{ .reg .b32 z; mov.b32 z, 0x80008000; fma.rn.bf16x2 $0, $1, $2, z; }", "=r,r,r", [tile, x.to(tl.bfloat16)],
            dtype=tl.bfloat16, is_pure=True, pack=2,
        )
    else:
        return tile * x


@triton.jit
def _across(tau, level):
    """Pairs of tokens whose highest differing bit is `level`, whichever is later."""
    return ((tau >> level) ^ 1)[:, None] == (tau >> level)[None, :]


@triton.jit
def _either(above, upper, lower, x):
    """(upper where `above`, else lower) * x in the tiles' dtype; `above` is a column."""
    if upper.dtype == tl.bfloat16:
        mask = tl.broadcast_to(tl.where(above, -1, 0).to(tl.int16), upper.shape)
        return tl.inline_asm_elementwise(
            "{ .reg .b32 t, z; mov.b32 z, 0x80008000; lop3.b32 t, $1, $2, $3, 0xCA; fma.rn.bf16x2 $0, t, $4, z; }",
            "=r,r,r,r,r", [mask, upper, lower, x.to(tl.bfloat16)], dtype=tl.bfloat16, is_pure=True, pack=2,
        )
    else:
        return tl.where(above, upper, lower) * x


@triton.jit
def _sums(inside, x, dtype: tl.constexpr):
    """inside @ x for a matrix of 0, 1 and -1: no difference of long sums is ever taken.

    Beside bfloat16 tiles, x goes in as a high and a low part, 16 bits of it in all; what is bfloat16 has no low part.
    """
    if x.dtype == tl.bfloat16:
        return tl.dot(inside.to(tl.bfloat16), x)
    elif dtype == tl.bfloat16:
        # the upper half of a float32 is a bfloat16 as it stands
        high = (x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)
        total = tl.dot(inside.to(tl.bfloat16), high.to(tl.bfloat16))
        return tl.dot(inside.to(tl.bfloat16), (x - high).to(tl.bfloat16), total)
    else:
        return _dot(inside.to(tl.float32), x)


@triton.jit
def _log_decay(g, sequence, first, token, T, H, col, K: tl.constexpr):
    """Log decays of the chunk's tokens, zero past the end. Their sums stay finite: exp of the least is 0 already."""
    row, live = _locate(sequence, first, token, 0, T, H, 1)
    decay = _load(g, row, live, col, K)
    return tl.maximum(decay, -10000.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _from_start(decay, end, tau, dtype: tl.constexpr):
    """exp of the decays up to and with token `end`."""
    return _exp(_sums(tau[None, :] <= end[:, None], decay, dtype))


@triton.jit
def _to_end(decay, token, tau, dtype: tl.constexpr):
    """exp of the decays after `token`."""
    return _exp(_sums(tau[None, :] > token[:, None], decay, dtype))


@triton.jit
def _to_reference(decay, token, end, tau, level, dtype: tl.constexpr):
    """exp of the decays between each row and its reference at a dyadic level.

    A group of 2 << level tokens has its reference between its halves. A row of the upper half takes the decays from
    there up to `end`, a row of the lower half those after `token` up to there; the product of two such factors is the
    decay between the two rows. Every exponent is a sum of log decays, and no row looks past its own token's group half.
    """
    middle = ((token >> level) | 1) << level
    above = ((token >> level) & 1) != 0
    first = tl.where(above, middle, token + 1)
    last = tl.where(above, end, middle - 1)
    return _exp(_sums((tau[None, :] >= first[:, None]) & (tau[None, :] <= last[:, None]), decay, dtype))


@triton.jit
def _from_middle(decay, end, tau, dtype: tl.constexpr):
    """The sum of the decays from the middle of the chunk up to and with token `end`, negative where that is before."""
    middle = tau.shape[0] // 2
    upper = (tau[None, :] >= middle) & (tau[None, :] <= end[:, None])
    lower = (tau[None, :] < middle) & (tau[None, :] > end[:, None])
    return _sums(tl.where(upper, 1.0, tl.where(lower, -1.0, 0.0)), decay, dtype)


@triton.jit
def _bounded(log):
    """Whether exp of log and of -log are finite, and the product of any two such is exact enough. Not so for NaN."""
    return tl.max(tl.max(tl.abs(log), 1), 0) < 80.0


@triton.jit
def _seen(x, end, tau, dtype: tl.constexpr):
    """For each token the sum of x over the rows that have seen its decay."""
    return _sums(tau[:, None] <= end[None, :], x, dtype)


@triton.jit
def _ahead(x, token, tau, dtype: tl.constexpr):
    """For each token the sum of x over the rows written before it."""
    return _sums(tau[:, None] > token[None, :], x, dtype)


@triton.jit
def _load_scalar(x, row, live):
    """One number for each row, as a column."""
    return tl.load(x + row, mask=live, other=0.0).to(tl.float32)[:, None]


@triton.jit
def _store_scalar(x, row, live, column):
    tl.store(x + row[:, None], column, mask=live[:, None])


@triton.jit(do_not_specialize=["T", "H"])
def prologue(
    k_in, b_in, w_in, v_in, e_row_out, y_row_out, T, H, K: tl.constexpr, V: tl.constexpr, KP: tl.constexpr,
    VP: tl.constexpr, ROWS: tl.constexpr,
):
    """The rows that the scan takes."""
    pid = tl.program_id(0).to(tl.int64)
    row = pid * ROWS + tl.arange(0, ROWS)
    live = row < T.to(tl.int64) * H
    col_k = tl.arange(0, KP)
    col_v = tl.arange(0, VP)
    k = _load(k_in, row, live, col_k, K).to(tl.float32)
    b = _load(b_in, row, live, col_k, K).to(tl.float32)
    w = _load(w_in, row, live, col_v, V).to(tl.float32)
    v = _load(v_in, row, live, col_v, V).to(tl.float32)
    e0 = b * k
    _store(e_row_out, row, live, col_k, K, e0)
    y0 = w * v
    _store(y_row_out, row, live, col_v, V, y0)


@triton.jit(do_not_specialize=["T", "H"])
def prologue_grad(
    k_in, b_in, w_in, v_in, de_row_in, dp_row_in, dy_row_in, dk_out, dv_out, db_out, dw_out, T, H, K: tl.constexpr,
    V: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr, ROWS: tl.constexpr,
):
    """The gradients of inputs and params, from those of rows and output."""
    pid = tl.program_id(0).to(tl.int64)
    row = pid * ROWS + tl.arange(0, ROWS)
    live = row < T.to(tl.int64) * H
    col_k = tl.arange(0, KP)
    col_v = tl.arange(0, VP)
    k = _load(k_in, row, live, col_k, K).to(tl.float32)
    b = _load(b_in, row, live, col_k, K).to(tl.float32)
    w = _load(w_in, row, live, col_v, V).to(tl.float32)
    v = _load(v_in, row, live, col_v, V).to(tl.float32)
    de_row = _load(de_row_in, row, live, col_k, K).to(tl.float32)
    dp_row = _load(dp_row_in, row, live, col_k, K).to(tl.float32)
    dy_row = _load(dy_row_in, row, live, col_v, V).to(tl.float32)
    _store(dw_out, row, live, col_v, V, dy_row * v)
    _store(dv_out, row, live, col_v, V, dy_row * w)
    _store(db_out, row, live, col_k, K, de_row * k)
    _store(dk_out, row, live, col_k, K, dp_row + de_row * b)


@triton.jit(do_not_specialize=["T", "H"])
def intra(
    e, q, p, g, inverse_out, m_out, T, H, K: tl.constexpr, BK: tl.constexpr, C: tl.constexpr, LEVELS: tl.constexpr,
    SCALE: tl.constexpr,
):
    """The chunk's matrices a = e x p, m = q x p; a as inverse = (I + a)^-1."""
    pid = tl.program_id(0).to(tl.int64)
    sequence = pid // tl.cdiv(T, C)
    first = pid % tl.cdiv(T, C) * C
    tau = tl.arange(0, C)
    t1 = tau
    at1, live1 = _locate(sequence, first, t1, 0, T, H, 1)
    dtype: tl.constexpr = p.dtype.element_ty

    level_rows = tl.zeros([C, C], tl.float32)
    own = tl.zeros([C], tl.float32)
    for k in range(0, K, BK):
        col = k + tl.arange(0, BK)
        decay = _log_decay(g, sequence, first, tau, T, H, col, K)
        e_tile = _load(e, at1, live1, col, K)
        q_tile = _load(q, at1, live1, col, K)
        p_tile = _load(p, at1, live1, col, K)
        own += tl.sum(q_tile.to(tl.float32) * p_tile.to(tl.float32), 1)
        log1 = _from_middle(decay, t1, tau, dtype)
        if _bounded(log1):
            e_x = _scaled(e_tile, _exp(log1))
            q_x = _scaled(q_tile, _exp(log1))
            p_x = _scaled(p_tile, _exp(-log1))
            z = _dot(e_x, tl.trans(p_x))
            z = tl.where(tau[None, :] < tau[:, None], z, _dot(p_x, tl.trans(q_x)))
            level_rows += z
        else:
            for level in range(LEVELS):
                above = ((tau >> level) & 1)[:, None] != 0
                x1 = _to_reference(decay, tau, tau, tau, level, dtype)
                e_p = _either(above, e_tile, p_tile, x1)
                q_p = _either(above, q_tile, p_tile, x1)
                z = _dot(e_p, tl.trans(q_p))
                level_rows += tl.where(_across(tau, level), z, 0.0)
    earlier = tau[None, :] < tau[:, None]
    a = tl.where(earlier, level_rows, 0.0)
    m = tl.where(tau[:, None] < tau[None, :], level_rows, 0.0)
    m += tl.where(tau[:, None] == tau[None, :], own[:, None], 0.0)

    # Exact block substitution from single rows upwards:
    # [[X, 0], [A, Y]]^-1 = [[X^-1, 0], [-Y^-1 A X^-1, Y^-1]].
    row = tl.arange(0, C)
    identity = tl.where(row[:, None] == row[None, :], 1.0, 0.0)
    inverse = identity - tl.where(_meet(row, row, 0), a, 0.0)
    for level in range(1, LEVELS):
        lower = tl.where(_meet(row, row, level), a, 0.0)
        lower = _dot_for(inverse, lower, dtype)
        inverse -= _dot_for(lower, inverse, dtype)
    tl.store(_matrix(inverse_out, pid, C, C), inverse.to(dtype))
    tl.store(_matrix(m_out, pid, C, C), (m * SCALE).to(dtype))


@triton.jit(do_not_specialize=["T", "H"])
def keys(
    e, q, p, g, inverse, solved, q_out, p_out, total, T, H, K: tl.constexpr, BK: tl.constexpr, C: tl.constexpr,
    SCALE: tl.constexpr,
):
    """The chunk's rows as the scan needs them, decayed to its start or end."""
    block = tl.program_id(0) % tl.cdiv(K, BK)
    pid = (tl.program_id(0) // tl.cdiv(K, BK)).to(tl.int64)
    sequence = pid // tl.cdiv(T, C)
    first = pid % tl.cdiv(T, C) * C
    tau = tl.arange(0, C)
    t1 = tau
    at1, live1 = _locate(sequence, first, t1, 0, T, H, 1)
    dtype: tl.constexpr = e.dtype.element_ty
    col = block * BK + tl.arange(0, BK)
    decay = _log_decay(g, sequence, first, tau, T, H, col, K)

    e_tile = (_load(e, at1, live1, col, K) * _from_start(decay, t1, tau, dtype)).to(dtype)
    solve = tl.load(_matrix(inverse, pid, C, C))
    w_tile = _dot(solve, e_tile)
    _store(solved, at1, live1, col, K, w_tile.to(dtype))
    q_tile = _load(q, at1, live1, col, K) * _from_start(decay, t1, tau, dtype) * SCALE
    _store(q_out, at1, live1, col, K, q_tile.to(dtype))
    p_tile = _load(p, at1, live1, col, K) * _to_end(decay, t1, tau, dtype)
    _store(p_out, at1, live1, col, K, p_tile.to(dtype))
    tl.store(total + pid * K + col, _exp(tl.sum(decay.to(tl.float32), 0)), mask=col < K)


@triton.jit(do_not_specialize=["T", "H"])
def values(y, inverse, solved, T, H, V: tl.constexpr, BV: tl.constexpr, C: tl.constexpr):
    """The values that the chunk's erasing rows would write to a zero state."""
    block = tl.program_id(0) % tl.cdiv(V, BV)
    pid = (tl.program_id(0) // tl.cdiv(V, BV)).to(tl.int64)
    sequence = pid // tl.cdiv(T, C)
    first = pid % tl.cdiv(T, C) * C
    tau = tl.arange(0, C)
    t1 = tau
    at1, live1 = _locate(sequence, first, t1, 0, T, H, 1)
    dtype: tl.constexpr = y.dtype.element_ty
    col = block * BV + tl.arange(0, BV)

    y_tile = _load(y, at1, live1, col, V)
    solve = tl.load(_matrix(inverse, pid, C, C))
    _store(solved, at1, live1, col, V, _dot(solve, y_tile).to(dtype))


@triton.jit(do_not_specialize=["T", "H"])
def scan(
    solved_k, solved_v, p, q, m, total, initial, o, u, states, final, T, H, K: tl.constexpr, V: tl.constexpr,
    KP: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, SAVE: tl.constexpr,
):
    """All chunks of a sequence and head in time order, for a block of value columns."""
    # gdn2.rule:5  update S = exp(g) * S
    # gdn2.rule:6  update S += outer(k, w * v - (b * k) @ S)
    # gdn2.rule:7  read o = q @ S / sqrt(dim(key))
    block = tl.program_id(0) % tl.cdiv(V, BV)
    sequence = (tl.program_id(0) // tl.cdiv(V, BV)).to(tl.int64)
    chunks = tl.cdiv(T, C)
    tau = tl.arange(0, C)
    col_k = tl.arange(0, KP)
    col_v = block * BV + tl.arange(0, BV)
    at_state = sequence * (K * V) + col_k[None, :] * V + col_v[:, None]
    in_state = (col_k < K)[None, :] & (col_v < V)[:, None]
    dtype: tl.constexpr = states.dtype.element_ty
    state = tl.load(initial + at_state, mask=in_state, other=0.0)
    for chunk in range(chunks):
        first = chunk * C
        number = sequence * chunks + chunk
        at_saved = number * (K * V) + col_v[:, None] * K + col_k[None, :]
        t1 = tau
        at1, live1 = _locate(sequence, first, t1, 0, T, H, 1)
        state_tile = state.to(dtype)
        if SAVE:
            tl.store(states + at_saved, state_tile, mask=in_state)
        u_tile = _load_t(solved_v, at1, live1, col_v, V).to(tl.float32)
        u_tile -= _dot(state_tile, _load_t(solved_k, at1, live1, col_k, K))
        u_tile = u_tile.to(dtype)
        if SAVE:
            _store_t(u, at1, live1, col_v, V, u_tile)
        q_tile = _load_t(q, at1, live1, col_k, K)
        out = _dot(state_tile, q_tile)
        out += _dot(u_tile, tl.load(_matrix(m, number, C, C)))
        _store_t(o, at1, live1, col_v, V, out.to(o.dtype.element_ty))
        state *= tl.load(total + number * K + col_k, mask=col_k < K, other=0.0)[None, :]
        state += _dot(u_tile, _load(p, at1, live1, col_k, K))
    tl.store(final + at_state, state, mask=in_state)


@triton.jit(do_not_specialize=["T", "H"])
def reverse_scan(
    solved_k, p, inverse, q, do, m, total, dfinal, dy, dstates, dinitial, T, H, K: tl.constexpr, V: tl.constexpr,
    KP: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
):
    """All chunks of a sequence and head against time, for a block of value columns."""
    block = tl.program_id(0) % tl.cdiv(V, BV)
    sequence = (tl.program_id(0) // tl.cdiv(V, BV)).to(tl.int64)
    chunks = tl.cdiv(T, C)
    tau = tl.arange(0, C)
    col_k = tl.arange(0, KP)
    col_v = block * BV + tl.arange(0, BV)
    at_state = sequence * (K * V) + col_k[None, :] * V + col_v[:, None]
    in_state = (col_k < K)[None, :] & (col_v < V)[:, None]
    dtype: tl.constexpr = dstates.dtype.element_ty
    dstate = tl.load(dfinal + at_state, mask=in_state, other=0.0)
    for step in range(chunks):
        chunk = chunks - 1 - step
        first = chunk * C
        number = sequence * chunks + chunk
        at_saved = number * (K * V) + col_v[:, None] * K + col_k[None, :]
        t1 = tau
        at1, live1 = _locate(sequence, first, t1, 0, T, H, 1)
        dstate_tile = dstate.to(dtype)
        tl.store(dstates + at_saved, dstate_tile, mask=in_state)
        do_tile = _load_t(do, at1, live1, col_v, V).to(dtype)
        q_tile = _load(q, at1, live1, col_k, K)
        p_tile = _load_t(p, at1, live1, col_k, K)
        du_tile = _dot(dstate_tile, p_tile)
        du_tile += _dot(do_tile, tl.load(_matrix_t(m, number, C, C)))
        du_tile = du_tile.to(dtype)
        solve = tl.load(_matrix(inverse, number, C, C))
        dy_tile = _dot(du_tile, solve).to(dtype)
        _store_t(dy, at1, live1, col_v, V, dy_tile)
        dstate *= tl.load(total + number * K + col_k, mask=col_k < K, other=0.0)[None, :]
        dstate += _dot(do_tile, q_tile)
        dstate -= _dot(du_tile, _load(solved_k, at1, live1, col_k, K))
    tl.store(dinitial + at_state, dstate, mask=in_state)


@triton.jit(do_not_specialize=["T", "H"])
def couplings_grad(dy, do, u, da, dm, T, H, V: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, SCALE: tl.constexpr):
    """Gradients of the chunk's matrices, where they are not zero by construction."""
    pid = tl.program_id(0).to(tl.int64)
    sequence = pid // tl.cdiv(T, C)
    first = pid % tl.cdiv(T, C) * C
    tau = tl.arange(0, C)
    t1 = tau
    at1, live1 = _locate(sequence, first, t1, 0, T, H, 1)
    dtype: tl.constexpr = da.dtype.element_ty

    z_a = tl.zeros([C, C], tl.float32)
    z_m = tl.zeros([C, C], tl.float32)
    for v in range(0, V, BV):
        col = v + tl.arange(0, BV)
        e_tile = _load(dy, at1, live1, col, V).to(dtype)
        q_tile = _load(do, at1, live1, col, V).to(dtype)
        p_tile = _load_t(u, at1, live1, col, V)
        z_a -= _dot(e_tile, p_tile)
        z_m += _dot(q_tile, p_tile)
    row = tl.arange(0, C)
    both = tl.where(row[None, :] < row[:, None], z_a, 0.0)
    both += tl.trans(both)
    tl.store(_matrix(da, pid, C, C), both.to(dtype))
    z_m *= SCALE
    row = tl.arange(0, C)
    both = tl.where(row[None, :] < row[:, None], z_m, 0.0)
    both += tl.trans(both)
    both += tl.where(row[None, :] == row[:, None], z_m, 0.0)
    tl.store(_matrix(dm, pid, C, C), both.to(dtype))


@triton.jit(do_not_specialize=["T", "H"])
def local_grad(
    e, q, p, g, dy, do, u, da, dm, states, dstates, de, dq, dp, dg, T, H, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, LEVELS: tl.constexpr, SCALE: tl.constexpr,
):
    """Gradients of the chunk's covectors, directions and log decays, for a block of K."""
    block = tl.program_id(0) % tl.cdiv(K, BK)
    pid = (tl.program_id(0) // tl.cdiv(K, BK)).to(tl.int64)
    sequence = pid // tl.cdiv(T, C)
    first = pid % tl.cdiv(T, C) * C
    tau = tl.arange(0, C)
    t1 = tau
    at1, live1 = _locate(sequence, first, t1, 0, T, H, 1)
    dtype: tl.constexpr = p.dtype.element_ty
    col = block * BK + tl.arange(0, BK)

    grad_e = tl.zeros([C, BK], tl.float32)
    grad_q = tl.zeros([C, BK], tl.float32)
    grad_p = tl.zeros([C, BK], tl.float32)
    dtotal = tl.zeros([BK], tl.float32)
    # All that does not depend on the loop below is loaded before it, to be there after it.
    e_tile = _load(e, at1, live1, col, K)
    q_tile = _load(q, at1, live1, col, K)
    p_tile = _load(p, at1, live1, col, K)
    decay = _log_decay(g, sequence, first, tau, T, H, col, K)
    da_tile = tl.load(_matrix(da, pid, C, C))
    dm_tile = tl.load(_matrix(dm, pid, C, C))
    for v in range(0, V, BV):
        col_v = v + tl.arange(0, BV)
        at_saved = pid * (K * V) + col_v[:, None] * K + col[None, :]
        in_saved = (col_v < V)[:, None] & (col < K)[None, :]
        state = tl.load(states + at_saved, mask=in_saved, other=0.0)
        dstate = tl.load(dstates + at_saved, mask=in_saved, other=0.0)
        grad_e -= _dot(_load(dy, at1, live1, col_v, V), state)
        grad_q += _dot(_load(do, at1, live1, col_v, V).to(dtype), state)
        grad_p += _dot(_load(u, at1, live1, col_v, V), dstate)
        dtotal += tl.sum(state.to(tl.float32) * dstate.to(tl.float32), 0)
    grad_q *= SCALE
    grad_e *= _from_start(decay, t1, tau, dtype)
    grad_q *= _from_start(decay, t1, tau, dtype)
    grad_p *= _to_end(decay, t1, tau, dtype)

    pair_p = tl.zeros([C, BK], tl.float32)
    log1 = _from_middle(decay, t1, tau, dtype)
    if _bounded(log1):
        e_x = _scaled(e_tile, _exp(log1))
        q_x = _scaled(q_tile, _exp(log1))
        p_x = _scaled(p_tile, _exp(-log1))
        z = _dot(tl.where(t1[None, :] < t1[:, None], da_tile, 0.0).to(dtype), p_x)
        grad_e += z * _exp(log1)
        z = _dot(tl.where(t1[:, None] < t1[None, :], da_tile, 0.0).to(dtype), e_x)
        pair_p += z * _exp(-log1)
        z = _dot(tl.where(t1[None, :] < t1[:, None], dm_tile, 0.0).to(dtype), p_x)
        grad_q += z * _exp(log1)
        z = _dot(tl.where(t1[:, None] < t1[None, :], dm_tile, 0.0).to(dtype), q_x)
        pair_p += z * _exp(-log1)
    else:
        for level in range(LEVELS):
            above = ((tau >> level) & 1)[:, None] != 0
            x1 = _to_reference(decay, tau, tau, tau, level, dtype)
            e_p = _either(above, e_tile, p_tile, x1)
            q_p = _either(above, q_tile, p_tile, x1)
            across = _across(tau, level)
            x_above = tl.where(above, x1, 0.0)
            z = _dot(tl.where(across, da_tile, 0.0).to(dtype), e_p)
            grad_e += z * x_above
            pair_p += z * (x1 - x_above)
            z = _dot(tl.where(across, dm_tile, 0.0).to(dtype), q_p)
            grad_q += z * x_above
            pair_p += z * (x1 - x_above)

    ddecay = tl.zeros([C, BK], tl.float32) + (dtotal * _exp(tl.sum(decay.to(tl.float32), 0)))[None, :]
    ddecay += _seen(e_tile * grad_e + q_tile * grad_q - p_tile * pair_p, t1, tau, dtype)
    ddecay += _ahead(p_tile * grad_p, t1, tau, dtype)
    grad_p += pair_p
    row, live = _locate(sequence, first, tau, 0, T, H, 1)
    _store(dg, row, live, col, K, ddecay.to(dg.dtype.element_ty))
    own = tl.sum(tl.where(tau[:, None] == tau[None, :], dm_tile, 0.0).to(tl.float32), 1)[:, None]
    grad_q += own * p_tile
    grad_p += own * q_tile

    _store(de, at1, live1, col, K, grad_e.to(dtype))
    _store(dq, at1, live1, col, K, grad_q.to(dtype))
    _store(dp, at1, live1, col, K, grad_p.to(dtype))


@triton.jit(do_not_specialize=["T", "H"])
def decode(e, q, p, y, g, before, o, after, T, H, K: tl.constexpr, V: tl.constexpr, KP: tl.constexpr, BV: tl.constexpr):
    """One token."""
    # gdn2.rule:5  update S = exp(g) * S
    # gdn2.rule:6  update S += outer(k, w * v - (b * k) @ S)
    # gdn2.rule:7  read o = q @ S / sqrt(dim(key))
    sequence = tl.program_id(0).to(tl.int64)
    col_k = tl.arange(0, KP)
    col_v = tl.program_id(1) * BV + tl.arange(0, BV)
    in_k, in_v = col_k < K, col_v < V
    at_state = sequence * (K * V) + col_k[:, None] * V + col_v[None, :]
    in_state = in_k[:, None] & in_v[None, :]
    state = tl.load(before + at_state, mask=in_state, other=0.0)
    decay = tl.exp(tl.load(g + sequence * K + col_k, mask=in_k, other=0.0).to(tl.float32))[:, None]

    p0 = tl.load(p + sequence * K + col_k, mask=in_k, other=0.0).to(tl.float32)
    u0 = tl.load(y + sequence * V + col_v, mask=in_v, other=0.0).to(tl.float32)
    e0 = tl.load(e + sequence * K + col_k, mask=in_k, other=0.0).to(tl.float32)
    u0 -= tl.sum(e0[:, None] * (state * decay), 0)

    q0 = tl.load(q + sequence * K + col_k, mask=in_k, other=0.0).to(tl.float32)
    o0 = tl.sum(q0[:, None] * (state * decay), 0)
    o0 += tl.sum(q0 * p0, 0) * u0
    tl.store(o + (sequence * 1 + 0) * V + col_v, o0, mask=in_v)

    new = state * decay
    new += p0[:, None] * u0[None, :]
    tl.store(after + at_state, new, mask=in_state)


def _scan_forward(
    e: Tensor, p: Tensor, y: Tensor, q: Tensor, g: Tensor, initial: Tensor, save: bool, dtype: torch.dtype,
    scale: float,
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """The reads [B, T, H, reads, V] in dtype, times scale, and the last state.

    Third: what the backward pass needs, if `save`.
    """
    B, T, H, _, K = p.shape
    V = initial.shape[-1]
    chunks = triton.cdiv(T, CHUNK)
    KP = max(16, triton.next_power_of_2(K))
    launches = _launches(K, V, p.dtype, p.device)
    inverse = p.new_empty(B * H * chunks, CHUNK, CHUNK)
    m = p.new_empty(B * H * chunks, CHUNK, CHUNK)
    solved_k, solved_v, u = torch.empty_like(e), torch.empty_like(y), torch.empty_like(y)
    q_decayed = torch.empty_like(q)
    p_decayed = torch.empty_like(p)
    total = initial.new_empty(B * H * chunks, K)
    o = initial.new_empty(B, T, H, 1, V, dtype=dtype)
    states = p.new_empty(B * H * chunks if save else 0, V, K)
    final = torch.empty_like(initial)
    with torch.cuda.device_of(p):
        intra[(B * H * chunks,)](
            e, q, p, g, inverse, m, T, H, K=K, C=CHUNK, LEVELS=CHUNK.bit_length() - 1, SCALE=scale, **launches["intra"],
        )
        keys[(B * H * chunks * triton.cdiv(K, launches["keys"]["BK"]),)](
            e, q, p, g, inverse, solved_k, q_decayed, p_decayed, total, T, H, K=K, C=CHUNK, SCALE=scale,
            **launches["keys"],
        )
        values[(B * H * chunks * triton.cdiv(V, launches["values"]["BV"]),)](
            y, inverse, solved_v, T, H, V=V, C=CHUNK, **launches["values"],
        )
        scan[(B * H * triton.cdiv(V, launches["scan"]["BV"]),)](
            solved_k, solved_v, p_decayed, q_decayed, m, total, initial, o, u, states, final, T, H, K=K, V=V, KP=KP,
            C=CHUNK, SAVE=save, **launches["scan"],
        )
    return o, final, (e, p, q, g, inverse, solved_k, m, q_decayed, p_decayed, total, u, states)


def _scan_backward(saved: tuple[Tensor, ...], do: Tensor, dfinal: Tensor, scale: float) -> tuple[Tensor, ...]:
    """The gradients of the packed rows, in their order, and of the first state."""
    (e, p, q, g, inverse, solved_k, m, q_decayed, p_decayed, total, u, states) = saved
    B, T, H, _, K = p.shape
    V = dfinal.shape[-1]
    chunks = triton.cdiv(T, CHUNK)
    KP = max(16, triton.next_power_of_2(K))
    launches = _launches(K, V, p.dtype, p.device)
    do, dfinal = do.contiguous(), dfinal.contiguous()
    dy = torch.empty_like(u)
    dstates, dinitial = torch.empty_like(states), torch.empty_like(dfinal)
    da = p.new_empty(B * H * chunks, CHUNK, CHUNK)
    dm = p.new_empty(B * H * chunks, CHUNK, CHUNK)
    de = torch.empty_like(e)
    dq = torch.empty_like(q)
    dp = torch.empty_like(p)
    dg = torch.empty_like(g)
    with torch.cuda.device_of(p):
        reverse_scan[(B * H * triton.cdiv(V, launches["reverse_scan"]["BV"]),)](
            solved_k, p_decayed, inverse, q_decayed, do, m, total, dfinal, dy, dstates, dinitial, T, H, K=K, V=V, KP=KP,
            C=CHUNK, **launches["reverse_scan"],
        )
        couplings_grad[(B * H * chunks,)](
            dy, do, u, da, dm, T, H, V=V, C=CHUNK, SCALE=scale, **launches["couplings_grad"],
        )
        local_grad[(B * H * chunks * triton.cdiv(K, launches["local_grad"]["BK"]),)](
            e, q, p, g, dy, do, u, da, dm, states, dstates, de, dq, dp, dg, T, H, K=K, V=V, C=CHUNK,
            LEVELS=CHUNK.bit_length() - 1, SCALE=scale, **launches["local_grad"],
        )
    return de, dp, dy, dq, dg, dinitial


def _decode(e: Tensor, p: Tensor, y: Tensor, q: Tensor, g: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """The reads [B, 1, H, reads, V] of one token and the state after it, from its rows, all in float32."""
    before = S.float().contiguous()
    B, T, H, _, K = p.shape
    V = S.shape[-1]
    after = torch.empty_like(before)
    o = before.new_empty(B, 1, H, 1, V)
    KP, BV = max(16, triton.next_power_of_2(K)), 16
    with torch.cuda.device_of(p):
        decode[(B * H, triton.cdiv(V, BV))](e, q, p, y, g, before, o, after, T, H, K=K, V=V, KP=KP, BV=BV)
    return o, after


def start(
    B: int, H: int, K: int, V: int, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
) -> Tensor:
    """The state before the first token."""
    return torch.zeros(B, H, K, V, dtype=dtype, device=device)


ELEMENTS = 1024  # of a tile of the prologue


def _row(x: Tensor, dtype: torch.dtype) -> Tensor:
    """An input as the one row of its tokens, [B, T, H, 1, ...]: itself, where it has the dtype."""
    return x.unsqueeze(3).to(dtype).contiguous()


def _rows(*sizes: int) -> int:
    """Rows of a program that computes the prologue, so that its widest tile has ELEMENTS numbers."""
    return max(1, ELEMENTS // triton.next_power_of_2(max(sizes)))


def _prologue(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, w: Tensor, tile: torch.dtype
) -> tuple[Tensor, ...]:
    """The rows that the scan takes, of contiguous inputs."""
    B, T, H = q.shape[:3]
    K = q.shape[-1]
    V = v.shape[-1]
    e_row = q.new_empty(B, T, H, 1, K, dtype=tile)
    p_row = _row(k, tile)
    y_row = q.new_empty(B, T, H, 1, V, dtype=tile)
    q_row = _row(q, tile)
    g_row = _row(g, g.dtype)
    R = _rows(K, V)
    with torch.cuda.device_of(q):
        prologue[(triton.cdiv(B * T * H, R),)](
            k, b, w, v, e_row, y_row, B * T, H, K=K, V=V, KP=triton.next_power_of_2(K), VP=triton.next_power_of_2(V),
            ROWS=R,
        )
    return e_row, p_row, y_row, q_row, g_row


class _Run(torch.autograd.Function):
    """Rows, scan and output of sequences; its gradients are not differentiable again."""

    @staticmethod
    def forward(
        ctx, q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, w: Tensor, state: Tensor, save: bool,
    ) -> tuple[Tensor, Tensor]:
        K = q.shape[-1]
        q, k, v, g, b, w = (x.contiguous() for x in (q, k, v, g, b, w))
        tile = torch.bfloat16 if v.dtype == torch.bfloat16 else torch.float32
        rows = _prologue(q, k, v, g, b, w, tile)
        reads, final, saved = _scan_forward(*rows, state, save, v.dtype, 1 / math.sqrt(K))
        ctx.save_for_backward(q, k, v, g, b, w, *saved)
        return reads.squeeze(3), final

    @staticmethod
    @_once
    def backward(ctx, do: Tensor, dfinal: Tensor) -> tuple[Tensor | None, ...]:
        (q, k, v, g, b, w, *saved) = ctx.saved_tensors
        B, T, H = q.shape[:3]
        K = q.shape[-1]
        V = v.shape[-1]
        do = do.contiguous()
        de_row, dp_row, dy_row, dq_row, dg_row, dinitial = _scan_backward(
            saved, do.unsqueeze(3), dfinal, 1 / math.sqrt(K),
        )
        dk = dv = db = dw = None
        if any(ctx.needs_input_grad[n] for n in (1, 2, 4, 5)):
            dk = torch.empty_like(k)
            dv = torch.empty_like(v)
            db = torch.empty_like(b)
            dw = torch.empty_like(w)
            R = _rows(K, V)
            with torch.cuda.device_of(q):
                prologue_grad[(triton.cdiv(B * T * H, R),)](
                    k, b, w, v, de_row, dp_row, dy_row, dk, dv, db, dw, B * T, H, K=K, V=V,
                    KP=triton.next_power_of_2(K), VP=triton.next_power_of_2(V), ROWS=R,
                )
        return (dq_row.squeeze(3).to(q.dtype), dk, dv, dg_row.squeeze(3).to(g.dtype), db, dw, dinitial, None)


def run(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, w: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A sequence: inputs [B, T, H, ...], params [H, ...]; the output [B, T, H, V] and the state after it."""
    B, T, H = q.shape[:3]
    K = q.shape[-1]
    V = v.shape[-1]
    if state is None:
        state = start(B, H, K, V, torch.float32, q.device)
    state = state.float().contiguous()
    save = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, g, b, w, state))
    o, state = _Run.apply(q, k, v, g, b, w, state, save)
    return o, state


def step(state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """One token, without gradients: inputs [B, H, ...]; the output [B, H, V] and the state after."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in (state, q, k, v, g, b, w)):
        raise RuntimeError("decode has no gradient: call it under torch.no_grad()")
    q, k, v, g, b, w = (x.unsqueeze(1).contiguous() for x in (q, k, v, g, b, w))
    K = q.shape[-1]
    rows = _prologue(q, k, v, g, b, w, torch.float32)
    reads, state = _decode(*rows, state)
    return (reads * (1 / math.sqrt(K))).squeeze(3).squeeze(1), state
