"""The gated convolution: a causal filter for each channel, gated by a projection of the token.

y = (W x + b) * (h * x + c), the mixer called BaseConv by Arora et al. (arXiv:2312.04927). Short, it stands before the
mixers of the recall protocol; with a filter as long as the row it is that paper's baseline without a recurrence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

# Above this length a product of Fourier transforms costs less than a sum of shifted products.
LONGEST_SUM = 16


@dataclass(frozen=True)
class ConvolutionCache:
    """The last width-1 tokens, [B, width-1, hidden]."""

    window: Tensor

    def tensors(self) -> list[Tensor]:
        return [self.window]


class GatedConvolution(nn.Module):
    """[B, T, hidden] -> [B, T, hidden] with the interface of a mixer. `width` is the filter's length."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.project = nn.Linear(hidden, hidden)
        self.weight = nn.Parameter(torch.empty(hidden, width).uniform_(-(width**-0.5), width**-0.5))
        self.bias = nn.Parameter(torch.zeros(hidden))

    def forward(
        self, x: Tensor, cache: ConvolutionCache | None = None, return_cache: bool = False
    ) -> tuple[Tensor, ConvolutionCache | None]:
        """x: [B, T, hidden]. Returns (y [B, T, hidden], the cache to pass with the tokens that follow, or None)."""
        window = x.new_zeros(x.shape[0], self.width - 1, x.shape[2]) if cache is None else cache.window
        seen, T = torch.cat([window, x], 1), x.shape[1]
        filtered = self._sum(seen, T) if self.width <= LONGEST_SUM else self._transform(seen, T)
        y = self.project(x) * (filtered + self.bias)
        return y, ConvolutionCache(seen[:, T:]) if return_cache else None

    def step(self, x: Tensor, cache: ConvolutionCache | None = None) -> tuple[Tensor, ConvolutionCache]:
        """One token. x: [B, hidden]. Returns (y [B, hidden], the new cache)."""
        y, new = self(x[:, None], cache, return_cache=True)
        assert new is not None
        return y[:, 0], new

    def _sum(self, seen: Tensor, T: int) -> Tensor:
        y = seen[:, :T] * self.weight[:, 0]
        for i in range(1, self.width):
            y = y + seen[:, i : i + T] * self.weight[:, i]
        return y

    def _transform(self, seen: Tensor, T: int) -> Tensor:
        size = seen.shape[1] + self.width - 1
        spectrum = torch.fft.rfft(seen, size, dim=1) * torch.fft.rfft(self.weight.flip(1), size, dim=1).mT
        y: Tensor = torch.fft.irfft(spectrum, size, dim=1)
        return y[:, self.width - 1 : self.width - 1 + T]
