"""Recall and state-tracking tasks, all of one shape: a frozen configuration, `generate` and `render`.

Rows are inputs and labels [rows, L] int64. A label stands at the position whose output is scored and is -100 elsewhere;
ids lie in 0 .. config.tokens-1, labels among them. Data depend on (configuration, rows, seed) alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stateir.models.mqar import Ids, MqarConfig, Rows, render_row
from stateir.models.mqar import generate as generate_mqar

from . import compositional, induction, modular, needle, palindrome, parity, selective_copying, stack, word_problem


@dataclass(frozen=True)
class Task:
    """config: the class of configurations, each with `length` and `tokens`. generate: (config, rows, seed) -> rows.
    render: (config, one row's inputs, its labels) -> two aligned lines of text."""

    config: type[Any]
    generate: Callable[[Any, int, int | tuple[int, ...]], Rows]
    render: Callable[[Any, Ids, Ids], str]


TASKS: dict[str, Task] = {
    "mqar": Task(MqarConfig, generate_mqar, render_row),
    "compositional": Task(compositional.CompositionalConfig, compositional.generate, compositional.render),
    "needle": Task(needle.NeedleConfig, needle.generate, needle.render),
    "palindrome": Task(palindrome.PalindromeConfig, palindrome.generate, palindrome.render),
    "stack": Task(stack.StackConfig, stack.generate, stack.render),
    "parity": Task(parity.ParityConfig, parity.generate, parity.render),
    "word_problem": Task(word_problem.WordProblemConfig, word_problem.generate, word_problem.render),
    "modular": Task(modular.ModularConfig, modular.generate, modular.render),
    "induction": Task(induction.InductionConfig, induction.generate, induction.render),
    "selective_copying": Task(
        selective_copying.SelectiveCopyingConfig, selective_copying.generate, selective_copying.render
    ),
}


def exact(predictions: Ids, labels: Ids) -> float:
    """The share of rows whose labelled positions are all right, as needles are scored. Both [rows, L]."""
    return float(((predictions == labels) | (labels == -100)).all(axis=1).mean())
