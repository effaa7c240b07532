"""Hypothesis strategies over rules. Importing this needs hypothesis, which the package does not depend on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st

from .random_rules import random_rule

A = TypeVar("A")


class _HypothesisDraw:
    """Choices that hypothesis makes, and shrinks when a test fails."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))

    def choice(self, options: Sequence[A]) -> A:
        return options[self._draw(st.integers(0, len(options) - 1))]


@st.composite
def rule_texts(draw: st.DrawFn, max_lines: int = 5) -> str:
    """Texts of random rules."""
    return random_rule(_HypothesisDraw(draw), max_lines)
