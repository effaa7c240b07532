"""A rule of one's own as the mixer of a plain PyTorch model: python examples/custom_layer_in_your_model.py [STEPS]

Two ways: `Mixer`, a whole layer that is derived from the rule's declarations, and the bare operator in a layer written
by hand. The model learns to continue a sequence that repeats itself.
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import stateir
from stateir.models.mixer import Mixer

RULE = stateir.parse("""\
rule two_hands "A delta rule with one erase gate and one write gate"
input  q: key unit, k: key unit, v: value
input  a: scalar in (0, 1], b: scalar in [0, 1], w: scalar in [0, 1]
update S  = a * S
update S += outer(k, w * v - b * k @ S)
read   o = q @ S / sqrt(dim(key))
""")


class ByHand(nn.Module):
    """[B, T, hidden] -> [B, T, hidden]: projections, gates and the operator, nothing else."""

    def __init__(self, hidden: int, heads: int, key_dim: int, value_dim: int) -> None:
        super().__init__()
        self.sizes = (heads, key_dim, value_dim)
        self.project = nn.Linear(hidden, heads * (2 * key_dim + value_dim + 3))
        self.out = nn.Linear(heads * value_dim, hidden)
        self.op = stateir.compile(RULE)

    def forward(self, x: Tensor) -> Tensor:
        H, K, V = self.sizes
        parts = self.project(x).unflatten(-1, (H, -1)).split([K, K, V, 1, 1, 1], -1)
        q, k, v = F.normalize(parts[0], dim=-1), F.normalize(parts[1], dim=-1), parts[2]
        # A memory that forgets by half a token learns nothing; it starts near 1.
        a, b, w = (torch.sigmoid(x.squeeze(-1) + shift) for x, shift in zip(parts[3:], (4.0, 0.0, 0.0), strict=True))
        o, _ = self.op(q=q, k=k, v=v, a=a, b=b, w=w)
        return self.out(o.flatten(-2))


class Model(nn.Module):
    """Token ids [B, T] -> logits [B, T, vocab]; the first layer is `Mixer`, the second by hand."""

    def __init__(self, vocab: int, hidden: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.first = Mixer(RULE, hidden, heads=2, key_dim=16, value_dim=12)
        self.second = ByHand(hidden, heads=2, key_dim=16, value_dim=12)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(3))
        self.head = nn.Linear(hidden, vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        x = x + self.first(self.norms[0](x))[0]
        x = x + self.second(self.norms[1](x))
        logits: Tensor = self.head(self.norms[2](x))
        return logits


def main(steps: int = 400) -> None:
    """Train on sequences whose second half repeats the first, and say how well it is continued."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # tensors this small only wait for more
    vocab, half = 16, 6
    model = Model(vocab)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(1, steps + 1):
        first = torch.randint(vocab, (16, half))
        tokens = torch.cat([first, first], 1)
        logits = model(tokens[:, :-1])[:, half - 1 :]
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, half:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 1 or step == steps:
            right = (logits.argmax(-1) == tokens[:, half:]).float().mean()
            print(
                f"step {step:>4}: loss {loss.item():.3f}, {right:.0%} of the repetition right (chance {1 / vocab:.0%})"
            )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
