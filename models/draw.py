"""Random draws of whole batches, each row by the same law and independent of the others."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def distinct(rng: np.random.Generator, rows: int, ids: int, count: int) -> NDArray[np.int64]:
    """[rows, count] of 0 .. ids-1, without repetition in a row, every ordered choice equally likely."""
    if 4 * count > ids:
        return np.argsort(rng.random((rows, ids)), axis=1)[:, :count]
    drawn = rng.integers(ids, size=(rows, count))
    # Redrawing repetitions treats all ids alike, so the outcome stays uniform, and costs far less than a permutation.
    while True:
        order = np.argsort(drawn, axis=1, kind="stable")
        ranked = np.take_along_axis(drawn, order, axis=1)
        repeated = np.zeros_like(drawn, dtype=bool)
        np.put_along_axis(repeated, order[:, 1:], ranked[:, 1:] == ranked[:, :-1], axis=1)
        again = int(repeated.sum())
        if again == 0:
            return drawn
        drawn[repeated] = rng.integers(ids, size=again)


def weighted_distinct(
    rng: np.random.Generator, rows: int, law: NDArray[np.float64], count: int
) -> NDArray[np.int64]:  # fmt: skip
    """[rows, count] indices of `law` without repetition in a row, drawn one after the other by their weights."""
    # The Gumbel trick: the order of log p + Gumbel noise is that of drawing one after the other without repetition.
    noise = -np.log(rng.exponential(size=(rows, len(law))))
    return np.argsort(-(np.log(law) + noise), axis=1)[:, :count]


def gap_law(space: int, a: float) -> NDArray[np.float64]:
    """P(g) ~ (g+1)^(a-1) for g in 0 .. space-1."""
    law = a * np.arange(1, space + 1, dtype=np.float64) ** (a - 1)
    return np.asarray(law / law.sum())
