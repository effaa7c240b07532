"""A rule's Triton module: one text that needs only torch and triton."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stateir.ir import Rule
from stateir.normal import Core

from .expr import scope_of
from .generated import load_source
from .prologue import prologue_source
from .shape import Shape, shape_of
from .text import arguments_of, function, line_comment, module
from .triton_launch import chunk_size, host_source, kernels_of
from .triton_text import device_functions
from .triton_tiles import tiles_of


def triton_source(rule: Rule, core: Core) -> str:
    """Source text of a module with kernels, gradients and decode for one rule. It defines

        run(inputs..., params..., S, dtype) -> (output [B, T, H, V], state after the sequence)
        step(S, inputs..., params...) -> (output [B, H, V], state after the token)

    with the arguments in the order of their declarations, as the prologue takes them; S is [B, H, K, V]. `dtype` is that
    of the products: float32, bfloat16 or float16.
    """
    shape = shape_of(core)
    parts = [
        *scan_parts(shape),
        prologue_source(rule, core).strip("\n"),
        _run(rule, shape),
        _step(rule, shape),
    ]
    lines = [f"    {line_comment(rule, line)[2:]}" for line in rule.lines]
    title = f"{rule.title or rule.name}: chunked Triton kernels, forward, backward and decode."
    docstring = "\n".join([title, "", *lines, "", *_notation(shape)])
    return triton_module(docstring, parts)


def scan_parts(shape: Shape) -> list[str]:
    """What a shape has of the module: its kernels and their host functions (`triton_launch`)."""
    tiles = tiles_of(shape)
    kernels = kernels_of(tiles)
    chunk = f"CHUNK = {chunk_size(tiles)}  # tokens of a chunk"
    return [chunk, *device_functions(tiles), *kernels.sources, *host_source(tiles, kernels)]


def triton_module(docstring: str, parts: list[str]) -> str:
    """The text of a module that also needs triton."""
    text = module(docstring, parts)
    return text.replace("import torch\n", "import torch\nimport triton\nimport triton.language as tl\n", 1)


def triton_backend(rule: Rule, core: Core) -> Callable[..., Any]:
    """`run` of the rule's Triton module."""
    run: Callable[..., Any] = load_source(triton_source(rule, core), f"{rule.name}.triton").run
    return run


def _notation(shape: Shape) -> list[str]:
    return ["p, e, y: direction, covector and value of a row; u = y - e S - ... is what it writes."]


def _epilogue(shape: Shape, t: str, reads: str) -> list[str]:
    """o = sum of factor * read + rest."""
    terms = []
    for r, read in enumerate(shape.reads):
        term = f"{reads}[..., {r}, :]"
        if read.factor == "scalar":
            term = f'{t}["f{r}"][..., None] * {term}'
        elif read.factor == "value":
            term = f'{t}["f{r}"] * {term}'
        terms.append(term)
    if shape.rest:
        terms.append(f'{t}["rest"]')
    return terms


def _run(rule: Rule, shape: Shape) -> str:
    scope = scope_of(rule)
    names = [scope.names[d.name] for d in arguments_of(rule)]
    state, t, reads, dtype = (scope.fresh(x) for x in ("S", "t", "reads", "dtype"))
    arguments = [*(f"{x}: Tensor" for x in names), f"{state}: Tensor", f"{dtype}: torch.dtype = torch.float32"]
    body = [
        f"{t} = prologue({', '.join(names)})",
        f"{reads}, {state} = _scan({t}, {state}, {dtype})",
        f"return {' + '.join(_epilogue(shape, t, reads))}, {state}",
    ]
    docstring = "The outputs [B, T, H, V] of a sequence and the state after it, from the state S before it."
    return function("run", arguments, "tuple[Tensor, Tensor]", docstring, body)


def _step(rule: Rule, shape: Shape) -> str:
    scope = scope_of(rule)
    names = [scope.names[d.name] for d in arguments_of(rule)]
    inputs = names[: len(rule.inputs)]
    state, t, reads = (scope.fresh(x) for x in ("S", "t", "reads"))
    arguments = [f"{state}: Tensor", *(f"{x}: Tensor" for x in names)]
    values = [f"{x}.unsqueeze(1)" if x in inputs else x for x in names]
    body = [
        f"{t} = prologue({', '.join(values)})",
        f"{reads}, {state} = _token({t}, {state})",
        f"return ({' + '.join(_epilogue(shape, t, reads))}).squeeze(1), {state}",
    ]
    docstring = "The output [B, H, V] of one token and the state after it, from the state S before it."
    return function("step", arguments, "tuple[Tensor, Tensor]", docstring, body)
