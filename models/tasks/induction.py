"""Induction heads: a marker stands once among random symbols and again at the end, where what followed it is asked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stateir.models.config import require
from stateir.models.mqar import IGNORE, Ids, Rows

from .lines import letter, two_lines


@dataclass(frozen=True)
class InductionConfig:
    """length: tokens of a row. vocab: symbols, ids 0 .. vocab-1; the marker is id vocab."""

    length: int = 64
    vocab: int = 16

    def __post_init__(self) -> None:
        require(self.length >= 3, f"length must be at least 3, got {self.length}")
        require(self.vocab >= 2, f"vocab must be at least 2, got {self.vocab}")

    @property
    def tokens(self) -> int:
        return self.vocab + 1


def generate(config: InductionConfig, rows: int, seed: int | tuple[int, ...]) -> Rows:
    """Symbols and the place of the marker are uniform."""
    rng = np.random.default_rng(seed)
    symbols = rng.integers(config.vocab, size=(rows, config.length))
    return assemble(config, symbols, rng.integers(config.length - 2, size=rows))


def assemble(config: InductionConfig, symbols: Ids, places: Ids) -> Rows:
    """The rows of given symbols [rows, length] with the marker put at `places` [rows] and at the end.

    >>> config = InductionConfig(length=8)
    >>> rows = assemble(config, np.array([[0, 1, 2, 3, 4, 5, 6, 7]]), np.array([3]))
    >>> print(render(config, rows.inputs[0], rows.labels[0]))
    input  a b c ! e f g !
    labels - - - - - - - e
    """
    inputs = symbols.copy()
    each = np.arange(len(symbols))
    inputs[each, places] = inputs[:, -1] = config.vocab
    labels = np.full_like(inputs, IGNORE)
    labels[:, -1] = inputs[each, places + 1]
    return Rows(inputs, labels)


def render(config: InductionConfig, inputs: Ids, labels: Ids) -> str:
    """Two lines for one row [L]: symbols as letters, `!` the marker."""
    return two_lines(inputs, labels, lambda i: "!" if i == config.vocab else letter(i))
