"""Causal softmax attention with the interface of a mixer: its state grows with the sequence, or is a window."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stateir.codegen.torch_ops import transformed

from .conv import ShortConvolution


@dataclass(frozen=True)
class AttentionCache:
    """Keys [B, H, T, K] and values [B, H, T, V] of all tokens that a later one can see, and the convolution's window
    [B, width-1, C]."""

    keys: Tensor
    values: Tensor
    window: Tensor

    def tensors(self) -> list[Tensor]:
        return [self.keys, self.values, self.window]


class Attention(nn.Module):
    """[B, T, hidden] -> [B, T, hidden]. q, k and v pass the same short convolution as a mixer's content vectors.

    A token sees the last `window` tokens, itself among them; all where it is None.
    """

    def __init__(
        self, hidden: int, heads: int, key_dim: int, value_dim: int, *, conv: int = 4, window: int | None = None
    ) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.widths = [heads * key_dim, heads * key_dim, heads * value_dim]
        self.project = nn.Linear(hidden, sum(self.widths), bias=False)
        self.conv = ShortConvolution(sum(self.widths), conv)
        self.out = nn.Linear(heads * value_dim, hidden, bias=False)

    def forward(
        self, x: Tensor, cache: AttentionCache | None = None, return_cache: bool = False
    ) -> tuple[Tensor, AttentionCache | None]:
        """x: [B, T, hidden]. Returns (y [B, T, hidden], the cache to pass with the tokens that follow, or None)."""
        content, window = self.conv(self.project(x), None if cache is None else cache.window)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in content.split(self.widths, -1))
        if cache is not None:
            k, v = torch.cat([cache.keys, k], 2), torch.cat([cache.values, v], 2)
        new, total = q.shape[2], k.shape[2]
        mask = None
        if new != total or self.window is not None:
            mask = torch.ones(new, total, dtype=torch.bool, device=x.device).tril(total - new)
            if self.window is not None:
                mask = mask.triu(total - new - self.window + 1)
        o = _attend(q, k, v, mask)
        y = self.out(o.transpose(1, 2).flatten(-2))
        if self.window is not None:
            first = max(0, total - self.window + 1)
            k, v = k[:, :, first:], v[:, :, first:]
        return y, AttentionCache(k, v, window) if return_cache else None

    def step(self, x: Tensor, cache: AttentionCache | None = None) -> tuple[Tensor, AttentionCache]:
        """One token. x: [B, hidden]. Returns (y [B, hidden], the new cache)."""
        y, new = self(x[:, None], cache, return_cache=True)
        assert new is not None
        return y[:, 0], new


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax attention over the tokens where mask [T, T'] is true; causal where it is None."""
    if not transformed():
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
    # Under vmap PyTorch's memory-efficient kernel for GPUs keeps nothing for its backward pass, which then fails.
    if mask is None:
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    scores = (q @ k.mT) * q.shape[-1] ** -0.5
    o: Tensor = scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v
    return o
