"""Experiments: many runs, trained together by shape, written as JSON lines; a run that ended is never done again."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO

import numpy as np
import torch

from stateir.printer import fingerprint

from .config import config_hash, from_dict, require, to_dict
from .state_size import state_bytes
from .together import Together, shape_of, train_together
from .train import Result
from .train_config import TrainConfig
from .zoo import load_rule

RUNS = "runs.jsonl"


@dataclass(frozen=True)
class Experiment:
    """configs: the runs to begin with. more_seeds: for each shape the best learning rate and its neighbours are run
    with these seeds too, once all of its runs in `configs` are there. figures: names of `draw_results`."""

    name: str
    title: str
    configs: tuple[TrainConfig, ...]
    more_seeds: tuple[int, ...] = ()
    figures: tuple[str, ...] = ("frontier",)

    def __post_init__(self) -> None:
        require(len(self.configs) > 0, "configs must be at least one, got none")
        hashes = [config_hash(c) for c in self.configs]
        require(len(set(hashes)) == len(hashes), "configs must differ from each other")


@dataclass(frozen=True)
class Finished:
    """A run that ended, as a line of runs.jsonl has it.

    rule_hash: the fingerprint of the rule's text, "" for a baseline. tests: final accuracy on each of config.measured;
    tests_at_lower: the same with the params of config.at_lower at their lower end, empty where it names none.
    together: runs in its group; seconds: wall time of the group's training.
    """

    config: TrainConfig
    rule_hash: str
    state_bytes: int
    parameters: int
    final: float
    best: float
    tests: tuple[float, ...]
    tests_at_lower: tuple[float, ...]
    together: int
    seconds: float
    records: tuple[dict[str, Any], ...]
    versions: dict[str, str]


def read_finished(folder: Path) -> list[Finished]:
    """The runs of a folder that ended; a last line that was cut off by an interruption is left out.

    Raises:
        ValueError: for any other line that is not a run's.
    """
    file = folder / RUNS
    if not file.exists():
        return []
    text = file.read_text(encoding="utf-8")
    found = []
    for line in text[: text.rfind("\n") + 1].splitlines():
        data = json.loads(line)
        data.pop("config_hash")
        data |= {"config": from_dict(TrainConfig, data["config"])}
        data |= {name: tuple(data[name]) for name in ("tests", "tests_at_lower", "records")}
        found.append(from_dict(Finished, data))
    return found


def second_stage(experiment: Experiment, finished: Iterable[Finished]) -> list[TrainConfig]:
    """The runs with further seeds that can be named by now: the best learning rate of each shape and its neighbours."""
    done = {config_hash(run.config): run for run in finished}
    more = []
    for configs in _by_shape(experiment).values():
        if any(config_hash(c) not in done for c in configs):
            continue
        rates = sorted({c.lr for c in configs})
        best = max(rates, key=lambda lr: median(done[config_hash(c)].final for c in configs if c.lr == lr))
        at = rates.index(best)
        near = rates[max(0, at - 1) : at + 2]
        more += [replace(configs[0], lr=lr, seed=seed) for lr in near for seed in experiment.more_seeds]
    return more


def pending(experiment: Experiment, finished: Sequence[Finished]) -> list[TrainConfig]:
    """What is still to be run and can be named by now, in order."""
    done = {config_hash(run.config) for run in finished}
    return [c for c in (*experiment.configs, *second_stage(experiment, finished)) if config_hash(c) not in done]


def jobs(experiment: Experiment, at_once: int) -> list[Experiment]:
    """The experiment cut up for processes that share a folder: each a group of runs that are trained together.

    Those of every shape that are worth most, which come first in `configs`, stand before what is left of any shape.
    """
    shapes = list(_by_shape(experiment).values())
    return [
        replace(experiment, configs=tuple(configs[first : first + at_once]), more_seeds=())
        for first in range(0, max(len(configs) for configs in shapes), at_once)
        for configs in shapes
        if first < len(configs)
    ]


def follow_ups(experiment: Experiment) -> list[Experiment]:
    """For each shape what is to run once all of its `jobs` ended: the best learning rates with more seeds."""
    every = _by_shape(experiment).values() if experiment.more_seeds else []
    return [replace(experiment, configs=tuple(configs)) for configs in every]


def _by_shape(experiment: Experiment) -> dict[str, list[TrainConfig]]:
    shapes: dict[str, list[TrainConfig]] = {}
    for config in experiment.configs:
        shapes.setdefault(shape_of(config), []).append(config)
    return shapes


def runs_in_all(experiment: Experiment) -> int:
    """The most runs that an experiment comes to."""
    near = sum(min(3, len({c.lr for c in configs})) for configs in _by_shape(experiment).values())
    return len(experiment.configs) + near * len(experiment.more_seeds)


Report = Callable[[Together], None]


def conduct(
    experiment: Experiment, folder: Path, *, device: str = "cpu", at_once: int = 8, until: float = math.inf,
    report: Report | None = None, ended: Callable[[list[Finished]], None] | None = None, graph: bool = True,
) -> bool:  # fmt: skip
    """Runs what is pending, up to `at_once` runs of one shape together; whether all of it ended.

    A group that is left at `until` (of `time.monotonic`), or killed, goes on from its last checkpoint in `unfinished/`.

    Args:
        report: called after every step of a group. ended: called with the runs of each group that ended.
        graph: whether steps on a GPU are recorded as CUDA graphs.
    """
    require(at_once >= 1, f"at_once must be at least 1, got {at_once}")
    _repair(folder / RUNS)
    _check_rules(read_finished(folder))
    while left := pending(experiment, read_finished(folder)):
        group = [c for c in left if shape_of(c) == shape_of(left[0])][:at_once]
        if time.monotonic() > until:
            return False
        name = hashlib.sha256("".join(config_hash(c) for c in group).encode()).hexdigest()[:12]
        saved = folder / "unfinished" / f"{name}.safetensors"
        results = train_together(group, device=device, saved=saved, until=until, report=report, graph=graph)
        if results is None:
            return False
        found = [_finished(r, len(group), device) for r in results]
        _append(folder / RUNS, found)
        saved.unlink()
        if ended is not None:
            ended(found)
    return True


def versions(device: str) -> dict[str, str]:
    """What a number was measured with."""
    card = torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else platform.machine()
    return {
        "stateir": metadata.version("stateir"),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": card,
        "float32_products": torch.get_float32_matmul_precision(),
    }


def _finished(result: Result, together: int, device: str) -> Finished:
    config, last = result.config, result.records[-1]
    rule = load_rule(config.model)
    size = state_bytes(config.model, rule, config.longest)
    at_lower = tuple(last.get("tests_at_lower", ()))
    return Finished(
        config, _rule_hash(config), size, result.parameters, result.final, result.best, tuple(last["tests"]), at_lower,
        together, float(last["seconds"]), result.records, versions(device),
    )  # fmt: skip


def _rule_hash(config: TrainConfig) -> str:
    rule = load_rule(config.model)
    return "" if rule is None else fingerprint(rule)


def _check_rules(finished: Iterable[Finished]) -> None:
    """A run of a rule that was edited since is another experiment's."""
    current: dict[str, str] = {}
    for run in finished:
        name = run.config.model.rule
        if name not in current:
            current[name] = _rule_hash(run.config)
        require(run.rule_hash == current[name], f"folder must hold runs of the rules as they are; {name} was edited "
                f"since run {config_hash(run.config)}")  # fmt: skip


def _append(file: Path, runs: Sequence[Finished]) -> None:
    lines = [json.dumps({"config_hash": config_hash(r.config)} | to_dict(r)) + "\n" for r in runs]
    with _locked(file) as out:
        out.write("".join(lines).encode())
        out.flush()
        os.fsync(out.fileno())


def _repair(file: Path) -> None:
    """Cuts off a last line that an interruption left without its end, so that the next one starts at its own."""
    with _locked(file) as out:
        out.seek(0)
        text = out.read()
        if text and not text.endswith(b"\n"):
            out.truncate(text.rfind(b"\n") + 1)


@contextmanager
def _locked(file: Path) -> Iterator[BinaryIO]:
    """The file, for reading and for appending, while no other process writes to it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+b") as out:
        fcntl.flock(out, fcntl.LOCK_EX)
        yield out
