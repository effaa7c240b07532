"""Recall and state-tracking tasks, all of one shape: a frozen configuration, `generate` and `render`.

Rows are inputs and labels [rows, L] int64. A label stands at the position whose output is scored and is -100 elsewhere;
ids lie in 0 .. config.tokens-1, labels among them. Data depend on (configuration, rows, seed) alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stateir.models.config import require
from stateir.models.mqar import IGNORE, Ids, MqarConfig, Rows, render_row
from stateir.models.mqar import generate as generate_mqar

from . import compositional, induction, modular, needle, palindrome, parity, selective_copying, stack, word_problem


def share(right: Any, asked: Any) -> Any:
    """Each row's share of right answers among those asked; arrays or tensors [..., N] of booleans."""
    return (right & asked).sum(-1) / asked.sum(-1)


def whole(right: Any, asked: Any) -> Any:
    """Whether all that is asked in a row is right, as needles are scored; arrays or tensors [..., N] of booleans."""
    return (right | ~asked).all(-1)


@dataclass(frozen=True)
class Task:
    """config: the class of configurations, each with `length` and `tokens`. generate: (config, rows, seed) -> rows.
    render: (config, one row's inputs, its labels) -> two aligned lines of text. score: (right, asked), both [rows, N]
    -> the score of each row in [0, 1]."""

    config: type[Any]
    generate: Callable[[Any, int, int | tuple[int, ...]], Rows]
    render: Callable[[Any, Ids, Ids], str]
    score: Callable[[Any, Any], Any] = share


TASKS: dict[str, Task] = {
    "mqar": Task(MqarConfig, generate_mqar, render_row),
    "compositional": Task(compositional.CompositionalConfig, compositional.generate, compositional.render),
    "needle": Task(needle.NeedleConfig, needle.generate, needle.render, whole),
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


def task_of(config: Any) -> str:
    """The name of the task that a configuration is of.

    Raises:
        ValueError: if it is of none.
    """
    found = [name for name, task in TASKS.items() if type(config) is task.config]
    require(
        len(found) == 1, f"a task must be one of {', '.join(TASKS)} (its configuration), got {type(config).__name__}"
    )
    return found[0]


def exact(predictions: Ids, labels: Ids) -> float:
    """The share of rows whose labelled positions are all right, as needles are scored. Both [rows, L]."""
    return float(whole(predictions == labels, labels != IGNORE).mean())
