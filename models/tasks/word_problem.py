"""The word problem of a finite group: at every element, the product of all elements so far.

For S_5 and A_5, which are not solvable, it is complete for NC^1; a recurrence needs transitions that do not commute
and have eigenvalues outside [0, 1] (Merrill et al., arXiv:2404.08819; Grazzi et al., arXiv:2411.12537).
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from functools import cache

import numpy as np

from stateir.models.config import require
from stateir.models.mqar import Ids, Rows

from .lines import two_lines


@dataclass(frozen=True)
class WordProblemConfig:
    """length: elements of a row. group: "s2" to "s6" (all permutations), "a3" to "a6" (even ones), "z2" on (cyclic).

    The id of an element is its place in the lexicographic order of permutations, or the number itself in "z<n>"; id 0
    is the identity.
    """

    length: int = 64
    group: str = "s5"

    def __post_init__(self) -> None:
        require(self.length >= 1, f"length must be at least 1, got {self.length}")
        known = re.fullmatch(r"s[2-6]|a[3-6]|z([2-9]|[1-9][0-9]{1,2})", self.group)
        require(known is not None, f"group must be s2 to s6, a3 to a6 or z2 to z999, got {self.group!r}")

    @property
    def tokens(self) -> int:
        """The order of the group."""
        return len(table(self.group))


def generate(config: WordProblemConfig, rows: int, seed: int | tuple[int, ...]) -> Rows:
    """Elements are uniform; every position is scored."""
    elements = np.random.default_rng(seed).integers(config.tokens, size=(rows, config.length))
    return Rows(elements, products(config, elements))


def products(config: WordProblemConfig, elements: Ids) -> Ids:
    """x_t = g_t after x_{t-1}, for elements g [rows, L]: the later permutation is applied to the earlier product."""
    products_of = table(config.group)
    running = np.zeros(len(elements), np.int64)
    out = np.empty_like(elements)
    for t in range(elements.shape[1]):
        running = out[:, t] = products_of[elements[:, t], running]
    return out


def render(config: WordProblemConfig, inputs: Ids, labels: Ids) -> str:
    """Permutations as the images of 1, 2, ...

    >>> config = WordProblemConfig(length=3, group="s3")
    >>> elements = np.array([[2, 1, 3]])
    >>> print(render(config, elements[0], products(config, elements)[0]))
    input  213 132 231
    labels 213 312 123
    """
    if config.group[0] == "z":
        return two_lines(inputs, labels, str)
    elements = _permutations(config.group)
    return two_lines(inputs, labels, lambda i: "".join(str(1 + image) for image in elements[i]))


def _permutations(group: str) -> list[tuple[int, ...]]:
    every = itertools.permutations(range(int(group[1:])))
    return [p for p in every if group[0] == "s" or _even(p)]


def _even(p: tuple[int, ...]) -> bool:
    return sum(a > b for a, b in itertools.combinations(p, 2)) % 2 == 0


@cache
def table(group: str) -> Ids:
    """[g, x]: the id of g after x."""
    if group[0] == "z":
        n = int(group[1:])
        sums: Ids = np.add.outer(np.arange(n), np.arange(n)) % n
        return sums
    elements = _permutations(group)
    place = {p: i for i, p in enumerate(elements)}
    return np.array([[place[tuple(g[image] for image in x)] for x in elements] for g in elements])
