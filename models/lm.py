"""A causal language model: mixers of any rule, softmax attention where the pattern says so, gated MLPs, a tied head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from stateir.affine import normal_form
from stateir.core import core
from stateir.ir import Rule
from stateir.plan import Shape, plan

from .attention import Attention, AttentionCache
from .config import require
from .mixer import Backend, Mixer, MixerCache

LayerCache = MixerCache | AttentionCache


@dataclass(frozen=True)
class LMConfig:
    """rule: a name of the library or a path. pattern: repeated over the layers, `r` for the rule, `a` for attention.

    tokens: size of the vocabulary; hidden: width of the residual stream; heads, key_dim, value_dim: H, K and V of every
    mixer; conv: length of the short convolutions; mlp: units of the gated MLP; backend: the operator's.
    """

    rule: str = "gdn2"
    pattern: str = "r"
    tokens: int = 256
    layers: int = 4
    hidden: int = 128
    heads: int = 2
    key_dim: int = 64
    value_dim: int = 64
    conv: int = 4
    mlp: int = 256
    backend: Backend = "auto"

    def __post_init__(self) -> None:
        for name in ("tokens", "layers", "hidden", "heads", "key_dim", "value_dim", "conv", "mlp"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1, got {getattr(self, name)}")
        require(
            bool(self.pattern) and set(self.pattern) <= {"r", "a"},
            f"pattern must be letters r (the rule) and a (attention), got {self.pattern!r}",
        )

    @property
    def kinds(self) -> str:
        """The letter of each layer."""
        return (self.pattern * self.layers)[: self.layers]


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)): [B, T, hidden] -> [B, T, hidden]."""

    def __init__(self, hidden: int, units: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(hidden, 2 * units, bias=False)
        self.down = nn.Linear(units, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        y: Tensor = self.down(F.silu(gate) * up)
        return y


class Layer(nn.Module):
    """x + mixer(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, mixer: Mixer | Attention, config: LMConfig) -> None:
        super().__init__()
        self.mixer_norm, self.mixer = nn.RMSNorm(config.hidden, eps=1e-6), mixer
        self.mlp_norm, self.mlp = nn.RMSNorm(config.hidden, eps=1e-6), GatedMLP(config.hidden, config.mlp)

    def forward(
        self, x: Tensor, cache: Any = None, return_cache: bool = False, token: bool = False
    ) -> tuple[Tensor, Any]:
        """x [B, T, hidden] -> the same shape, and the mixer's cache or None; with `token` T is 1, for decoding."""
        normed = self.mixer_norm(x)
        if token:
            mixed, new = self.mixer.step(normed[:, 0], cache)
            mixed = mixed[:, None]
        else:
            mixed, new = self.mixer(normed, cache, return_cache)
        x = x + mixed
        return x + self.mlp(self.mlp_norm(x)), new


class LanguageModel(nn.Module):
    """Token ids [B, T] -> logits [B, T, tokens].

    Weights start at N(0, 0.02); those that write to the residual stream at that over sqrt(2 layers).
    """

    def __init__(self, config: LMConfig, rule: Rule, seed: int = 0) -> None:
        super().__init__()
        self.config, self.rule, self.checkpointing = config, rule, False
        self.embed = nn.Embedding(config.tokens, config.hidden)
        self.layers = nn.ModuleList(
            Layer(_mixer(kind, config, rule, seed + n), config) for n, kind in enumerate(config.kinds)
        )
        self.norm = nn.RMSNorm(config.hidden, eps=1e-6)
        self._start()

    def forward(
        self, ids: Tensor, labels: Tensor | None = None, cache: list[LayerCache] | None = None,
        return_cache: bool = False, token: bool = False,
    ) -> tuple[Tensor, list[LayerCache] | None]:  # fmt: skip
        """Logits, or with labels [B, T] their mean cross entropy, where not -100; and the cache if it is asked for.

        token: decode one token by the operator's step; needs a cache, T = 1.
        """
        x: Tensor = self.embed(ids)
        new: list[LayerCache] = []
        for n, layer in enumerate(self.layers):
            before = None if cache is None else cache[n]
            if self.checkpointing and self.training and not return_cache:
                x, after = checkpoint(layer, x, before, use_reentrant=False)
            else:
                x, after = layer(x, before, return_cache, token)
            new.append(after)
        logits = F.linear(self.norm(x), self.embed.weight)
        if labels is not None:
            return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten()), None
        return logits, new if return_cache or token else None

    @torch.no_grad()
    def generate(
        self, ids: Tensor, count: int, temperature: float = 0.0, generator: torch.Generator | None = None
    ) -> Tensor:
        """ids [B, T] with `count` more tokens, [B, T + count]; temperature 0 takes the likeliest token each time."""
        logits, cache = self(ids, return_cache=True)
        found = [ids]
        for n in range(count):
            found.append(_drawn(logits[:, -1].float(), temperature, generator))
            if n + 1 < count:
                logits, cache = self(found[-1], cache=cache, token=True)
        return torch.cat(found, 1)

    def parameters_in_products(self) -> int:
        """Parameters that multiply every token: all matrices, the tied head among them."""
        return sum(m.weight.numel() for m in self.modules() if isinstance(m, nn.Linear | nn.Embedding))

    def flops_per_token(self, length: int) -> float:
        """Flops of a token's forward and backward pass, counted as 3 times the forward's, in sequences of `length`.

        A multiplication and an addition count as two. Attention counts the half of the scores that the mask leaves; a
        rule's mixer what its plan says (docs/design.md). What gradient checkpointing computes again does not count.
        """
        c = self.config
        form = normal_form(self.rule)
        rule = 0
        if form is not None:
            rule = plan(form, core(form), Shape(K=c.key_dim, V=c.value_dim)).cost.chunk_flops
        attention = length * (c.key_dim + c.value_dim)
        mixers = sum(c.heads * (rule if kind == "r" else attention) for kind in c.kinds)
        return 3.0 * (2 * self.parameters_in_products() + mixers)

    def _start(self) -> None:
        inner = {id(m.weight) for layer in self.layers for m in (layer.mixer.out, layer.mlp.down)}  # type: ignore[union-attr]
        for m in self.modules():
            if isinstance(m, nn.Linear | nn.Embedding):
                scale = (2 * self.config.layers) ** -0.5 if id(m.weight) in inner else 1.0
                nn.init.normal_(m.weight, std=0.02 * scale)


def _drawn(logits: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    """A token of each row of logits [B, tokens]: [B, 1]."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    return torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)


def _mixer(kind: str, config: LMConfig, rule: Rule, seed: int) -> Mixer | Attention:
    sizes = config.hidden, config.heads, config.key_dim, config.value_dim
    if kind == "a":
        return Attention(*sizes, conv=config.conv)
    return Mixer(rule, *sizes, conv=config.conv, seed=seed, backend=config.backend)
