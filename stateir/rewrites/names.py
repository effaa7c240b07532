"""Rewrites for names (E1xx): what was probably meant, another name, a declaration that was forgotten."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import replace

from stateir import syntax as syn
from stateir.diagnostics import Diagnostic
from stateir.edits import Edit, Rewrite, grouped, line_above, replaced
from stateir.ir import Axis, Span
from stateir.names import AXES, BUILTINS, TRANSPOSES, nearest

from . import idioms
from .context import USUAL, Context

_LARGE = "1e38"


def rewrites(c: Context, d: Diagnostic) -> Iterator[Rewrite]:
    name = c.source(d.span)
    match d.code:
        case "E101":
            call = next((x for x in c.around(d.span)[::-1] if isinstance(x, syn.Apply) and x.fn.span == d.span), None)
            yield from _function(c, call, name) if call is not None else _unknown(c, d.span, name)
        case "E102":
            yield from _renamed(c, d.span, name, c.fresh(name))
        case "E103":
            yield from _reserved(c, d.span, name)
        case "E104":
            yield from _misplaced(c, d.span, name)


def _function(c: Context, call: syn.Apply, name: str) -> Iterator[Rewrite]:
    args = [c.source(x.span) for x in call.args]
    path = c.path(call.span)
    inside = len(path) > 1 and not isinstance(path[-2], syn.Apply | syn.Group)
    chain = path[-2] if len(path) > 1 else None
    if name.lower() == "diag" and isinstance(chain, syn.Chain) and chain.factors[0].span == call.span:
        behind = c.source(Span(call.span.line, call.span.end, chain.span.end)).lstrip(" @*")
        yield replaced(chain.span, f"{grouped(args[0])} * {behind}")
    for text in idioms.rewritten(name, args):
        yield replaced(call.span, grouped(text) if inside else text)
    yield from (replaced(call.fn.span, near) for near in nearest(name, BUILTINS))
    if name in c.names and len(args) == 1:
        factors = f"{name} * {args[0]}", f"outer({name}, {args[0]})", f"{name} @ {args[0]}"
        yield from (replaced(call.span, text) for text in factors)
    if len(args) == 2:
        a, b = args
        products = f"outer({a}, {b})", f"({grouped(a)} @ {grouped(b)})", f"({grouped(a)} * {grouped(b)})"
        yield from (replaced(call.span, text) for text in products)
    yield from (replaced(call.span, text) for text in args)


def _unknown(c: Context, span: Span, name: str) -> Iterator[Rewrite]:
    power = next((x for x in c.around(span)[::-1] if isinstance(x, syn.Power) and x.exponent.span == span), None)
    if name in TRANSPOSES and power is not None:
        yield replaced(power.span, c.source(power.base.span))
    below = next((s for s in c.file.statements if s.span.line > span.line and _defines(s) == name), None)
    if isinstance(below, syn.Let | syn.Declare):
        place = c.code(below.span.line)
        yield line_above(span.line, c.source(place)), Edit(place, f"# {c.source(place)}")
    known = [n for n, entry in c.names.items() if entry.line < span.line and entry.kind not in ("broken", "output")]
    yield from (replaced(span, near) for near in nearest(name, known))
    axes = (Axis.SCALAR, Axis.KEY, Axis.VALUE, Axis.PAIR)
    for axis in sorted(axes, key=lambda axis: name not in USUAL.get(axis, ())):
        yield (line_above(span.line, f"input  {name}: {axis.value}"),)


def _defines(s: syn.Statement) -> str | None:
    return None if isinstance(s, syn.Update) else s.name.id


def _renamed(c: Context, span: Span, name: str, new: str) -> Iterator[Rewrite]:
    """Another name where it is defined, and where the lines below use it."""
    s = next((s for s in c.of_line(span.line) if s.span.column <= span.column <= s.span.end), None)
    if isinstance(s, syn.Update) and s.loop is not None and s.loop.name.span == span:
        indices = [p for p in syn.places(s) if p.name == name]
        yield Edit(span, new), *(Edit(replace(p.span, end=p.span.column + len(name)), new) for p in indices)
        return
    yield Edit(span, new), *c.replaced_uses(name, span.line + 1, new)
    yield replaced(span, new)


def _reserved(c: Context, span: Span, name: str) -> Iterator[Rewrite]:
    s = c.statement(span)
    defined = None if s is None else _defines(s)
    if s is not None and not isinstance(s, syn.Update) and s.name.span == span:
        if name == "S":
            yield c.without(span)
        yield from _renamed(c, span, name, c.fresh(f"{name}_"))
        return
    base = re.match(r"\w+", name)
    axes = [Axis(name)] if name in AXES else [Axis.KEY, Axis.VALUE, Axis.SCALAR]
    for axis in axes:
        yield from (replaced(span, text) for text in c.of_axis(axis, span.line) if text != defined)
    if base is not None and base[0] != name:
        yield replaced(span, base[0])
    yield replaced(span, "1")


def _misplaced(c: Context, span: Span, text: str) -> Iterator[Rewrite]:
    s = c.statement(span)
    if isinstance(s, syn.Declare):
        if s.start is not None and (s.kind == "input" or s.start.span == span):
            head = c.source(replace(s.span, end=s.start.span.column)).rstrip().removesuffix("=").rstrip()
            yield replaced(s.span, head)
        if s.fixed == span:
            cut = replaced(Span(span.line, span.column - 1, span.end), "")
            yield replaced(s.span, c.piece(cut, s.span))
        yield from (replaced(span, bound) for bound in ("256" if text.startswith("dim") else "1", "0"))
    elif text == "inf":
        yield replaced(span, _LARGE)
    elif text == "head":
        name = c.fresh("h")
        yield line_above(span.line, f"param  {name}: scalar fixed = head"), Edit(span, name)
    yield from (replaced(span, near) for near in difflib.get_close_matches(text, list(c.names), n=1))
