"""Accuracy along one quantity: pairs, length, the distance knob, the learning rate or the steps of training.

A faint line for each run, the median over seeds with its range at the best learning rate, hollow where that rate is the
smallest or largest tried. Along the length, path.md says how much context is usable.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal, TypeAlias, get_args

from .config import require
from .drawing import drawing, files_of, style
from .usable_context import UsableContext, ratio, usable_context

X: TypeAlias = Literal["pairs", "length", "a", "lr", "steps"]
NAMES: dict[X, str] = {
    "pairs": "pairs in a row, D",
    "length": "tokens of a row",
    "a": "distance knob a: 0.01 near, 1 uniform, more is far",
    "lr": "largest learning rate",
    "steps": "training steps",
}


@dataclass(frozen=True)
class Curves:
    """x: the horizontal axis. task: what was measured, for the other axis.

    trained: the largest x that was trained on, drawn as a line, 0 for none. plateau: an accuracy drawn as a line, that
    of a model which knows the values of a row and cannot bind them, 0 for none. thresholds: of usable context, in
    percent, along the length alone. against: the series whose usable context the others' is divided by, "" for none.
    """

    x: X
    title: str = ""
    task: str = ""
    trained: float = 0.0
    plateau: float = 0.0
    thresholds: tuple[float, ...] = ()
    against: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "thresholds", tuple(self.thresholds))
        require(self.x in get_args(X), f"x must be one of {get_args(X)}, got {self.x!r}")
        require(not self.thresholds or self.x == "length", f"thresholds must be empty along {self.x}")


@dataclass(frozen=True)
class Measured:
    """One accuracy of one run. series: a rule, or what else is told apart."""

    series: str
    lr: float
    seed: int
    x: float
    accuracy: float
    config_hash: str = ""


@dataclass(frozen=True)
class Series:
    """A series at its best learning rate: by x the accuracies by seed. rates: all learning rates that were tried."""

    name: str
    lr: float
    rates: tuple[float, ...]
    by_x: dict[float, dict[int, float]]

    @property
    def at_edge(self) -> bool:
        """Whether a better learning rate may lie outside those tried."""
        return len(self.rates) > 1 and self.lr in (self.rates[0], self.rates[-1])


def best_series(rows: Iterable[Measured]) -> list[Series]:
    """By name. The best learning rate has the highest median over seeds of the mean over x, among those that ran on the
    most seeds, since a median of fewer is luckier.

    Raises:
        ValueError: for two accuracies of the same series, learning rate, seed and x.
    """
    groups: dict[str, dict[float, dict[int, dict[float, float]]]] = {}
    for r in rows:
        own = groups.setdefault(r.series, {}).setdefault(r.lr, {}).setdefault(r.seed, {})
        require(
            r.x not in own, f"rows must differ; {r.series} with lr {r.lr:g}, seed {r.seed} at {r.x:g} is there twice"
        )
        own[r.x] = r.accuracy
    found = []
    for name, rates in sorted(groups.items()):
        most = max(len(seeds) for seeds in rates.values())
        full = {lr: seeds for lr, seeds in rates.items() if len(seeds) == most}
        lr = max(sorted(full), key=lambda lr: median(fmean(a.values()) for a in full[lr].values()))
        by_x = {
            x: {seed: at[x] for seed, at in sorted(full[lr].items()) if x in at}
            for x in sorted({x for at in full[lr].values() for x in at})
        }
        found.append(Series(name, lr, tuple(sorted(rates)), by_x))
    return found


def by_rate(rows: Iterable[Measured]) -> list[Series]:
    """Along the learning rate: `rows` have it as x; `lr` of a series is the best one."""
    groups: dict[str, dict[float, dict[int, float]]] = {}
    for r in rows:
        at = groups.setdefault(r.series, {}).setdefault(r.x, {})
        require(r.seed not in at, f"rows must differ; {r.series} with lr {r.x:g} and seed {r.seed} is there twice")
        at[r.seed] = r.accuracy
    found = []
    for name, by_x in sorted(groups.items()):
        best = max(sorted(by_x), key=lambda lr: (len(by_x[lr]), median(by_x[lr].values())))
        found.append(Series(name, best, tuple(sorted(by_x)), dict(sorted(by_x.items()))))
    return found


def curves(config: Curves, rows: Sequence[Measured], path: Path) -> list[Path]:
    """Draws and writes; returns the files."""
    require(len(rows) > 0, "rows must be at least one, got none")
    found = by_rate(rows) if config.x == "lr" else best_series(rows)
    with drawing(path, "curves", config, [asdict(r) for r in rows]) as axes:
        for n, series in enumerate(found):
            _draw(axes, series, config, *style(n))
        if config.trained:
            axes.axvline(config.trained, color="0.6", lw=1, ls=":", label="largest trained on")
        if config.plateau:
            axes.axhline(config.plateau, color="0.6", lw=1, ls="--", label="1/D: knows the values, cannot bind")
        for tau in config.thresholds:
            axes.axhline(tau / 100, color="0.8", lw=0.8)
        if config.x == "steps":
            axes.set_xlim(left=0)
        elif min(r.x for r in rows) > 0:
            axes.set_xscale("log", base=10 if config.x in ("lr", "a") else 2)
        axes.set(
            xlabel=NAMES[config.x], ylabel="held-out accuracy" + (f" ({config.task})" if config.task else ""),
            ylim=(-0.02, 1.02), title=config.title,
        )  # fmt: skip
        axes.legend(frameon=False, fontsize="small")
    text = path.with_suffix(".md")
    text.write_text(summary(config, found) + "\n", encoding="utf-8")
    return [*files_of(path), text]


def summary(config: Curves, found: Sequence[Series]) -> str:
    """Medians and ranges over seeds as Markdown, the grid-edge warnings, and the usable context."""
    xs = sorted({x for s in found for x in s.by_x})
    head = ["series", "lr", "seeds", *(f"{x:g}" for x in xs)]
    lines = [head, ["---"] + ["---:"] * (len(head) - 1)]
    for s in found:
        cells = [_spread(list(s.by_x[x].values())) if x in s.by_x else "–" for x in xs]
        seeds = max(len(at) for at in s.by_x.values())
        lines.append([s.name, f"{s.lr:g}", str(seeds), *cells])
    parts = ["\n".join(f"| {' | '.join(line)} |" for line in lines)]
    edges = [f"{s.name} ({s.lr:g})" for s in found if s.at_edge]
    if edges:
        parts.append(
            f"At the edge of the learning rates tried, so that a better one may lie outside: {', '.join(edges)}."
        )
    if config.thresholds:
        parts.append(_contexts(config, found))
    return "\n\n".join(parts)


def read_measured(file: Path) -> list[Measured]:
    """The rows of a figure's CSV."""
    with file.open(newline="", encoding="utf-8") as rows:
        return [
            Measured(r["series"], float(r["lr"]), int(r["seed"]), float(r["x"]), float(r["accuracy"]), r["config_hash"])
            for r in csv.DictReader(rows)
        ]


def _draw(axes: Any, series: Series, config: Curves, colour: str, marker: str) -> None:
    xs = list(series.by_x)
    for seed in sorted({seed for at in series.by_x.values() for seed in at}):
        own = [(x, at[seed]) for x, at in series.by_x.items() if seed in at]
        axes.plot(*zip(*own, strict=True), color=colour, alpha=0.25, lw=0.8)
    middle = [median(at.values()) for at in series.by_x.values()]
    axes.vlines(
        xs, [min(at.values()) for at in series.by_x.values()], [max(at.values()) for at in series.by_x.values()],
        color=colour, lw=1.2,
    )  # fmt: skip
    face = "white" if series.at_edge else colour
    label = series.name + (" (best lr at the edge)" if series.at_edge else "")
    axes.plot(xs, middle, color=colour, marker=marker, mfc=face, ms=5, lw=1.2, label=label)


def _spread(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return f"{median(values):.3f} ({min(values):.3f}–{max(values):.3f})"


def _contexts(config: Curves, found: Sequence[Series]) -> str:
    """Usable context, seed by seed, and its ratio to that of `against` for seeds in which both were measured."""
    contexts = {s.name: {tau: _by_seed(s, tau) for tau in config.thresholds} for s in found}
    head = ["usable context", *(f"{tau:g} %" for tau in config.thresholds)]
    if config.against:
        head += [f"ratio to {config.against} at {tau:g} %" for tau in config.thresholds]
    lines = [head, ["---"] + ["---:"] * (len(head) - 1)]
    for name, own in contexts.items():
        cells = [", ".join(map(str, own[tau].values())) for tau in config.thresholds]
        if config.against:
            cells += [_ratios(own[tau], contexts[config.against][tau]) for tau in config.thresholds]
        lines.append([name, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _by_seed(series: Series, tau: float) -> dict[int, UsableContext]:
    seeds = sorted({seed for at in series.by_x.values() for seed in at})
    return {
        seed: usable_context({int(x): 100 * at[seed] for x, at in series.by_x.items() if seed in at}, tau)
        for seed in seeds
    }


def _ratios(own: dict[int, UsableContext], other: dict[int, UsableContext]) -> str:
    both = [s for s in own if s in other and own[s].bound == other[s].bound == "measured"]
    if not both:
        return "not measured"
    return f"{_spread([ratio(own[s], other[s]) for s in both])}, {len(both)} of {len(own)} seeds"
