"""Runs trained together have the numbers of separate runs, and any task goes through the same entry."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stateir.models import checkpoint as checkpoints
from stateir.models.config import config_hash, from_dict, to_dict
from stateir.models.mqar import MqarConfig
from stateir.models.rows import asked, draw
from stateir.models.tasks import TASKS
from stateir.models.tasks.needle import NeedleConfig, assemble
from stateir.models.tasks.parity import ParityConfig
from stateir.models.tasks.stack import StackConfig
from stateir.models.tasks.word_problem import WordProblemConfig, products
from stateir.models.together import Together, shape_of, train_together
from stateir.models.train import train
from stateir.models.train_config import TrainConfig, slice_at
from stateir.models.zoo import ModelConfig, model_of_kind

TASK = MqarConfig(length=16, pairs=2, vocab=16, overwrites=2)
BASE = TrainConfig(
    task=TASK, model=ModelConfig(rule="qed", layers=2, hidden=8, heads=2, key_dim=4, value_dim=3),
    steps=8, batch=4, warmup=2, eval_every=4, eval_rows=16, scalar_lr=3.0,
)  # fmt: skip


def runs_of(config: TrainConfig) -> list[TrainConfig]:
    return [replace(config, seed=seed, lr=lr) for seed, lr in [(0, 1e-2), (1, 1e-2), (0, 1e-3)]]


@pytest.mark.parametrize(
    "model",
    [
        *(replace(BASE.model, rule=rule) for rule in ("qed", "mamba2", "rwkv6", "qed_rand", "attention")),
        model_of_kind("hybrid", "gla", hidden=8, key_dim=4, value_dim=3),
        model_of_kind("plain", "delta", hidden=8, key_dim=4, value_dim=3, positions=16),
        model_of_kind("hybrid", "gated_convolution", hidden=8, window=20),
    ],
    ids=lambda m: f"{m.rule}-{m.gated_conv}-{m.positions}",
)
def test_same_numbers_as_separate_runs(model: ModelConfig) -> None:
    """Losses over eight steps, with one seed twice and one learning rate twice.

    float32; the sums of a folded call are taken in another order, a relative difference of about 1e-7 a step, which
    Adam's division by the root of the square widens where a gradient is near zero.
    """
    configs = runs_of(replace(BASE, model=model))
    together = train_together(configs)
    assert together is not None
    for config, b in zip(configs, together, strict=True):
        a = train(config)
        assert [r["step"] for r in b.records] == [r["step"] for r in a.records] == [4, 8]
        np.testing.assert_allclose([r["loss"] for r in b.records], [r["loss"] for r in a.records], rtol=2e-5)
        assert b.final == pytest.approx(a.final, abs=2 / 32)
        assert b.records[0]["config_hash"] == config_hash(config)
    losses = [r.records[-1]["loss"] for r in together]
    assert len(set(losses)) == 3


@pytest.mark.parametrize(
    "task", [TASK, NeedleConfig(24), ParityConfig(9), WordProblemConfig(9, "s3")], ids=lambda t: type(t).__name__
)
def test_same_numbers_on_rows_drawn_on_the_device(task: Any) -> None:
    """A mix of two slices, both drawn where the model is: runs of one seed see the rows of a run by itself."""
    config = replace(BASE, task=task, task_name="", mix=(replace(task, length=2 * task.length),), draw="device")
    together = train_together(runs_of(config))
    assert together is not None
    for c, found in zip(runs_of(config), together, strict=True):
        want = [r["loss"] for r in train(c).records]
        np.testing.assert_allclose([r["loss"] for r in found.records], want, rtol=2e-5)


class Asks(TorchDispatchMode):
    """Counts the operations that make the host wait, or copy from it: a CUDA graph can hold none of them."""

    NAMES = ("_local_scalar_dense", "nonzero", "lift_fresh", "equal.default", "masked_select", "_unique2")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found += [str(f) for name in self.NAMES if name in str(f)]
        return f(*args, **(kwargs or {}))


@pytest.mark.parametrize("rule", ["qed", "delta_product", "titans_linear", "attention", "gated_convolution"])
@pytest.mark.parametrize("task", [TASK, NeedleConfig(24), WordProblemConfig(16, "s3")], ids=lambda t: type(t).__name__)
def test_a_step_asks_the_host_for_nothing(rule: str, task: Any) -> None:
    model = replace(BASE.model, rule=rule, window=24 if rule == "gated_convolution" else 0)
    runs = Together(runs_of(replace(BASE, task=task, task_name="", model=model, draw="device")))
    runs.advance()
    with Asks() as asks:
        runs.advance()
        assert asks.found == []
        runs.losses.tolist()
        assert float(runs.losses[0]) > 0
    assert asks.found, "what asks is seen"


def test_one_run_does_not_see_another() -> None:
    """A run beside one that diverges has, bit for bit, the weights that it has beside a sound one."""
    sound, wild = (Together([BASE, replace(BASE, lr=lr)]) for lr in (1e-3, 1e6))
    for _ in range(6):
        sound.advance(), wild.advance()
    assert torch.equal(sound.flat[0], wild.flat[0])
    assert not torch.equal(sound.flat[1], wild.flat[1])


def test_clipping_and_decay_are_each_runs_own() -> None:
    config = replace(BASE, clip=1e-3, weight_decay=0.5, steps=4, eval_every=4)
    configs = runs_of(config)
    found = train_together(configs)
    assert found is not None
    for c, r in zip(configs, found, strict=True):
        assert r.records[-1]["loss"] == pytest.approx(train(c).records[-1]["loss"], rel=2e-5)


def test_left_and_resumed(tmp_path: Path) -> None:
    """Left at once, and gone on with from a checkpoint in the middle: the numbers are those of an unbroken run."""
    configs, saved = runs_of(BASE), tmp_path / "group.safetensors"
    whole = train_together(configs)
    assert train_together(configs, saved=saved, until=0.0) is None
    part = Together(configs)
    for _ in range(4):
        losses = part.advance()
    for c, own, loss in zip(configs, part.records, losses.tolist(), strict=True):
        own.append({"step": 4, "loss": loss, "accuracy": 0.0, "config_hash": config_hash(c)})
    checkpoints.save(saved, part.checkpoint())
    resumed = train_together(configs, saved=saved)
    assert whole is not None and resumed is not None
    assert [r.records[-1]["loss"] for r in resumed] == [r.records[-1]["loss"] for r in whole]
    with pytest.raises(ValueError, match="the checkpoint must be of the runs"):
        train_together(configs[:2], saved=saved)


def test_params_at_their_lower_end() -> None:
    """With lam at 0 QED is GDN-2, whose every other weight is the same; a set param changes nothing else."""
    runs = Together([replace(BASE, at_lower=("lam",)), replace(BASE, seed=1, at_lower=("lam",))])
    for _ in range(3):
        runs.advance()
    before = runs.flat.detach().clone()
    kept = {n: s for n, s in runs.shapes.items() if not n.endswith("param_lam.raw")}
    other = Together([replace(BASE, model=replace(BASE.model, rule="gdn2"), seed=seed) for seed in (0, 1)])
    assert set(other.shapes) == set(kept)
    parts = dict(zip(runs.shapes, before.split([int(np.prod(s)) for s in runs.shapes.values()], 1), strict=True))
    with torch.no_grad():
        other.flat.copy_(torch.cat([parts[n] for n in other.shapes], 1))
    assert runs.at_lower() == other.evaluate()
    assert torch.equal(runs.flat, before)


def test_what_cannot_run_together() -> None:
    with pytest.raises(ValueError, match="configs must differ in seed and lr alone"):
        Together([BASE, replace(BASE, batch=5)])
    with pytest.raises(ValueError, match="stop_at must be None"):
        Together([replace(BASE, stop_at=0.5)])
    assert shape_of(BASE) == shape_of(replace(BASE, seed=4, lr=0.5)) != shape_of(replace(BASE, clip=2.0))


@pytest.mark.parametrize("name", TASKS)
def test_every_task_trains(name: str) -> None:
    task = TASKS[name].config()
    model = replace(BASE.model, rule="delta", layers=1)
    config = TrainConfig(task=task, model=model, steps=2, warmup=0, batch=2, eval_every=2, eval_rows=4)
    assert config.task_name == name
    result = train(config)
    assert 0 <= result.final <= 1
    assert from_dict(TrainConfig, json.loads(json.dumps(to_dict(config)))) == config


def test_asked_places_are_the_labels() -> None:
    for name, task in TASKS.items():
        rows = task.generate(task.config(), 5, 0)
        found = asked(rows)
        rebuilt = np.full_like(rows.labels, -100)
        for row, (places, targets) in enumerate(zip(found.places.numpy(), found.targets.numpy(), strict=True)):
            real = targets != -100
            rebuilt[row, places[real]] = targets[real]
        assert (rebuilt == rows.labels).all(), name


def test_a_mix_of_slices() -> None:
    """Steps choose slices by weight, the same for every seed; the accuracy is the mean over the tests."""
    other = replace(TASK, length=32)
    config = replace(BASE, mix=(other,), weights=(3, 1), tests=(TASK, other, replace(TASK, length=64)))
    chosen = [slice_at(config, step) for step in range(2000)]
    assert chosen == [slice_at(replace(config, seed=5), step) for step in range(2000)]
    # 2,000 draws of probability 1/4: a standard deviation of .0097.
    assert abs(np.mean([c == other for c in chosen]) - 0.25) < 0.05
    record = train(config).records[-1]
    assert len(record["tests"]) == 3
    assert record["accuracy"] == pytest.approx(np.mean(record["tests"]))
    assert config.longest == 64


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mix": (ParityConfig(),)}, "mix and tests must be of task mqar, got ParityConfig"),
        ({"task": 3}, "a task must be one of mqar, .* got int"),
        ({"task_name": "parity"}, "task_name must be 'mqar', that of task, got 'parity'"),
        ({"weights": (1, 2)}, "weights must be 1, one a slice, got 2"),
        ({"weights": (0,)}, "weights must be positive"),
        ({"draw": "disk"}, "draw must be one of"),
        ({"model": replace(BASE.model, positions=8)}, "model.positions must be at least 16, the longest row, got 8"),
    ],
)
def test_refused_configurations(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(BASE, **fields)


CASES = [
    MqarConfig(64, 8, 128),
    MqarConfig(64, 8, 128, overwrites=8, filler="random"),
    MqarConfig(40, 16, 64, num_queries=4, filler="token"),
    MqarConfig(64, 2, 16, overwrites=3, a=2.0, filler="random"),
]


@pytest.mark.parametrize("config", CASES, ids=str)
def test_rows_drawn_on_a_device_have_the_law_of_the_others(config: MqarConfig) -> None:
    """Each answer is what stands behind its key's last write, nothing else is like a key, and places have one law."""
    rows = 1500
    host, device = (draw(config, rows, (0, 7), where, torch.device("cpu")) for where in ("host", "device"))
    ids, places, targets = (x.numpy() for x in device)
    context = ids[:, : config.context]
    for x, at, answers in zip(ids[:300], places[:300], targets[:300], strict=True):
        keys, values = x[0 : config.context : 2], x[1 : config.context : 2]
        counts = np.unique(keys, return_counts=True)[1]
        assert len(counts) == config.pairs and counts.max() - counts.min() <= 1
        assert len(set(values)) == len(values) and keys.min() >= 1 and keys.max() < config.vocab // 2 <= values.min()
        assert len(set(at)) == config.queries and (at >= config.context).all()
        assert [values[np.flatnonzero(keys == x[p])[-1]] for p in at] == list(answers)
        filler = np.delete(x, [*range(config.context), *at])
        assert not set(filler) & (set(keys) | set(values))
    assert ids.max() < config.tokens
    # Means over 1,500 rows: each differs by a few standard errors at most, 1.2 positions and 2 % of the vocabulary.
    assert abs(np.sort(places).mean() - np.sort(host.places.numpy()).mean()) < 1.2
    assert abs(context.mean() - host.ids.numpy()[:, : config.context].mean()) < 0.02 * config.vocab
    again = draw(config, rows, (0, 7), "device", torch.device("cpu"))
    other = draw(config, rows, (1, 7), "device", torch.device("cpu"))
    assert torch.equal(again.ids, device.ids) and not torch.equal(other.ids, device.ids)


def on_device(task: Any, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """ids and labels of a draw on a device, laid out as `generate` does."""
    found = draw(task, rows, (0, 3), "device", torch.device("cpu"))
    ids, places, targets = (x.numpy() for x in found)
    labels = np.full_like(ids, -100)
    np.put_along_axis(labels, places, targets, axis=1)
    return ids, labels


@pytest.mark.parametrize("noise", ["cycle", "iid"])
@pytest.mark.parametrize("depth", [None, 0.5])
def test_needles_drawn_on_a_device(noise: Any, depth: float | None) -> None:
    """Taken apart and put together again by the task's own `assemble`, each row is the same."""
    task = NeedleConfig(60, noise=noise, needles=3, depth=depth, key_tokens=2, value_tokens=4)
    ids, labels = on_device(task, 400)
    first, marker = task.noise_vocab + 2, task.noise_vocab
    points, keys, values, noises, asked_points = [], [], [], [], []
    for row in ids:
        starts = np.flatnonzero(row == marker)
        inside = (starts[:, None] + np.arange(task.needle_tokens)).ravel()
        question = task.length - task.question_tokens
        assert row[question] == marker + 1 and len(starts) == 3
        noises.append(np.delete(row[:question], inside))
        before = starts - task.needle_tokens * np.arange(3)
        own = row[starts[:, None] + np.arange(1, 3)] - first
        asked_one = np.flatnonzero((own == row[question + 1 : question + 3] - first).all(1))
        assert len(asked_one) == 1, "keys differ"
        # `assemble` wants the needle that is asked first; of needles at one point it keeps that order.
        order = [*asked_one, *np.delete(np.arange(3), asked_one)]
        asked_points.append(before[asked_one[0]])
        points.append(before[order])
        keys.append(own[order])
        values.append((row[starts[:, None] + np.arange(3, 7)] - first - task.key_vocab)[order])
    built = assemble(task, *(np.array(x) for x in (noises, keys, values, points)))
    apart = np.array([len(set(p)) == 3 for p in points])
    assert apart.mean() > 0.8
    assert (built.inputs[apart] == ids[apart]).all() and (built.labels[apart] == labels[apart]).all()
    steps = np.diff(np.array(noises), axis=1) % task.noise_vocab
    assert (steps == 1).all() == (noise == "cycle")
    size = task.noise_tokens
    # Uniform on 0 .. size: the mean of 400 draws has a standard error of size / 69.
    assert abs(np.mean(asked_points) - size / 2) < (size / 15 if depth is None else 0.6)
    if depth is not None:
        assert set(asked_points) == {round(depth * size)}
    assert len(np.unique(np.array(values))) == task.value_vocab and len(np.unique(np.array(keys))) == task.key_vocab


@pytest.mark.parametrize("task", [ParityConfig(37), WordProblemConfig(37, "s5"), WordProblemConfig(9, "z7")], ids=str)
def test_state_tracking_drawn_on_a_device(task: Any) -> None:
    """Labels are those of the host's recurrence, elements are uniform."""
    ids, labels = on_device(task, 300)
    want = np.cumsum(ids, 1) % 2 if isinstance(task, ParityConfig) else products(task, ids)
    assert (labels == want).all()
    assert set(np.unique(ids)) == set(range(task.tokens))
    assert abs(ids.mean() - (task.tokens - 1) / 2) < 0.05 * task.tokens


def test_a_task_without_a_device_draw_says_so() -> None:
    with pytest.raises(ValueError, match="draw 'device' is there for mqar, needle, parity, word_problem, got stack"):
        draw(StackConfig(), 4, (0, 0), "device", torch.device("cpu"))
