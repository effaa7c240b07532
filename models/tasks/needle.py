"""Needles in noise: `M key value` at some depth in a long meaningless text; at the end `Q key`, and the value is asked.

The small offline form of RULER's single needle (arXiv:2404.06654). The value's tokens are scored together (`exact`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from stateir.models.config import require
from stateir.models.draw import distinct
from stateir.models.mqar import IGNORE, Ids, Rows

from .compositional import digits
from .lines import letter, two_lines

Noise: TypeAlias = Literal["cycle", "iid"]


@dataclass(frozen=True)
class NeedleConfig:
    """One slice of the task.

    length: tokens of a row, L, the question and all but the last token of its answer included.
    noise: "cycle" runs through the noise ids in order from a random phase, on behind a needle as if it were not there;
        "iid" draws each token. noise_vocab: their number, ids 0 .. noise_vocab-1.
    needles: with different keys; which one is asked is drawn. depth: where the asked one stands, 0 for the start of the
        noise and 1 for its end; drawn where None. The others stand anywhere.
    key_tokens, key_vocab, value_tokens, value_vocab: length and alphabet of keys and values.

    Ids behind the noise: M, Q, the key symbols, the value symbols.
    """

    length: int = 64
    noise: Noise = "cycle"
    noise_vocab: int = 24
    needles: int = 1
    depth: float | None = None
    key_tokens: int = 2
    key_vocab: int = 10
    value_tokens: int = 3
    value_vocab: int = 10

    def __post_init__(self) -> None:
        require(self.noise in get_args(Noise), f"noise must be one of {get_args(Noise)}, got {self.noise!r}")
        for name in ("noise_vocab", "needles", "key_tokens", "key_vocab", "value_tokens", "value_vocab"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1, got {getattr(self, name)}")
        keys = self.key_vocab**self.key_tokens
        require(self.needles <= keys, f"needles must be at most key_vocab^key_tokens = {keys}, got {self.needles}")
        require(self.depth is None or 0 <= self.depth <= 1, f"depth must be in [0, 1], got {self.depth}")
        needed = self.needles * self.needle_tokens + self.question_tokens
        require(
            self.length >= needed, f"length must be at least {needed}, the needles and the question, got {self.length}"
        )

    @property
    def needle_tokens(self) -> int:
        return 1 + self.key_tokens + self.value_tokens

    @property
    def question_tokens(self) -> int:
        """Q, the key, and the value but for its last token, which is asked and never given."""
        return self.key_tokens + self.value_tokens

    @property
    def noise_tokens(self) -> int:
        return self.length - self.needles * self.needle_tokens - self.question_tokens

    @property
    def tokens(self) -> int:
        return self.noise_vocab + 2 + self.key_vocab + self.value_vocab


def generate(config: NeedleConfig, rows: int, seed: int | tuple[int, ...]) -> Rows:
    """Keys, values and depths are uniform."""
    rng = np.random.default_rng(seed)
    size = config.noise_tokens
    if config.noise == "cycle":
        noise = (rng.integers(config.noise_vocab, size=(rows, 1)) + np.arange(size)) % config.noise_vocab
    else:
        noise = rng.integers(config.noise_vocab, size=(rows, size))
    codes = distinct(rng, rows, config.key_vocab**config.key_tokens, config.needles)
    values = rng.integers(config.value_vocab, size=(rows, config.needles, config.value_tokens))
    points = rng.integers(size + 1, size=(rows, config.needles))
    if config.depth is not None:
        points[:, 0] = round(config.depth * size)
    return assemble(config, noise, digits(codes, config.key_vocab, config.key_tokens), values, points)


def assemble(config: NeedleConfig, noise: Ids, keys: Ids, values: Ids, points: Ids) -> Rows:
    """The rows of given parts; the first needle is the one asked.

    noise: [rows, noise_tokens]. keys, values: [rows, needles, key_tokens or value_tokens], from 0. points: [rows,
    needles], how many noise tokens stand before each; of two at one point the first comes first.

    >>> config = NeedleConfig(length=22, needles=2, key_tokens=1, value_tokens=2)
    >>> rows = assemble(config, np.zeros((1, 11), int), np.array([[[0], [1]]]), np.array([[[4, 2], [7, 7]]]),
    ...                 np.array([[5, 2]]))
    >>> print(render(config, rows.inputs[0], rows.labels[0]))
    input  . . M b 7 7 . . . M a 4 2 . . . . . . Q a 4
    labels - - - - - - - - - - - - - - - - - - - - 4 2
    """
    marker, question = config.noise_vocab, config.noise_vocab + 1
    k = config.noise_vocab + 2 + keys
    v = config.noise_vocab + 2 + config.key_vocab + values
    needles = np.concatenate([np.full_like(k[:, :, :1], marker), k, v], axis=2)
    order = np.argsort(points, axis=1, kind="stable")
    before = np.take_along_axis(points, order, axis=1)
    starts = before + config.needle_tokens * np.arange(config.needles)
    inputs = np.zeros((len(noise), config.length), np.int64)
    passed = (before[:, :, None] <= np.arange(config.noise_tokens)).sum(axis=1)
    np.put_along_axis(inputs, np.arange(config.noise_tokens) + config.needle_tokens * passed, noise, axis=1)
    in_order = np.take_along_axis(needles, order[:, :, None], axis=1)
    places = starts[:, :, None] + np.arange(config.needle_tokens)
    np.put_along_axis(inputs, places.reshape(len(noise), -1), in_order.reshape(len(noise), -1), axis=1)
    end = config.length - config.question_tokens
    inputs[:, end] = question
    inputs[:, end + 1 :] = needles[:, 0, 1:-1]
    labels = np.full_like(inputs, IGNORE)
    labels[:, -config.value_tokens :] = v[:, 0]
    return Rows(inputs, labels)


def render(config: NeedleConfig, inputs: Ids, labels: Ids) -> str:
    """Two lines for one row [L]: `.` noise, keys as letters, values as numbers."""

    def name(i: int) -> str:
        i -= config.noise_vocab
        if i < 2:
            return "." if i < 0 else "MQ"[i]
        i -= 2
        return letter(i) if i < config.key_vocab else str(i - config.key_vocab)

    return two_lines(inputs, labels, name)
