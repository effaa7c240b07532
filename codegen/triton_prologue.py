"""Kernels for what a rule computes beside S: its rows, its output and all their gradients, each in one pass.

    prologue       inputs, params                        -> the packed rows
    epilogue       reads, inputs, params                 -> the output
    epilogue_grad  the output's gradient                 -> that of the reads
    prologue_grad  gradients of rows and of the output   -> those of the inputs, partial sums of those of the params

One program has ROWS tokens of one head where params take part, else ROWS tokens and heads as they lie in memory. What
one pass has computed the next computes again from the inputs: that costs less than to store and load it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stateir.ir import Axis

from .expr import python_names
from .tape import Level
from .tape_rule import OUTPUT, READS, RuleTape
from .tape_text import Writer
from .text import line_comment
from .triton_expr import COLUMNS, FUNCTIONS, TILES
from .triton_text import Kernel, KernelText

# Variables of these kernels, which a rule's names must leave alone.
_OWN = {"tl", "triton", "pid", "head", "every", "token", "row", "live", "T", "H", "K", "V", "KP", "VP", "ROWS",
        "col_k", "col_v", "in_k", "in_v", "dim_k", "dim_v", "reads", "do"}  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A tensor that a kernel writes: the entries of its values for a token, None where they are 0.

    `sums`: of a head alone, in a partial sum for each program. `stem` is the pointer's name up to `_out`.
    """

    name: str
    stem: str
    entries: tuple[int | None, ...]
    axis: Axis
    sums: bool = False


@dataclass(frozen=True)
class RowKernel:
    """A kernel over rows. `sources` are the leaves' names of its first pointers, then come its targets."""

    kernel: Kernel
    sources: tuple[str, ...]
    targets: tuple[Target, ...]
    by_head: bool


@dataclass(frozen=True)
class RowKernels:
    """The kernels of a rule; None where all that one would do is to copy."""

    prologue: RowKernel | None
    epilogue: RowKernel | None
    epilogue_grad: RowKernel | None
    prologue_grad: RowKernel | None

    @property
    def all(self) -> list[RowKernel]:
        return [x for x in (self.prologue, self.epilogue, self.epilogue_grad, self.prologue_grad) if x]


def row_kernels(rule: RuleTape) -> RowKernels:
    """All kernels of a rule's tape."""
    axes = {"g": None, "c": Axis.SCALAR, "y": Axis.VALUE, "yw": Axis.VALUE}
    made = []
    for name, members in rule.packed.items():
        if not rule.alias(name):
            own = rule.tape[members[0]].axis if name == "g" and members[0] is not None else None
            made.append(Target(name, f"{name}_row", members, own or axes.get(name) or Axis.KEY))
    epilogue = epilogue_grad = None
    if not rule.direct:
        epilogue = _kernel(rule, "epilogue", "The output, from what the scan has read.",
                           [Target(OUTPUT, rule.rule.read.name, (rule.output,), Axis.VALUE)])  # fmt: skip
    if rule.read_gradients != (rule.output_cotangent,):
        epilogue_grad = _kernel(rule, "epilogue_grad", "The gradient of what the scan has read.",
                                [Target(READS, "dreads", rule.read_gradients, Axis.VALUE)])  # fmt: skip
    return RowKernels(
        _kernel(rule, "prologue", "The rows that the scan takes.", made) if made else None,
        epilogue,
        epilogue_grad,
        _gradient_kernel(rule),
    )


def handed(rule: RuleTape, name: str) -> str | None:
    """The packed tensor whose gradient is that of an input, which is used nowhere else."""
    (d, *others) = rule.gradients[name]
    if d is None or others or rule.tape[d].op != "leaf":
        return None
    given = rule.given(d)
    return given.name[2:] if given.name.startswith("d ") and given.count == 1 else None


def _gradient_kernel(rule: RuleTape) -> RowKernel | None:
    targets = []
    for d in rule.rule.arguments:
        entries = rule.gradients[d.name]
        if any(x is not None for x in entries) and not handed(rule, d.name):
            sums = d in rule.rule.params
            targets.append(Target(d.name, f"d{d.name}", entries, d.axis, sums))
    if not targets:
        return None
    return _kernel(rule, "prologue_grad", "The gradients of inputs and params, from those of rows and output.", targets)


class _Names:
    """Variables of a kernel: a rule's own names wherever they are free."""

    def __init__(self, rule: RuleTape) -> None:
        self.taken = {*_OWN, *FUNCTIONS}
        self._count = 0
        self.rule: dict[str, str] = {}
        for name, python in python_names(rule.rule).items():
            self.rule[name] = self.new(python)

    def new(self, name: str) -> str:
        while self.taken & {name, f"{name}_in", f"{name}_out"}:
            name += "_"
        self.taken |= {name, f"{name}_in", f"{name}_out"}
        return name

    def temporary(self) -> str:
        self._count += 1
        return self.new(f"x{self._count}")


def _kernel(rule: RuleTape, name: str, docstring: str, targets: Sequence[Target]) -> RowKernel:
    tape, names = rule.tape, _Names(rule)
    roots = [x for target in targets for x in target.entries if x is not None]
    writer = Writer(tape, TILES, {}, names.temporary)
    leaves = writer.leaves(roots)
    sources = list(dict.fromkeys(rule.given(x).name for x in leaves))
    pointers = {source: _pointer(source, names) for source in sources}
    for x in leaves:
        _, index = tape[x].key
        stem = pointers[rule.given(x).name].removesuffix("_in")
        writer.names[x] = stem if index is None else names.new(f"{stem}{index}")
    outputs = {t.name: f"{names.rule.get(t.stem) or names.new(t.stem)}_out" for t in targets}
    named = {n: names.rule[let] for n, let in rule.lets.items()}
    named |= {n: names.new(row) for n, row in rule.rows.items() if n not in named}
    writer.names |= {n: x for n, x in named.items() if tape[n].op != "leaf" and tape[n].level is not Level.CONSTANT}

    by_head = any(rule.given(x).level is Level.HEAD for x in leaves) or any(target.sums for target in targets)
    entries = [*roots, *writer.needed(roots)]
    axes = {tape[x].axis for x in entries} | {target.axis for target in targets}
    dims = {d for x in entries if tape[x].op == "dim" and isinstance(d := tape[x].data, Axis)}
    constants = [c for axis, c in ((Axis.KEY, "K"), (Axis.VALUE, "V")) if axis in axes | dims]
    constants = [*constants, *(f"{c}P" for axis, c in ((Axis.KEY, "K"), (Axis.VALUE, "V")) if axis in axes), "ROWS"]
    text = KernelText(name, docstring, [*pointers.values(), *outputs.values()], constants)
    _program(text, by_head, axes, dims, writer, entries)
    for x in leaves:
        given, (_, index) = rule.given(x), tape[x].key
        load = _load(pointers[given.name], given.count, given.level, tape[x].axis, index)
        text(f"{writer.names[x]} = {load}")
    _body(text, rule, writer, targets, outputs, roots)
    return RowKernel(text.kernel(), tuple(sources), tuple(targets), by_head)


def _pointer(source: str, names: _Names) -> str:
    if source == READS:
        return "reads_in"
    if source == OUTPUT:
        return "do_in"
    if source.startswith("d "):
        return f"{names.new('d' + source[2:] + '_row')}_in"
    return f"{names.rule[source]}_in"


def _program(
    text: KernelText, by_head: bool, axes: set[Axis], dims: set[Axis], writer: Writer, entries: list[int]
) -> None:
    text("pid = tl.program_id(0).to(tl.int64)")
    if by_head:
        text(
            "head = pid % H + tl.arange(0, 1)",
            "every = head >= 0",
            "token = pid // H * ROWS + tl.arange(0, ROWS)",
            "row = token * H + head",
            "live = token < T",
        )
    else:
        text("row = pid * ROWS + tl.arange(0, ROWS)", "live = row < T.to(tl.int64) * H")
    body = {writer.tape[x].data for x in entries if writer.tape[x].op == "sum"}
    for axis, c in COLUMNS.items():
        if axis in axes:
            text(f"col_{c} = tl.arange(0, {c.upper()}P)")
            if axis in body:
                text(f"in_{c} = (col_{c} < {c.upper()})[None, :]")
        if axis in dims:
            text(f"dim_{c} = tl.full([1, 1], {c.upper()}, tl.float32)")


def _place(row: str, count: int, index: int | None) -> str:
    """The number of a row's value among `count` beside each other."""
    return row if count == 1 else f"{row} * {count} + {index or 0}"


def _load(pointer: str, count: int, level: Level, axis: Axis, index: int | None) -> str:
    row, live = ("head", "every") if level is Level.HEAD else ("row", "live")
    row = _place(row, count, index)
    if axis is Axis.SCALAR:
        return f"_load_scalar({pointer}, {row}, {live})"
    c = COLUMNS[axis]
    return f"_load({pointer}, {row}, {live}, col_{c}, {c.upper()}).to(tl.float32)"


def _store(pointer: str, target: Target, index: int, tile: str) -> str:
    row, live = ("pid + tl.arange(0, 1)", "every") if target.sums else ("row", "live")
    count = len(target.entries)
    row = _place(f"({row})" if target.sums and count > 1 else row, count, index)
    if target.axis is Axis.SCALAR:
        return f"_store_scalar({pointer}, {row}, {live}, {tile})"
    c = COLUMNS[target.axis]
    return f"_store({pointer}, {row}, {live}, col_{c}, {c.upper()}, {tile})"


def _body(
    text: KernelText,
    rule: RuleTape,
    writer: Writer,
    targets: Sequence[Target],
    outputs: dict[str, str],
    roots: list[int],
) -> None:
    """The statements, each let under its line of the rule, and each result stored as soon as it is there."""
    waiting: dict[int, list[str]] = {}

    def stores(n: int) -> None:
        text(*(line.format(writer.text(n) if n >= 0 else "0.0") for line in waiting.pop(n, [])))

    for target in targets:
        for i, x in enumerate(target.entries):
            waiting.setdefault(-1 if x is None else x, []).append(_store(outputs[target.name], target, i, "{}"))
    section = None
    for n, statement in writer.statements(roots):
        current = next((s for s in rule.sections if s.first <= n < s.last), None)
        if statement and current is not section and current is not None:
            text(line_comment(rule.rule, current.line))
        section = current if statement else section
        if statement:
            text(statement)
        stores(n)
    for n in list(waiting):
        stores(n)


MEMORY = '''
@triton.jit
def _load_scalar(x, row, live):
    """One number for each row, as a column."""
    return tl.load(x + row, mask=live, other=0.0).to(tl.float32)[:, None]


@triton.jit
def _store_scalar(x, row, live, column):
    tl.store(x + row[:, None], column, mask=live[:, None])
'''
