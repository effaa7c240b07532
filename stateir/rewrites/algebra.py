"""Rewrites for the algebra of S (E3xx) and for its decay (E404, E405)."""

from __future__ import annotations

from collections.abc import Iterator

from stateir import syntax as syn
from stateir.diagnostics import Diagnostic
from stateir.edits import Rewrite, grouped, replaced
from stateir.ir import Axis, Bin, Call, Expr, Input, Neg, Outer, Param, Ref, Rule, Span, Update, children, walk

from .context import Context


def rewrites(c: Context, d: Diagnostic) -> Iterator[Rewrite]:
    if d.code == "E305":
        yield from _without_reading(c, d.span)
    if d.code == "E303":
        yield from _from_the_key_side(c, d.span)
    for line in c.rule.lines if c.rule is not None else ():
        path = _path(line.value, d.span) if line.span.line == d.span.line else []
        if path and c.rule is not None:
            state = line.state if isinstance(line, Update) else "S"
            yield from (replaced(span, text) for span, text in _rewrites(c.rule, d.code, path, state))
            return


def _without_reading(c: Context, span: Span) -> Iterator[Rewrite]:
    """What an update takes from inputs where it read a matrix state."""
    s = c.statement(span)
    if not isinstance(s, syn.Update) or s.state.id not in c.names:
        return
    axis = c.names[s.state.id].axis
    names = c.of_axis(axis, span.line)
    reading = [x for x in c.around(span) if isinstance(x, syn.Chain | syn.Group)]
    for x in reading[::-1]:
        yield from (replaced(x.span, name) for name in names)
    yield from (replaced(s.value.span, name) for name in names)
    yield replaced(s.value.span, s.state.id if s.op == "=" else "0")


def _from_the_key_side(c: Context, span: Span) -> Iterator[Rewrite]:
    """The same reading by a key vector, where the axes refuse the other side before the algebra sees it."""
    if c.rule is not None:
        return
    key, declared = c.vector(Axis.KEY, span.line)
    yield *replaced(span, f"{key} @ S"), *declared


def _path(e: Expr, span: Span) -> list[Expr]:
    """The expressions from e down to the innermost one that stands at `span`; empty if none does."""
    for x in children(e):
        if below := _path(x, span):
            return [e, *below]
    return [e] if e.span == span else []


def _rewrites(rule: Rule, code: str, path: list[Expr], state: str) -> list[tuple[Span, str]]:
    node, around = path[-1], path[:-1][::-1]
    text = _text(rule, node)
    match code, node:
        case "E301", Call(_, args):
            return [(node.span, _text(rule, x)) for x in args if _reads(x, rule)]
        case "E301" | "E302", Bin(_, a, b):
            return [(node.span, _text(rule, a)), (node.span, _text(rule, b))]
        case "E303", _:
            outer = next((x for x in around if isinstance(x, Outer)), None)
            if outer is not None:
                return [(outer.span, _delta(rule, outer, state))]
            return [(x.span, _text(rule, y)) for x in around if isinstance(x, Bin) for y in (x.a, x.b) if x.op == "*"]
        case "E304", Bin("*", a, b) if node.axis is Axis.VALUE:
            factor, body = (b, a) if _reads(a, rule) else (a, b)
            alone = (node.span, _text(rule, body))
            if isinstance(body, Bin) and body.op in "+-":
                left, right = _text(rule, body.a), _text(rule, body.b)
                return [(node.span, f"{_text(rule, factor)} * {left} {body.op} {right}"), alone]
            return [alone]
        case "E304", _:
            products = [x for x in [node, *around] if isinstance(x, Bin)]
            return [(x.span, _text(rule, y)) for x in products for y in (x.a, x.b) if _reads(y, rule)]
        case "E306", _:
            return [(node.span, f"{state} + {text}")]
        case "E307", Outer(a, b) if around and isinstance(around[0], Bin) and isinstance(around[0].a, Outer):
            product = around[0]
            first = around[0].a
            key = f"{grouped(_text(rule, first.key))} {product.op} {grouped(_text(rule, a))}"
            value = f"{grouped(_text(rule, first.value))} {product.op} {grouped(_text(rule, b))}"
            return [(product.span, f"outer({key}, {value})")]
        case "E307", Call(fn, (Outer(key, value),)):
            return [(node.span, f"outer({fn}({_text(rule, key)}), {_text(rule, value)})")]
        case "E404" | "E405", _:
            return [*_declared_ranges(rule, node, code), *_other_decays(rule, code, path)]
    return []


def _declared_ranges(rule: Rule, decay: Expr, code: str) -> list[tuple[Span, str]]:
    """The range that a factor of S needs, on the declaration of a name in it that has none."""
    out = []
    for x in walk(decay):
        d = next((d for d in rule.arguments if isinstance(x, Ref) and d.name == x.name), None)
        if d is not None and d.range is None and not d.unit:
            out.append((d.span, _with_range(rule, d, "(0, 1)" if code == "E404" or x is decay else "(-inf, 0]")))
    return out


def _with_range(rule: Rule, d: Input | Param, text: str) -> str:
    line = rule.text.split("\n")[d.span.line - 1][d.span.column - 1 : d.span.end - 1]
    head, equal, start = line.partition("=")
    return f"{head.rstrip()} in {text}" + (f" {equal}{start}" if equal else "")


def _other_decays(rule: Rule, code: str, path: list[Expr]) -> list[tuple[Span, str]]:
    node, text = path[-1], _text(rule, path[-1])
    out = [(node.span, f"sigmoid({_bare(text)})" if code == "E404" else f"min({_bare(text)}, 1)")]
    for x in path[::-1]:
        if isinstance(x, Bin) and x.op == "-" and _reads(x.b, rule):
            out.append((x.span, f"{_text(rule, x.a)} + {_text(rule, x.b)}"))
        if isinstance(x, Bin) and x.op == "/" and _reads(x.a, rule):
            out.append((x.span, f"{_text(rule, x.a)} * {grouped(_bare(_text(rule, x.b)))}"))
        if isinstance(x, Neg) and _reads(x.x, rule):
            out.append((x.span, _text(rule, x.x)))
    return out


def _bare(text: str) -> str:
    """A sum without the parentheses that it gets as a factor."""
    return text[1:-1] if text.startswith("(") and text.endswith(")") and text.count("(") == 1 else text


def _delta(rule: Rule, outer: Outer, state: str) -> str:
    """The write that reads the state from the key side: the residual of a delta rule, from the vectors at hand."""
    vectors = [x for part in (outer.key, outer.value) for x in walk(part) if isinstance(x, Ref)]
    key = next((_text(rule, x) for x in vectors if x.axis is Axis.KEY), None)
    value = next((_text(rule, x) for x in vectors if x.axis is Axis.VALUE), None)
    return f"outer({key}, {value} - {key} @ {state})"


def _reads(e: Expr, rule: Rule) -> bool:
    return any(isinstance(x, Ref) and x.axis is Axis.MATRIX and x.name not in rule.lets for x in walk(e))


def _text(rule: Rule, e: Expr) -> str:
    """The source of an expression; a sum gets parentheses, since its own may stand outside its span."""
    line = rule.text.split("\n")[e.span.line - 1]
    text = line[e.span.column - 1 : e.span.end - 1]
    return f"({text})" if isinstance(e, Bin) and e.op in "+-" else text
