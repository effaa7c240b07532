"""What all figures share: path.png, path.svg, path.csv with their data, path.json with the settings."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .config import config_hash, require, to_dict

# Colours that stay apart for colour-blind readers and in grey (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def style(n: int) -> tuple[str, str]:
    """Colour and marker of the n-th series.

    Raises:
        ValueError: if there are more series than can be told apart.
    """
    most = len(COLOURS) * len(MARKERS)
    require(n < most, f"series must be at most {most}, got {n + 1}")
    return COLOURS[n % len(COLOURS)], MARKERS[n // len(COLOURS)]


def files_of(path: Path) -> list[Path]:
    """The four files of a figure."""
    return [path.with_suffix(suffix) for suffix in (".png", ".svg", ".csv", ".json")]


@contextmanager
def drawing(path: Path, kind: str, config: Any, rows: Sequence[dict[str, Any]]) -> Iterator[Any]:
    """Axes to draw on; afterwards the four files are there. Equal data give equal bytes of the CSV, JSON and SVG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    png, svg, data, description = files_of(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with data.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    command = f"python -m stateir.models.figures {description.name}"
    told = {"figure": kind, "command": command, "hash": config_hash(config), "config": to_dict(config)}
    description.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    with matplotlib.rc_context({"svg.hashsalt": kind, "svg.fonttype": "none"}):
        figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
        try:
            yield axes
            axes.spines[["top", "right"]].set_visible(False)
            figure.savefig(png, dpi=160)
            figure.savefig(svg, metadata={"Date": None})
        finally:
            plt.close(figure)
