"""The backends: which of them a rule has, their generated text, and that text as a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stateir.affine import normal_form
from stateir.core import core
from stateir.ir import Axis, Rule

from .generated import load_source
from .step import step_source

NAMES = ("step", "chunked", "triton")


def lacks(rule: Rule, backend: str) -> str | None:
    """Why a rule does not have a backend; None if it has it."""
    if backend == "step":
        return None
    if backend == "triton":
        return "this version has no Triton backend"
    matrices = [s.name for s in rule.states if s.axis is Axis.MATRIX]
    if len(matrices) > 1:
        return f"it carries several matrix states ({', '.join(matrices)})"
    return None


def source(rule: Rule, backend: str, chunk_size: int | None) -> str:
    """The generated text of a backend that the rule has."""
    if backend == "step":
        return step_source(rule)
    from .chunked_module import sequence_source

    form = normal_form(rule)
    assert form is not None, f"{rule.name} has no normal form"
    return sequence_source(rule, core(form), chunk_size)


def runner(rule: Rule, backend: str, chunk_size: int | None) -> Callable[..., Any]:
    """The backend's function of (inputs..., params..., state), which gives the output and the state after it."""
    run: Callable[..., Any] = load_source(source(rule, backend, chunk_size), f"{rule.name}.{backend}").run
    return run
