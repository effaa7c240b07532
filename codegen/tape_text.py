"""A tape as straight-line source text: one statement for what is named or used twice, the rest written in place."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from .expr import ATOM, POWER, PRODUCT, SUM, UNARY
from .tape import Entry, Tape

LONGEST = 50  # characters of an operand that is written in place

_INFIX = {"add": ("+", SUM), "sub": ("-", SUM), "mul": ("*", PRODUCT), "div": ("/", PRODUCT)}


@dataclass(frozen=True)
class Dialect:
    """How a language spells operations: `calls` with a place {} for each operand, and the rest by a function.

    `other(tape, number, operands)` gives the text of an entry that is neither infix nor among the calls.
    """

    calls: Mapping[str, str]
    other: Callable[[Tape, int, list[str]], str]


@dataclass
class Writer:
    """Writes statements of one tape. `names` has the variables of leaves, and of whatever else is to be named.

    `fresh` gives a new variable for an entry that is used more than once.
    """

    tape: Tape
    dialect: Dialect
    names: dict[int, str]
    fresh: Callable[[], str]
    _texts: dict[int, tuple[str, int]] = field(default_factory=dict)

    def statements(self, roots: Iterable[int]) -> Iterator[tuple[int, str]]:
        """(entry, statement) in order for all that the roots need but leaves; "" where none is necessary."""
        needed, uses = self._needed(list(roots))
        for n in sorted(needed):
            entry = self.tape[n]
            if entry.op == "leaf":
                continue
            text, precedence = self._written(n, entry)
            name = self.names.get(n)
            if name is None and entry.args and uses[n] > 1:
                name = self.names[n] = self.fresh()
            if name is None and entry.args and len(text) > LONGEST:
                name = self.names[n] = self.fresh()
            if name is None:
                self._texts[n] = text, precedence
            yield n, f"{name} = {text}" if name else ""

    def needed(self, roots: Iterable[int]) -> list[int]:
        """All entries that the roots need."""
        return sorted(self._needed(list(roots))[0])

    def leaves(self, roots: Iterable[int]) -> list[int]:
        """The leaves that the roots need."""
        return [n for n in self.needed(roots) if self.tape[n].op == "leaf"]

    def text(self, n: int) -> str:
        """The text of an entry whose statement, or those of its operands, have been written."""
        return self._operand(n, SUM)

    def _needed(self, roots: list[int]) -> tuple[set[int], Counter[int]]:
        needed: set[int] = set()
        uses = Counter(roots)
        stack = list(uses)
        while stack:
            n = stack.pop()
            if n not in needed:
                needed.add(n)
                uses.update(self.tape[n].args)
                stack.extend(self.tape[n].args)
        return needed, uses

    def _operand(self, n: int, least: int) -> str:
        text, precedence = (self.names[n], ATOM) if n in self.names else self._texts[n]
        return text if precedence >= least else f"({text})"

    def _written(self, n: int, entry: Entry) -> tuple[str, int]:
        if entry.op in _INFIX:
            symbol, precedence = _INFIX[entry.op]
            left, right = entry.args
            return f"{self._operand(left, precedence)} {symbol} {self._operand(right, precedence + 1)}", precedence
        if entry.op == "neg":
            return f"-{self._operand(entry.args[0], POWER)}", UNARY
        if entry.op == "number":
            text = f'float("{entry.data}")' if entry.data in (math.inf, -math.inf) else repr(entry.data)
            return text, UNARY if text.startswith("-") else ATOM
        operands = [self._operand(x, SUM) for x in entry.args]
        if entry.op in self.dialect.calls:
            return self.dialect.calls[entry.op].format(*operands), ATOM
        return self.dialect.other(self.tape, n, operands), ATOM
