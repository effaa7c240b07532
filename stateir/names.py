"""Names: what is reserved, what is defined, and what an unknown one was probably meant to be."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from .ir import FUNCTIONS, Axis

# The longest array and look-back, and the largest bound of a loop.
MAX_COUNT = 64

KEYWORDS = frozenset({"rule", "input", "param", "state", "let", "update", "read", "for", "in", "unit", "fixed"})
AXES = frozenset(axis.value for axis in Axis)
BUILTINS = frozenset({*FUNCTIONS, "outer", "dim", "prev"})

# What other notations write behind a name to transpose it.
TRANSPOSES = frozenset({"T", "mT", "top"})

Kind = Literal["input", "param", "state", "let", "const", "loop", "output", "broken"]


@dataclass(frozen=True)
class Entry:
    """A defined name. `value` is a constant's number; a broken one stands for a line with an error in it."""

    kind: Kind
    axis: Axis = Axis.SCALAR
    line: int = 0
    size: int | None = None
    value: float = 0.0
    unit: bool = False


def reserved(name: str) -> str | None:
    """What the reserved word `name` is, in words."""
    if name in AXES:
        return "an axis"
    if name in BUILTINS:
        return "a function"
    if name in KEYWORDS:
        return "a keyword"
    if name == "S":
        return "the matrix state that every rule has"
    return "a reserved word" if name in ("head", "inf") else None


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Up to three names that `name` may be a slip of: without its time index, in another case, in a letter or two."""
    import difflib  # takes a while to import, and only errors need it

    known = sorted(known)
    bare = re.sub(r"_t$", "", name)
    exact = [x for x in known if x == bare or x.lower() == bare.lower()]
    # A short name has a letter in common with any other: of two letters, both count.
    close = difflib.get_close_matches(bare, known, n=2, cutoff=0.5 if len(bare) < 4 else 0.6)
    return list(dict.fromkeys([*exact, *close]))[:3]
