"""The device functions that the kernels of a shape share, as source text."""

from __future__ import annotations

from .triton_text import wide
from .triton_tiles import Tiles

_LOCATE = '''
@triton.jit
def _locate(sequence, first, token, slot, T, H, ROWS: tl.constexpr):
    """Row numbers in a [B, T, H, ROWS, D] tensor of a slot of tokens after `first`, and whether there is such a row.

    Only where the chunk begins is a number of 64 bits; within it 32 do.
    """
    begin = ((sequence // H * T + first) * H + sequence % H) * ROWS
    return begin + (token * (H * ROWS) + slot), (token < T - first) & (slot < ROWS)
'''

_MEMORY = '''
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
'''

_DOT = '''
@triton.jit
def _dot(a, b):
    """A product summed in float32: of bfloat16 tiles as they are, of float32 tiles as three TF32 products."""
    return tl.dot(a, b, input_precision="tf32x3")
'''

_DOT_WIDE = '''
@triton.jit
def _dot_wide(a, b):
    """A product of 128 x 128 float32 tiles: as TF32 parts they would not fit into shared memory."""
    return tl.dot(a, b, input_precision="ieee")
'''

_MEET = '''
@triton.jit
def _meet(left, right, level):
    """Pairs (left after right) whose highest differing bit is `level`: each such pair has exactly one level."""
    upper = ((left >> level) & 1) != 0
    return upper[:, None] & (((left >> level) ^ 1)[:, None] == (right >> level)[None, :])
'''

_ACROSS = '''
@triton.jit
def _across(tau, level):
    """Pairs of tokens whose highest differing bit is `level`, whichever is later."""
    return ((tau >> level) ^ 1)[:, None] == (tau >> level)[None, :]
'''

_MEET_T = '''
@triton.jit
def _meet_t(left, right, level):
    """The transpose of `_meet`."""
    upper = ((left >> level) & 1) != 0
    return upper[None, :] & (((left >> level) ^ 1)[None, :] == (right >> level)[:, None])
'''

_DOT_FOR = '''
@triton.jit
def _dot_for(a, b, dtype: tl.constexpr):
    """A product of float32 tiles, as exact as tiles of `dtype` deserve: one TF32 product, or three."""
    return tl.dot(a, b, input_precision="tf32" if dtype == tl.bfloat16 else "tf32x3")
'''

_SUMS = '''
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
'''

_EXP = """
@triton.jit
def _exp(x):
    return tl.exp2(x * 1.4426950408889634)
"""

_SCALED = '''
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
'''

_EITHER = '''
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
'''

_SCALAR = '''
@triton.jit
def _log_decay(g, sequence, first, token, T, H):
    """Log decays of the chunk's tokens, zero past the end; none below -128, whose exp is 0 already."""
    row, live = _locate(sequence, first, token, 0, T, H, 1)
    decay = tl.load(g + row, mask=live, other=0.0).to(tl.float32)
    return tl.maximum(decay, -128.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _at(sums, end):
    """The sum of the decays up to and with token `end`; 0 before the first."""
    return tl.where(end >= 0, tl.gather(sums, tl.maximum(end, 0), 0), 0.0)


# Beside bfloat16 tiles the differences of the sums up to a row are exact enough: no sum is past 64 * 128. Beside
# float32 tiles each exponent is a sum of its own.
@triton.jit
def _from_start(upto, decay, end, tau, dtype: tl.constexpr):
    """exp of the decays up to and with token `end`."""
    if dtype == tl.bfloat16:
        return _exp(upto)
    else:
        return _exp(tl.sum(tl.where(tau[None, :] <= end[:, None], decay[None, :], 0.0), 1))


@triton.jit
def _to_end(upto, decay, token, tau, dtype: tl.constexpr):
    """exp of the decays after `token`."""
    if dtype == tl.bfloat16:
        return _exp(tl.sum(decay, 0) - upto)
    else:
        return _exp(tl.sum(tl.where(tau[None, :] > token[:, None], decay[None, :], 0.0), 1))


@triton.jit
def _between(left, right, decay, end, token, tau, earlier, dtype: tl.constexpr):
    """exp of the decays after `token` (columns) up to `end` (rows), 0 outside `earlier`.

    The mask stands before the exponential, or the part that is not used would overflow.
    """
    if dtype == tl.bfloat16:
        log = left[:, None] - right[None, :]
    else:
        after = tl.where(tau[:, None] > token[None, :], decay[:, None], 0.0)
        log = _dot((tau[None, :] <= end[:, None]).to(tl.float32), after)
    return tl.where(earlier, _exp(tl.where(earlier, log, 0.0)), 0.0)


@triton.jit
def _between_t(left, right, decay, end, token, tau, earlier, dtype: tl.constexpr):
    """The transpose of `_between`, formed anew."""
    if dtype == tl.bfloat16:
        log = left[None, :] - right[:, None]
    else:
        upto = tl.where(tau[:, None] <= end[None, :], decay[:, None], 0.0)
        log = _dot((tau[None, :] > token[:, None]).to(tl.float32), upto)
    return tl.where(earlier, _exp(tl.where(earlier, log, 0.0)), 0.0)
'''

_SCALAR_GRAD = '''
@triton.jit
def _seen(x, end, tau, LAG: tl.constexpr):
    """For each token the sum of x over the rows that have seen its decay.

    LAG: how many tokens ago each row's `end` is, where that is the same for all; else -1.
    """
    x = tl.sum(x, 1)
    if LAG < 0:
        return tl.sum(tl.where(tau[:, None] <= end[None, :], x[None, :], 0.0), 1)
    else:
        return tl.cumsum(x, 0, reverse=True) - (x if LAG == 1 else 0.0)


@triton.jit
def _ahead(x, token, tau, LAG: tl.constexpr):
    """For each token the sum of x over the rows written before it; LAG as above, of `token`."""
    x = tl.sum(x, 1)
    if LAG < 0:
        return tl.sum(tl.where(tau[:, None] > token[None, :], x[None, :], 0.0), 1)
    else:
        return tl.cumsum(x, 0) - x
'''

_KEY = '''
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
'''

_KEY_GRAD = '''
@triton.jit
def _seen(x, end, tau, dtype: tl.constexpr):
    """For each token the sum of x over the rows that have seen its decay."""
    return _sums(tau[:, None] <= end[None, :], x, dtype)


@triton.jit
def _ahead(x, token, tau, dtype: tl.constexpr):
    """For each token the sum of x over the rows written before it."""
    return _sums(tau[:, None] > token[None, :], x, dtype)
'''


def device_functions(tiles: Tiles) -> list[str]:
    """The functions that the kernels of these tiles call."""
    parts = [_LOCATE, _MEMORY, _DOT]
    if tiles.e:
        parts.append(_DOT_WIDE if wide(tiles.e) else _DOT_FOR)
    if tiles.decays:
        parts.append(_EXP)
    if tiles.e or (tiles.decay == "key" and not tiles.merged):
        parts.append(_MEET)
    if tiles.decay == "key":
        parts += [_SCALED, *([_ACROSS, _EITHER] if tiles.merged else [_MEET_T])]
    if tiles.decay == "key":
        parts += [_SUMS, _KEY, _KEY_GRAD]
    elif tiles.decay == "scalar":
        parts += [_SCALAR, _SCALAR_GRAD]
    return [part.strip("\n") for part in parts]
