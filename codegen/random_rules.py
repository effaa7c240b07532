"""Random rules, as text: what the property tests and `stateir verify` try the compiler on.

Every rule is one that the checker accepts and whose state stays bounded for the lengths that tests use: directions are
unit vectors and the strength of every erase is at most 1.
"""

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


def random_rule(draw: Draw, max_lines: int = 5) -> str:
    """The text of a random rule with 1 to `max_lines` update lines of S.

    Decays (none, scalar, key) before, between and after the writes, several erasing and pure terms a line, erases of
    the undecayed state, loops over arrays, shared directions, lets with contractions, a read anywhere, an epilogue.
    """
    return _Writer(draw).rule(draw.integer(1, max_lines))


class _Writer:
    """Writes one rule; a name is declared where it is first used."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.inputs: dict[str, str] = {}
        self.params: dict[str, str] = {}
        self.lets: dict[str, str] = {}
        self.states: dict[str, tuple[str, str]] = {}

    def rule(self, lines: int) -> str:
        updates = [self.update() for _ in range(lines)]
        if not any(kind.startswith("value") for kind in self.inputs.values()):
            updates.append("update S += " + self.write())
        body = updates
        for line in [self.read(), *(update for _, update in self.states.values())]:
            place = self.draw.choice([len(body), *range(len(body))])
            body = [*body[:place], line, *body[place:]]
        declared = [f"input {name}: {kind}" for name, kind in self.inputs.items()]
        declared += [f"param {name}: {kind}" for name, kind in self.params.items()]
        declared += [f"state {name}: {kind}" for name, (kind, _) in self.states.items()]
        lets = [f"let {name} = {value}" for name, value in self.lets.items()]
        return "\n".join(["rule random", *declared, *lets, *body]) + "\n"

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

    def update(self) -> str:
        forms: list[Callable[[], str]] = [self.terms, self.decay_line, self.decay_and_terms, self.loop]
        return "update S " + self.draw.choice(forms)()

    def decay_line(self) -> str:
        return f"-= {self.strength()} * S" if self.draw.choice([False, True]) else f"= {self.decay()} * S"

    def terms(self) -> str:
        if self.draw.choice([False, False, True]):
            return f"-= {self.erase()}"
        return "+= " + self.sum_of_terms()

    def decay_and_terms(self) -> str:
        return f"= {self.decay()} * S + {self.sum_of_terms()}"

    def loop(self) -> str:
        key, value = self.input("kk[2]", "key unit"), self.input("vv[2]", "value")
        strength = self.input("bb[2]", "scalar in [0, 1]")
        key, value, strength = (name.replace("[2]", "[i]") for name in (key, value, strength))
        return f"+= outer({strength} * {key}, {value} - {key} @ S) for i in 0..1"

    def sum_of_terms(self) -> str:
        terms = []
        for _ in range(self.draw.integer(1, 3)):
            forms: list[Callable[[], str]] = [self.write, self.replace, self.replace, self.bare]
            terms.append(self.draw.choice(forms)())
        return " + ".join(terms)

    def bare(self) -> str:
        """An erase that writes nothing: weak, since its two directions differ."""
        return f"0.2 * outer({self.key()}, {self.key()} @ S)"

    def erase(self) -> str:
        key = self.key()
        forms = [f"outer({self.strength()} * {key}, {key} @ S)", f"outer({self.gate()} * {key}, {key} @ S)"]
        return self.draw.choice(forms)

    def normaliser(self) -> str:
        """A state beside S: a decayed sum of keys."""
        decay, key = self.log_decay(), self.key()
        self.states["z"] = ("key", f"update z = exp({decay}) * z + {key}")
        return "z"

    def turned(self) -> str:
        """A key, or the key before it, turned by a running angle."""
        self.states["a"] = ("pair", f"update a += {self.input('th', 'pair')}")
        key = self.key()
        return f"rotate({f'prev({key})' if self.draw.choice([False, True]) else key}, a)"

    def write(self) -> str:
        direction: list[Callable[[], str]] = [
            self.key,
            lambda: f"{self.strength()} * {self.key()}",
            lambda: f"(1 - exp({self.key_log_decay()})) * {self.key()}",
            lambda: self.param("u", "key in [0, 1]"),
            self.turned,
        ]
        return f"outer({self.draw.choice(direction)()}, {self.value()})"

    def replace(self) -> str:
        key = self.key()
        forms: list[Callable[[], str]] = [
            lambda: f"outer({self.strength()} * {key}, {self.value()} - {key} @ S)",
            lambda: f"outer({key}, {self.value()} - ({self.gate()} * {key}) @ S)",
            lambda: f"outer({key}, {self.value()} - ({self.gate()} * {key} + {self.second(key)}) @ S)",
        ]
        return self.draw.choice(forms)()

    def second(self, key: str) -> str:
        """A second erase direction, orthogonal to the first."""
        query, lam = self.input("q", "key unit"), self.param("lam", "scalar in [0, 0.25]")
        if self.draw.choice([False, True]):
            name = f"d{key}"
            self.lets[name] = f"{query} - ({key} @ {query}) * {key}"
            return f"{lam} * {name}"
        return f"{lam} * ({query} - ({key} @ {query}) * {key})"

    def value(self) -> str:
        value = self.input(f"v{self.number()}", "value")
        forms: list[Callable[[], str]] = [
            lambda: value,
            lambda: f"{self.input('w', 'value in [0, 1]')} * {value}",
            lambda: f"prev({value}, {self.draw.integer(1, 2)})",
        ]
        return self.draw.choice(forms)()

    def read(self) -> str:
        query = self.input("q", "key unit")
        forms: list[Callable[[], str]] = [
            lambda: f"{query} @ S / sqrt(dim(key))",
            lambda: f"({query} @ S) / (1 + abs({query} @ {self.normaliser()}))",
            lambda: f"({query} - {self.param('D', 'scalar in [-1, 1]')} * {self.key()}) @ S",
            lambda: f"{self.input('w', 'value in [0, 1]')} * ({query} @ S) + {self.key()} @ S",
            lambda: f"{query} @ S + {self.param('D', 'scalar in [-1, 1]')} * {self.value()}",
            lambda: f"{query} @ S + ({query} @ ({self.param('u', 'key in [0, 1]')} * {self.key()})) * {self.value()}",
        ]
        return "read o = " + self.draw.choice(forms)()
