"""Usable context: the length at which accuracy first falls under a threshold, interpolated on log2 of the length."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

from .config import require

Bound: TypeAlias = Literal["measured", "at least", "below"]


@dataclass(frozen=True)
class UsableContext:
    """length in tokens; bound "at least" if accuracy never fell, "below" if it was under the threshold at once."""

    length: float
    bound: Bound

    def __str__(self) -> str:
        sign = {"measured": "", "at least": ">= ", "below": "< "}[self.bound]
        return f"{sign}{self.length:.0f}"


def usable_context(accuracy: Mapping[int, float], tau: float) -> UsableContext:
    """Where accuracy, given by length, first falls under tau. Both in the same unit, shares or percent.

    Between the last length above tau and the first one under it accuracy is taken as linear in log2(length).

    >>> str(usable_context({2048: 0.99, 4096: 0.95, 8192: 0.85}, tau=0.9))
    '5793'
    >>> str(usable_context({2048: 0.99, 4096: 0.95}, tau=0.9))
    '>= 4096'

    Raises:
        ValueError: without lengths, or for one that is not positive.
    """
    require(len(accuracy) > 0, "accuracy must have at least one length, got none")
    lengths = sorted(accuracy)
    require(lengths[0] > 0, f"lengths must be positive, got {lengths[0]}")
    if accuracy[lengths[0]] < tau:
        return UsableContext(lengths[0], "below")
    for last, first in pairwise(lengths):
        above, under = accuracy[last], accuracy[first]
        if under < tau:
            share = (above - tau) / (above - under)
            return UsableContext(2 ** ((1 - share) * math.log2(last) + share * math.log2(first)), "measured")
    return UsableContext(lengths[-1], "at least")


def ratio(a: UsableContext, b: UsableContext) -> float:
    """How many times the context of b that of a is.

    Raises:
        ValueError: if either is only a bound, for then so is the ratio.
    """
    for name, context in (("a", a), ("b", b)):
        require(context.bound == "measured", f"{name} must be measured, got {context}")
    return a.length / b.length
