"""Figures that redraw themselves: beside path.png and path.svg stand path.csv, their data, and path.json, the settings.

    python -m stateir.models.figures path.json

draws them again. The JSON needs no more than "figure" and "config" for that; what was trained is taken from the CSV.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

import stateir

from . import theory
from .config import from_dict, require
from .curves import Curves, curves, read_measured
from .drawing import COLOURS, drawing, files_of, style
from .frontier import Run, points, staircase, table
from .interference import BindingsConfig, interference
from .state_size import ELEMENT

Unit: TypeAlias = Literal["bytes", "elements"]


@dataclass(frozen=True)
class ErrorByAge:
    """The error of a binding after all writes against its age, by simulation and in closed form.

    rules: of the library. beta: for the rules that have an input of this name. repetitions: independent states.
    """

    rules: tuple[str, ...] = ("additive", "delta")
    bindings: BindingsConfig = field(default_factory=BindingsConfig)
    beta: float = 1.0
    repetitions: int = 300
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", tuple(self.rules))
        require(0 < len(self.rules) <= len(COLOURS), f"rules must be 1 to {len(COLOURS)}, got {len(self.rules)}")
        require(self.repetitions >= 2, f"repetitions must be at least 2, got {self.repetitions}")


@dataclass(frozen=True)
class Frontier:
    """Accuracy against state size. unit: of the horizontal axis. task: what was measured, for the other axis."""

    title: str = ""
    task: str = ""
    unit: Unit = "bytes"

    def __post_init__(self) -> None:
        require(self.unit in get_args(Unit), f"unit must be one of {get_args(Unit)}, got {self.unit!r}")


def error_by_age(config: ErrorByAge, path: Path) -> list[Path]:
    """Simulates and draws; returns the files. The CSV has a row for each series and age; |v|^2 is 1."""
    rows: list[dict[str, Any]] = []
    for name in config.rules:
        rule = stateir.load(name)
        inputs = {"beta": config.beta} if any(i.name == "beta" for i in rule.inputs) else {}
        trace = interference(rule, config.bindings, repetitions=config.repetitions, seed=config.seed, inputs=inputs)
        error = trace.error_by_age
        spread = error.std(0, ddof=1) / np.sqrt(len(error))
        rows += [
            {"series": name, "age": age, "error": float(e), "standard_error": float(s)}
            for age, (e, s) in enumerate(zip(error.mean(0), spread, strict=True))
        ]
    for name, curve in _closed_forms(config).items():
        rows += [{"series": name, "age": a, "error": float(e), "standard_error": ""} for a, e in enumerate(curve)]
    with drawing(path, "error_by_age", config, rows) as axes:
        for name, colour in zip(config.rules, COLOURS, strict=False):
            own = [r for r in rows if r["series"] == name]
            ages, errors, spreads = (np.array([r[k] for r in own]) for k in ("age", "error", "standard_error"))
            axes.plot(ages, errors, color=colour, marker="o", ms=3, lw=0, label=f"{name}, simulated")
            axes.vlines(ages, errors - 2 * spreads, errors + 2 * spreads, color=colour, lw=1)
        for name, style in zip(_closed_forms(config), ("-", "--"), strict=False):
            axes.plot([r["error"] for r in rows if r["series"] == name], color="0.3", lw=1, ls=style, label=name)
        b = config.bindings
        axes.set(
            xlabel="age: writes since the binding's own", ylabel="squared error of the read, in units of |v|²",
            title=f"{b.writes} bindings, keys in {b.key_dim} dimensions: {b.geometry}; β = {config.beta:g}",
        )  # fmt: skip
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
    return files_of(path)


def frontier(config: Frontier, runs: Sequence[Run], path: Path) -> list[Path]:
    """Draws a faint dot for each run, a marker with its range over seeds at the best learning rate, and a staircase for
    each rule; a hollow marker says that this learning rate is at the edge of those tried. path.md: the matched sizes.
    """
    require(len(runs) > 0, "runs must be at least one, got none")
    found = points(runs)
    rules = sorted({run.rule for run in runs})
    scale = 1 if config.unit == "bytes" else ELEMENT
    with drawing(path, "frontier", config, [asdict(run) for run in runs]) as axes:
        for i, rule in enumerate(rules):
            colour, marker = style(i)
            own = [run for run in runs if run.rule == rule]
            axes.plot(
                [r.state_bytes / scale for r in own], [r.accuracy for r in own], ".", color=colour, alpha=0.3, mew=0
            )
            steps = staircase(found, rule)
            axes.step([b / scale for b, _ in steps], [a for _, a in steps], where="post", color=colour, lw=1)
            for n, p in enumerate(q for q in found if q.rule == rule):
                x = p.state_bytes / scale
                axes.vlines(x, p.low, p.high, color=colour, lw=1.5)
                face = "white" if p.at_edge else colour
                axes.plot(x, p.median, marker, color=colour, mfc=face, ms=6, lw=0, label=None if n else rule)
        axes.set_xscale("log", base=2)
        axes.set(
            xlabel=f"state of all layers ({config.unit}, float32)", ylim=(-0.02, 1.02),
            ylabel="accuracy" + (f" ({config.task})" if config.task else ""), title=config.title,
        )  # fmt: skip
        axes.legend(frameon=False)
    path.with_suffix(".md").write_text(table(found) + "\n", encoding="utf-8")
    return [*files_of(path), path.with_suffix(".md")]


def read_runs(file: Path) -> list[Run]:
    """The runs of a frontier's CSV."""
    with file.open(newline="", encoding="utf-8") as rows:
        kinds: Mapping[str, Callable[[str], Any]] = {"state_bytes": int, "lr": float, "seed": int, "accuracy": float}
        return [from_dict(Run, {k: kinds.get(k, str)(v) for k, v in row.items()}) for row in csv.DictReader(rows)]


def redraw(file: Path) -> list[Path]:
    """Draws again what a figure's JSON describes.

    Raises:
        ValueError: for a JSON that is not a figure's, or whose configuration has unknown fields.
    """
    told = json.loads(file.read_text(encoding="utf-8"))
    kind, path = told.get("figure"), file.with_suffix("")
    if kind == "error_by_age":
        return error_by_age(from_dict(ErrorByAge, told["config"]), path)
    if kind == "curves":
        return curves(from_dict(Curves, told["config"]), read_measured(path.with_suffix(".csv")), path)
    require(kind == "frontier", f"{file}: figure must be curves, error_by_age or frontier, got {kind!r}")
    return frontier(from_dict(Frontier, told["config"]), read_runs(path.with_suffix(".csv")), path)


def _closed_forms(config: ErrorByAge) -> dict[str, Sequence[float]]:
    b = config.bindings
    D, d = b.writes, b.key_dim
    if b.geometry == "sphere":
        delta = theory.delta_error_by_age(D, d, config.beta)
        return {"additive, closed form": [theory.additive_error(D, d)] * D, "delta, closed form": delta.tolist()}
    if b.geometry == "correlated":
        return {"additive, closed form": [theory.additive_error_correlated(D, d, b.r)] * D}
    if b.geometry == "orthonormal":
        left = theory.delta_orthonormal_error(config.beta)
        return {"additive, closed form": [0.0] * D, "delta, closed form": [left] * D}
    return {}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m stateir.models.figures", description="Draws a figure again.")
    parser.add_argument("json", type=Path, help="the JSON beside the figure")
    for file in redraw(parser.parse_args().json):
        print(file)


if __name__ == "__main__":
    main()
