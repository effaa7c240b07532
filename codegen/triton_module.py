"""A rule's Triton module: one text that needs only torch and triton."""

from __future__ import annotations

from stateir.affine import normal_form
from stateir.column import Column, column, without_column
from stateir.ir import Rule
from stateir.normal import Core
from stateir.plan import unfused
from stateir.unicode import normal_form as written

from .carried import carries_s_alone, run_source, start_source
from .column_text import output_source, state_after, state_before, widened_source
from .expr import Scope, scope_of
from .prologue import prologue_source
from .shape import Shape, shape_of
from .tape_rule import tape_of
from .text import arguments_of, function, line_comment, module
from .triton_config import table_source
from .triton_expr import called
from .triton_functions import device_functions
from .triton_fused import fused_sources
from .triton_launch import kernels_of, launch_source, tensors_source
from .triton_prologue import MEMORY, row_kernels
from .triton_tiles import tiles_of

# Columns beside S, of which one would do: so many that a row of bfloat16 stays a multiple of 16 bytes.
ALIGNED = 8


def triton_source(rule: Rule, core: Core, *, fused: bool = True) -> str:
    """Source text of a module with kernels, gradients and decode for one rule. It defines, as other backends do,

        start
        run(inputs..., params..., state=None) -> (output [B, T, H, V], state after the sequence)
        step(state, inputs..., params...) -> (output [B, H, V], state after the token)

    The dtype of the first value input is that of the output and decides how products are taken. The prologue is kernels
    too unless `unfused` says why not, or `fused` is False: then it is PyTorch. ValueError where a token has more
    rows than a chunk of the kernels holds.
    """
    found = column(rule, core)
    core = core if found is None else without_column(core, found)
    shape = shape_of(core)
    if fused and unfused(rule, core) is None:
        parts = _fused_parts(rule, core)
    else:
        parts = [
            *scan_parts(shape, line_comments(rule)),
            *([] if found is None else [widened_source(ALIGNED)]),
            prologue_source(rule, core, found, kernels=True).strip("\n"),
            *([] if found is None else [output_source(rule, found)]),
            start_source(rule),
            _run(rule, shape, found),
            _step(rule, shape, found),
        ]
    lines = [f"    {comment[2:]}" for comment in line_comments(rule)]
    form = normal_form(rule)
    assert form is not None, f"{rule.name} has a core form and no normal form"
    equation = [f"    {line}" for line in written(form).splitlines()]
    docstring = "\n".join([rule.title or rule.name, "", *lines, "", "which is", "", *equation, "", *_notation(shape)])
    return triton_module(docstring, parts)


def line_comments(rule: Rule) -> tuple[str, ...]:
    """The rule's lines in time order, as comments."""
    return tuple(line_comment(rule, line) for line in rule.lines)


def triton_lacks(shape: Shape) -> str | None:
    """Why a shape has no kernels; None if it has them."""
    try:
        tiles_of(shape)
    except ValueError as error:
        return str(error)
    return None


def scan_parts(shape: Shape, comments: tuple[str, ...] = ()) -> list[str]:
    """What a shape has of the module: its kernels and their host functions (`triton_launch`).

    `comments` are the rule's lines, for the kernels that run over all of them.
    """
    tiles = tiles_of(shape)
    kernels = kernels_of(tiles, comments)
    return [
        table_source(tiles, kernels.names),
        *device_functions(tiles),
        *kernels.sources,
        *launch_source(tiles, kernels),
        *tensors_source(tiles),
    ]


def _fused_parts(rule: Rule, core: Core) -> list[str]:
    """Everything of a module whose prologue is kernels."""
    tiles = tiles_of(shape_of(core))
    kernels, tape = kernels_of(tiles, line_comments(rule)), tape_of(rule, core, tiles)
    rows = row_kernels(tape)
    sources = [x.kernel.source for x in rows.all]
    return [
        table_source(tiles, kernels.names),
        *device_functions(tiles),
        MEMORY.strip("\n"),
        *called(sources),
        *sources,
        *kernels.sources,
        *launch_source(tiles, kernels),
        start_source(rule),
        *fused_sources(tape, tiles, rows),
    ]


def triton_module(docstring: str, parts: list[str]) -> str:
    """The text of a module that also needs triton."""
    text = module(docstring, parts)
    return text.replace("import torch\n", "import torch\nimport triton\nimport triton.language as tl\n", 1)


def _notation(shape: Shape) -> list[str]:
    """How the kernels' tensors come from the rule."""
    erasing, writing = len(shape.erasing), len(shape.writing)
    lines = ["The kernels see rows, each of which reads the state before its token, and chunks of CHUNK tokens."]
    if erasing:
        lines.append(
            f"{erasing} erasing row(s) a token: S += outer(p, u), where u is y less e @ S and less what the row sees"
        )
        lines.append("of the rows above it; all u of a chunk are solved at once.")
    if writing:
        lines.append(f"{writing} pure write(s) a token: S += outer(w, yw).")
    if shape.decay != "none":
        lines.append(f"g is the log decay of a token ({shape.decay}); p and w are decayed to the end of their token.")
    return [*lines, ""]


def _reads(shape: Shape, found: Column | None, tensors: str, reads: str) -> str:
    """The output: the sum of factor * read, and the rest."""
    if found is not None:
        return f"output({reads}[..., 0, :], {tensors})"
    terms = []
    for r, read in enumerate(shape.reads):
        term = f"{reads}[..., {r}, :]"
        if read.factor == "scalar":
            term = f'{tensors}["f{r}"][..., None] * {term}'
        elif read.factor == "value":
            term = f'{tensors}["f{r}"] * {term}'
        terms.append(term)
    if shape.rest:
        terms.append(f'{tensors}["rest"]')
    return " + ".join(terms)


def _lines(
    rule: Rule, shape: Shape, found: Column | None, scope: Scope, arguments: list[str], scan: str, chunk: str
) -> list[str]:
    """The statements that give the output and the state after, from the arguments and the state before.

    `scan` is the call of the kernels with the places {tensors} and {S} in it.
    """
    state, output = scope.fresh("state"), scope.names[rule.read.name]
    tensors, reads = scope.new("tensors"), scope.new("reads")
    every = ", ".join(arguments)
    if carries_s_alone(rule):
        return [
            f"{tensors} = prologue({every})",
            f"{reads}, {state} = {scan.format(tensors=tensors, S=state)}",
            f"{output} = {_reads(shape, found, tensors, reads)}",
        ]
    carried, S = scope.new("carried"), scope.names["S"]
    before = state_before(state, found)
    return [
        f"{tensors}, {carried} = prologue({every}, {state}, {chunk})",
        f"{reads}, {S} = {scan.format(tensors=tensors, S=before)}",
        f"{output} = {_reads(shape, found, tensors, reads)}",
        f"{state} = {state_after(S, carried, found)}",
    ]


def _run(rule: Rule, shape: Shape, found: Column | None) -> str:
    def body(rule: Rule, scope: Scope) -> list[str]:
        arguments = [scope.names[d.name] for d in arguments_of(rule)]
        call = f"_scan({{tensors}}, {{S}}, {scope.fresh('dtype')})"
        return _lines(rule, shape, found, scope, arguments, call, "CHUNK")

    return run_source(rule, body)


def _step(rule: Rule, shape: Shape, found: Column | None) -> str:
    scope = scope_of(rule)
    state, output = scope.fresh("state"), scope.names[rule.read.name]
    names = [scope.names[d.name] for d in arguments_of(rule)]
    inputs = names[: len(rule.inputs)]
    each = scope.new("x")
    every = ", ".join(names) + ("," if len(names) == 1 else "")
    tokens = ", ".join(inputs) + ("," if len(inputs) == 1 else "")
    kind = "Tensor" if carries_s_alone(rule) else "dict[str, Tensor]"
    body = [
        f"{every} = ({each}.float() for {each} in ({every}))",
        f"{tokens} = ({each}.unsqueeze(1) for {each} in ({tokens}))",
        *_lines(rule, shape, found, scope, names, "_token({tensors}, {S})", "1"),
        f"return {output}.squeeze(1), {state}",
    ]
    docstring = "One token, without gradients: inputs [B, H, ...]; the output [B, H, V] (float32) and the state after."
    arguments = [f"{state}: {kind}", *(f"{name}: Tensor" for name in names)]
    return function("step", arguments, f"tuple[Tensor, {kind}]", docstring, body)
