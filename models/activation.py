"""From a declared range to an activation: how a layer's free numbers come to lie where a rule says that they do."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stateir.ir import Input, Interval

from .config import require

# What one token's log decay starts as, at a zero projection: spread evenly on a log scale over heads and channels, so
# that a state starts as a memory of 10 to 1,000 tokens.
SLOWEST, FASTEST = 1e-3, 1e-1
UNIT_EPS = 1e-6


def unit(x: Tensor) -> Tensor:
    """x * rsqrt(sum x^2 + 1e-6) over the last axis: the language's `unit`, eps inside the root, zero stays zero."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + UNIT_EPS)


def negative_half_line(range: Interval | None) -> bool:
    """Whether a range is that of a log decay, (-inf, 0]."""
    return range is not None and range.lo == -math.inf and range.hi == 0


def starting_rates(shape: tuple[int, ...]) -> Tensor:
    """Magnitudes of log decays, from SLOWEST to FASTEST over all entries; the geometric mean where there is one."""
    count = math.prod(shape)
    place = torch.linspace(0, 1, count, dtype=torch.float64) if count > 1 else torch.tensor([0.5], dtype=torch.float64)
    return torch.exp(math.log(SLOWEST) + place * math.log(FASTEST / SLOWEST)).reshape(shape)


class RangeActivation(nn.Module):
    """Maps projections [..., H, (n,) (D)] of one input into its declared range, elementwise, with a bias b.

    | range                | value                                  |
    |----------------------|----------------------------------------|
    | none, (-inf, inf)    | x                                      |
    | (-inf, 0]            | -exp(A_log) * softplus(x + b)          |
    | [lo, 0]              | lo * sigmoid(x + b)                    |
    | [lo, hi]             | lo + (hi - lo) * sigmoid(x + b)        |
    | [lo, inf)            | lo + softplus(x + b)                   |
    | (-inf, hi]           | hi - softplus(x + b)                   |
    | unit                 | x * rsqrt(sum x^2 + 1e-6)              |

    A_log has one number a head and starts at 0. In the rows for (-inf, 0] and [lo, 0], the ranges of log decays, b
    starts where the value is `-starting_rates`: decays between .905 and .999 a token, .990 where there is one number.
    Otherwise b starts at 0.
    """

    def __init__(self, declared: Input, heads: int, shape: tuple[int, ...]) -> None:
        """shape: [(n,) (D)] of the input for one head."""
        super().__init__()
        self.unit, self.range = declared.unit, declared.range
        range = declared.range
        if declared.unit:
            require(
                range is None or (range.lo <= -1 and range.hi >= 1),
                f"input {declared.name}: no activation keeps a unit vector in [{range and range.lo}, "
                f"{range and range.hi}]; declare the range without `unit`",
            )
            self.range = None
            return
        if range is None or (range.lo == -math.inf and range.hi == math.inf):
            self.range = None
            return
        bias = torch.zeros(heads, *shape, dtype=torch.float64)
        rates = starting_rates((heads, *shape))
        if negative_half_line(range):
            self.A_log = nn.Parameter(torch.zeros(heads))
            bias = torch.log(torch.expm1(rates))
        elif range.hi == 0:
            bias = torch.logit(torch.minimum(rates / -range.lo, torch.tensor(0.5)))
        self.bias = nn.Parameter(bias.float())

    def forward(self, x: Tensor) -> Tensor:
        if self.unit:
            return unit(x)
        if self.range is None:
            return x
        lo, hi = self.range.lo, self.range.hi
        x = x + self.bias
        if negative_half_line(self.range):
            return -torch.exp(self.A_log.view(-1, *[1] * (self.bias.dim() - 1))) * F.softplus(x)
        if lo == -math.inf:
            return hi - F.softplus(x)
        if hi == math.inf:
            return lo + F.softplus(x)
        if hi == 0:
            return lo * torch.sigmoid(x)
        return lo + (hi - lo) * torch.sigmoid(x)
