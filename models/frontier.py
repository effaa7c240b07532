"""The recall-memory frontier from run records: accuracy against the bytes of state that it took."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from .config import require


@dataclass(frozen=True)
class Run:
    """One finished run. state_bytes: of the whole model, computed from the rule. accuracy: the share right, [0, 1].
    config_hash: names the run's configuration."""

    rule: str
    state_bytes: int
    lr: float
    seed: int
    accuracy: float
    config_hash: str = ""

    def __post_init__(self) -> None:
        require(self.state_bytes > 0, f"state_bytes must be positive, got {self.state_bytes}")
        require(self.lr > 0, f"lr must be positive, got {self.lr}")
        require(0 <= self.accuracy <= 1, f"accuracy must be in [0, 1], got {self.accuracy}")


@dataclass(frozen=True)
class Point:
    """A rule at one state size and its best learning rate. low, high: the range over seeds; at_edge: the best learning
    rate is the smallest or largest of those tried, so that a better one may lie outside."""

    rule: str
    state_bytes: int
    lr: float
    seeds: int
    median: float
    low: float
    high: float
    at_edge: bool


def points(runs: Iterable[Run]) -> list[Point]:
    """One point for each rule and size, by rule and then size.

    The best learning rate has the highest median among those that ran on the most seeds: a median of fewer is luckier.
    Runs at one learning rate alone are never at an edge.

    Raises:
        ValueError: for two runs with the same rule, size, learning rate and seed.
    """
    groups: dict[tuple[str, int], dict[float, dict[int, float]]] = {}
    for run in runs:
        seeds = groups.setdefault((run.rule, run.state_bytes), {}).setdefault(run.lr, {})
        require(run.seed not in seeds, f"runs must differ; {run.rule} with {run.state_bytes} bytes, lr {run.lr:g} and "
                f"seed {run.seed} is there twice")  # fmt: skip
        seeds[run.seed] = run.accuracy
    found = []
    for (rule, size), rates in sorted(groups.items()):
        most = max(len(seeds) for seeds in rates.values())
        full = {lr: list(seeds.values()) for lr, seeds in rates.items() if len(seeds) == most}
        best = max(sorted(full), key=lambda lr: median(full[lr]))
        accuracies = full[best]
        edge = len(rates) > 1 and best in (min(rates), max(rates))
        found.append(Point(rule, size, best, most, median(accuracies), min(accuracies), max(accuracies), edge))
    return found


def staircase(found: Iterable[Point], rule: str) -> list[tuple[int, float]]:
    """The Pareto steps of a rule, (bytes, accuracy): points that no smaller or equal state of it reaches."""
    steps: list[tuple[int, float]] = []
    own = sorted((p for p in found if p.rule == rule), key=lambda p: (p.state_bytes, -p.median))
    for p in own:
        if not steps or p.median > steps[-1][1]:
            steps.append((p.state_bytes, p.median))
    return steps


def matched_sizes(found: Iterable[Point]) -> dict[int, dict[str, float | None]]:
    """For every size that occurs, each rule's best accuracy with at most that many bytes; None where it has none.

    Rules rarely have equal sizes, so "at most" is the comparison that no one can win by a larger state.
    """
    every = list(found)
    steps = {rule: staircase(every, rule) for rule in sorted({p.rule for p in every})}
    return {
        size: {rule: max((a for b, a in steps[rule] if b <= size), default=None) for rule in steps}
        for size in sorted({p.state_bytes for p in every})
    }


def table(found: Iterable[Point]) -> str:
    """`matched_sizes` as Markdown, accuracies with three digits."""
    sizes = matched_sizes(found)
    rules = sorted({rule for row in sizes.values() for rule in row})
    lines = [["state bytes, at most", *rules], ["---:"] * (1 + len(rules))]
    for size, row in sizes.items():
        lines.append([f"{size:,}", *("–" if (a := row[rule]) is None else f"{a:.3f}" for rule in rules)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
