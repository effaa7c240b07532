"""The bytes that a model carries between tokens: from its rule's declarations, from real tensors, and to a budget."""

from __future__ import annotations

import math
from dataclasses import replace

from stateir.codegen.carried import prev_windows
from stateir.ir import Axis, Rule

from .config import require
from .mixer import is_content
from .zoo import GATED_CONVOLUTION, SLIDING_WINDOW, Cache, ModelConfig

ELEMENT = 4  # bytes of a float32, the dtype of every state


def state_elements(config: ModelConfig, rule: Rule | None, length: int) -> dict[str, int]:
    """Numbers that one sequence carries after `length` tokens over all layers, from the rule's declarations alone.

    "state": S, declared states, look-back windows; for attention, the keys and values that a later token can see.
    "convolution": the windows of the convolutions.
    """
    K, V, H = config.key_dim, config.value_dim, config.heads
    before = config.hidden * (config.gated_conv - 1) if config.gated_conv else 0
    if config.rule == GATED_CONVOLUTION:
        return {"state": 0, "convolution": config.layers * (before + config.hidden * (config.window - 1))}
    dims = {Axis.SCALAR: 1, Axis.KEY: K, Axis.VALUE: V, Axis.PAIR: K // 2, Axis.MATRIX: K * V}
    if rule is None:
        kept = min(length, config.window - 1) if config.rule == SLIDING_WINDOW else length
        state, content = kept * (K + V), 2 * K + V
    else:
        inputs = {i.name: dims[i.axis] * (i.size or 1) for i in rule.inputs}
        state = sum(dims[s.axis] for s in rule.states)
        state += sum(n * inputs[name] for name, n in prev_windows(rule).items())
        content = sum(inputs[i.name] for i in rule.inputs if is_content(i))
    windows = before + H * content * (config.conv - 1)
    return {"state": config.layers * H * state, "convolution": config.layers * windows}


def state_bytes(config: ModelConfig, rule: Rule | None, length: int) -> int:
    """Bytes that one sequence carries after `length` tokens, states and convolutions, in float32."""
    return ELEMENT * sum(state_elements(config, rule, length).values())


def carried_bytes(cache: Cache) -> int:
    """Bytes of a real cache, per sequence of its batch."""
    return sum(t.element_size() * math.prod(t.shape[1:]) for layer in cache for t in layer.tensors())


def with_state_bytes(config: ModelConfig, rule: Rule | None, length: int, budget: int) -> ModelConfig:
    """The model with the most state within `budget` bytes: K = V, even, or the window of a baseline that has one.

    K stays within 256, the operators' limit. The width of the residual stream and everything else are kept.

    Raises:
        ValueError: if even the smallest model carries more.
    """
    if config.rule in (SLIDING_WINDOW, GATED_CONVOLUTION):
        sizes = [replace(config, window=n) for n in range(1, length + 1)]
    else:
        sizes = [replace(config, key_dim=n, value_dim=n) for n in range(2, 257, 2)]
    smallest = state_bytes(sizes[0], rule, length)
    require(smallest <= budget, f"budget must be at least {smallest} bytes, the smallest {config.rule}, got {budget}")
    return max((c for c in sizes if state_bytes(c, rule, length) <= budget), key=lambda c: state_bytes(c, rule, length))
