"""From the runs of an experiment to its figures: each figure's rows are taken from runs.jsonl alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .config import config_hash, require
from .curves import Curves, Measured, X, curves
from .figures import Frontier, frontier
from .frontier import Run
from .lab import Experiment, Finished
from .tasks import task_of
from .together import shape_of

THRESHOLDS = (50.0, 80.0, 90.0)


def draw_results(experiment: Experiment, runs: Sequence[Finished], folder: Path) -> list[Path]:
    """The experiment's figures from the runs that ended, in `folder`; returns the files."""
    shapes = {shape_of(c) for c in experiment.configs}
    runs = [r for r in runs if shape_of(r.config) in shapes]
    require(len(runs) > 0, f"runs must be at least one of {experiment.name}, got none")
    files = []
    for name in experiment.figures:
        files += _frontier(experiment, runs, folder) if name == "frontier" else _curves(experiment, name, runs, folder)
    return files


def matched(runs: Sequence[Finished], budget: int) -> list[Finished]:
    """Of each rule the runs at its largest state within `budget` bytes; a rule with none is left out."""
    largest: dict[str, int] = {}
    for r in runs:
        if r.state_bytes <= budget:
            largest[r.config.model.rule] = max(r.state_bytes, largest.get(r.config.model.rule, 0))
    return [r for r in runs if largest.get(r.config.model.rule) == r.state_bytes]


def _frontier(experiment: Experiment, runs: Sequence[Finished], folder: Path) -> list[Path]:
    points = [
        Run(r.config.model.rule, r.state_bytes, r.config.lr, r.config.seed, r.final, config_hash(r.config))
        for r in runs
    ]
    return frontier(Frontier(experiment.title, _measured(runs)), points, folder / "frontier")


def _curves(experiment: Experiment, name: Any, runs: Sequence[Finished], folder: Path) -> list[Path]:
    x: X = name
    title = experiment.title
    if x == "pairs":
        budget = sorted(r.state_bytes for r in runs)[len(runs) // 2]
        runs, title = matched(runs, budget), f"{title}: at most {budget:,} bytes of state"
    rows = _rows(x, runs, _label(runs))
    first = runs[0].config
    trained = float(max(getattr(c, x) for c in first.slices)) if x in ("pairs", "length") and first.tests else 0.0
    against = "gdn2" if x == "length" and any(r.series == "gdn2" for r in rows) else ""
    config = Curves(
        x, title, _measured(runs), trained, getattr(first.task, "plateau", 0.0) if x == "steps" else 0.0,
        THRESHOLDS if x == "length" else (), against,
    )  # fmt: skip
    return curves(config, rows, folder / f"accuracy_by_{x}")


def _rows(x: X, runs: Sequence[Finished], label: Callable[[Finished], str]) -> list[Measured]:
    rows = []
    for r in runs:
        name, config, key = label(r), r.config, config_hash(r.config)

        def row(series: str, at: float, accuracy: float, c: Any = config, key: str = key) -> Measured:
            return Measured(series, c.lr, c.seed, at, accuracy, key)

        if x == "lr":
            rows.append(row(name, config.lr, r.final))
        elif x == "steps":
            rows += [row(name, float(e["step"]), e["accuracy"]) for e in r.records]
        else:
            rows += _by_test(x, r, name, row)
    return rows


def _by_test(x: X, run: Finished, name: str, row: Callable[[str, float, float], Measured]) -> list[Measured]:
    """Accuracy on each test; tests with one x, such as (64, 8) and (32, 8) along the pairs, are averaged."""
    arms = [(name, run.tests)]
    if run.tests_at_lower:
        arms.append((f"{name}, {' and '.join(run.config.at_lower)} at the lower end", run.tests_at_lower))
    rows = []
    for series, accuracies in arms:
        at: dict[float, list[float]] = {}
        for test, accuracy in zip(run.config.measured, accuracies, strict=True):
            at.setdefault(float(getattr(test, x)), []).append(accuracy)
        rows += [row(series, value, sum(found) / len(found)) for value, found in at.items()]
    return rows


def _label(runs: Sequence[Finished]) -> Callable[[Finished], str]:
    """The rule, with the bytes of its state where a rule has several sizes."""
    sizes: dict[str, set[int]] = {}
    for r in runs:
        sizes.setdefault(r.config.model.rule, set()).add(r.state_bytes)
    return lambda r: r.config.model.rule + (f", {r.state_bytes:,} B" if len(sizes[r.config.model.rule]) > 1 else "")


def _measured(runs: Sequence[Finished]) -> str:
    config = runs[0].config
    tests = len(config.measured)
    return f"{task_of(config.task)}, {config.eval_rows} rows" + (f" of each of {tests} slices" if tests > 1 else "")
