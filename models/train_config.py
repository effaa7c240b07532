"""The configuration of a training run, of any task and model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np

from .config import from_dict, require
from .mqar import MqarConfig
from .rows import Draw
from .tasks import TASKS, task_of
from .zoo import ModelConfig

# The first number of the seed that chooses a step's slice; see rows.TRAIN.
CHOICE = 2


@dataclass(frozen=True)
class TrainConfig:
    """A run in full; stored with every accuracy.

    task: what is trained on, a configuration of one of TASKS; task_name: its name there, filled in where empty ("mqar"
    if the task is a mapping). mix: further slices of the same task: each step draws all its rows from one, chosen by
    `weights` (of task and mix in this order; equal where empty), the same one for every seed. tests: the slices
    that are measured, those trained on where empty; the accuracy of a run is their mean.
    lr rises linearly over `warmup` steps and falls along a cosine to 0 at `steps`. scalar_lr: factor on the learning
    rate of the rule's scalar params. clip: largest norm of the gradient. eval_every: steps between evaluations on
    eval_rows held-out rows of each test (the same ones each time). stop_at: accuracy that ends the run early, None for
    never. draw: where rows are drawn, see `rows.draw`. at_lower: params of the rule which a second measurement at the
    end puts at the lower end of their range, all at once.
    """

    task: Any = field(default_factory=MqarConfig)
    task_name: str = ""
    mix: tuple[Any, ...] = ()
    weights: tuple[float, ...] = ()
    tests: tuple[Any, ...] = ()
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
    draw: Draw = "host"
    at_lower: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._build_tasks()
        for name in ("weights", "at_lower"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("steps", "batch", "eval_every", "eval_rows"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("lr", "scalar_lr", "clip"):
            require(getattr(self, name) > 0, f"{name} must be positive, got {getattr(self, name)}")
        require(0 <= self.warmup <= self.steps, f"warmup must be in 0 .. steps = {self.steps}, got {self.warmup}")
        require(self.weight_decay >= 0, f"weight_decay must be at least 0, got {self.weight_decay}")
        require(self.seed >= 0, f"seed must be at least 0, got {self.seed}")
        require(self.stop_at is None or 0 < self.stop_at <= 1, f"stop_at must be in (0, 1], got {self.stop_at}")
        require(self.draw in get_args(Draw), f"draw must be one of {get_args(Draw)}, got {self.draw!r}")
        slices = 1 + len(self.mix)
        require(len(self.weights) in (0, slices), f"weights must be {slices}, one a slice, got {len(self.weights)}")
        require(all(w > 0 for w in self.weights), f"weights must be positive, got {self.weights}")
        positions, longest = self.model.positions, self.longest
        require(positions == 0 or positions >= longest, f"model.positions must be at least {longest}, the longest row, "
                f"got {positions}")  # fmt: skip

    def _build_tasks(self) -> None:
        name = (self.task_name or "mqar") if isinstance(self.task, Mapping) else task_of(self.task)
        require(name in TASKS, f"task_name must be one of {', '.join(TASKS)}, got {name!r}")
        require(self.task_name in ("", name), f"task_name must be {name!r}, that of task, got {self.task_name!r}")
        object.__setattr__(self, "task_name", name)
        build = TASKS[name].config

        def built(given: Any) -> Any:
            config = from_dict(build, given) if isinstance(given, Mapping) else given
            require(type(config) is build, f"mix and tests must be of task {name}, got {type(config).__name__}")
            return config

        object.__setattr__(self, "task", built(self.task))
        object.__setattr__(self, "mix", tuple(built(c) for c in self.mix))
        object.__setattr__(self, "tests", tuple(built(c) for c in self.tests))

    @property
    def slices(self) -> tuple[Any, ...]:
        """All that is trained on."""
        return (self.task, *self.mix)

    @property
    def measured(self) -> tuple[Any, ...]:
        """All that is measured."""
        return self.tests or self.slices

    @property
    def longest(self) -> int:
        """The longest row, trained on or measured; a state that grows with the row is counted at its end."""
        return max(int(c.length) for c in (*self.slices, *self.measured))

    @property
    def tokens(self) -> int:
        """Ids that occur, hence rows of the embedding."""
        return max(int(c.tokens) for c in (*self.slices, *self.measured))


def slice_at(config: TrainConfig, step: int) -> Any:
    """The slice that a step's rows are of."""
    if not config.mix:
        return config.task
    weights = np.asarray(config.weights or [1.0] * len(config.slices))
    rng = np.random.default_rng((CHOICE, step))
    return config.slices[rng.choice(len(weights), p=weights / weights.sum())]


def schedule(config: TrainConfig, step: int) -> float:
    """The factor on the learning rate at a step counted from 0."""
    rise = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
    return rise * 0.5 * (1 + math.cos(math.pi * step / config.steps))
