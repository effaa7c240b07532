"""Training on any task: fresh data every step, a log of JSON lines, checkpoints that a run resumes from."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stateir.ir import Rule
from stateir.printer import fingerprint

from . import checkpoint as checkpoints
from .config import config_hash, from_dict, require, to_dict
from .mixer import Mixer
from .mqar import IGNORE, MqarConfig
from .rows import HELD_OUT, TRAIN, draw
from .state_size import state_bytes
from .tasks import TASKS, task_of
from .train_config import TrainConfig, schedule, slice_at
from .zoo import Model, load_rule

BETAS, EPS = (0.9, 0.95), 1e-8  # of AdamW


@dataclass(frozen=True)
class Result:
    """final and best held-out accuracy, steps done, trained numbers, and the records of all evaluations in order."""

    config: TrainConfig
    final: float
    best: float
    steps: int
    parameters: int
    records: tuple[dict[str, Any], ...]


Report = Callable[[dict[str, Any]], None]


def evaluate(model: Model, task: Any, rows: int, seed: int, batch: int = 256) -> float:
    """The mean over `rows` held-out rows of their scores: the share of right answers, or of rows wholly right."""
    data = draw(task, rows, (HELD_OUT, seed), "host", torch.device("cpu"))
    with torch.no_grad():
        guesses = [
            model.logits_at(ids.to(_device(model)), places.to(_device(model))).argmax(-1).cpu()
            for ids, places in zip(data.ids.split(batch), data.places.split(batch), strict=True)
        ]
    return mean_score(task, torch.cat(guesses), data.targets)


def mean_score(task: Any, guesses: Tensor, targets: Tensor) -> float:
    """The mean of the rows' scores. Both [rows, N]; a target of -100 is not asked."""
    score = TASKS[task_of(task)].score
    return float(score(guesses == targets, targets != IGNORE).double().mean())


def evaluation(config: TrainConfig, step: int, loss: float, accuracies: list[float], seconds: float) -> dict[str, Any]:
    """The record of an evaluation: `accuracy` is the mean over `tests`, which are in their order."""
    record: dict[str, Any] = {
        "event": "eval",
        "step": step,
        "loss": loss,
        "accuracy": sum(accuracies) / len(accuracies),
        "tests": accuracies,
    }
    if isinstance(config.task, MqarConfig):
        record["plateau_knows_values_cannot_bind"] = config.task.plateau
    return record | {"config_hash": config_hash(config), "seconds": round(seconds, 3)}


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
    parameters = sum(p.numel() for p in run.model.parameters())
    return Result(config, run.final, run.best, run.step, parameters, tuple(run.records))


class _Run:
    """The mutable half of a run: model, optimiser, step and accuracies so far."""

    def __init__(self, config: TrainConfig, rule: Rule | None, device: str) -> None:
        self.config, self.rule = config, rule
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.model = Model(config.model, rule, config.tokens, config.seed).to(device)
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
        seed = (TRAIN, config.seed, self.step)
        data = draw(slice_at(config, self.step), config.batch, seed, config.draw, _device(self.model))
        loss = self.model.loss(*data)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), config.clip)
        self.optimizer.step()
        self.step += 1
        return float(loss.detach())

    def evaluate(self, loss: float) -> dict[str, Any]:
        config = self.config
        accuracies = [evaluate(self.model, task, config.eval_rows, config.seed) for task in config.measured]
        record = evaluation(config, self.step, loss, accuracies, time.monotonic() - self.started)
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


def groups(model: Model, config: TrainConfig) -> dict[tuple[float, float], list[nn.Parameter]]:
    """Parameters by weight decay and factor on the learning rate.

    Weight decay falls on projections and embeddings alone: not on norms, biases, decays, or a rule's params.
    """
    decayed = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear | nn.Embedding)}
    scalars = {id(p) for m in model.modules() if isinstance(m, Mixer) for p in m.scalar_parameters()}
    found: dict[tuple[float, float], list[nn.Parameter]] = {}
    for p in model.parameters():
        key = (config.weight_decay if id(p) in decayed else 0.0, config.scalar_lr if id(p) in scalars else 1.0)
        found.setdefault(key, []).append(p)
    return found


def _optimizer(model: Model, config: TrainConfig) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        [{"params": ps, "weight_decay": d, "factor": factor} for (d, factor), ps in groups(model, config).items()],
        lr=config.lr, betas=BETAS, eps=EPS,
    )  # fmt: skip


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
        "state_bytes": state_bytes(config.model, rule, config.longest),
        "parameters": sum(p.numel() for p in run.model.parameters()),
    }
    log.write_text("".join(json.dumps(r) + "\n" for r in [head, *run.records]), encoding="utf-8")


def _append(log: Path, record: dict[str, Any]) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
