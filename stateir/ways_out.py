"""Rewrites worth trying for what the affine pass refuses; `suggest` offers one only if the text compiles with it."""

from __future__ import annotations

from .diagnostics import Diagnostic
from .ir import Axis, Bin, Call, Expr, Outer, Ref, Rule, Span, Update, children, walk

Rewrite = tuple[Span, str]


def ways_out(rule: Rule, d: Diagnostic) -> list[Rewrite]:
    """Texts for the place of the culprit or of something around it, the likeliest first."""
    for line in rule.lines:
        path = _path(line.value, d.span)
        if path and line.span.line == d.span.line:
            return list(_rewrites(rule, d.code, path, line.state if isinstance(line, Update) else "S"))
    return []


def _path(e: Expr, span: Span) -> list[Expr]:
    """The expressions from e down to the innermost one that stands at `span`; empty if none does."""
    for x in children(e):
        if below := _path(x, span):
            return [e, *below]
    return [e] if e.span == span else []


def _rewrites(rule: Rule, code: str, path: list[Expr], state: str) -> list[Rewrite]:
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
        case "E307", Call(fn, (Outer(key, value),)):
            return [(node.span, f"outer({fn}({_text(rule, key)}), {_text(rule, value)})")]
        case "E404", _:
            return [(node.span, f"sigmoid({text})")]
        case "E405", _:
            return [(node.span, f"min({text}, 1)")]
    return []


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
