"""Interference in a state: bindings are written one by one by any rule, and every key is read back after each write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

import stateir
from stateir.ir import Rule

from .binding import binding_arguments
from .config import require

Array: TypeAlias = NDArray[np.float64]
Geometry: TypeAlias = Literal["sphere", "orthonormal", "correlated", "repeated"]


@dataclass(frozen=True)
class BindingsConfig:
    """Which keys and values are written.

    writes: D. key_dim, value_dim: K and V. Values are uniform on the unit sphere, so |v|^2 = 1.
    geometry: unit keys, "sphere": independent and uniform; "orthonormal": D <= K of them; "correlated": sqrt(r) u +
        sqrt(1-r) w with one u per repetition and w uniform in its complement, so that any two have cosine r on average;
        "repeated": `distinct` uniform ones over and over, in the same order, each time with a new value.
    r: cosine of correlated keys. distinct: number of different repeated keys.
    """

    writes: int = 64
    key_dim: int = 32
    value_dim: int = 16
    geometry: Geometry = "sphere"
    r: float = 0.5
    distinct: int = 8

    def __post_init__(self) -> None:
        for name in ("writes", "key_dim", "value_dim", "distinct"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1, got {getattr(self, name)}")
        known = get_args(Geometry)
        require(self.geometry in known, f"geometry must be one of {known}, got {self.geometry!r}")
        require(0 <= self.r <= 1, f"r must be in [0, 1], got {self.r}")
        if self.geometry == "orthonormal":
            message = f"writes must be at most key_dim = {self.key_dim} with orthonormal keys, got {self.writes}"
            require(self.writes <= self.key_dim, message)
        if self.geometry == "correlated":
            require(self.key_dim >= 2, f"key_dim must be at least 2 with correlated keys, got {self.key_dim}")


@dataclass(frozen=True)
class Trace:
    """N independent repetitions of D writes, float64. Times t and bindings i count from 0.

    keys [N, D, K], values [N, D, V].
    states [N, D+1, K, V]: the state before the first write and after each.
    error [N, D, D]: [n, t, i] is |S^T k_i - v_i|^2 after write t; NaN where binding i is not yet written.
    signal [N, D, D]: <v_i, S^T k_i>, likewise; divided by |v_i|^2, the share of the value that is left.
    energy [N, D+1]: |S|^2, of the states.
    """

    keys: Array
    values: Array
    states: Array
    error: Array
    signal: Array
    energy: Array

    @property
    def error_by_age(self) -> Array:
        """[N, D]: the errors after the last write, the newest binding (age 0) first."""
        return self.error[:, -1, ::-1]


def draw_bindings(config: BindingsConfig, repetitions: int, seed: int | tuple[int, ...]) -> tuple[Array, Array]:
    """Keys [N, D, K] and values [N, D, V]; they depend on the arguments alone, never on a global generator."""
    rng = np.random.default_rng(seed)
    N, D, K = repetitions, config.writes, config.key_dim
    if config.geometry == "sphere":
        keys = _sphere(rng, N, D, K)
    elif config.geometry == "orthonormal":
        keys = np.linalg.qr(rng.standard_normal((N, K, D)))[0].swapaxes(1, 2)
    elif config.geometry == "correlated":
        common = _sphere(rng, N, 1, K)
        w = rng.standard_normal((N, D, K))
        w -= (w * common).sum(-1, keepdims=True) * common
        w /= np.linalg.norm(w, axis=-1, keepdims=True)
        keys = np.sqrt(config.r) * common + np.sqrt(1 - config.r) * w
    else:
        keys = _sphere(rng, N, config.distinct, K)[:, np.arange(D) % config.distinct]
    return keys, _sphere(rng, N, D, config.value_dim)


def write_bindings(
    rule: Rule,
    keys: ArrayLike,
    values: ArrayLike,
    *,
    queries: ArrayLike | None = None,
    inputs: Mapping[str, float | ArrayLike] | None = None,
) -> Trace:
    """Writes the bindings in turn with the rule's step reference, and reads all keys back after each write.

    A read is S^T k, the state as a linear map; the rule's own read line (scale, gates, normaliser) plays no part.

    Args:
        keys, values: [N, D, K] and [N, D, V], or without N.
        queries: what the rule's query inputs get while a binding is written, [N, D, K]; the keys where None.
        inputs: the rule's inputs and params by name where they should not be as `binding.py` derives them: numbers, or
            arrays that broadcast to [N, D, ...], such as `inputs={"beta": 0.5}`.

    Raises:
        ValueError: naming the argument, if shapes do not fit or `inputs` is not the rule's.
    """
    k, v = _batched("keys", keys), _batched("values", values)
    require(k.shape[:2] == v.shape[:2], f"values must be [N, D, V] with [N, D] = {list(k.shape[:2])} of keys, "
            f"got {list(v.shape)}")  # fmt: skip
    q = k if queries is None else _batched("queries", queries)
    require(q.shape == k.shape, f"queries must have the shape of keys, {list(k.shape)}, got {list(q.shape)}")
    given = {name: torch.as_tensor(np.asarray(x, dtype=np.float64)) for name, x in (inputs or {}).items()}
    op = stateir.compile(rule, backend="step")
    arguments = binding_arguments(rule, k, v, q, given)
    params: dict[str, Any] = {p.name: arguments.pop(p.name) for p in rule.params}
    N, D, K = k.shape
    states = torch.zeros(N, D + 1, K, v.shape[-1], dtype=torch.float64)
    error = torch.full((N, D, D), torch.nan, dtype=torch.float64)
    signal = error.clone()
    state = None
    for t in range(D):
        token: dict[str, Any] = {name: x[:, t] for name, x in arguments.items()}
        _, state = op.step(**token, **params, state=state)
        states[:, t + 1] = (state["S"] if isinstance(state, dict) else state)[:, 0]
        read = k[:, : t + 1] @ states[:, t + 1]
        error[:, t, : t + 1] = (read - v[:, : t + 1]).square().sum(-1)
        signal[:, t, : t + 1] = (read * v[:, : t + 1]).sum(-1)
    energy = states.square().sum((-1, -2))
    return Trace(*(x.numpy() for x in (k, v, states, error, signal, energy)))


def interference(
    rule: Rule,
    config: BindingsConfig,
    *,
    repetitions: int = 1,
    seed: int | tuple[int, ...] = 0,
    inputs: Mapping[str, float | ArrayLike] | None = None,
) -> Trace:
    """`write_bindings` on what `draw_bindings` draws."""
    keys, values = draw_bindings(config, repetitions, seed)
    return write_bindings(rule, keys, values, inputs=inputs)


def nearest_value_recall(trace: Trace, distractors: int = 0, seed: int | tuple[int, ...] = 0) -> Array:
    """[N]: the share of keys that, after the last write, read nearer in angle to their value than to any other.

    The others are the row's values and `distractors` further ones, uniform on the sphere and drawn from `seed`.
    """
    rng = np.random.default_rng(seed)
    N, D, V = trace.values.shape
    book = np.concatenate([trace.values, _sphere(rng, N, distractors, V)], axis=1)
    book /= np.linalg.norm(book, axis=-1, keepdims=True)
    reads = trace.keys @ trace.states[:, -1]
    nearest = (reads @ book.swapaxes(1, 2)).argmax(-1)
    return np.asarray((nearest == np.arange(D)).mean(-1))


def _sphere(rng: np.random.Generator, *shape: int) -> Array:
    """Uniform on the unit sphere of the last axis."""
    x = rng.standard_normal(shape)
    return np.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True))


def _batched(name: str, given: ArrayLike) -> torch.Tensor:
    x = torch.as_tensor(np.array(given, dtype=np.float64))
    require(x.dim() in (2, 3), f"{name} must be [N, D, dim] or [D, dim], got {list(x.shape)}")
    return x if x.dim() == 3 else x[None]
