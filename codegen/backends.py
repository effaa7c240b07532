"""The backends: which of them a rule has, their generated text, and that text as a function."""

from __future__ import annotations

from types import ModuleType

from stateir.affine import normal_form
from stateir.core import core
from stateir.ir import Axis, Rule
from stateir.normal import Core

from .chunked import chunked_source
from .chunked_module import sequence_source
from .first_use import DEFAULT, Configuration, configured
from .generated import load_source
from .prologue import prologue_source
from .shape import Shape, shape_of
from .step import step_source
from .text import module
from .triton_module import scan_parts, triton_lacks, triton_module, triton_source

NAMES = ("step", "chunked", "triton")


def lacks(rule: Rule, backend: str) -> str | None:
    """Why a rule does not have a backend; None if it has it."""
    if backend == "step":
        return None
    matrices = [s.name for s in rule.states if s.axis is Axis.MATRIX]
    if len(matrices) > 1:
        return f"E501: it carries several matrix states ({', '.join(matrices)})"
    if backend == "triton":
        return triton_lacks(shape_of(_core(rule)))
    return None


def source(rule: Rule, backend: str, chunk_size: int | None) -> str:
    """The generated text of a backend that the rule has."""
    if backend == "step":
        return step_source(rule)
    if backend == "triton":
        return triton_source(rule, _core(rule))
    return sequence_source(rule, _core(rule), chunk_size)


def _core(rule: Rule) -> Core:
    form = normal_form(rule)
    assert form is not None, f"{rule.name} has no normal form"
    return core(form)


def packed_functions(rule: Rule, backend: str, configuration: Configuration) -> tuple[ModuleType, Shape]:
    """A module with what a backend runs packed sequences by, and the shape of the tensors between its parts.

    It has `prologue`, and `chunked` or the kernels' `_scan`.
    """
    form = _core(rule)
    shape = shape_of(form)
    docstring, prologue = f"{rule.name}, for packed sequences.", prologue_source(rule, form)
    if backend == "triton":
        text = triton_module(docstring, [*scan_parts(shape), prologue])
    else:
        text = module(docstring, [prologue, chunked_source(shape)])
    return configured(text, label(rule, f"packed.{backend}"), configuration), shape


def functions(rule: Rule, backend: str, chunk_size: int | None, configuration: Configuration = DEFAULT) -> ModuleType:
    """The backend's module: `run(inputs..., params..., state)` gives the output and the state after it."""
    text = source(rule, backend, chunk_size)
    if configuration == Configuration():
        return load_source(text, label(rule, backend))
    return configured(text, label(rule, backend), configuration)


def label(rule: Rule, backend: str) -> str:
    """What tracebacks show of a generated module."""
    return f"{rule.name}.{backend}"
