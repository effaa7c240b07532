"""Every rule of the library as compiled kernels in float32, against the loops written by hand from the papers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

import hand_loops
from test_catalogue import WRITTEN, sample
from test_step import LOOPS, K, T, V, by_hand

import stateir
from stateir.codegen.samples import sample_arguments
from stateir.library import names

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DEVICE = "cuda"


def deviation(got: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest value or to 1."""
    return float((got.cpu().double() - expected).abs().max()) / max(float(expected.abs().max()), 1.0)


def errors(name: str, seed: int) -> dict[str, float]:
    """How far the kernels' outputs (and last state, where the loop gives it) are from the loop's, in float64."""
    rule = stateir.load(name)
    op = stateir.compile(rule)  # a rule with a second matrix state has the step form alone
    if name in LOOPS:
        given = sample_arguments(rule, B=1, T=T, H=2, K=K, V=V, seed=seed)
        expected, last = by_hand(LOOPS[name], rule, given)
        o, after = op(**{n: x.to(DEVICE, torch.float32) for n, x in given.items()}, return_state=True)
        assert isinstance(after, Tensor)
        return {"o": deviation(o, expected), "S": deviation(after, last)}
    values = sample(rule, seed)
    inputs = {x.name: torch.tensor(values[x.name], dtype=torch.float32)[None, :, None] for x in rule.inputs}
    params = {p.name: torch.tensor(values[p.name], dtype=torch.float32)[None] for p in rule.params}
    o, _ = op(**{n: x.to(DEVICE) for n, x in (inputs | params).items()})
    return {"o": deviation(o[0, :, 0], torch.tensor(getattr(hand_loops, name)(**values)))}


def test_every_rule_has_a_loop() -> None:
    assert sorted([*LOOPS, *WRITTEN]) == sorted(names())


@pytest.mark.parametrize("name", sorted([*LOOPS, *WRITTEN]))
def test_kernels_equal_the_loop_by_hand(name: str, record_property) -> None:  # type: ignore[no-untyped-def]
    found = errors(name, 0)
    record_property("errors", {part: float(f"{e:.3g}") for part, e in found.items()})
    assert max(found.values()) < 2e-5, found
