"""Syntax tree -> typed rule: names, axes, arrays, loops, constants and time (rules 2 to 12 and 19 of the language)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from . import syntax as syn
from .axes import named
from .consts import evaluate
from .expressions import Typer
from .ir import (
    Axis,
    Bin,
    Expr,
    Input,
    Interval,
    Let,
    Line,
    Param,
    Read,
    Ref,
    Rule,
    S,
    Span,
    State,
    Update,
    children,
    walk,
)
from .names import MAX_COUNT, Entry, nearest, reserved
from .parser import MAX_DEPTH
from .report import Report

MAX_UPDATES = 1_000
MAX_UNFOLDED = 10_000


def check(file: syn.File, text: str, constants: Mapping[str, float], report: Report) -> Rule | None:
    """The typed rule; where `report` got errors, of the lines without one, so that later passes find theirs.

    None if an update has an error: the versions of its state would be wrong. `constants` replace the values of constant
    lets by name.
    """
    return _Checker(file, text, constants, report).run()


class _Checker:
    def __init__(self, file: syn.File, text: str, constants: Mapping[str, float], report: Report) -> None:
        self.file = file
        self.text = text
        self.constants = constants
        self.report = report
        self.scope: dict[str, Entry] = {"S": Entry("state", Axis.MATRIX)}
        self.scope |= {name: Entry("broken") for name in file.broken if name != "S"}
        self.versions: dict[str, int] = {"S": 0}
        self.inputs: list[Input] = []
        self.params: list[Param] = []
        self.states: list[State] = [S]
        self.lines: list[Line] = []
        self.typer = Typer(text, self.scope, self.versions, report)
        self.read_on: int | None = None
        self.lost_update = False
        self.meant_s = False
        self.unfolded: dict[str, tuple[int, int]] = {}

    def run(self) -> Rule | None:
        lets = {s.name.id for s in self.file.statements if isinstance(s, syn.Let)}
        for name in self.constants:
            if name not in lets:
                known = ", ".join(f"`let {x}`" for x in sorted(lets)) or "no let"
                raise ValueError(f"rule {self.file.name} has no `let {name}` to replace: it has {known}")
        for statement in self.file.statements:
            match statement:
                case syn.Declare():
                    self.declare(statement)
                case syn.Let():
                    self.let(statement)
                case syn.Update():
                    self.update(statement)
                case syn.Read():
                    self.read(statement)
        if self.read_on is None and "read" not in self.file.broken:
            self.report.add("E002", self.file.span)
        if self.versions["S"] == 0 and "S" not in self.file.broken and not self.meant_s:
            self.report.add("E003", self.file.span)
        self.report.names = self.scope
        states = {state.name for state in self.states}
        if self.lost_update or states & self.file.broken:
            return None
        return Rule(
            self.file.name,
            self.file.title,
            tuple(self.inputs),
            tuple(self.params),
            tuple(self.states),
            tuple(self.lines),
            self.text,
        )

    def define(self, name: syn.Name, entry: Entry) -> bool:
        what = reserved(name.id)
        if what is not None:
            self.report.add("E103", name.span, name=name.id, what=what)
            return False
        known = self.scope.get(name.id)
        if known is not None and known.kind != "broken":
            self.report.add("E102", name.span, name=name.id, line=known.line)
            return False
        self.scope[name.id] = entry
        return True

    # declarations

    def declare(self, d: syn.Declare) -> None:
        axis, name = Axis(d.axis), d.name.id
        size = self.size(d)
        bounds = self.interval(d.range) if d.range is not None else None
        start = self.start(d)
        self.attributes(d, axis)
        if axis is Axis.MATRIX and d.kind != "state":
            self.report.add(
                "E205",
                d.span,
                what=f"{d.kind} `{name}` cannot be a matrix",
                help="only states are matrices; `outer(key, value)` makes a matrix of two vectors",
            )
        if (d.size is not None and size is None) or (d.range is not None and bounds is None):
            self.define(d.name, Entry("broken"))
            return
        kind = {"input": "input", "param": "param"}.get(d.kind, "state")
        entry = Entry(kind, axis, d.span.line, size, unit=d.unit is not None)  # type: ignore[arg-type]
        if not self.define(d.name, entry):
            return
        unit = d.unit is not None
        if kind == "input":
            self.inputs.append(Input(name, axis, size, unit, bounds, d.span))
        elif kind == "param":
            self.params.append(Param(name, axis, size, unit, d.fixed is not None, bounds, start, d.span))
        else:
            self.states.append(State(name, axis, unit, bounds, start, d.span))
            self.versions[name] = 0

    def size(self, d: syn.Declare) -> int | None:
        if d.size is None:
            return None
        if d.kind == "state":
            self.report.add(
                "E205", d.size.span, what="a state cannot be an array", help="declare one state for each entry"
            )
            return None
        size = self.typer.place(d.size)
        if size is not None and not 1 <= size <= MAX_COUNT:
            self.report.add(
                "E208", d.size.span, what=f"an array of {size}", help=f"arrays have 1 to {MAX_COUNT} entries"
            )
            return None
        return size

    def start(self, d: syn.Declare) -> Expr | None:
        if d.start is None:
            return None
        if d.kind == "input":
            self.report.add(
                "E104",
                d.start.span,
                what="an input has no start value",
                help="a `param` or a `state` has one; a constant is a `let`",
            )
            return None
        value = self.typer.expression(d.start, "head" if d.kind == "param" else "start")
        if value is not None and value.axis is not Axis.SCALAR:
            self.report.add("E202", d.start.span, what="a start value is a scalar constant", rewrites=["0", "1"])
        return value

    def attributes(self, d: syn.Declare, axis: Axis) -> None:
        if d.fixed is not None and d.kind != "param":
            self.report.add(
                "E104",
                d.fixed,
                what=f"`fixed` is for params, `{d.name.id}` is a {d.kind}".replace("a input", "an input"),
            )
        if d.unit is not None and axis in (Axis.SCALAR, Axis.MATRIX):
            self.report.add("E211", d.unit, what=f"`unit` on a {axis.value}: it is a claim about a vector's norm")

    def interval(self, r: syn.Range) -> Interval | None:
        ends = []
        for bound in (r.lo, r.hi):
            typed = self.typer.expression(bound, "bound")
            value = evaluate(typed) if typed is not None else None
            if value is None:
                return None
            if math.isnan(value):
                self.report.add("E401", bound.span, range="a range with an undefined bound")
                return None
            ends.append(value)
        lo, hi = ends
        made = Interval(lo, hi, r.lo_open or math.isinf(lo), r.hi_open or math.isinf(hi))
        if lo > hi or (lo == hi and (made.lo_open or made.hi_open)):
            left, right = "(" if r.lo_open else "[", ")" if r.hi_open else "]"
            self.report.add("E401", r.span, range=f"`{left}{lo:g}, {hi:g}{right}`")
            return None
        return made

    # lines

    def let(self, line: syn.Let) -> None:
        value = self.typer.expression(line.value)
        if value is None:
            self.define(line.name, Entry("broken", line=line.span.line))
            return
        matrix = self.matrix_state(value)
        if matrix is not None:
            self.report.add(
                "E210",
                matrix.span,
                name=f"`{matrix.name}`",
                help="write the reading out on the lines that use it: a let is evaluated where it stands",
            )
            self.define(line.name, Entry("broken", line=line.span.line))
            return
        constant = evaluate(value)
        if constant is None:
            if line.name.id in self.constants:
                raise ValueError(f"`{line.name.id}` of rule {self.file.name} is not a constant: it cannot be replaced")
            if self.define(line.name, Entry("let", value.axis, line.span.line)) and self.small_enough(line, value):
                self.lines.append(Let(line.name.id, value, line.span))
            return
        constant = float(self.constants.get(line.name.id, constant))
        if math.isnan(constant):
            self.report.add("E403", line.value.span, what=f"`{line.name.id}` is undefined")
            self.define(line.name, Entry("broken", line=line.span.line))
            return
        self.define(line.name, Entry("const", line=line.span.line, value=constant))

    def matrix_state(self, e: Expr) -> Ref | None:
        """The first use of a matrix state in e; no let has one, so a matrix let is made of vectors alone."""
        return next(
            (x for x in walk(e) if isinstance(x, Ref) and x.axis is Axis.MATRIX and x.name in self.versions), None
        )

    def small_enough(self, line: syn.Let, value: Expr) -> bool:
        """Later stages put lets in place: what this makes of the value must stay small, and flat for recursion."""
        operations, depth = _unfolded(value, self.unfolded)
        self.unfolded[line.name.id] = operations, depth
        if operations <= MAX_UNFOLDED and depth <= 2 * MAX_DEPTH:
            return True
        limit = f"{MAX_UNFOLDED} operations in {2 * MAX_DEPTH} levels"
        self.report.add(
            "E005", line.value.span, what="an expression of this size, with its lets put in place", limit=limit
        )
        self.scope[line.name.id] = Entry("broken", line=line.span.line)
        return False

    def update(self, line: syn.Update) -> None:
        name = line.state.id
        state = self.scope.get(name)
        if state is None or (state.kind not in ("state", "broken")):
            close = nearest(name, self.versions) if state is None else []
            self.meant_s |= "S" in close
            self.report.add(
                "E204",
                line.state.span,
                name=name,
                what="not declared" if state is None else "not a state",
                help=_undeclared(name, close) if state is None else None,
            )
            self.each_pass(line, None)
            return
        self.each_pass(line, state if state.kind == "state" else None)

    def each_pass(self, line: syn.Update, state: Entry | None) -> None:
        """The line once, or once for each value of its loop variable. Without a state only the value is checked."""
        if line.loop is None:
            self.one_update(line, state)
            return
        name, lo, hi = line.loop.name, self.typer.place(line.loop.lo), self.typer.place(line.loop.hi)
        span = Span(line.span.line, line.loop.lo.span.column, line.loop.hi.span.end)
        values = range(0)
        if lo is not None and hi is not None:
            if lo > hi:
                self.report.add(
                    "E208", span, what=f"the loop {lo}..{hi} is empty", help="both ends are included: a..b needs a ≤ b"
                )
            elif not (lo >= 0 and hi <= MAX_COUNT):
                self.report.add(
                    "E208", span, what=f"the loop {lo}..{hi}", help=f"loop bounds are from 0 to {MAX_COUNT}"
                )
            else:
                values = range(lo, hi + 1)
        if not self.define(name, Entry("loop")) or not values:
            self.versions[line.state.id] = self.versions.get(line.state.id, 0) + 1
            self.lost_update = True
            values = range(0)
        for i in values:
            self.scope[name.id] = Entry("loop", line=line.span.line, value=float(i))
            self.one_update(line, state)
        if values:
            del self.scope[name.id]

    def one_update(self, line: syn.Update, state: Entry | None) -> None:
        name, value = line.state.id, self.typer.expression(line.value)
        if state is None:
            self.lost_update = True
            return
        if value is not None and self.fits(line, state, value):
            if line.op != "=":
                own = Ref(name, state.axis, version=self.versions[name], span=line.state.span)
                value = Bin("+" if line.op == "+=" else "-", own, value, state.axis, value.span)
            self.lines.append(Update(name, value, line.span))
            if len(self.lines) == MAX_UPDATES + 1:
                self.report.add(
                    "E005", line.span, what="a rule of this many lines after its loops", limit=f"{MAX_UPDATES} lines"
                )
        else:
            self.lost_update = True
        self.versions[name] += 1

    def fits(self, line: syn.Update, state: Entry, value: Expr) -> bool:
        spread = line.op != "=" and value.axis is Axis.SCALAR and state.axis is not Axis.MATRIX
        if value.axis is not state.axis and not spread:
            self.report.add(
                "E206",
                line.value.span,
                name=line.state.id,
                axis=named(state.axis),
                found=named(value.axis),
                help="`outer(key, value)` makes a matrix" if state.axis is Axis.MATRIX else None,
            )
            return False
        matrix = self.matrix_state(value)
        if state.axis is not Axis.MATRIX and matrix is not None:
            self.report.add("E305", matrix.span, name=line.state.id, matrix=f"`{matrix.name}`")
            return False
        return True

    def read(self, line: syn.Read) -> None:
        value = self.typer.expression(line.value)
        if self.read_on is not None:
            self.report.add("E004", line.span, help=f"the first is on line {self.read_on}")
            return
        self.read_on = line.span.line
        if value is not None and value.axis is not Axis.VALUE:
            self.report.add("E207", line.value.span, found=named(value.axis))
            return
        if self.define(line.name, Entry("output", line=line.span.line)) and value is not None:
            self.lines.append(Read(line.name.id, value, line.span))


def _undeclared(name: str, close: list[str]) -> str:
    return f"did you mean `{close[0]}`?" if close else f"declare it: `state {name}: key`"


def _unfolded(e: Expr, lets: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """The number of nodes and the depth of e with lets put in place."""
    if isinstance(e, Ref):
        return lets.get(e.name, (1, 1))
    below = [_unfolded(x, lets) for x in children(e)]
    return 1 + sum(n for n, _ in below), 1 + max((depth for _, depth in below), default=0)
