"""Palindrome: a sequence, a separator, and the sequence backwards, each symbol asked at the one before it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stateir.models.config import require
from stateir.models.mqar import IGNORE, Ids, Rows

from .lines import letter, two_lines


@dataclass(frozen=True)
class PalindromeConfig:
    """length: tokens of a row, twice the number of symbols. vocab: different symbols, ids 0 .. vocab-1; the separator
    is id vocab."""

    length: int = 64
    vocab: int = 26

    def __post_init__(self) -> None:
        require(self.length >= 2 and self.length % 2 == 0, f"length must be even and positive, got {self.length}")
        require(self.vocab >= 2, f"vocab must be at least 2, got {self.vocab}")

    @property
    def tokens(self) -> int:
        return self.vocab + 1


def generate(config: PalindromeConfig, rows: int, seed: int | tuple[int, ...]) -> Rows:
    """Symbols are uniform."""
    rng = np.random.default_rng(seed)
    return assemble(config, rng.integers(config.vocab, size=(rows, config.length // 2)))


def assemble(config: PalindromeConfig, symbols: Ids) -> Rows:
    """The rows of given symbols [rows, length/2]. The last symbol to say is asked, never given.

    >>> config = PalindromeConfig(length=8, vocab=26)
    >>> rows = assemble(config, np.array([[17, 4, 0, 3]]))
    >>> print(render(config, rows.inputs[0], rows.labels[0]))
    input  r e a d | d a e
    labels - - - - d a e r
    """
    backwards = symbols[:, ::-1]
    separator = np.full((len(symbols), 1), config.vocab)
    inputs = np.concatenate([symbols, separator, backwards[:, :-1]], axis=1)
    return Rows(inputs, np.concatenate([np.full_like(symbols, IGNORE), backwards], axis=1))


def render(config: PalindromeConfig, inputs: Ids, labels: Ids) -> str:
    """Two lines for one row [L]: symbols as letters, `|` the separator."""
    return two_lines(inputs, labels, lambda i: "|" if i == config.vocab else letter(i))
