"""The small language model that the recall tasks are run on, of any rule or baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import stateir
from stateir.ir import Rule

from .attention import Attention, AttentionCache
from .config import require
from .gated_convolution import ConvolutionCache, GatedConvolution
from .mixer import Backend, Gate, Mixer, MixerCache

LayerCache: TypeAlias = MixerCache | AttentionCache | ConvolutionCache
Layer: TypeAlias = Mixer | Attention | GatedConvolution
Kind: TypeAlias = Literal["zoo", "hybrid", "plain"]

ATTENTION, SLIDING_WINDOW, GATED_CONVOLUTION = "attention", "sliding_window", "gated_convolution"
BASELINES = (ATTENTION, SLIDING_WINDOW, GATED_CONVOLUTION)


@dataclass(frozen=True)
class ModelConfig:
    """rule: a name of the library, a path, or a baseline. mlp: hidden units of an MLP after every mixer, 0 for none.

    hidden: width of the residual stream; heads, key_dim, value_dim: H, K and V of a mixer; conv: length of its short
    convolution, 1 for none (SiLU alone); gate: activation of its output gate; backend: the operator's.
    gated_conv: length of a gated convolution before every mixer, 0 for none.
    positions: learned absolute positions added to the embedding, hence the longest row; 0 for none.
    window: tokens that a sliding window sees, or the length of the baseline gated convolution's filter.
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
    backend: Backend = "auto"
    gated_conv: int = 0
    positions: int = 0
    window: int = 0

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "key_dim", "value_dim", "conv"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("mlp", "gated_conv", "positions"):
            require(getattr(self, name) >= 0, f"{name} must be at least 0, got {getattr(self, name)}")
        if self.rule in (SLIDING_WINDOW, GATED_CONVOLUTION):
            require(self.window >= 1, f"window must be at least 1 with {self.rule}, got {self.window}")
        else:
            require(self.window == 0, f"window must be 0 with {self.rule}, got {self.window}")


def model_of_kind(kind: Kind, rule: str, **fields: Any) -> ModelConfig:
    """A model kind by name, with further fields of `ModelConfig`.

    "zoo": short convolution and output gate in the mixer. "hybrid": the recall protocol's layer, a gated convolution of
    3 tokens and then the mixer, which has neither of its own. "plain": mixers alone; give `positions`, without which no
    layer can tell which token came before which.
    """
    require(kind in get_args(Kind), f"kind must be one of {get_args(Kind)}, got {kind!r}")
    if kind == "zoo":
        return ModelConfig(rule=rule, **fields)
    own: dict[str, Any] = {"layers": 2, "conv": 1, "gate": "none"}
    if kind == "hybrid":
        own["gated_conv"] = 3
    else:
        require(
            fields.get("positions", 0) > 0,
            f"positions must be positive in a plain model, got {fields.get('positions', 0)}",
        )
    return ModelConfig(rule=rule, **(own | fields))


def load_rule(config: ModelConfig) -> Rule | None:
    """The rule that a model configuration names; None for a baseline."""
    return None if config.rule in BASELINES else stateir.load(config.rule)


class MLP(nn.Sequential):
    """Two linear maps with a GELU between them."""

    def __init__(self, hidden: int, units: int) -> None:
        super().__init__(nn.Linear(hidden, units), nn.GELU(), nn.Linear(units, hidden))


@dataclass(frozen=True)
class BlockCache:
    """What a block carries between calls: its mixer's cache and that of the gated convolution before it."""

    mixer: LayerCache
    before: ConvolutionCache | None = None

    def tensors(self) -> list[Tensor]:
        return [*self.mixer.tensors(), *([] if self.before is None else self.before.tensors())]


Cache: TypeAlias = list[BlockCache]


class Block(nn.Module):
    """Pre-norm residual: x + mixer(norm(x)), then x + mlp(norm(x)) if there is an MLP."""

    def __init__(self, mixer: Layer, hidden: int, mlp: int, gated_conv: int = 0) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(hidden, eps=1e-6)
        self.before = GatedConvolution(hidden, gated_conv) if gated_conv else None
        self.mixer = mixer
        self.mlp = nn.Sequential(nn.RMSNorm(hidden, eps=1e-6), MLP(hidden, mlp)) if mlp else None

    def forward(
        self, x: Tensor, cache: BlockCache | None = None, return_cache: bool = False
    ) -> tuple[Tensor, BlockCache | None]:
        """x [B, T, hidden] -> the same shape, and the cache or None."""
        y, window = self.norm(x), None
        if self.before is not None:
            y, window = self.before(y, cache.before if cache else None, return_cache)
        mixed, new = self.mixer(y, cache.mixer if cache else None, return_cache)
        return self._after(x, mixed), BlockCache(new, window) if return_cache else None

    def step(self, x: Tensor, cache: BlockCache | None = None) -> tuple[Tensor, BlockCache]:
        """One token: x [B, hidden] -> the same shape, and the new cache."""
        y, window = self.norm(x), None
        if self.before is not None:
            y, window = self.before.step(y, cache.before if cache else None)
        # A model's cache is its own, so that its mixer's is of the mixer's kind.
        mixed, new = self.mixer.step(y, cache.mixer if cache else None)  # type: ignore[arg-type]
        return self._after(x, mixed), BlockCache(new, window)

    def _after(self, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + mixed
        return x if self.mlp is None else x + self.mlp(x)


class Model(nn.Module):
    """Embedding, blocks, final norm, head. `rule` is None for a baseline; `tokens` is the size of the vocabulary."""

    def __init__(self, config: ModelConfig, rule: Rule | None, tokens: int, seed: int = 0) -> None:
        super().__init__()
        require(
            (rule is None) == (config.rule in BASELINES), f"config.rule is {config.rule!r}, but rule is {rule!r:.40}"
        )
        self.config, self.rule = config, rule
        self.embed = nn.Embedding(tokens, config.hidden)
        self.positions = nn.Embedding(config.positions, config.hidden) if config.positions else None
        self.blocks = nn.ModuleList(
            Block(_mixer(config, rule, seed + layer), config.hidden, config.mlp, config.gated_conv)
            for layer in range(config.layers)
        )
        self.norm = nn.RMSNorm(config.hidden, eps=1e-6)
        self.head = nn.Linear(config.hidden, tokens, bias=False)

    def features(
        self, ids: Tensor, cache: Cache | None = None, return_cache: bool = False, start: int = 0
    ) -> tuple[Tensor, Cache | None]:
        """ids [B, T] -> what the head reads, [B, T, hidden], and the cache or None. start: position of the first."""
        x = self._embedded(ids, start)
        new: list[Any] = []
        for layer, block in enumerate(self.blocks):
            x, carried = block(x, cache[layer] if cache else None, return_cache)
            new.append(carried)
        return self.norm(x), new if return_cache else None

    def forward(
        self, ids: Tensor, cache: Cache | None = None, return_cache: bool = False, start: int = 0
    ) -> tuple[Tensor, Cache | None]:
        """ids [B, T] -> logits [B, T, tokens] and the cache or None. start: position of the first token."""
        x, new = self.features(ids, cache, return_cache, start)
        return self.head(x), new

    def step(self, ids: Tensor, cache: Cache | None = None, position: int = 0) -> tuple[Tensor, Cache]:
        """One token at a position: ids [B] -> logits [B, tokens] and the new cache."""
        x = self._embedded(ids[:, None], position)[:, 0]
        new: list[BlockCache] = []
        for layer, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            x, carried = block.step(x, cache[layer] if cache else None)
            new.append(carried)
        return self.head(self.norm(x)), new

    def logits_at(self, ids: Tensor, places: Tensor) -> Tensor:
        """ids [B, T], places [B, N] -> the logits at those places alone, [B, N, tokens]."""
        x, _ = self.features(ids)
        logits: Tensor = self.head(torch.take_along_dim(x, places[..., None], 1))
        return logits

    def loss(self, ids: Tensor, places: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of the targets [B, N] at places [B, N]; a target of -100 does not count."""
        logits = self.logits_at(ids, places)
        total = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")
        return total / (targets != -100).sum()

    def _embedded(self, ids: Tensor, start: int) -> Tensor:
        x: Tensor = self.embed(ids)
        if self.positions is None:
            return x
        end, longest = start + ids.shape[-1], self.positions.num_embeddings
        require(end <= longest, f"ids must end before position {longest}, that of the last learned one; got {end}")
        placed: Tensor = self.positions(torch.arange(start, end, device=ids.device))
        return x + placed


def _mixer(config: ModelConfig, rule: Rule | None, seed: int) -> Layer:
    if config.rule == GATED_CONVOLUTION:
        return GatedConvolution(config.hidden, config.window)
    if rule is None:
        window = config.window if config.rule == SLIDING_WINDOW else None
        return Attention(config.hidden, config.heads, config.key_dim, config.value_dim, conv=config.conv, window=window)
    return Mixer(
        rule, config.hidden, config.heads, config.key_dim, config.value_dim,
        conv=config.conv, gate=config.gate, seed=seed, backend=config.backend,
    )  # fmt: skip
