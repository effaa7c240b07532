"""Several stacks: a push names a stack and a symbol; a pop names a stack, and there the symbol that comes off is asked.

Operations take three tokens, `push, stack, symbol` or `pop, stack, symbol`; a popped symbol is asked, then given.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stateir.models.config import require
from stateir.models.mqar import IGNORE, Ids, Rows

from .lines import letter, two_lines

PUSH, POP = 1, 2


@dataclass(frozen=True)
class StackConfig:
    """length: tokens of a row; what is left of a multiple of three is filler. stacks, symbols: how many of each.

    pop: chance that an operation is a pop, from a stack that is not empty, each as likely; with all of them empty it is
    a push. Ids: 0 filler, 1 push, 2 pop, then the stacks, then the symbols.
    """

    length: int = 256
    stacks: int = 64
    symbols: int = 26
    pop: float = 0.5

    def __post_init__(self) -> None:
        require(self.length >= 6, f"length must be at least 6, a push and a pop, got {self.length}")
        for name in ("stacks", "symbols"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1, got {getattr(self, name)}")
        require(0 < self.pop <= 1, f"pop must be in (0, 1], got {self.pop}")

    @property
    def tokens(self) -> int:
        return 3 + self.stacks + self.symbols

    @property
    def operations(self) -> int:
        return self.length // 3


def generate(config: StackConfig, rows: int, seed: int | tuple[int, ...]) -> Rows:
    """The last operation is a pop, so that every row asks something."""
    rng = np.random.default_rng(seed)
    inputs = np.zeros((rows, config.length), np.int64)
    labels = np.full_like(inputs, IGNORE)
    contents = np.zeros((rows, config.stacks, config.operations), np.int64)
    height = np.zeros((rows, config.stacks), np.int64)
    each = np.arange(rows)
    for step in range(config.operations):
        last = step == config.operations - 1
        pops = (height.sum(1) > 0) & ((rng.random(rows) < config.pop) | last)
        choice = rng.random((rows, config.stacks))
        filled = np.where(height > 0, choice, -1).argmax(1)
        stack = np.where(pops, filled, choice.argmax(1))
        drawn = rng.integers(config.symbols, size=rows)
        top = contents[each, stack, height[each, stack] - 1]
        symbol = np.where(pops, top, drawn)
        contents[each, stack, np.where(pops, height[each, stack] - 1, height[each, stack])] = symbol
        height[each, stack] += np.where(pops, -1, 1)
        at = 3 * step
        inputs[:, at] = np.where(pops, POP, PUSH)
        inputs[:, at + 1] = 3 + stack
        inputs[:, at + 2] = 3 + config.stacks + symbol
        labels[:, at + 1] = np.where(pops, inputs[:, at + 2], IGNORE)
    return Rows(inputs, labels)


def render(config: StackConfig, inputs: Ids, labels: Ids) -> str:
    """`+` push, `-` pop, stacks as numbers, symbols as letters, `.` filler.

    >>> config = StackConfig(length=12, stacks=2, symbols=4)
    >>> inputs = np.array([1, 3, 5, 1, 4, 6, 1, 3, 7, 2, 3, 7])
    >>> labels = np.where(np.arange(12) == 10, 7, IGNORE)
    >>> print(render(config, inputs, labels))
    input  + 0 a + 1 b + 0 c - 0 c
    labels - - - - - - - - - - c -
    """
    names = [".", "+", "-", *map(str, range(config.stacks)), *map(letter, range(config.symbols))]
    return two_lines(inputs, labels, names.__getitem__)
