"""Random arguments for a rule, drawn from what it declares about them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stateir.ir import Axis, Input, Interval, Param, Rule

from .start import start_value
from .text import arguments_of


def sample_arguments(
    rule: Rule, *, B: int = 2, T: int = 29, H: int = 2, K: int = 6, V: int = 5, seed: int = 0,
    dtype: torch.dtype = torch.float64, ends: float = 0.1, resets: bool = False,
) -> dict[str, Tensor]:  # fmt: skip
    """Arguments by name: inputs [B, T, H, ...], params [H, ...].

    `unit` vectors have norm 1, ranges are kept, vectors without a range are N(0, 1) / sqrt(dim) and scalars N(0, 1).
    Of the values with a range, a share of `ends` stands exactly at an end that the range includes; of the key inputs
    that are `unit` or have no range, a share of `ends` / 4 is the zero vector, as padding is. Log decays (lower
    bound -inf, upper 0) go from 0 to -20, and with `resets` are now and then -1e4 or -inf. Fixed params take their
    start value.
    """
    generator = torch.Generator().manual_seed(seed)
    dims = {Axis.SCALAR: [], Axis.KEY: [K], Axis.VALUE: [V], Axis.PAIR: [K // 2]}
    arguments = {}
    for d in arguments_of(rule):
        if isinstance(d, Param) and d.fixed and d.start is not None:
            arguments[d.name] = start_value(d, H, K, V, dtype=dtype)
            continue
        leading = [H] if isinstance(d, Param) else [B, T, H]
        shape = [*leading, *([] if d.size is None else [d.size]), *dims[d.axis]]
        arguments[d.name] = _sample(d, shape, generator, ends, resets).to(dtype)
    return arguments


def _sample(d: Input | Param, shape: list[int], generator: torch.Generator, ends: float, resets: bool) -> Tensor:
    normal = torch.randn(shape, generator=generator, dtype=torch.float64)
    if d.unit or d.range is None:
        if d.axis is Axis.SCALAR:
            return normal
        x = torch.nn.functional.normalize(normal, dim=-1) if d.unit else normal / math.sqrt(shape[-1])
        if isinstance(d, Input) and d.axis is Axis.KEY:
            zero = torch.rand(shape[:-1], generator=generator, dtype=torch.float64) < ends / 4
            x = torch.where(zero[..., None], 0.0, x)
        return x
    return _inside(d.range, normal, generator, ends, resets)


def _inside(r: Interval, normal: Tensor, generator: torch.Generator, ends: float, resets: bool) -> Tensor:
    uniform = torch.rand(normal.shape, generator=generator, dtype=torch.float64)
    if math.isfinite(r.lo) and math.isfinite(r.hi):
        # Half a thousandth inside, so that rounding to a narrow dtype does not reach an open end.
        x = r.lo + (r.hi - r.lo) * (0.0005 + 0.999 * uniform)
    elif math.isfinite(r.hi):
        x = r.hi - _magnitude(uniform)
    elif math.isfinite(r.lo):
        x = r.lo + torch.log1p(torch.exp(normal))
    else:
        x = normal
    which = torch.rand(normal.shape, generator=generator, dtype=torch.float64)
    if math.isfinite(r.lo) and not r.lo_open:
        x = torch.where(which < ends / 2, r.lo, x)
    if math.isfinite(r.hi) and not r.hi_open:
        x = torch.where(which > 1 - ends / 2, r.hi, x)
    if resets and r.lo == -math.inf and r.hi == 0 and not r.hi_open:
        x = torch.where((which > 0.50) & (which < 0.52), -1e4, x)
        x = torch.where((which > 0.52) & (which < 0.53), -math.inf, x)
    return x


def _magnitude(uniform: Tensor) -> Tensor:
    """From 1e-3 to 20, as many in each decade."""
    return 1e-3 * torch.exp(math.log(2e4) * uniform)
