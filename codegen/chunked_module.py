"""The chunked backend as one text: the prologue, the chunked scan over its tensors, and the run of a whole sequence."""

from __future__ import annotations

from stateir.column import column, without_column
from stateir.ir import Rule
from stateir.normal import Core

from .carried import carries_s_alone, run_source, start_source
from .chunked import chunked_source, default_chunk
from .column_text import output_source, state_after, state_before, widened_source
from .expr import Scope
from .prologue import prologue_source
from .shape import shape_of
from .text import arguments_of, module


def sequence_source(rule: Rule, core: Core, chunk_size: int | None = None) -> str:
    """Source of a module with `prologue`, `chunked`, `start` and `run(sequence..., state=None)`."""
    found = column(rule, core)
    core = core if found is None else without_column(core, found)
    shape = shape_of(core)
    chunk = chunk_size or default_chunk(shape)

    def body(rule: Rule, scope: Scope) -> list[str]:
        state, output = scope.fresh("state"), scope.names[rule.read.name]
        arguments = ", ".join(scope.names[d.name] for d in arguments_of(rule))
        if carries_s_alone(rule):
            return [f"{output}, {state} = chunked(prologue({arguments}), {state}, {chunk})"]
        tensors, carried, S = scope.new("tensors"), scope.new("carried"), scope.names["S"]
        before = state_before(state, found)
        return [
            f"{tensors}, {carried} = prologue({arguments}, {state}, {chunk})",
            f"{output}, {S} = chunked({tensors}, {before}, {chunk})",
            *([] if found is None else [f"{output} = output({output}, {tensors})"]),
            f"{state} = {state_after(S, carried, found)}",
        ]

    docstring = (
        f"{rule.name}, {chunk} tokens at a time: what depends on S is solved for a whole chunk by matrix products."
    )
    if rule.title:
        docstring = f"{rule.title}\n\n{docstring}\n"
    parts = [
        *([] if found is None else [widened_source(1)]),
        prologue_source(rule, core, found).strip(),
        chunked_source(shape).strip(),
        *([] if found is None else [output_source(rule, found)]),
        start_source(rule),
        run_source(rule, body),
    ]
    return module(docstring, parts)
