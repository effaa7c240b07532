"""Selective copying: symbols scattered in noise, to be said in their order at the markers behind it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stateir.models.config import require
from stateir.models.draw import distinct
from stateir.models.mqar import IGNORE, Ids, Rows

from .lines import letter, two_lines


@dataclass(frozen=True)
class SelectiveCopyingConfig:
    """length: tokens of a row, markers included. copies: symbols to copy. vocab: different symbols, ids 1 .. vocab.

    The noise is id 0, the marker id vocab+1. Symbols may repeat.
    """

    length: int = 64
    copies: int = 8
    vocab: int = 16

    def __post_init__(self) -> None:
        require(self.copies >= 1, f"copies must be at least 1, got {self.copies}")
        require(self.vocab >= 2, f"vocab must be at least 2, got {self.vocab}")
        require(
            self.length >= 2 * self.copies, f"length must be at least 2 copies = {2 * self.copies}, got {self.length}"
        )

    @property
    def tokens(self) -> int:
        return self.vocab + 2


def generate(config: SelectiveCopyingConfig, rows: int, seed: int | tuple[int, ...]) -> Rows:
    """Symbols and their places are uniform."""
    rng = np.random.default_rng(seed)
    symbols = 1 + rng.integers(config.vocab, size=(rows, config.copies))
    return assemble(config, symbols, np.sort(distinct(rng, rows, config.length - config.copies, config.copies), axis=1))


def assemble(config: SelectiveCopyingConfig, symbols: Ids, places: Ids) -> Rows:
    """The rows of given symbols at given rising places, both [rows, copies].

    >>> config = SelectiveCopyingConfig(length=10, copies=3)
    >>> rows = assemble(config, np.array([[3, 1, 2]]), np.array([[1, 2, 5]]))
    >>> print(render(config, rows.inputs[0], rows.labels[0]))
    input  . c a . . b . ! ! !
    labels - - - - - - - c a b
    """
    inputs = np.zeros((len(symbols), config.length), np.int64)
    labels = np.full_like(inputs, IGNORE)
    np.put_along_axis(inputs, places, symbols, axis=1)
    inputs[:, -config.copies :] = config.vocab + 1
    labels[:, -config.copies :] = symbols
    return Rows(inputs, labels)


def render(config: SelectiveCopyingConfig, inputs: Ids, labels: Ids) -> str:
    """Two lines for one row [L]: symbols as letters, `.` noise, `!` a marker."""
    return two_lines(inputs, labels, lambda i: "." if i == 0 else "!" if i > config.vocab else letter(i - 1))
