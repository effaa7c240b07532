"""Modular arithmetic: a chain of operations on a running number that starts at 0, taken from left to right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stateir.models.config import require
from stateir.models.mqar import IGNORE, Ids, Rows

from .lines import two_lines


@dataclass(frozen=True)
class ModularConfig:
    """length: tokens of a row, an operation and a number in turn. modulus: m. operations: some of "+-*".

    Ids 0 .. m-1 are the numbers, then one for each operation in the order given. With "*" a factor that has no inverse
    forgets, so that "+-" needs the longer memory.
    """

    length: int = 64
    modulus: int = 5
    operations: str = "+-*"

    def __post_init__(self) -> None:
        require(self.length >= 2 and self.length % 2 == 0, f"length must be even and positive, got {self.length}")
        require(self.modulus >= 2, f"modulus must be at least 2, got {self.modulus}")
        ops = self.operations
        known = bool(ops) and set(ops) <= set("+-*") and len(set(ops)) == len(ops)
        require(known, f"operations must be some of '+-*', each once, got {ops!r}")

    @property
    def tokens(self) -> int:
        return self.modulus + len(self.operations)


def generate(config: ModularConfig, rows: int, seed: int | tuple[int, ...]) -> Rows:
    """Operations and numbers are uniform."""
    rng = np.random.default_rng(seed)
    steps = config.length // 2
    return assemble(
        config,
        rng.integers(len(config.operations), size=(rows, steps)),
        rng.integers(config.modulus, size=(rows, steps)),
    )


def assemble(config: ModularConfig, operations: Ids, numbers: Ids) -> Rows:
    """The rows of given operations (indices into config.operations) and numbers, both [rows, length/2].

    >>> config = ModularConfig(length=8)
    >>> rows = assemble(config, np.array([[0, 2, 1, 0]]), np.array([[3, 2, 4, 1]]))
    >>> print(render(config, rows.inputs[0], rows.labels[0]))
    input  + 3 * 2 - 4 + 1
    labels - 3 - 1 - 2 - 3
    """
    inputs = np.empty((len(numbers), config.length), np.int64)
    inputs[:, 0::2] = config.modulus + operations
    inputs[:, 1::2] = numbers
    labels = np.full_like(inputs, IGNORE)
    running = np.zeros(len(numbers), np.int64)
    for step in range(config.length // 2):
        results = {"+": running + numbers[:, step], "-": running - numbers[:, step], "*": running * numbers[:, step]}
        running = np.choose(operations[:, step], [results[op] for op in config.operations]) % config.modulus
        labels[:, 2 * step + 1] = running
    return Rows(inputs, labels)


def render(config: ModularConfig, inputs: Ids, labels: Ids) -> str:
    """Two lines for one row [L]."""
    return two_lines(inputs, labels, lambda i: str(i) if i < config.modulus else config.operations[i - config.modulus])
