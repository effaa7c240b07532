"""Parity: at every bit, whether the number of ones so far is odd.

A recurrence with eigenvalues in [0, 1] cannot keep it over all lengths; with one eigenvalue -1 it can
(Grazzi et al., arXiv:2411.12537; `reflection.py` does so without training).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stateir.models.config import require
from stateir.models.mqar import Ids, Rows

from .lines import two_lines


@dataclass(frozen=True)
class ParityConfig:
    """length: bits of a row."""

    length: int = 64

    def __post_init__(self) -> None:
        require(self.length >= 1, f"length must be at least 1, got {self.length}")

    @property
    def tokens(self) -> int:
        return 2


def generate(config: ParityConfig, rows: int, seed: int | tuple[int, ...]) -> Rows:
    """Fair bits; every position is scored."""
    bits = np.random.default_rng(seed).integers(2, size=(rows, config.length))
    return Rows(bits, np.cumsum(bits, axis=1) % 2)


def render(config: ParityConfig, inputs: Ids, labels: Ids) -> str:
    """
    >>> print(render(ParityConfig(length=6), np.array([0, 1, 1, 0, 1, 0]), np.array([0, 1, 0, 0, 1, 1])))
    input  0 1 1 0 1 0
    labels 0 1 0 0 1 1
    """
    return two_lines(inputs, labels, str)
