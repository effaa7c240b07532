"""Recall by compositional keys: as in MQAR, but a key is several symbols of a small alphabet that the keys share.

Knowing one symbol of a key is not enough: a model must bind a value to the whole key.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stateir.models.config import require
from stateir.models.draw import distinct, gap_law, weighted_distinct
from stateir.models.mqar import IGNORE, Ids, Rows

from .lines import letter, two_lines


@dataclass(frozen=True)
class CompositionalConfig:
    """One slice of the task. A key and its value, or a key and one filler, take key_tokens+1 tokens, a block.

    length: tokens of a row, L. pairs: different keys, D, all asked once. key_tokens: symbols of a key. alphabet:
    symbols, ids 1 .. alphabet. values: different values, the ids behind; none repeats in a row. Id 0 is the filler.
    a: 0.01 puts queries near the context (about 1/distance), 1 uniformly, more puts them far; as in MQAR.
    """

    length: int = 96
    pairs: int = 8
    key_tokens: int = 2
    alphabet: int = 8
    values: int = 32
    a: float = 0.01

    def __post_init__(self) -> None:
        for name in ("pairs", "key_tokens", "alphabet"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1, got {getattr(self, name)}")
        keys = self.alphabet**self.key_tokens
        require(self.pairs <= keys, f"pairs must be at most alphabet^key_tokens = {keys}, got {self.pairs}")
        require(self.values >= self.pairs, f"values must be at least pairs = {self.pairs}, got {self.values}")
        require(self.a > 0, f"a must be positive, got {self.a}")
        needed = 2 * self.pairs * self.block
        require(
            self.length >= needed, f"length must be at least 2 pairs (key_tokens + 1) = {needed}, got {self.length}"
        )

    @property
    def block(self) -> int:
        """Tokens of a key and what follows it."""
        return self.key_tokens + 1

    @property
    def space(self) -> int:
        """Blocks behind the context, where a query can stand."""
        return self.length // self.block - self.pairs

    @property
    def tokens(self) -> int:
        return 1 + self.alphabet + self.values

    @property
    def plateau(self) -> float:
        """1/D, the accuracy of a model that knows the row's values but cannot bind them to keys."""
        return 1 / self.pairs


def generate(config: CompositionalConfig, rows: int, seed: int | tuple[int, ...]) -> Rows:
    """Keys are any different tuples."""
    rng = np.random.default_rng(seed)
    codes = distinct(rng, rows, config.alphabet**config.key_tokens, config.pairs)
    values = distinct(rng, rows, config.values, config.pairs)
    gaps = weighted_distinct(rng, rows, gap_law(config.space, config.a), config.pairs)
    return assemble(config, digits(codes, config.alphabet, config.key_tokens), values, gaps)


def assemble(config: CompositionalConfig, keys: Ids, values: Ids, gaps: Ids) -> Rows:
    """Rows of given keys [rows, D, key_tokens] and values [rows, D], both from 0, asked `gaps` [rows, D] blocks behind
    the context.

    >>> config = CompositionalConfig(length=15, pairs=2, alphabet=3, values=4)
    >>> rows = assemble(config, np.array([[[0, 1], [0, 2]]]), np.array([[3, 1]]), np.array([[2, 0]]))
    >>> print(render(config, rows.inputs[0], rows.labels[0]))
    input  a b 3 a c 1 a c . . . . a b .
    labels - - - - - - - 1 - - - - - 3 -
    """
    inputs = np.zeros((len(keys), config.length), np.int64)
    labels = np.full_like(inputs, IGNORE)
    shown = 1 + config.alphabet + values
    queries = config.block * (config.pairs + gaps)
    for place in range(config.key_tokens):
        inputs[:, place : config.block * config.pairs : config.block] = 1 + keys[:, :, place]
        np.put_along_axis(inputs, queries + place, 1 + keys[:, :, place], axis=1)
    inputs[:, config.key_tokens : config.block * config.pairs : config.block] = shown
    np.put_along_axis(labels, queries + config.key_tokens - 1, shown, axis=1)
    return Rows(inputs, labels)


def digits(codes: Ids, base: int, count: int) -> Ids:
    """[..., count]: the digits of codes [...], the most significant first."""
    return codes[..., None] // base ** np.arange(count - 1, -1, -1) % base


def render(config: CompositionalConfig, inputs: Ids, labels: Ids) -> str:
    """Two lines for one row [L]: symbols as letters, values as numbers, `.` filler."""

    def name(i: int) -> str:
        if i == 0:
            return "."
        return letter(i - 1) if i <= config.alphabet else str(i - config.alphabet - 1)

    return two_lines(inputs, labels, name)
