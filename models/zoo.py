"""The small language model that the recall tasks are run on, and the bytes that it carries between tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.nn import functional as F

from stateir.codegen.carried import prev_windows
from stateir.ir import Axis, Rule

from .attention import Attention, AttentionCache
from .config import require
from .mixer import Gate, Mixer, MixerCache, is_content

Cache: TypeAlias = list[MixerCache] | list[AttentionCache]
ATTENTION = "attention"


@dataclass(frozen=True)
class ModelConfig:
    """rule: a name of the library, a path, or "attention". mlp: hidden units of an MLP after every mixer, 0 for none.

    hidden: width of the residual stream; heads, key_dim, value_dim: H, K and V of a mixer; conv: length of its short
    convolution; gate: activation of its output gate; backend: the operator's.
    """

    rule: str = "delta"
    layers: int = 1
    hidden: int = 32
    heads: int = 1
    key_dim: int = 32
    value_dim: int = 32
    conv: int = 4
    gate: Gate = "silu"
    mlp: int = 0
    backend: str = "auto"

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "key_dim", "value_dim", "conv"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1, got {getattr(self, name)}")
        require(self.mlp >= 0, f"mlp must be at least 0, got {self.mlp}")


class MLP(nn.Sequential):
    """Two linear maps with a GELU between them."""

    def __init__(self, hidden: int, units: int) -> None:
        super().__init__(nn.Linear(hidden, units), nn.GELU(), nn.Linear(units, hidden))


class Block(nn.Module):
    """Pre-norm residual: x + mixer(norm(x)), then x + mlp(norm(x)) if there is an MLP."""

    def __init__(self, mixer: Mixer | Attention, hidden: int, mlp: int) -> None:
        super().__init__()
        self.norm, self.mixer = nn.RMSNorm(hidden, eps=1e-6), mixer
        self.mlp = nn.Sequential(nn.RMSNorm(hidden, eps=1e-6), MLP(hidden, mlp)) if mlp else None

    def after(self, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + mixed
        return x if self.mlp is None else x + self.mlp(x)


class Model(nn.Module):
    """Embedding, blocks, final norm, head. `rule` is None for attention; `tokens` is the size of the vocabulary."""

    def __init__(self, config: ModelConfig, rule: Rule | None, tokens: int, seed: int = 0) -> None:
        super().__init__()
        require(
            (rule is None) == (config.rule == ATTENTION), f"config.rule is {config.rule!r}, but rule is {rule!r:.40}"
        )
        self.config, self.rule = config, rule
        self.embed = nn.Embedding(tokens, config.hidden)
        self.blocks = nn.ModuleList(
            Block(_mixer(config, rule, seed + layer), config.hidden, config.mlp) for layer in range(config.layers)
        )
        self.norm = nn.RMSNorm(config.hidden, eps=1e-6)
        self.head = nn.Linear(config.hidden, tokens, bias=False)

    def features(
        self, ids: Tensor, cache: Cache | None = None, return_cache: bool = False
    ) -> tuple[Tensor, Cache | None]:
        """ids [B, T] -> what the head reads, [B, T, hidden], and the cache or None."""
        x, new = self.embed(ids), []
        for layer, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            mixed, carried = block.mixer(block.norm(x), cache[layer] if cache else None, return_cache)
            x = block.after(x, mixed)
            new.append(carried)
        return self.norm(x), new if return_cache else None

    def forward(
        self, ids: Tensor, cache: Cache | None = None, return_cache: bool = False
    ) -> tuple[Tensor, Cache | None]:
        """ids [B, T] -> logits [B, T, tokens] and the cache or None."""
        x, new = self.features(ids, cache, return_cache)
        return self.head(x), new

    def step(self, ids: Tensor, cache: Cache | None = None) -> tuple[Tensor, Cache]:
        """One token: ids [B] -> logits [B, tokens] and the new cache."""
        x, new = self.embed(ids), []
        for layer, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            mixer: Any = block.mixer  # a cache goes to the mixer that made it
            mixed, carried = mixer.step(block.norm(x), cache[layer] if cache else None)
            x = block.after(x, mixed)
            new.append(carried)
        return self.head(self.norm(x)), new

    def loss(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Mean cross entropy at the labelled positions; the head runs at those alone."""
        x, _ = self.features(ids)
        asked = labels != -100
        return F.cross_entropy(self.head(x[asked]), labels[asked])


def state_elements(config: ModelConfig, rule: Rule | None, length: int) -> dict[str, int]:
    """Numbers that one sequence carries after `length` tokens over all layers, from the rule's declarations alone.

    "state": S, declared states, look-back windows; for attention, all keys and values. "convolution": the windows of
    the short convolutions.
    """
    K, V, H = config.key_dim, config.value_dim, config.heads
    dims = {Axis.SCALAR: 1, Axis.KEY: K, Axis.VALUE: V, Axis.PAIR: K // 2, Axis.MATRIX: K * V}
    if rule is None:
        state, content = length * (K + V), 2 * K + V
    else:
        inputs = {i.name: dims[i.axis] * (i.size or 1) for i in rule.inputs}
        state = sum(dims[s.axis] for s in rule.states)
        state += sum(n * inputs[name] for name, n in prev_windows(rule).items())
        content = sum(inputs[i.name] for i in rule.inputs if is_content(i))
    return {"state": config.layers * H * state, "convolution": config.layers * H * content * (config.conv - 1)}


def state_bytes(config: ModelConfig, rule: Rule | None, length: int) -> int:
    """Bytes that one sequence carries after `length` tokens, states and convolutions, in fp32."""
    return 4 * sum(state_elements(config, rule, length).values())


def carried_bytes(cache: Cache) -> int:
    """Bytes of a real cache, per sequence of its batch."""
    return sum(t.element_size() * math.prod(t.shape[1:]) for layer in cache for t in layer.tensors())


def _mixer(config: ModelConfig, rule: Rule | None, seed: int) -> Mixer | Attention:
    if rule is None:
        return Attention(config.hidden, config.heads, config.key_dim, config.value_dim, conv=config.conv)
    return Mixer(
        rule, config.hidden, config.heads, config.key_dim, config.value_dim,
        conv=config.conv, gate=config.gate, seed=seed, backend=config.backend,
    )  # fmt: skip
