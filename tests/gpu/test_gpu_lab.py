"""Recall runs on a GPU: a replayed step has the numbers of one that is launched, for every kind of model and task."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stateir.models.mqar import MqarConfig
from stateir.models.presets import PRESETS, preset
from stateir.models.replay import WARM, Replay
from stateir.models.rows import draw
from stateir.models.tasks.needle import NeedleConfig
from stateir.models.tasks.parity import ParityConfig
from stateir.models.tasks.word_problem import WordProblemConfig
from stateir.models.together import Together, train_together
from stateir.models.train import train
from stateir.models.train_config import TrainConfig
from stateir.models.zoo import ModelConfig, model_of_kind

pytestmark = pytest.mark.gpu

TASK = MqarConfig(length=32, pairs=4, vocab=32, overwrites=2, filler="random")
BASE = TrainConfig(
    task=TASK, mix=(replace(TASK, length=64),), model=ModelConfig(rule="qed", layers=2, hidden=32, heads=2, key_dim=16,
    value_dim=16), steps=24, batch=8, warmup=2, eval_every=12, eval_rows=16, draw="device",
)  # fmt: skip
MODELS = [
    BASE.model,
    ModelConfig(rule="titans_linear", hidden=16, key_dim=8, value_dim=8),
    model_of_kind("hybrid", "delta", hidden=32, heads=1, key_dim=32, value_dim=32),
    model_of_kind("hybrid", "attention", hidden=32, heads=1, key_dim=32, value_dim=32),
    model_of_kind("hybrid", "sliding_window", hidden=32, heads=1, key_dim=32, value_dim=32, window=8),
    model_of_kind("hybrid", "gated_convolution", hidden=32, window=64),
]


def runs_of(config: TrainConfig) -> list[TrainConfig]:
    return [replace(config, seed=seed, lr=lr) for seed, lr in [(0, 1e-2), (1, 1e-2), (0, 1e-3)]]


def losses_of(config: TrainConfig, graph: bool) -> tuple[Together, np.ndarray]:
    runs = Together(runs_of(config), "cuda", graph=graph)
    found = [runs.advance().tolist() for _ in range(config.steps)]
    return runs, np.array(found)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.rule)
@pytest.mark.parametrize("where", ["device", "host"])
def test_replayed_is_launched(model: ModelConfig, where: Any) -> None:
    """Atomic sums (a gather's backward pass) take any order, hence a tolerance; a warning is a failure."""
    config = replace(BASE, model=model, draw=where)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runs, replayed = losses_of(config, True)
    assert runs.replay.recorded == 2, "one graph for each slice"
    _, launched = losses_of(config, False)
    np.testing.assert_allclose(replayed, launched, rtol=2e-3)
    assert (replayed[-1] < replayed[0]).all()


@pytest.mark.parametrize(
    "task", [TASK, NeedleConfig(48, needles=2), ParityConfig(16), WordProblemConfig(16)], ids=lambda t: type(t).__name__
)
def test_rows_of_a_replayed_draw(task: Any) -> None:
    """Seeded before each replay, the rows are those of a draw by itself."""
    device = torch.device("cuda")
    generator = torch.Generator(device)
    replay = Replay(device, True, [generator])
    from stateir.models.rows import draw_on, seed_number

    kept = draw(task, 8, (0, 0), "device", device)
    kept = type(kept)(*(x.clone() for x in kept))

    def again() -> None:
        for to, new in zip(kept, draw_on(task, 8, generator), strict=True):
            to.copy_(new)

    for step in range(WARM + 4):
        generator.manual_seed(seed_number((0, step)))
        replay("rows", again)
        want = draw(task, 8, (0, step), "device", device)
        assert all(torch.equal(a, b) for a, b in zip(kept, want, strict=True))
    assert replay.recorded == 1


def test_what_cannot_be_recorded_is_said_and_launched() -> None:
    config = replace(BASE, draw="device", mix=())
    runs, alone = (Together(runs_of(config), "cuda", graph=graph) for graph in (True, False))
    inner = runs._update
    runs._update = lambda gradient: (gradient.sum().item(), inner(gradient))[1]  # type: ignore[method-assign]
    for _ in range(WARM):
        runs.advance(), alone.advance()
    with pytest.warns(UserWarning, match="steps are launched one by one, since none could be recorded"):
        found = runs.advance().tolist()
    np.testing.assert_allclose(found, alone.advance().tolist(), rtol=2e-3)
    np.testing.assert_allclose(runs.advance().tolist(), alone.advance().tolist(), rtol=2e-3)
    assert runs.replay.recorded == 0


def test_together_is_each_by_itself() -> None:
    """The numbers of `train`, which knows neither vmap nor graphs."""
    together = train_together(runs_of(BASE), device="cuda")
    assert together is not None
    for config, found in zip(runs_of(BASE), together, strict=True):
        want = [r["loss"] for r in train(config, device="cuda").records]
        np.testing.assert_allclose([r["loss"] for r in found.records], want, rtol=5e-3)


def test_left_and_resumed(tmp_path: Path) -> None:
    saved = tmp_path / "group.safetensors"
    assert train_together(runs_of(BASE), device="cuda", saved=saved, until=0.0) is None
    resumed, whole = (
        train_together(runs_of(BASE), device="cuda", saved=saved),
        train_together(runs_of(BASE), device="cuda"),
    )
    assert resumed is not None and whole is not None
    for a, b in zip(resumed, whole, strict=True):
        np.testing.assert_allclose(a.records[-1]["loss"], b.records[-1]["loss"], rtol=2e-3)


@pytest.mark.parametrize("name", [n for n in PRESETS if not n.startswith(("kimi", "blog", "readme"))])
def test_a_preset_runs(name: str) -> None:
    """Its first shape, a few steps, with the measurements at the end."""
    config = replace(preset(name, steps=6).configs[0], eval_rows=8)
    found = train_together([config, replace(config, seed=9)], device="cuda")
    assert found is not None and all(np.isfinite(r.records[-1]["loss"]) for r in found)
