"""One row as two aligned lines of text."""

from __future__ import annotations

from collections.abc import Callable

from stateir.models.mqar import IGNORE, Ids


def two_lines(inputs: Ids, labels: Ids, name: Callable[[int], str]) -> str:
    """Every id by its name, `-` where nothing is asked. inputs, labels: [L]."""
    shown = [
        (name(i), "-" if label == IGNORE else name(label))
        for i, label in zip(inputs.tolist(), labels.tolist(), strict=True)
    ]
    width = max(len(s) for pair in shown for s in pair)
    above, below = (" ".join(s.rjust(width) for s in line) for line in zip(*shown, strict=True))
    return f"input  {above}\nlabels {below}"


def letter(i: int) -> str:
    """0 -> a, 25 -> z, 26 -> aa."""
    return (letter(i // 26 - 1) if i >= 26 else "") + chr(ord("a") + i % 26)
