"""A rule's params as module parameters: reparametrised so that they stay in range, started where the rule says."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from stateir.codegen.start import start_value
from stateir.ir import Axis, Param

from .activation import negative_half_line, starting_rates, unit
from .config import require


class RuleParameter(nn.Module):
    """One param of a rule for H heads; calling it gives the value [H, (n,) (D)].

    A trained param is stored as raw numbers: in [lo, hi] as the logit, in a half line as the log of the distance from
    the bound, `unit` as a vector that is normalised on use, without a range as itself. Raw numbers start at the inverse
    of the rule's start expression. A param without one starts at the middle of a finite range, at distance 1 from the
    bound of a half line, on (-inf, 0] like a log decay (`starting_rates`), on the sphere where `unit`, and otherwise
    at N(0, 0.02). A `fixed` param is a buffer that holds its value.

    Raises:
        ValueError: for a start value at or outside the bounds, or a fixed param with nothing to start from.
    """

    raw: Tensor

    def __init__(self, declared: Param, heads: int, dims: dict[Axis, int], generator: torch.Generator) -> None:
        super().__init__()
        self.declared = declared
        shape = (heads, *_shape(declared, dims))
        start = None
        if declared.start is not None:
            start = start_value(declared, heads, dims[Axis.KEY], dims[Axis.VALUE], dtype=torch.float64)
        if declared.fixed:
            require(
                start is not None or declared.unit, f"param {declared.name} is fixed, not unit, and has no start value"
            )
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
            value = start if start is not None else drawn / drawn.norm(dim=-1, keepdim=True)
            self.register_buffer("raw", value.float())
        else:
            if start is None:
                start = self._default(shape, generator)
            self.raw = nn.Parameter(self._inverse(start).float())

    def forward(self) -> Tensor:
        if self.declared.fixed:
            return self.raw
        if self.declared.unit:
            return unit(self.raw)
        lo, hi = self._bounds()
        if math.isinf(lo) and math.isinf(hi):
            return self.raw
        if math.isinf(lo):
            return hi - torch.exp(self.raw)
        if math.isinf(hi):
            return lo + torch.exp(self.raw)
        return lo + (hi - lo) * torch.sigmoid(self.raw)

    def _bounds(self) -> tuple[float, float]:
        interval = self.declared.range
        return (-math.inf, math.inf) if interval is None else (interval.lo, interval.hi)

    def _default(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        lo, hi = self._bounds()
        if self.declared.unit:
            return torch.randn(shape, generator=generator, dtype=torch.float64)
        if negative_half_line(self.declared.range):
            return -starting_rates(shape)
        if math.isinf(lo) and math.isinf(hi):
            return 0.02 * torch.randn(shape, generator=generator, dtype=torch.float64)
        middle = hi - 1 if math.isinf(lo) else lo + 1 if math.isinf(hi) else (lo + hi) / 2
        return torch.full(shape, middle, dtype=torch.float64)

    def _inverse(self, value: Tensor) -> Tensor:
        if self.declared.unit:
            return value
        lo, hi = self._bounds()
        require(
            bool(((value > lo) & (value < hi)).all()),
            f"param {self.declared.name} starts at {value.min():.6g} .. {value.max():.6g}; a trained param must start "
            f"strictly inside its range, between {lo:g} and {hi:g}",
        )
        if math.isinf(lo) and math.isinf(hi):
            return value
        if math.isinf(lo):
            return torch.log(hi - value)
        if math.isinf(hi):
            return torch.log(value - lo)
        return torch.logit((value - lo) / (hi - lo))


def _shape(declared: Param, dims: dict[Axis, int]) -> tuple[int, ...]:
    size = () if declared.size is None else (declared.size,)
    return size if declared.axis is Axis.SCALAR else (*size, dims[declared.axis])
