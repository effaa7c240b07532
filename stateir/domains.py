"""Are the rule's claims kept, and is every expression defined? (rules 6, 7 and 17: E402, E403)"""

from __future__ import annotations

from collections.abc import Iterator

from . import intervals as iv
from .consts import evaluate
from .ir import Axis, Bin, Call, Expr, Num, Param, Ref, Rule, Span, State, Update, walk
from .ranges import Ranges, guarded_operand
from .report import Report


def check_domains(rule: Rule, report: Report) -> None:
    ranges = Ranges(rule)
    for declared in _with_start(rule):
        _start_inside(declared, ranges, report)
    states = {state.name: state for state in rule.states}
    for line in rule.lines:
        if isinstance(line, Update):
            _update_inside(states[line.state], line, ranges, report)
    source = rule.text.split("\n")
    matrices = {state.name for state in rule.states if state.axis is Axis.MATRIX}
    for e in _expressions(rule):
        for x in walk(e):
            _defined(x, ranges, report, source, matrices)


def _with_start(rule: Rule) -> list[Param | State]:
    return [*rule.params, *rule.states]


def _expressions(rule: Rule) -> Iterator[Expr]:
    for declared in _with_start(rule):
        if declared.start is not None:
            yield declared.start
    for line in rule.lines:
        yield line.value


def _start_inside(d: Param | State, ranges: Ranges, report: Report) -> None:
    if d.range is None or (isinstance(d, Param) and d.start is None):
        return
    start = d.start or Num(0.0, d.span)
    found = ranges.of(start)
    if not iv.inside(found, d.range):
        what = "its start value" if d.start is not None else "its start value, 0 by default,"
        report.add(
            "E402",
            start.span,
            what=f"`{d.name}` is in {iv.text(d.range)}; {what} is in {iv.text(found)}",
            help="give a start value inside the range: `= c`, or widen the range",
        )


def _update_inside(state: State, line: Update, ranges: Ranges, report: Report) -> None:
    if state.range is not None:
        found = ranges.of(line.value)
        if not iv.inside(found, state.range):
            report.add(
                "E402",
                line.value.span,
                what=f"`{state.name}` is in {iv.text(state.range)}; this line makes it {iv.text(found)}",
                help="the claim is proved by induction: widen it, or bound the value with `max` or `min`",
            )
    if state.unit and not ranges.is_unit(line.value):
        report.add(
            "E402", line.value.span, what=f"`{state.name}` is declared `unit`; this line is not proved to keep norm 1"
        )


def _defined(e: Expr, ranges: Ranges, report: Report, source: list[str], matrices: set[str]) -> None:
    if isinstance(e, Call) and e.fn == "unit" and (ranges.is_unit(e.args[0]) or _is_call(e.args[0], "unit")):
        report.add("W102", e.span)
        return
    operand = guarded_operand(e)
    if operand is None or any(isinstance(x, Ref) and x.name in matrices for x in walk(operand)):
        return  # a nonlinear function of a matrix state, which the algebra refuses
    a = ranges.of(operand)
    text = _text(operand.span, source)
    match e:
        case Bin("/"):
            defined, what = iv.positive(a) or iv.negative(a), f"a division by `{text}`, which may be 0"
        case Call("sqrt"):
            defined, what = a.lo >= 0, f"the square root of `{text}`, which may be negative"
        case Bin("^", _, exponent) if _whole(exponent):
            defined, what = iv.positive(a) or iv.negative(a), f"a negative power of `{text}`, which may be 0"
        case Bin():
            defined, what = iv.positive(a), f"a power of `{text}`, which may be 0 or negative"
        case _:
            fn = e.fn if isinstance(e, Call) else ""
            defined, what = iv.positive(a), f"`{fn}` of `{text}`, which may be 0 or negative"
    if not defined:
        guard = "0" if _is_call(e, "sqrt") else "1e-6"
        report.add(
            "E403",
            operand.span,
            what=f"{what}: its range is {iv.text(a)}",
            help=f"declare a range that excludes this, or guard it: `max({text}, {guard})`",
            rewrites=[f"max({text}, {guard})"],
        )


def _whole(e: Expr) -> bool:
    n = evaluate(e)
    return n is not None and n.is_integer()


def _is_call(e: Expr, fn: str) -> bool:
    return isinstance(e, Call) and e.fn == fn


def _text(span: Span, source: list[str]) -> str:
    return source[span.line - 1][span.column - 1 : span.end - 1]
