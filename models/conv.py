"""The short causal convolution that lets a layer without positions tie a value to the key before it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ShortConvolution(nn.Module):
    """Depthwise causal convolution over time and SiLU: [B, T, C] -> [B, T, C]. `width` is the kernel's length."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.empty(channels, width).uniform_(-(width**-0.5), width**-0.5))

    def forward(self, x: Tensor, window: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Returns (y, window): the window [B, width-1, C] is the last inputs, which the next call wants back."""
        if window is None:
            window = x.new_zeros(x.shape[0], self.width - 1, x.shape[2])
        seen = torch.cat([window, x], 1)
        T = x.shape[1]
        # A sum of shifted products; torch's depthwise conv1d is several times slower on a CPU.
        y = seen[:, :T] * self.weight[:, 0]
        for i in range(1, self.width):
            y = y + seen[:, i : i + T] * self.weight[:, i]
        return F.silu(y), seen[:, T:]
