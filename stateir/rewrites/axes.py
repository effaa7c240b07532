"""Rewrites for axes, arrays, loops and time (E2xx)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from stateir import syntax as syn
from stateir.diagnostics import Diagnostic
from stateir.edits import Edit, Rewrite, grouped, line_above, replaced
from stateir.ir import Axis, Span
from stateir.names import MAX_COUNT, nearest

from .context import Context, usual_first

READ_FIRST = ("q", "r", "C")
_AXES = (Axis.KEY, Axis.VALUE, Axis.SCALAR, Axis.PAIR)


def rewrites(c: Context, d: Diagnostic) -> Iterator[Rewrite]:
    s, text = c.statement(d.span), c.source(d.span)
    match d.code:
        case "E202":
            yield from _other_axes(c, d.span)
        case "E204" if isinstance(s, syn.Update):
            yield from _not_a_state(c, s)
        case "E205" if isinstance(s, syn.Declare):
            yield from _no_such_declaration(c, s)
        case "E206" if isinstance(s, syn.Update):
            yield from _update_of_another_axis(c, s)
        case "E207":
            key, declared = c.vector(Axis.KEY, d.span.line, READ_FIRST)
            value, _ = c.vector(Axis.VALUE, d.span.line)
            for new in (f"{grouped(text)} * {value}", f"{grouped(text)} @ S", f"{key} @ S"):
                yield Edit(d.span, new), *declared
        case "E208" if s is not None:
            yield from _whole_numbers(c, s, d.span)
        case "E209":
            index = re.fullmatch(r"(\w+)\[t\s*-\s*([0-9]+)\]", text)
            if index is not None:
                yield replaced(d.span, f"prev({index[1]}{'' if index[2] == '1' else f', {index[2]}'})")
            yield from (replaced(d.span, x) for x in (text.partition("[")[0], f"{text}[0]"))
        case "E210" if isinstance(s, syn.Let):
            value = grouped(c.source(s.value.span))
            place = c.code(s.span.line)
            uses = c.replaced_uses(s.name.id, s.span.line + 1, value)
            yield *uses, Edit(place, f"# {c.source(place)}")
            plain = c.replaced_uses(s.name.id, s.span.line + 1, c.source(s.value.span))
            yield *plain, Edit(place, f"# {c.source(place)}")
        case "E211" if isinstance(s, syn.Declare) and s.unit == d.span:
            cut = c.piece(replaced(Span(d.span.line, d.span.column - 1, d.span.end), ""), s.span)
            yield from (
                replaced(s.span, text) for text in ((f"{cut} in [-1, 1]", cut) if s.axis == "scalar" else (cut,))
            )
        case "E211" | "E212":
            yield from _other_arguments(c, d.span)
        case "E215":
            yield from _fewer_factors(c, d.span)
        case "E214":
            yield from _look_back(c, d.span, text)


def _other_axes(c: Context, span: Span) -> Iterator[Rewrite]:
    """One operand alone; a vector of the other axis for an argument."""
    path = c.path(span)
    if path and isinstance(path[-1], syn.Apply):
        yield from _other_arguments(c, span)
    s = c.statement(span)
    if isinstance(s, syn.Declare) and s.start is not None:
        yield from (replaced(s.start.span, x) for x in ("0", "1"))


def _fewer_factors(c: Context, span: Span) -> Iterator[Rewrite]:
    """A run of products of which no grouping compiles: a dot product as a factor, or one factor less."""
    chain = next((x for x in c.path(span) if isinstance(x, syn.Chain)), None)
    if chain is None:
        return
    texts = [c.source(x.span) for x in chain.factors]
    if chain.ops == ("@", "@"):
        yield replaced(span, f"({texts[0]} @ {texts[1]}) * {texts[2]}")
    for i in range(len(texts)):
        rest = texts[:i] + texts[i + 1 :]
        ops = chain.ops[1:] if i == 0 else chain.ops[: i - 1] + chain.ops[i:]
        yield replaced(span, rest[0] + "".join(f" {op} {x}" for op, x in zip(ops, rest[1:], strict=True)))


def _not_a_state(c: Context, s: syn.Update) -> Iterator[Rewrite]:
    name, line = s.state.id, s.span.line
    if name not in c.names:
        states = [n for n, entry in c.names.items() if entry.kind == "state"]
        yield from (replaced(s.state.span, near) for near in nearest(name, states))
        yield from ((line_above(line, f"state  {name}: {axis.value}"),) for axis in _AXES)
        return
    value = c.source(s.value.span)
    if s.op != "=":
        value = f"{name} {s.op[0]} {grouped(value) if isinstance(s.value, syn.Sum) else value}"
    yield replaced(s.span, f"let {c.fresh(name)} = {value}")


def _no_such_declaration(c: Context, s: syn.Declare) -> Iterator[Rewrite]:
    name = s.name.id
    if s.size is not None:
        index = re.compile(rf"\b{re.escape(name)}\[(\d+)\]")
        count = s.size.offset if s.size.name is None else 0
        entries = ", ".join(f"{name}{i}: {s.axis}" for i in range(min(count, 8)))
        uses = tuple(
            Edit(x.span, index.sub(rf"{name}\1", c.source(x.span)))
            for x in c.uses(name, s.span.line)
            if isinstance(x, syn.Item)
        )
        if entries:
            yield Edit(s.span, entries), *uses
        yield replaced(s.span, f"{name}: {s.axis}")
        return
    key, value = c.fresh(f"{name}_key"), c.fresh(f"{name}_value")
    uses = c.replaced_uses(name, s.span.line, f"outer({key}, {value})")
    yield Edit(s.span, f"{key}: key, {value}: value"), *uses


def _update_of_another_axis(c: Context, s: syn.Update) -> Iterator[Rewrite]:
    text, line = c.source(s.value.span), s.span.line
    if c.names[s.state.id].axis is Axis.MATRIX:
        yield replaced(s.value.span, text.replace("@", "*", 1))
        key, declared = c.vector(Axis.KEY, line)
        value, also = c.vector(Axis.VALUE, line)
        yield Edit(s.value.span, f"outer({key}, {text})"), *declared
        yield Edit(s.value.span, f"outer({text}, {value})"), *also
        yield Edit(s.value.span, f"outer({grouped(text)} * {key}, {value})"), *declared, *also
        return
    declared_state = next(
        (x for x in c.file.statements if isinstance(x, syn.Declare) and x.name.id == s.state.id), None
    )
    if declared_state is not None:
        piece = c.source(declared_state.span)
        for axis in _AXES:
            new = re.sub(rf":(\s*){declared_state.axis}\b", rf":\g<1>{axis.value}", piece, count=1)
            yield replaced(declared_state.span, new)


def _whole_numbers(c: Context, s: syn.Statement, span: Span) -> Iterator[Rewrite]:
    """Bounds of a loop that fit the array, an index or a length inside its limits."""
    loop = s.loop if isinstance(s, syn.Update) else None
    items = [x for e in syn.values(s) for x in syn.walk(e) if isinstance(x, syn.Item) and x.place.span == span]
    size = next((c.names[x.id].size for x in items if x.id in c.names), None)
    if loop is not None:
        place = Span(span.line, loop.lo.span.column, loop.hi.span.end)
        if items and size is not None:
            shift = items[0].place.offset
            yield replaced(place, f"{max(0, -shift)}..{size - 1 - max(0, shift)}")
        if loop.lo.name is None and loop.hi.name is None:
            lo, hi = sorted(min(p.offset, MAX_COUNT) for p in (loop.lo, loop.hi))
            yield replaced(place, f"{lo}..{hi}")
        yield replaced(place, "0..1")
    if items and size is not None:
        name = items[0].place.name
        if name is not None and loop is None and isinstance(s, syn.Update):
            end = c.code(span.line).end
            yield replaced(Span(span.line, end, end), f" for {name} in 0..{size - 1}")
        yield replaced(span, str(size - 1))
    if isinstance(s, syn.Declare) and s.size is not None:
        length = s.size.offset if s.size.name is None else 1
        yield replaced(span, str(max(1, min(length, MAX_COUNT))))
    yield replaced(span, "0")


def _other_arguments(c: Context, span: Span) -> Iterator[Rewrite]:
    """A call with as many arguments as its function takes, of the axes it takes; an argument alone."""
    path = c.path(span)
    if not path or not isinstance(path[-1], syn.Apply):
        return
    call = path[-1]
    args, line = [c.source(x.span) for x in call.args], span.line
    for given in _arguments(c, call.fn.id, args, line):
        yield replaced(span, f"{call.fn.id}({', '.join(given)})")
    yield from (replaced(span, grouped(x) if len(path) > 1 else x) for x in args)


def _arguments(c: Context, fn: str, args: Sequence[str], line: int) -> Iterator[Sequence[str]]:
    keys, values = c.of_axis(Axis.KEY, line), c.of_axis(Axis.VALUE, line)
    match fn:
        case "outer":
            for x in args[:2]:
                yield from ((x, value) for value in values[:1])
                yield from ((key, x) for key in keys[:1])
            yield from ((f"{grouped(args[0])} * {key}", value) for key in keys[:1] for value in values[:1])
        case "rotate":
            yield from ((args[0], angle) for angle in [*c.of_axis(Axis.PAIR, line), *c.of_axis(Axis.SCALAR, line)][:2])
        case "dim":
            yield ("key",)
        case "prev" if len(args) > 2:
            yield args[:2]
            yield args[:1]
        case "min" | "max":
            yield [*args[:1], "0"] if len(args) == 1 else args[:2]
        case _:
            yield args[:1]


def _look_back(c: Context, span: Span, text: str) -> Iterator[Rewrite]:
    """A literal number of tokens inside the limits; `prev` of every input in place of one of an expression."""
    call = next((x for x in c.around(span)[::-1] if isinstance(x, syn.Apply) and x.fn.id == "prev"), None)
    if call is None:
        return
    of = call.args[0]
    if len(call.args) == 2 and call.args[1].span == span:
        number = re.fullmatch(r"[0-9]+(\.[0-9]+)?", text)
        n = 1 if number is None else int(max(1.0, min(float(text), MAX_COUNT)))
        yield replaced(call.span, f"prev({c.source(of.span)}{'' if n == 1 else f', {n}'})")
        return
    behind = "" if len(call.args) == 1 else f", {c.source(call.args[1].span)}"
    let = next((s for s in c.file.statements if isinstance(s, syn.Let) and s.name.id == text), None)
    source = of if let is None else let.value
    inputs = [
        x
        for x in syn.walk(source)
        if isinstance(x, syn.Name | syn.Item) and x.id in c.names and c.names[x.id].kind == "input"
    ]
    inside = tuple(Edit(x.span, f"prev({c.source(x.span)}{behind})") for x in inputs)
    inner = c.piece(inside, source.span)
    path = c.path(call.span)
    in_call = len(path) < 2 or isinstance(path[-2], syn.Apply | syn.Group)
    yield replaced(call.span, inner if in_call else grouped(inner))
    yield replaced(call.span, c.source(of.span))


def operands(
    op: str, axes: tuple[Axis, Axis], texts: tuple[str, str], keys: Sequence[str], values: Sequence[str]
) -> list[str]:
    """Texts for `a op b` of axes that do not fit: another operation, other axes, one operand alone."""
    (a, b), out = texts, []
    keys, values = usual_first(keys, Axis.KEY), usual_first(values, Axis.VALUE)
    x, y = grouped(a), grouped(b)
    if op == "@" and Axis.SCALAR in axes:
        out.append(f"{x} * {y}")
    if set(axes) == {Axis.KEY, Axis.VALUE} and op in "*@":
        out.append(f"outer({a}, {b})")
    if set(axes) == {Axis.KEY, Axis.PAIR}:
        out.append(f"rotate({a}, {b})" if axes[0] is Axis.KEY else f"rotate({b}, {a})")
    if Axis.MATRIX in axes and op in "+-":
        for axis, text, other in zip(axes, texts, texts[::-1], strict=True):
            made = [f"outer({k}, {text})" for k in keys[:1]] if axis is Axis.VALUE else []
            made += [f"outer({text}, {v})" for v in values[:1]] if axis is Axis.KEY else []
            out += [f"{m} {op} {other}" if text == a else f"{other} {op} {m}" for m in made]
    if axes == (Axis.MATRIX, Axis.MATRIX):
        out += [f"{k} @ {x}" for k in keys[:1]]
    return [*out, a, b, *(keys[:1] if Axis.MATRIX in axes else ())]
