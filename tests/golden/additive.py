"""Linear attention, unnormalised (arXiv:2006.16236)

    additive.rule:3  update S += outer(k, v)
    additive.rule:4  read o = q @ S / sqrt(dim(key))

which is

    S    ← S + k u₀ᵀ
      u₀ = v
    o    = q·S / √K

The kernels see rows, each of which reads the state before its token, and chunks of CHUNK tokens.
1 pure write(s) a token: S += outer(w, yw).
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


CHUNK = 64  # tokens
# Columns of a block, warps and pipeline stages of each kernel, as measured on an H200.
LAUNCHES = {
    torch.bfloat16: {
        "scan": (64, 4, 2),
        "reverse_scan": (64, 4, 2),
        "couplings_grad": (64, 4, 3),
        "local_grad": (64, 4, 2),
    },
    torch.float32: {
        "scan": (32, 4, 1),
        "reverse_scan": (32, 4, 1),
        "couplings_grad": (32, 4, 1),
        "local_grad": (32, 4, 1),
    },
}
OVER_VALUES = ("scan", "reverse_scan", "couplings_grad",)  # kernels whose blocks are of V


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
            rows = 2 * CHUNK * KP * dtype.itemsize  # of a chunk; values and matrices take half as much again
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
def _load_scalar(x, row, live):
    """One number for each row, as a column."""
    return tl.load(x + row, mask=live, other=0.0).to(tl.float32)[:, None]


@triton.jit
def _store_scalar(x, row, live, column):
    tl.store(x + row[:, None], column, mask=live[:, None])


@triton.jit(do_not_specialize=["T", "H"])
def scan(
    w, yw, q, initial, o, states, final, T, H, K: tl.constexpr, V: tl.constexpr, KP: tl.constexpr, BV: tl.constexpr,
    C: tl.constexpr, SAVE: tl.constexpr, SCALE: tl.constexpr,
):
    """All chunks of a sequence and head in time order, for a block of value columns."""
    # additive.rule:3  update S += outer(k, v)
    # additive.rule:4  read o = q @ S / sqrt(dim(key))
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
        yw_tile = _load_t(yw, at1, live1, col_v, V)
        w_tile = _load(w, at1, live1, col_k, K)
        q_tile = _load_t(q, at1, live1, col_k, K)
        z_n = _dot(w_tile, q_tile)
        seen = t1[:, None] < t1[None, :]
        same = t1[None, :] == t1[:, None]
        seen |= same
        n = tl.where(seen, z_n, 0.0)
        n = (n * SCALE).to(dtype)
        out = _dot(state_tile, q_tile) * SCALE
        out += _dot(yw_tile, n)
        _store_t(o, at1, live1, col_v, V, out.to(o.dtype.element_ty))
        state += _dot(yw_tile, w_tile)
    tl.store(final + at_state, state, mask=in_state)


@triton.jit(do_not_specialize=["T", "H"])
def reverse_scan(
    w, q, do, dfinal, dyw, dstates, dinitial, T, H, K: tl.constexpr, V: tl.constexpr, KP: tl.constexpr,
    BV: tl.constexpr, C: tl.constexpr, SCALE: tl.constexpr,
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
        w_tile = _load_t(w, at1, live1, col_k, K)
        dyw_tile = _dot(dstate_tile, w_tile)
        z_n = _dot(q_tile, w_tile)
        seen = t1[None, :] < t1[:, None]
        same = t1[:, None] == t1[None, :]
        seen |= same
        n = tl.where(seen, z_n, 0.0)
        n = (n * SCALE).to(dtype)
        dyw_tile += _dot(do_tile, n)
        _store_t(dyw, at1, live1, col_v, V, dyw_tile.to(dtype))
        do_tile = (do_tile.to(tl.float32) * SCALE).to(dtype)
        dstate += _dot(do_tile, q_tile)
    tl.store(dinitial + at_state, dstate, mask=in_state)


@triton.jit(do_not_specialize=["T", "H"])
def couplings_grad(do, yw, dn, T, H, V: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, SCALE: tl.constexpr):
    """Gradients of the chunk's matrices, where they are not zero by construction."""
    pid = tl.program_id(0).to(tl.int64)
    sequence = pid // tl.cdiv(T, C)
    first = pid % tl.cdiv(T, C) * C
    tau = tl.arange(0, C)
    t1 = tau
    at1, live1 = _locate(sequence, first, t1, 0, T, H, 1)
    dtype: tl.constexpr = dn.dtype.element_ty

    z_n = tl.zeros([C, C], tl.float32)
    for v in range(0, V, BV):
        col = v + tl.arange(0, BV)
        q_tile = _load(do, at1, live1, col, V).to(dtype)
        w_tile = _load_t(yw, at1, live1, col, V)
        z_n += _dot(q_tile, w_tile)
    z_n *= SCALE
    seen = t1[None, :] < t1[:, None]
    same = t1[:, None] == t1[None, :]
    seen |= same
    tl.store(_matrix(dn, pid, C, C), tl.where(seen, z_n, 0.0).to(dtype))


@triton.jit(do_not_specialize=["T", "H"])
def local_grad(
    q, w, do, yw, dn, states, dstates, dq, dw, T, H, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr,
    BV: tl.constexpr, C: tl.constexpr, LEVELS: tl.constexpr, SCALE: tl.constexpr,
):
    """Gradients of the chunk's covectors, directions and log decays, for a block of K."""
    block = tl.program_id(0) % tl.cdiv(K, BK)
    pid = (tl.program_id(0) // tl.cdiv(K, BK)).to(tl.int64)
    sequence = pid // tl.cdiv(T, C)
    first = pid % tl.cdiv(T, C) * C
    tau = tl.arange(0, C)
    t1 = tau
    at1, live1 = _locate(sequence, first, t1, 0, T, H, 1)
    dtype: tl.constexpr = w.dtype.element_ty
    col = block * BK + tl.arange(0, BK)

    grad_q = tl.zeros([C, BK], tl.float32)
    grad_w = tl.zeros([C, BK], tl.float32)
    # All that does not depend on the loop below is loaded before it, to be there after it.
    q_tile = _load(q, at1, live1, col, K)
    w_tile = _load(w, at1, live1, col, K)
    dn_tile = tl.load(_matrix(dn, pid, C, C))
    dn_tile_t = tl.load(_matrix_t(dn, pid, C, C))
    for v in range(0, V, BV):
        col_v = v + tl.arange(0, BV)
        at_saved = pid * (K * V) + col_v[:, None] * K + col[None, :]
        in_saved = (col_v < V)[:, None] & (col < K)[None, :]
        state = tl.load(states + at_saved, mask=in_saved, other=0.0)
        dstate = tl.load(dstates + at_saved, mask=in_saved, other=0.0)
        grad_q += _dot(_load(do, at1, live1, col_v, V).to(dtype), state)
        grad_w += _dot(_load(yw, at1, live1, col_v, V), dstate)
    grad_q *= SCALE

    grad_q += _dot(dn_tile, w_tile)
    grad_w += _dot(dn_tile_t, q_tile)

    _store(dq, at1, live1, col, K, grad_q.to(dtype))
    _store(dw, at1, live1, col, K, grad_w.to(dtype))


@triton.jit(do_not_specialize=["T", "H"])
def decode(q, w, yw, before, o, after, T, H, K: tl.constexpr, V: tl.constexpr, KP: tl.constexpr, BV: tl.constexpr):
    """One token."""
    # additive.rule:3  update S += outer(k, v)
    # additive.rule:4  read o = q @ S / sqrt(dim(key))
    sequence = tl.program_id(0).to(tl.int64)
    col_k = tl.arange(0, KP)
    col_v = tl.program_id(1) * BV + tl.arange(0, BV)
    in_k, in_v = col_k < K, col_v < V
    at_state = sequence * (K * V) + col_k[:, None] * V + col_v[None, :]
    in_state = in_k[:, None] & in_v[None, :]
    state = tl.load(before + at_state, mask=in_state, other=0.0)

    p0 = tl.load(w + sequence * K + col_k, mask=in_k, other=0.0).to(tl.float32)
    u0 = tl.load(yw + sequence * V + col_v, mask=in_v, other=0.0).to(tl.float32)

    q0 = tl.load(q + sequence * K + col_k, mask=in_k, other=0.0).to(tl.float32)
    o0 = tl.sum(q0[:, None] * (state), 0)
    o0 += tl.sum(q0 * p0, 0) * u0
    tl.store(o + (sequence * 1 + 0) * V + col_v, o0, mask=in_v)

    new = state
    new += p0[:, None] * u0[None, :]
    tl.store(after + at_state, new, mask=in_state)


def _scan_forward(
    w: Tensor, yw: Tensor, q: Tensor, initial: Tensor, save: bool, dtype: torch.dtype, scale: float,
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """The reads [B, T, H, reads, V] in dtype, times scale, and the last state.

    Third: what the backward pass needs, if `save`.
    """
    B, T, H, _, K = w.shape
    V = initial.shape[-1]
    chunks = triton.cdiv(T, CHUNK)
    KP = max(16, triton.next_power_of_2(K))
    launches = _launches(K, V, w.dtype, w.device)
    o = initial.new_empty(B, T, H, 1, V, dtype=dtype)
    states = w.new_empty(B * H * chunks if save else 0, V, K)
    final = torch.empty_like(initial)
    with torch.cuda.device_of(w):
        scan[(B * H * triton.cdiv(V, launches["scan"]["BV"]),)](
            w, yw, q, initial, o, states, final, T, H, K=K, V=V, KP=KP, C=CHUNK, SAVE=save, SCALE=scale,
            **launches["scan"],
        )
    return o, final, (w, yw, q, states)


def _scan_backward(saved: tuple[Tensor, ...], do: Tensor, dfinal: Tensor, scale: float) -> tuple[Tensor, ...]:
    """The gradients of the packed rows, in their order, and of the first state."""
    (w, yw, q, states) = saved
    B, T, H, _, K = w.shape
    V = dfinal.shape[-1]
    chunks = triton.cdiv(T, CHUNK)
    KP = max(16, triton.next_power_of_2(K))
    launches = _launches(K, V, w.dtype, w.device)
    do, dfinal = do.contiguous(), dfinal.contiguous()
    dyw = torch.empty_like(yw)
    dstates, dinitial = torch.empty_like(states), torch.empty_like(dfinal)
    dn = w.new_empty(B * H * chunks, CHUNK, CHUNK)
    dq = torch.empty_like(q)
    dw = torch.empty_like(w)
    with torch.cuda.device_of(w):
        reverse_scan[(B * H * triton.cdiv(V, launches["reverse_scan"]["BV"]),)](
            w, q, do, dfinal, dyw, dstates, dinitial, T, H, K=K, V=V, KP=KP, C=CHUNK, SCALE=scale,
            **launches["reverse_scan"],
        )
        couplings_grad[(B * H * chunks,)](do, yw, dn, T, H, V=V, C=CHUNK, SCALE=scale, **launches["couplings_grad"])
        local_grad[(B * H * chunks * triton.cdiv(K, launches["local_grad"]["BK"]),)](
            q, w, do, yw, dn, states, dstates, dq, dw, T, H, K=K, V=V, C=CHUNK, LEVELS=CHUNK.bit_length() - 1,
            SCALE=scale, **launches["local_grad"],
        )
    return dw, dyw, dq, dinitial


def _decode(w: Tensor, yw: Tensor, q: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """The reads [B, 1, H, reads, V] of one token and the state after it, from its rows, all in float32."""
    before = S.float().contiguous()
    B, T, H, _, K = w.shape
    V = S.shape[-1]
    after = torch.empty_like(before)
    o = before.new_empty(B, 1, H, 1, V)
    KP, BV = max(16, triton.next_power_of_2(K)), 16
    with torch.cuda.device_of(w):
        decode[(B * H, triton.cdiv(V, BV))](q, w, yw, before, o, after, T, H, K=K, V=V, KP=KP, BV=BV)
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


def _prologue(q: Tensor, k: Tensor, v: Tensor, tile: torch.dtype) -> tuple[Tensor, ...]:
    """The rows that the scan takes, of contiguous inputs."""
    B, T, H = q.shape[:3]
    K = q.shape[-1]
    V = v.shape[-1]
    w_row = _row(k, tile)
    yw_row = _row(v, tile)
    q_row = _row(q, tile)
    return w_row, yw_row, q_row


class _Run(torch.autograd.Function):
    """Rows, scan and output of sequences; its gradients are not differentiable again."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, state: Tensor, save: bool) -> tuple[Tensor, Tensor]:
        K = q.shape[-1]
        q, k, v = (x.contiguous() for x in (q, k, v))
        tile = torch.bfloat16 if v.dtype == torch.bfloat16 else torch.float32
        rows = _prologue(q, k, v, tile)
        reads, final, saved = _scan_forward(*rows, state, save, v.dtype, 1 / math.sqrt(K))
        ctx.save_for_backward(q, k, v, *saved)
        return reads.squeeze(3), final

    @staticmethod
    @_once
    def backward(ctx, do: Tensor, dfinal: Tensor) -> tuple[Tensor | None, ...]:
        (q, k, v, *saved) = ctx.saved_tensors
        B, T, H = q.shape[:3]
        K = q.shape[-1]
        V = v.shape[-1]
        do = do.contiguous()
        dw_row, dyw_row, dq_row, dinitial = _scan_backward(saved, do.unsqueeze(3), dfinal, 1 / math.sqrt(K))
        return (
            dq_row.squeeze(3).to(q.dtype), dw_row.squeeze(3).to(k.dtype), dyw_row.squeeze(3).to(v.dtype), dinitial,
            None,
        )


def run(q: Tensor, k: Tensor, v: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A sequence: inputs [B, T, H, ...], params [H, ...]; the output [B, T, H, V] and the state after it."""
    B, T, H = q.shape[:3]
    K = q.shape[-1]
    V = v.shape[-1]
    if state is None:
        state = start(B, H, K, V, torch.float32, q.device)
    state = state.float().contiguous()
    save = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, state))
    o, state = _Run.apply(q, k, v, state, save)
    return o, state


def step(state: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """One token, without gradients: inputs [B, H, ...]; the output [B, H, V] and the state after."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in (state, q, k, v)):
        raise RuntimeError("decode has no gradient: call it under torch.no_grad()")
    q, k, v = (x.unsqueeze(1).contiguous() for x in (q, k, v))
    K = q.shape[-1]
    rows = _prologue(q, k, v, torch.float32)
    reads, state = _decode(*rows, state)
    return (reads * (1 / math.sqrt(K))).squeeze(3).squeeze(1), state
