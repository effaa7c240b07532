"""Every rule of the catalogue, on each CPU backend that it has, against a loop written by hand from its paper."""

from __future__ import annotations

import hand_loops
import numpy as np
import pytest
import torch

import stateir
from stateir.evaluate import draw
from stateir.ir import Axis, Rule
from stateir.library import names

T, K, V = 29, 6, 5
WRITTEN = [n for n in names() if hasattr(hand_loops, n)]


def sample(rule: Rule, seed: int) -> dict[str, np.ndarray]:
    """Inputs over T tokens and params, inside their ranges; vectors without one are N(0, 1) / sqrt(dim)."""
    rng = np.random.default_rng(seed)
    dims = {Axis.KEY: K, Axis.VALUE: V, Axis.PAIR: K // 2}
    tokens = [draw(rule, rng, dims) for _ in range(T)]
    out = {x.name: np.stack([np.asarray(t[x.name, None]) for t in tokens]) for x in rule.inputs}
    for x in rule.inputs:
        if x.range is None and not x.unit and x.axis in (Axis.KEY, Axis.VALUE):
            out[x.name] = out[x.name] / np.sqrt(out[x.name].shape[-1])
    return out | {p.name: np.asarray(tokens[0][p.name, None]) for p in rule.params}


def call(rule: Rule, backend: str, values: dict[str, np.ndarray]) -> np.ndarray:
    inputs = {x.name: torch.tensor(values[x.name])[None, :, None] for x in rule.inputs}
    params = {p.name: torch.tensor(values[p.name])[None] for p in rule.params}
    o, _ = stateir.compile(rule, backend)(**inputs, **params)
    return o[0, :, 0].numpy()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", WRITTEN)
def test_rule_equals_the_loop_by_hand(name: str, seed: int) -> None:
    rule = stateir.load(name)
    values = sample(rule, seed)
    expected = getattr(hand_loops, name)(**values)
    backends = stateir.compile(rule).backends
    for backend in ("step", "chunked"):
        if backends[backend] is None:
            got = call(rule, backend, values)
            assert np.max(np.abs(got - expected)) < 1e-12 * (1 + np.max(np.abs(expected))), backend


def test_no_loop_is_left_over() -> None:
    loops = {n for n, f in vars(hand_loops).items() if callable(f) and f.__module__ == hand_loops.__name__}
    assert loops - set(names()) == {"softplus", "erasing", "delta_step", "exact_flow"}
