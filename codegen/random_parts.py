"""The small parts of random rules: a source of choices, declared names, keys, values, gates and decays."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

A = TypeVar("A")


class Draw(Protocol):
    """A source of choices: a random generator, or a property-testing library that can shrink them."""

    def integer(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""

    def choice(self, options: Sequence[A]) -> A:
        """One of the options; the first is the simplest."""


class RandomDraw:
    """Choices from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def choice(self, options: Sequence[A]) -> A:
        return self._random.choice(options)


class Parts:
    """Names of one rule, each declared where it is first used.

    `states` holds a state's declaration and its update lines, which keep their order among the rule's other lines.
    """

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.inputs: dict[str, str] = {}
        self.params: dict[str, str] = {}
        self.lets: dict[str, str] = {}
        self.states: dict[str, tuple[str, list[str]]] = {}

    def input(self, name: str, kind: str) -> str:
        self.inputs[name] = kind
        return name

    def param(self, name: str, kind: str) -> str:
        self.params[name] = kind
        return name

    def number(self) -> int:
        """The suffix of an input; few of them, so that lines share directions."""
        return self.draw.integer(0, 2)

    def key(self) -> str:
        return self.input(f"k{self.number()}", "key unit")

    def gate(self) -> str:
        return self.input(f"b{self.number()}", "key in [0, 1]")

    def strength(self) -> str:
        return self.input(f"beta{self.number()}", "scalar in [0, 1]")

    def log_decay(self) -> str:
        return self.scalar_log_decay() if self.draw.choice([True, False]) else self.key_log_decay()

    def scalar_log_decay(self) -> str:
        return self.input(f"h{self.number()}", "scalar in (-inf, 0]")

    def key_log_decay(self) -> str:
        return self.input(f"g{self.number()}", "key in (-inf, 0]")

    def decay(self) -> str:
        forms: list[Callable[[], str]] = [
            lambda: f"exp({self.log_decay()})",
            lambda: f"exp({self.log_decay()} / 2)",
            lambda: self.param("gamma", "scalar in (0, 1)"),
            lambda: "0.9",
            lambda: f"sigmoid({self.input('f', 'key')})",
            lambda: f"exp({self.scalar_log_decay()} + {self.scalar_log_decay()})",
        ]
        return self.draw.choice(forms)()
