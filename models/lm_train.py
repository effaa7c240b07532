"""Training the language model on one process or, under torchrun, on several by DDP or FSDP2."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import stateir
from stateir.ir import Rule

from . import checkpoint as checkpoints
from .config import config_hash, from_dict, require, to_dict
from .lm import LanguageModel, LMConfig
from .lm_text import LIBRARY, digest, rows

Parallel: TypeAlias = Literal["ddp", "fsdp"]
TRAIN, HELD_OUT = 0, 1  # the first number of every data seed

# Dense bf16 multiply-adds of a card count as two flops; by a part of the name that PyTorch gives it.
PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}


@dataclass(frozen=True)
class LMTrainConfig:
    """A run in full.

    batch: rows of `length` tokens of all processes together. lr rises over `warmup` steps and falls along a cosine to a
    tenth. bf16: autocast to bfloat16; weights and optimiser stay in float32. checkpointing: layers are computed again in
    the backward pass. save_every: steps between checkpoints. text: see lm_text.
    """

    model: LMConfig = field(default_factory=LMConfig)
    text: str = LIBRARY
    steps: int = 1000
    batch: int = 16
    length: int = 256
    lr: float = 3e-3
    warmup: int = 100
    weight_decay: float = 0.1
    clip: float = 1.0
    seed: int = 0
    bf16: bool = False
    checkpointing: bool = False
    save_every: int = 200

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "length", "save_every"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("lr", "clip"):
            require(getattr(self, name) > 0, f"{name} must be positive, got {getattr(self, name)}")
        require(0 <= self.warmup <= self.steps, f"warmup must be in 0 .. steps = {self.steps}, got {self.warmup}")
        require(self.weight_decay >= 0, f"weight_decay must be at least 0, got {self.weight_decay}")
        require(self.seed >= 0, f"seed must be at least 0, got {self.seed}")


@dataclass(frozen=True)
class LMResult:
    """losses: of every step since the first; held_out: after the last; tokens_per_second of all processes, without the
    first steps of this process; mfu: the share of the cards' peak flops, None where the peak is unknown."""

    config: LMTrainConfig
    losses: tuple[float, ...]
    held_out: float
    parameters: int
    tokens_per_second: float
    mfu: float | None


Report = Callable[[dict[str, Any]], None]
_FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)
_WARM = 3  # steps that are not timed: compilation, allocation


def train(
    config: LMTrainConfig, folder: Path | None = None, *, rule: Rule | None = None, device: str = "cpu",
    parallel: Parallel | None = None, resume: bool = False, report: Report | None = None,
    stop_after: int | None = None, seconds: float = math.inf,
) -> LMResult:  # fmt: skip
    """Runs a configuration. With `parallel` a process group is there, and every process calls this.

    Args:
        folder: receives `checkpoint.safetensors` and `log.jsonl` (from the first process) at every save.
        resume: go on from the folder's checkpoint, if there is one: the same rows in the same order.
        report: called after each step with step, loss, tokens per second and mfu.
        stop_after: leave after this step, with a checkpoint.
        seconds: leave after this time, with a checkpoint.

    Raises:
        ValueError: for a folder with another run in it, another text, or a batch that the processes cannot share.
        RuleChanged: if the run in the folder was trained with another text of the rule.
    """
    rule = stateir.load(config.model.rule) if rule is None else rule
    run = Run(config, rule, device, parallel)
    saved = None if folder is None else folder / "checkpoint.safetensors"
    if saved is not None and saved.exists():
        require(resume, f"{folder} already holds a run; resume it or choose another folder")
        run.restore(checkpoints.load(saved, rule))
    began = time.monotonic()
    while run.step < config.steps:
        run.advance()
        last = run.step in (config.steps, stop_after) or run.agreed(time.monotonic() - began > seconds)
        if saved is not None and (last or run.step % config.save_every == 0):
            run.save(saved)
        if report is not None and run.first:
            speed = run.tokens_per_second()
            report({"step": run.step, "loss": run.losses[-1], "tokens_per_second": speed, "mfu": run.mfu(speed)})
        if last:
            break
    speed = run.tokens_per_second()
    return LMResult(config, tuple(run.losses), run.held_out(), run.parameters, speed, run.mfu(speed))


class Run:
    """The mutable half of a run."""

    def __init__(self, config: LMTrainConfig, rule: Rule, device: str, parallel: Parallel | None) -> None:
        require(
            parallel is None or parallel in get_args(Parallel),
            f"parallel must be None or one of {get_args(Parallel)}, got {parallel!r}",
        )
        self.config, self.rule, self.device = config, rule, torch.device(device)
        self.rank, self.count = (0, 1) if parallel is None else (dist.get_rank(), dist.get_world_size())
        require(
            config.batch % self.count == 0, f"batch must be a multiple of the {self.count} processes, got {config.batch}"
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            model = LanguageModel(config.model, rule, config.seed)
        self.model = model.to(self.device)
        self.model.checkpointing = config.checkpointing
        self.parameters = sum(p.numel() for p in self.model.parameters())
        self.flops = self.model.flops_per_token(config.length)
        self.trained: nn.Module = self.model
        if parallel == "ddp":
            self.trained = DistributedDataParallel(self.model)
        elif parallel == "fsdp":
            for layer in self.model.layers:
                fully_shard(layer)
            fully_shard(self.model)
        self.optimizer = _optimizer(self.model, config)
        self.step, self.losses = 0, list[float]()
        self.timed, self.since = 0, time.perf_counter()

    @property
    def first(self) -> bool:
        return self.rank == 0

    def advance(self) -> None:
        """One step of training."""
        config = self.config
        for group in self.optimizer.param_groups:
            group["lr"] = config.lr * schedule(config, self.step)
        ids, labels = rows(config.text, config.length, config.batch, (TRAIN, config.seed, self.step))
        mine = slice(self.rank * config.batch // self.count, (self.rank + 1) * config.batch // self.count)
        with self._autocast():
            loss, _ = self.trained(ids[mine].to(self.device), labels=labels[mine].to(self.device))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), config.clip)
        self.optimizer.step()
        self.step += 1
        self.losses.append(self._mean(loss.detach()))
        self.timed += 1
        if self.timed == _WARM:
            self.since = time.perf_counter()

    def agreed(self, leave: bool) -> bool:
        """Whether the first process wants to leave; all do or none."""
        if self.count == 1:
            return leave
        said = torch.tensor(float(leave), device=self.device)
        dist.broadcast(said, 0)
        return bool(said)

    def tokens_per_second(self) -> float:
        """Of all processes; nan within the first steps. Every step's loss is read, so all of its work is done."""
        steps, spent = self.timed - _WARM, time.perf_counter() - self.since
        return steps * self.config.batch * self.config.length / spent if steps > 0 else math.nan

    def mfu(self, tokens_per_second: float) -> float | None:
        """The share of the peak flops of all cards."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else ""
        peak = next((flops for part, flops in PEAK_FLOPS.items() if part in name), None)
        return None if peak is None else tokens_per_second * self.flops / (self.count * peak)

    @torch.no_grad()
    def held_out(self, count: int = 64) -> float:
        """The loss on the same rows of the text's end each time."""
        config = self.config
        count -= count % self.count
        ids, labels = rows(config.text, config.length, count, (HELD_OUT, config.seed), held_out=True)
        mine = slice(self.rank * count // self.count, (self.rank + 1) * count // self.count)
        self.trained.eval()
        losses = []
        for x, y in zip(ids[mine].split(config.batch), labels[mine].split(config.batch), strict=True):
            with self._autocast():
                loss, _ = self.trained(x.to(self.device), labels=y.to(self.device))
            losses.append(loss * len(x))
        self.trained.train()
        return self._mean(torch.stack(losses).sum() * self.count / count)

    def save(self, path: Path) -> None:
        """Every process takes part; the first writes. Adam's moments are there after the first step."""
        model = get_model_state_dict(self.model, options=_FULL)
        optimizer = get_optimizer_state_dict(self.model, self.optimizer, options=_FULL)
        if not self.first:  # where the two are empty
            return
        moments: dict[str, Any] = optimizer["state"]  # type: ignore[assignment]
        tensors: dict[str, Tensor] = {f"model.{name}": x for name, x in model.items()}
        tensors |= {f"optimizer.{entry}.{name}": x for name, of in moments.items() for entry, x in of.items()}
        facts = {
            "config": to_dict(self.config),
            "config_hash": config_hash(self.config),
            "text": digest(self.config.text),
            "step": self.step,
            "losses": self.losses,
        }
        checkpoints.save(path, checkpoints.Checkpoint(tensors, self.rule, facts))
        lines = [{"step": n + 1, "loss": loss} for n, loss in enumerate(self.losses)]
        path.with_name("log.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines), encoding="utf-8")

    def restore(self, saved: checkpoints.Checkpoint) -> None:
        config = from_dict(LMTrainConfig, saved.facts["config"])
        require(config == self.config, f"the run in the folder has another configuration: {config}")
        require(
            saved.facts["text"] == digest(self.config.text),
            f"the text {self.config.text!r} is not what the run was trained on: its bytes have changed",
        )
        model = {n.removeprefix("model."): x for n, x in saved.tensors.items() if n.startswith("model.")}
        set_model_state_dict(self.model, model, options=_FULL)
        # The groups and their settings are as the configuration makes them.
        groups = get_optimizer_state_dict(self.model, self.optimizer)["param_groups"]
        state: dict[str, dict[str, Tensor]] = {}
        for key, x in saved.tensors.items():
            if key.startswith("optimizer."):
                _, entry, name = key.split(".", 2)
                state.setdefault(name, {})[entry] = x
        set_optimizer_state_dict(self.model, self.optimizer, {"state": state, "param_groups": groups}, options=_FULL)
        self.step, self.losses = saved.facts["step"], list(saved.facts["losses"])

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.bf16)

    def _mean(self, x: Tensor) -> float:
        """The mean over the processes."""
        if self.count > 1:
            x = x.clone()
            dist.all_reduce(x)
            x = x / self.count
        return float(x)


def schedule(config: LMTrainConfig, step: int) -> float:
    """The factor on the learning rate at a step counted from 0."""
    if step < config.warmup:
        return (step + 1) / config.warmup
    done = (step - config.warmup) / max(1, config.steps - config.warmup)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * done))


def load_model(path: Path, *, rule: Rule | None = None, allow_other_rule: bool = False) -> LanguageModel:
    """The model of a checkpoint; `rule` and `allow_other_rule` as in `checkpoint.load`."""
    saved = checkpoints.load(path, rule, allow_other_rule)
    assert saved.rule is not None
    config = from_dict(LMTrainConfig, saved.facts["config"])
    model = LanguageModel(config.model, saved.rule, config.seed)
    model.load_state_dict({n.removeprefix("model."): x for n, x in saved.tensors.items() if n.startswith("model.")})
    return model.eval()


def _optimizer(model: LanguageModel, config: LMTrainConfig) -> torch.optim.AdamW:
    """Weight decay falls on the matrices of layers alone: not on the embedding, norms, convolutions, a rule's params."""
    decayed = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear)}
    groups = [
        {"params": [p for p in model.parameters() if id(p) in decayed], "weight_decay": config.weight_decay},
        {"params": [p for p in model.parameters() if id(p) not in decayed], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.95))
