"""Multi-query associative recall: key-value bindings in a context, then queries for them.

A row of length L is `k1 v1 k2 v2 ...`, then the queries, each at an even distance behind the context, with filler
between them. The label stands at the query itself and is -100 everywhere else. Keys are ids 1 .. V/2-1, values
V/2 .. V-1, both without repetition in a row; 0 is never either (Arora et al., arXiv:2312.04927).

Each query's gap g behind the context is drawn from [0, space), P(g) ~ (g+1)^(a-1), one after the other without
repetition. As in the public generator the gaps go to the keys in the order of their writes, so earlier keys tend to
be asked earlier (correlation 0.10 at L=64, D=4 and 0.53 at L=256, D=64).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from .config import require
from .draw import distinct, gap_law, weighted_distinct

Ids: TypeAlias = NDArray[np.int64]
Filler: TypeAlias = Literal["zero", "token", "random", "zoology"]
IGNORE = -100


@dataclass(frozen=True)
class MqarConfig:
    """One slice of the task.

    length: tokens of a row, L. pairs: different keys, D. vocab: V.
    overwrites: further writes U in all, spread evenly over the D keys and mixed among the first ones at random; the
        answer is the last value written.
    num_queries: keys asked, all D where None; which ones is drawn.
    a: 0.01 puts queries near (about 1/distance), 1 uniformly, more puts them far.
    filler: "zero" is id 0; "token" is the reserved id V; "random" draws from the ids that are neither keys nor values
        of the row; "zoology" draws from the whole vocabulary as the public generator does, so that some queries get
        two answers, and is there for comparison only.
    """

    length: int = 64
    pairs: int = 8
    vocab: int = 128
    overwrites: int = 0
    num_queries: int | None = None
    a: float = 0.01
    filler: Filler = "zero"

    def __post_init__(self) -> None:
        L, D, V, U = self.length, self.pairs, self.vocab, self.overwrites
        require(L > 0 and L % 2 == 0, f"length must be even and positive, got {L}")
        require(D >= 1, f"pairs must be at least 1, got {D}")
        require(U >= 0, f"overwrites must be at least 0, got {U}")
        require(V >= 4 and V % 2 == 0, f"vocab must be even and at least 4, got {V}")
        require(D <= V // 2 - 1, f"pairs must be at most vocab/2 - 1 = {V // 2 - 1} (keys do not repeat), got {D}")
        require(D + U <= V // 2, f"pairs + overwrites must be at most vocab/2 = {V // 2} (values do not repeat), "
                f"got {D + U}")  # fmt: skip
        require(self.a > 0, f"a must be positive, got {self.a}")
        require(self.filler in get_args(Filler), f"filler must be one of {get_args(Filler)}, got {self.filler!r}")
        if self.num_queries is not None:
            require(1 <= self.num_queries <= D, f"num_queries must be in 1 .. pairs = {D}, got {self.num_queries}")
        needed = 2 * (D + U) + 2 * self.queries
        require(needed <= L, f"length must be at least 2 (pairs + overwrites) + 2 queries = {needed}, got {L}")
        if self.filler == "zoology":
            require(V > L, f"vocab must exceed length = {L} with filler 'zoology', as there; got {V}")

    @property
    def queries(self) -> int:
        """Keys asked in a row."""
        return self.pairs if self.num_queries is None else self.num_queries

    @property
    def context(self) -> int:
        """Tokens before the first possible query."""
        return 2 * (self.pairs + self.overwrites)

    @property
    def space(self) -> int:
        """Places a query can stand at."""
        return (self.length - self.context) // 2

    @property
    def tokens(self) -> int:
        """Ids that occur, hence rows of an embedding."""
        return self.vocab + (self.filler == "token")

    @property
    def plateau(self) -> float:
        """1/D, the accuracy of a model that knows the row's values but cannot bind them to keys."""
        return 1 / self.pairs


class Rows(NamedTuple):
    """inputs and labels, both [rows, L] int64; labels are -100 where nothing is asked."""

    inputs: Ids
    labels: Ids


def generate(config: MqarConfig, rows: int, seed: int | tuple[int, ...]) -> Rows:
    """Draws rows. The bytes depend on the arguments alone, never on a global generator.

    Args:
        seed: one number, or several that name a draw together, such as (seed, step).
    """
    rng = np.random.default_rng(seed)
    half = config.vocab // 2
    writes = config.pairs + config.overwrites
    keys = 1 + distinct(rng, rows, half - 1, config.pairs)
    values = half + distinct(rng, rows, half, writes)
    order = _write_order(rng, rows, config)
    asked = np.tile(np.arange(config.pairs), (rows, 1))
    if config.queries < config.pairs:
        asked = np.sort(distinct(rng, rows, config.pairs, config.queries), axis=1)
    gaps = weighted_distinct(rng, rows, gap_law(config.space, config.a), config.queries)
    laid = assemble(config, keys, values, asked, gaps, order)
    return Rows(_fill(laid.inputs, keys, values, config, rng), laid.labels)


def generate_public(config: MqarConfig, rows: int, seed: int) -> Rows:
    """The rows that the public generator draws from this seed with its filler off, bit for bit.

    Raises:
        ValueError: if the configuration asks for what that generator does not have.
    """
    require(config.filler == "zero", f"the public drawing order is defined for filler 'zero', got {config.filler!r}")
    require(config.overwrites == 0, f"the public generator has no overwrites, got {config.overwrites}")
    require(config.queries == config.pairs, f"the public generator asks every key, got num_queries={config.queries}")
    require(config.vocab > config.length, f"vocab must exceed length = {config.length} there, got {config.vocab}")
    rng = np.random.RandomState(seed)
    half, D = config.vocab // 2, config.pairs
    law = gap_law(config.space, config.a)
    keys = np.stack([rng.choice(np.arange(1, half), D, replace=False) for _ in range(rows)])
    values = np.stack([rng.choice(np.arange(half, config.vocab), D, replace=False) for _ in range(rows)])
    gaps = np.stack([rng.choice(np.arange(config.space), D, replace=False, p=law) for _ in range(rows)])
    return assemble(config, keys, values, np.tile(np.arange(D), (rows, 1)), gaps)


def assemble(
    config: MqarConfig, keys: Ids, values: Ids, asked: Ids, gaps: Ids, order: Ids | None = None
) -> Rows:  # fmt: skip
    """Lays rows out, with 0 as the filler.

    Args:
        keys: [rows, D], numbered in the order of their last writes.
        values: [rows, D+U], in the order of the writes.
        asked: [rows, queries], which keys are asked.
        gaps: [rows, queries], where.
        order: [rows, D+U], the key of each write; 0 .. D-1 where None.

    The row drawn in the post that introduced the task (keys are letters, values digits; b is not asked):

    >>> config = MqarConfig(length=16, pairs=4, vocab=20, num_queries=3)
    >>> rows = assemble(config, np.array([[1, 2, 3, 4]]), np.array([[14, 13, 16, 11]]),
    ...                 asked=np.array([[2, 0, 3]]), gaps=np.array([[1, 2, 3]]))
    >>> print(render_row(config, rows.inputs[0], rows.labels[0]))
    input  a 4 b 3 c 6 d 1 . . c . a . d .
    labels - - - - - - - - - - 6 - 4 - 1 -
    """
    rows = len(keys)
    inputs = np.zeros((rows, config.length), np.int64)
    labels = np.full((rows, config.length), IGNORE, np.int64)
    if order is None:
        order = np.tile(np.arange(config.pairs), (rows, 1))
    inputs[:, 0 : config.context : 2] = np.take_along_axis(keys, order, axis=1)
    inputs[:, 1 : config.context : 2] = values
    answers = np.zeros_like(keys)
    for write in range(order.shape[1]):
        np.put_along_axis(answers, order[:, write : write + 1], values[:, write : write + 1], axis=1)
    places = config.context + 2 * gaps
    np.put_along_axis(inputs, places, np.take_along_axis(keys, asked, axis=1), axis=1)
    np.put_along_axis(labels, places, np.take_along_axis(answers, asked, axis=1), axis=1)
    return Rows(inputs, labels)


def render_row(config: MqarConfig, inputs: Ids, labels: Ids) -> str:
    """Two lines for one row [L]: keys as letters, values as numbers, `.` filler, `-` nothing asked."""
    half = config.vocab // 2

    def key(i: int) -> str:
        return (key((i - 1) // 26) if i > 26 else "") + "abcdefghijklmnopqrstuvwxyz"[(i - 1) % 26]

    shown = []
    for place, (token, label) in enumerate(zip(inputs.tolist(), labels.tolist(), strict=True)):
        if place < config.context and place % 2:
            shown.append((str(token - half), "-"))
        elif place < config.context:
            shown.append((key(token), "-"))
        else:
            shown.append((key(token), str(label - half)) if label != IGNORE else (".", "-"))
    width = max(len(s) for pair in shown for s in pair)
    lines = [" ".join(s.rjust(width) for s in line) for line in zip(*shown, strict=True)]
    return f"input  {lines[0]}\nlabels {lines[1]}"


def accuracy(predictions: Ids, labels: Ids) -> float:
    """The mean over rows of each row's share of right answers. Both arguments are [rows, L]."""
    asked = labels != IGNORE
    right = (predictions == labels) & asked
    return float((right.sum(axis=1) / asked.sum(axis=1)).mean())


def _write_order(rng: np.random.Generator, rows: int, config: MqarConfig) -> Ids:
    """[rows, D+U]: the key of each write, keys numbered in the order of their last writes."""
    D, U = config.pairs, config.overwrites
    if U == 0:
        return np.tile(np.arange(D), (rows, 1))
    order = rng.permuted(np.tile(np.arange(D + U) % D, (rows, 1)), axis=1)
    last = np.zeros((rows, D), np.int64)
    for write in range(D + U):
        np.put_along_axis(last, order[:, write : write + 1], write, axis=1)
    rank = np.argsort(np.argsort(last, axis=1), axis=1)
    return np.take_along_axis(rank, order, axis=1)


def _fill(inputs: Ids, keys: Ids, values: Ids, config: MqarConfig, rng: np.random.Generator) -> Ids:
    empty = inputs == 0
    if config.filler == "token":
        return np.where(empty, config.vocab, inputs)
    if config.filler == "zoology":
        return np.where(empty, rng.integers(config.vocab, size=inputs.shape), inputs)
    if config.filler == "random":
        used = np.sort(np.concatenate([keys, values], axis=1), axis=1)
        count = used.shape[1]
        drawn = rng.integers(config.vocab - count, size=inputs.shape)
        # The r-th free id is r plus the number of used ids at or below it; rows are kept apart by multiples of V.
        apart = config.vocab * np.arange(len(inputs))[:, None]
        below = np.searchsorted((used - np.arange(count) + apart).ravel(), (drawn + apart).ravel(), side="right")
        skipped = below.reshape(inputs.shape) - count * np.arange(len(inputs))[:, None]
        return np.where(empty, drawn + skipped, inputs)
    return inputs
