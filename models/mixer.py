"""A sequence-mixing layer derived from a rule's declarations; a new rule needs no layer code.

For every input a projection of the hidden state, per head, by its axis and array size. Key and value inputs without a
range are content: they pass a short causal convolution and SiLU. All inputs then meet their range (`activation.py`),
and params theirs (`parameters.py`). The read goes through a per-head RMS norm, an output gate and a projection.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import stateir
from stateir.ir import Axis, Input, Rule

from .activation import RangeActivation
from .config import require
from .conv import ShortConvolution
from .parameters import RuleParameter

Gate: TypeAlias = Literal["silu", "sigmoid", "none"]
Backend: TypeAlias = Literal["auto", "step", "chunked", "triton"]
Carried: TypeAlias = Tensor | dict[str, Tensor]


@dataclass(frozen=True)
class MixerCache:
    """What a mixer carries between calls: the rule's state and the convolution's window [B, width-1, C]."""

    state: Carried
    window: Tensor

    def tensors(self) -> list[Tensor]:
        """All of them: the state's in the order of their names, then the window."""
        state = [self.state] if isinstance(self.state, Tensor) else [self.state[name] for name in sorted(self.state)]
        return [*state, self.window]


def is_content(declared: Input) -> bool:
    """Whether an input is a content vector: key or value axis and no range."""
    return declared.axis in (Axis.KEY, Axis.VALUE) and declared.range is None


class Mixer(nn.Module):
    """[B, T, hidden] -> [B, T, hidden] by `rule`.

    Args:
        rule: any checked rule whose backends include `backend`.
        hidden: width of the hidden state.
        heads, key_dim, value_dim: H, K and V. K must be even if the rule has pair vectors.
        conv: length of the short convolution.
        gate: activation of the output gate, "none" for no gate.
        seed: draws what the rule leaves to chance, such as `fixed unit` params.
        backend: as in `stateir.compile`.
    """

    def __init__(
        self,
        rule: Rule,
        hidden: int,
        heads: int,
        key_dim: int,
        value_dim: int,
        *,
        conv: int = 4,
        gate: Gate = "silu",
        seed: int = 0,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        require(gate in get_args(Gate), f"gate must be one of {get_args(Gate)}, got {gate!r}")
        require(conv >= 1, f"conv must be at least 1, got {conv}")
        pairs = any(d.axis is Axis.PAIR for d in rule.declared)
        require(not pairs or key_dim % 2 == 0, f"{rule.name} has pair vectors: key_dim must be even, got {key_dim}")
        self.rule, self.heads, self.gate = rule, heads, gate
        dims = {Axis.SCALAR: 1, Axis.KEY: key_dim, Axis.VALUE: value_dim, Axis.PAIR: key_dim // 2}
        # Content first, so that the convolution works on one slice.
        self.inputs = sorted(rule.inputs, key=lambda i: not is_content(i))
        self.shapes = [_shape(i, dims) for i in self.inputs]
        self.widths = [heads * math.prod(shape) for shape in self.shapes]
        self.content = sum(w for i, w in zip(self.inputs, self.widths, strict=True) if is_content(i))
        self.project = nn.Linear(hidden, sum(self.widths), bias=False)
        self.conv = ShortConvolution(self.content, conv)
        self.activations = nn.ModuleDict(
            {f"input_{i.name}": RangeActivation(i, heads, s) for i, s in zip(self.inputs, self.shapes, strict=True)}
        )
        generator = torch.Generator().manual_seed(seed)
        self.params = nn.ModuleDict({f"param_{p.name}": RuleParameter(p, heads, dims, generator) for p in rule.params})
        self.norm = nn.RMSNorm(value_dim, eps=1e-6)
        self.gate_project = None if gate == "none" else nn.Linear(hidden, heads * value_dim, bias=False)
        self.out = nn.Linear(heads * value_dim, hidden, bias=False)
        self.op = stateir.compile(rule, backend=backend)

    def forward(
        self, x: Tensor, cache: MixerCache | None = None, return_cache: bool = False
    ) -> tuple[Tensor, MixerCache | None]:
        """x: [B, T, hidden]. Returns (y [B, T, hidden], the cache to pass with the tokens that follow, or None)."""
        tensors, window = self.arguments(x, None if cache is None else cache.window)
        o, state = self.op(**tensors, initial_state=None if cache is None else cache.state, return_state=return_cache)
        return self._output(o, x), None if state is None else MixerCache(state, window)

    def step(self, x: Tensor, cache: MixerCache | None = None) -> tuple[Tensor, MixerCache]:
        """One token. x: [B, hidden]. Returns (y [B, hidden], the new cache); `cache` is not written to."""
        tensors, window = self.arguments(x[:, None], None if cache is None else cache.window)
        names = {i.name for i in self.inputs}
        token: dict[str, Any] = {name: t[:, 0] if name in names else t for name, t in tensors.items()}
        o, state = self.op.step(**token, state=None if cache is None else cache.state)
        return self._output(o[:, None], x[:, None])[:, 0], MixerCache(state, window)

    def arguments(self, x: Tensor, window: Tensor | None = None) -> tuple[dict[str, Tensor], Tensor]:
        """The operator's inputs [B, T, H, (n,) (D)] and params [H, (n,) (D)] for x, and the new window."""
        projected = self.project(x)
        content, window = self.conv(projected[..., : self.content], window)
        parts = torch.cat([content, projected[..., self.content :]], -1).split(self.widths, -1)
        tensors = {
            i.name: self.activations[f"input_{i.name}"](part.unflatten(-1, (self.heads, *shape)))
            for i, part, shape in zip(self.inputs, parts, self.shapes, strict=True)
        }
        return tensors | {p.name: self.params[f"param_{p.name}"]() for p in self.rule.params}, window

    def scalar_parameters(self) -> list[nn.Parameter]:
        """The trained scalar params of the rule, which some rules want to learn faster than the rest."""
        return [
            q for p in self.rule.params if p.axis is Axis.SCALAR for q in self.params[f"param_{p.name}"].parameters()
        ]

    def _output(self, o: Tensor, x: Tensor) -> Tensor:
        # Under autocast o is narrower than the weight, which PyTorch's fused norm does not take.
        o = F.rms_norm(o, self.norm.normalized_shape, self.norm.weight.to(o.dtype), self.norm.eps)
        read = o.flatten(-2)
        if self.gate_project is not None:
            g = self.gate_project(x)
            read = read * (F.silu(g) if self.gate == "silu" else torch.sigmoid(g))
        y: Tensor = self.out(read)
        return y


def _shape(declared: Input, dims: dict[Axis, int]) -> tuple[int, ...]:
    size = () if declared.size is None else (declared.size,)
    return size if declared.axis is Axis.SCALAR else (*size, dims[declared.axis])
