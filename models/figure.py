"""The figure of a set of runs, and beside it the CSV and the JSON that drew it."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .config import config_hash, to_dict
from .train import Result

# Colours that stay apart for colour-blind readers and in grey (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def save_figure(results: Sequence[Result], path: Path, title: str) -> list[Path]:
    """Writes held-out accuracy against steps, a line a run, to path.{png,svg,csv,json}; returns the four paths.

    All runs are of one task, whose plateau 1/D is drawn.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_suffix(suffix) for suffix in (".png", ".svg", ".csv", ".json")]
    rows = _rows(results)
    with files[2].open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    summary = [
        {"final_acc": r.final, "best_acc": r.best, "steps": r.steps, "config_hash": config_hash(r.config),
         "config": to_dict(r.config)} for r in results
    ]  # fmt: skip
    files[3].write_text(json.dumps({"title": title, "runs": summary}, indent=2) + "\n", encoding="utf-8")

    task = results[0].config.task
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for result, colour in zip(results, COLOURS, strict=False):
        steps = [0, *(r["step"] for r in result.records)]
        label = f"{result.config.model.rule}, {result.final:.3f}"
        axes.plot(steps, [0, *(r["accuracy"] for r in result.records)], color=colour, marker="o", ms=3, label=label)
    axes.axhline(task.plateau, color="0.5", lw=1, ls="--", label="1/D: knows the values, cannot bind")
    axes.set(
        xlabel="training steps", ylabel=f"held-out accuracy ({results[0].config.eval_rows} rows)", ylim=(-0.02, 1.02),
        xlim=(0, max(r.steps for r in results)), title=title,
    )  # fmt: skip
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best")
    for image in files[:2]:
        figure.savefig(image, dpi=160)
    plt.close(figure)
    return files


def _rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    return [
        {"rule": r.config.model.rule, "seed": r.config.seed, "config_hash": config_hash(r.config)}
        | {name: record[name] for name in ("step", "loss", "accuracy")}
        for r in results
        for record in r.records
    ]
