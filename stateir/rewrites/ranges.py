"""Rewrites for ranges (E4xx) and for warnings: claims that hold, guards, what is superfluous left out."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

from stateir import intervals as iv
from stateir import syntax as syn
from stateir.diagnostics import Diagnostic
from stateir.edits import Edit, Rewrite, replaced
from stateir.ir import Interval, Param, Span, State, Update
from stateir.ranges import Ranges

from . import algebra
from .context import Context

_LARGE = "1e38"


def rewrites(c: Context, d: Diagnostic) -> Iterator[Rewrite]:
    text = c.source(d.span)
    s = c.statement(d.span)
    match d.code:
        case "E401":
            yield from _bounds(c, d.span, text)
        case "E402" if isinstance(s, syn.Declare) and s.range is not None:
            yield from _start_inside(c, s)
        case "E402" if isinstance(s, syn.Update):
            yield from _kept(c, s)
        case "E403" if isinstance(s, syn.Let):
            yield from _guarded_constant(c, s)
        case "E404" | "E405":
            yield from algebra.rewrites(c, d)
        case "E406":
            yield from (replaced(d.span, x) for x in (_LARGE, f"-{_LARGE}"))
        case "W101":
            yield c.without(d.span)
        case "W102":
            call = next((x for x in c.path(d.span)[::-1] if isinstance(x, syn.Apply)), None)
            if call is not None:
                yield replaced(d.span, c.source(call.args[0].span))


def _bounds(c: Context, span: Span, text: str) -> Iterator[Rewrite]:
    """The bounds in order; both ends included; no bound where it is undefined."""
    found = re.fullmatch(r"in(\s*)([(\[])(.*),(.*)([)\]])", text)
    if found is not None:
        space, left, lo, hi, right = found.groups()
        yield replaced(span, f"in{space}{left}{hi.strip()}, {lo.strip()}{right}")
        yield replaced(span, f"in{space}[{lo.strip()}, {hi.strip()}]")
        return
    yield from (replaced(span, x) for x in ("-inf", "inf"))


def _start_inside(c: Context, s: syn.Declare) -> Iterator[Rewrite]:
    """A start value inside the range; the range that the start value needs."""
    declared = None if c.rule is None else next((x for x in c.rule.declared if x.name == s.name.id), None)
    if not isinstance(declared, Param | State) or declared.range is None or s.range is None:
        return
    for value in _numbers(declared.range):
        if s.start is not None:
            yield replaced(s.start.span, value)
        else:
            yield replaced(s.span, f"{c.source(s.span)} = {value}")


def _numbers(r: Interval) -> list[str]:
    """Numbers of a range as texts, simple ones first."""
    lo, hi = max(r.lo, -1e30), min(r.hi, 1e30)
    some = [0.0, 1.0, lo, hi, lo / 2 + hi / 2, lo + 1, hi - 1]
    return [f"{x:.17g}" for x in some if iv.inside(iv.point(x), r)]


def _kept(c: Context, s: syn.Update) -> Iterator[Rewrite]:
    """The widened claim, then the value bounded, then no claim."""
    declared = next((x for x in c.file.statements if isinstance(x, syn.Declare) and x.name.id == s.state.id), None)
    if declared is None or c.rule is None:
        return
    claim = next(x.range for x in c.rule.states if x.name == s.state.id)
    if claim is not None and declared.range is not None:
        found = next(Ranges(c.rule).of(x.value) for x in c.rule.lines if isinstance(x, Update) and x.span == s.span)
        low, high = found.lo < claim.lo, found.hi > claim.hi
        wide = Interval(*_ends(claim, low, high), *_open(claim, low, high))
        value = c.source(s.value.span) if s.op == "=" else f"{s.state.id} {s.op[0]} ({c.source(s.value.span)})"
        bounded = f"max({value}, {claim.lo:.17g})" if low else value
        bounded = f"min({bounded}, {claim.hi:.17g})" if high else bounded
        line = Span(s.span.line, s.state.span.column, s.value.span.end)
        yield replaced(declared.range.span, f"in {iv.text(wide)}")
        yield replaced(line, f"{s.state.id} = {bounded}")
    cut: tuple[Span, ...] = (declared.unit,) if declared.unit is not None else ()
    cut += (declared.range.span,) if declared.range is not None else ()
    edits = tuple(Edit(replace(x, column=x.column - 1), "") for x in cut)
    if edits:
        yield replaced(declared.span, c.piece(edits, declared.span))


def _ends(claim: Interval, low: bool, high: bool) -> tuple[float, float]:
    return -math.inf if low else claim.lo, math.inf if high else claim.hi


def _open(claim: Interval, low: bool, high: bool) -> tuple[bool, bool]:
    return low or claim.lo_open, high or claim.hi_open


def _guarded_constant(c: Context, s: syn.Let) -> Iterator[Rewrite]:
    """A constant without a value: its smallest operand that can be guarded, guarded."""
    for x in reversed(list(syn.walk(s.value))):
        if isinstance(x, syn.Apply) and len(x.args) == 1 and x.fn.id in ("log", "sqrt", "rsqrt"):
            yield replaced(x.args[0].span, f"max({c.source(x.args[0].span)}, {'0' if x.fn.id == 'sqrt' else '1e-6'})")
        if isinstance(x, syn.Chain):
            for op, factor in zip(x.ops, x.factors[1:], strict=True):
                if op == "/":
                    yield replaced(factor.span, f"max({c.source(factor.span)}, 1e-6)")
        if isinstance(x, syn.Power):
            yield replaced(x.base.span, f"max({c.source(x.base.span)}, 1e-6)")
    yield replaced(s.value.span, "0")
