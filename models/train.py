"""Training on associative recall: fresh data every step, a log of JSON lines, checkpoints that a run resumes from."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import stateir
from stateir.ir import Rule
from stateir.printer import fingerprint

from . import checkpoint as checkpoints
from .config import config_hash, from_dict, require, to_dict
from .mixer import Mixer
from .mqar import MqarConfig, Rows, accuracy, generate
from .zoo import ATTENTION, Model, ModelConfig, state_bytes

# The first number of every data seed, so that held-out rows are never training rows.
TRAIN, HELD_OUT = 0, 1


@dataclass(frozen=True)
class TrainConfig:
    """A run in full; stored with every accuracy.

    lr rises linearly over `warmup` steps and falls along a cosine to 0 at `steps`. scalar_lr: factor on the learning
    rate of the rule's scalar params. clip: largest norm of the gradient. eval_every: steps between evaluations on
    eval_rows held-out rows (the same ones each time). stop_at: accuracy that ends the run early, None for never.
    """

    task: MqarConfig = field(default_factory=MqarConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    steps: int = 600
    batch: int = 64
    lr: float = 1e-2
    warmup: int = 60
    weight_decay: float = 0.1
    scalar_lr: float = 1.0
    clip: float = 1.0
    seed: int = 0
    eval_every: int = 100
    eval_rows: int = 512
    stop_at: float | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "eval_every", "eval_rows"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("lr", "scalar_lr", "clip"):
            require(getattr(self, name) > 0, f"{name} must be positive, got {getattr(self, name)}")
        require(0 <= self.warmup <= self.steps, f"warmup must be in 0 .. steps = {self.steps}, got {self.warmup}")
        require(self.weight_decay >= 0, f"weight_decay must be at least 0, got {self.weight_decay}")
        require(self.seed >= 0, f"seed must be at least 0, got {self.seed}")
        require(self.stop_at is None or 0 < self.stop_at <= 1, f"stop_at must be in (0, 1], got {self.stop_at}")


@dataclass(frozen=True)
class Result:
    """final and best held-out accuracy, steps done, and the records of all evaluations in order."""

    config: TrainConfig
    final: float
    best: float
    steps: int
    records: tuple[dict[str, Any], ...]


Report = Callable[[dict[str, Any]], None]


def load_rule(config: ModelConfig) -> Rule | None:
    """The rule that a model configuration names; None for attention."""
    return None if config.rule == ATTENTION else stateir.load(config.rule)


def schedule(config: TrainConfig, step: int) -> float:
    """The factor on the learning rate at a step counted from 0."""
    rise = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
    return rise * 0.5 * (1 + math.cos(math.pi * step / config.steps))


def evaluate(model: Model, task: MqarConfig, rows: int, seed: int, batch: int = 256) -> float:
    """Accuracy on `rows` held-out rows: the mean over rows of each row's share of right answers."""
    data = generate(task, rows, (HELD_OUT, seed))
    inputs = torch.from_numpy(data.inputs)
    with torch.no_grad():
        guesses = [model(part.to(_device(model)))[0].argmax(-1).cpu() for part in inputs.split(batch)]
    return accuracy(torch.cat(guesses).numpy(), data.labels)


def train(
    config: TrainConfig, folder: Path | None = None, *, rule: Rule | None = None, device: str = "cpu",
    resume: bool = False, report: Report | None = None, stop_after: int | None = None,
) -> Result:  # fmt: skip
    """Runs a configuration.

    Args:
        folder: receives `log.jsonl` and `checkpoint.safetensors` at every evaluation; nothing is written where None.
        rule: the rule that config.model.rule names, where it has been loaded already.
        resume: go on from the folder's checkpoint, if there is one; the result is that of an uninterrupted run, bit for
            bit on the same machine.
        report: called with every record, also with one {"event": "step"} a step.
        stop_after: leave after this step, as an interruption would, with a checkpoint.

    Raises:
        ValueError: if the folder holds a run and resume is False, or if its run has another configuration.
        RuleChanged: if the run in the folder was trained with another text of the rule.
    """
    rule = load_rule(config.model) if rule is None else rule
    run = _Run(config, rule, device)
    log = None if folder is None else folder / "log.jsonl"
    saved = None if folder is None else folder / "checkpoint.safetensors"
    if saved is not None and saved.exists():
        require(resume, f"{folder} already holds a run; resume it or choose another folder")
        run.restore(checkpoints.load(saved, rule))
    if log is not None:
        _restart_log(log, config, rule, run)
    while not run.done:
        loss = run.advance()
        record: dict[str, Any] = {"event": "step", "step": run.step, "loss": loss}
        due = run.step % config.eval_every == 0 or run.step == config.steps
        if due:
            record = run.evaluate(loss)
            if log is not None:
                _append(log, record)
        if saved is not None and (due or run.step == stop_after):
            checkpoints.save(saved, run.checkpoint())
        if report is not None:
            report(record)
        if run.step == stop_after:
            break
    return Result(config, run.final, run.best, run.step, tuple(run.records))


class _Run:
    """The mutable half of a run: model, optimiser, step and accuracies so far."""

    def __init__(self, config: TrainConfig, rule: Rule | None, device: str) -> None:
        self.config, self.rule = config, rule
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.model = Model(config.model, rule, config.task.tokens, config.seed).to(device)
        self.optimizer = _optimizer(self.model, config)
        self.step, self.started = 0, time.monotonic()
        self.records: list[dict[str, Any]] = []

    @property
    def final(self) -> float:
        return float(self.records[-1]["accuracy"]) if self.records else math.nan

    @property
    def best(self) -> float:
        return max((float(r["accuracy"]) for r in self.records), default=math.nan)

    @property
    def done(self) -> bool:
        stop = self.config.stop_at
        return self.step >= self.config.steps or (stop is not None and bool(self.records) and self.best >= stop)

    def advance(self) -> float:
        """One step of training; returns its loss."""
        config = self.config
        for group in self.optimizer.param_groups:
            group["lr"] = config.lr * group["factor"] * schedule(config, self.step)
        ids, labels = _tensors(generate(config.task, config.batch, (TRAIN, config.seed, self.step)), self.model)
        loss = self.model.loss(ids, labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), config.clip)
        self.optimizer.step()
        self.step += 1
        return float(loss.detach())

    def evaluate(self, loss: float) -> dict[str, Any]:
        config = self.config
        record = {
            "event": "eval",
            "step": self.step,
            "loss": loss,
            "accuracy": evaluate(self.model, config.task, config.eval_rows, config.seed),
            "plateau_knows_values_cannot_bind": config.task.plateau,
            "config_hash": config_hash(config),
            "seconds": round(time.monotonic() - self.started, 3),
        }
        self.records.append(record)
        return record

    def checkpoint(self) -> checkpoints.Checkpoint:
        tensors: dict[str, Tensor] = {f"model.{name}": t for name, t in self.model.state_dict().items()}
        for index, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": t for name, t in state.items()}
        facts = {"config": to_dict(self.config), "step": self.step, "records": self.records}
        return checkpoints.Checkpoint(tensors, self.rule, facts)

    def restore(self, saved: checkpoints.Checkpoint) -> None:
        config = from_dict(TrainConfig, saved.facts["config"])
        require(
            config == self.config,
            f"the run in the folder has another configuration: {_differences(config, self.config)}",
        )
        load_model(self.model, saved)
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in saved.tensors.items():
            kind, _, rest = name.partition(".")
            if kind == "optimizer":
                index, _, entry = rest.partition(".")
                state.setdefault(int(index), {})[entry] = tensor
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        self.step, self.records = saved.facts["step"], saved.facts["records"]


def load_model(model: Model, saved: checkpoints.Checkpoint) -> None:
    """Copies a checkpoint's weights into a model of its configuration."""
    prefix = "model."
    model.load_state_dict({n.removeprefix(prefix): t for n, t in saved.tensors.items() if n.startswith(prefix)})


def _optimizer(model: Model, config: TrainConfig) -> torch.optim.AdamW:
    """Weight decay falls on projections and embeddings alone: not on norms, biases, decays, or a rule's params."""
    decayed = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear | nn.Embedding)}
    scalars = {id(p) for m in model.modules() if isinstance(m, Mixer) for p in m.scalar_parameters()}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for p in model.parameters():
        key = (config.weight_decay if id(p) in decayed else 0.0, config.scalar_lr if id(p) in scalars else 1.0)
        groups.setdefault(key, []).append(p)
    return torch.optim.AdamW(
        [{"params": ps, "weight_decay": decay, "factor": factor} for (decay, factor), ps in groups.items()],
        lr=config.lr, betas=(0.9, 0.95),
    )  # fmt: skip


def _tensors(rows: Rows, model: Model) -> tuple[Tensor, Tensor]:
    device = _device(model)
    return torch.from_numpy(rows.inputs).to(device), torch.from_numpy(rows.labels).to(device)


def _device(model: Model) -> torch.device:
    return model.embed.weight.device


def _differences(a: TrainConfig, b: TrainConfig) -> str:
    x, y = _flat(to_dict(a)), _flat(to_dict(b))
    return ", ".join(f"{name} {x[name]} there, {y[name]} here" for name in x if x[name] != y[name])


def _flat(data: dict[str, Any], above: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in data.items():
        out |= _flat(value, f"{above}{name}.") if isinstance(value, dict) else {above + name: value}
    return out


def _restart_log(log: Path, config: TrainConfig, rule: Rule | None, run: _Run) -> None:
    """Starts the log with the configuration and what the checkpoint knows; lines after it belong to no run."""
    log.parent.mkdir(parents=True, exist_ok=True)
    head = {
        "event": "run",
        "config": to_dict(config),
        "config_hash": config_hash(config),
        "rule_hash": None if rule is None else fingerprint(rule),
        "state_bytes": state_bytes(config.model, rule, config.task.length),
        "parameters": sum(p.numel() for p in run.model.parameters()),
    }
    log.write_text("".join(json.dumps(r) + "\n" for r in [head, *run.records]), encoding="utf-8")


def _append(log: Path, record: dict[str, Any]) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
