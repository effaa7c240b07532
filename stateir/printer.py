"""Typed rule -> text. Parsing the text gives back the identical rule, so the text names the rule: `fingerprint`."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator

from .ir import (
    Axis,
    Bin,
    Call,
    Contract,
    Dim,
    Expr,
    Head,
    Input,
    Interval,
    Let,
    Neg,
    Num,
    Outer,
    Param,
    Prev,
    Ref,
    Rule,
    State,
    Update,
)

# How tightly a text binds: what stands where a tighter one is wanted gets parentheses.
_SUM, _CHAIN, _UNARY, _ATOM = range(4)


def canonical(rule: Rule) -> str:
    """The rule as text: one declaration a line, constants and loops written out, no comments."""
    title = f' "{rule.title}"' if rule.title else ""
    return "\n".join([f"rule {rule.name}{title}", *_lines(rule)]) + "\n"


def fingerprint(rule: Rule) -> str:
    """sha256 of the canonical text, in hex: equal exactly for rules that compare equal."""
    return hashlib.sha256(canonical(rule).encode()).hexdigest()


def _lines(rule: Rule) -> Iterator[str]:
    declarations: list[Input | Param | State] = [*rule.inputs, *rule.params, *rule.states[1:]]
    for declared in declarations:
        yield _declaration(declared)
    for line in rule.lines:
        match line:
            case Let(name, value):
                yield f"let {name} = {expression(value)}"
            case Update(name, value):
                yield _update(name, value)
            case _:
                yield f"read {line.name} = {expression(line.value)}"


def _declaration(d: Input | Param | State) -> str:
    size = "" if isinstance(d, State) or d.size is None else f"[{d.size}]"
    parts = [f"{type(d).__name__.lower()} {d.name}{size}: {d.axis.value}"]
    if d.unit:
        parts.append("unit")
    if isinstance(d, Param) and d.fixed:
        parts.append("fixed")
    if d.range is not None:
        parts.append(f"in {_range(d.range)}")
    if not isinstance(d, Input) and d.start is not None:
        parts.append(f"= {expression(d.start)}")
    return " ".join(parts)


def _range(r: Interval) -> str:
    left, right = "(" if r.lo_open else "[", ")" if r.hi_open else "]"
    return f"{left}{_number(r.lo)}, {_number(r.hi)}{right}"


def _update(name: str, value: Expr) -> str:
    match value:
        case Bin("+" | "-" as op, Ref(own), b) if own == name:
            return f"update {name} {op}= {expression(b)}"
    return f"update {name} = {expression(value)}"


def _number(x: float) -> str:
    if math.isinf(x):
        return "inf" if x > 0 else "-inf"
    return str(int(x)) if x.is_integer() and abs(x) < 1e15 else repr(x)


def expression(e: Expr) -> str:
    """The text of a typed expression, with the parentheses that it needs."""
    return _text(e, _SUM)


def _text(e: Expr, wanted: int) -> str:
    text, binds = _written(e)
    return text if binds >= wanted else f"({text})"


def _written(e: Expr) -> tuple[str, int]:
    match e:
        case Num(value):
            return _number(value), _ATOM
        case Dim(of):
            return f"dim({of.value})", _ATOM
        case Head():
            return "head", _ATOM
        case Ref(name, _, index):
            return (name if index is None else f"{name}[{index}]"), _ATOM
        case Prev(of, n):
            return f"prev({expression(of)}{f', {n}' if n > 1 else ''})", _ATOM
        case Outer(key, value):
            return f"outer({expression(key)}, {expression(value)})", _ATOM
        case Call(fn, args):
            return f"{fn}({', '.join(map(expression, args))})", _ATOM
        case Neg(x):
            return f"-{_text(x, _UNARY)}", _UNARY
        case Bin("^", a, b):
            return f"{_text(a, _ATOM)}^{_text(b, _UNARY)}", _UNARY
        case Bin("+" | "-" as op, a, b):
            return f"{_text(a, _SUM)} {op} {_text(b, _CHAIN)}", _SUM
        case Bin(op, a, b):
            return f"{_factor(a, b)} {op} {_text(b, _UNARY)}", _CHAIN
        case Contract(a, b):
            return f"{_text(a, _UNARY)} @ {_text(b, _UNARY)}", _CHAIN
    raise TypeError(f"not an expression: {e!r}")


def _factor(a: Expr, next_factor: Expr) -> str:
    """The left side of `*` or `/`: a product with an `@` in it goes on without parentheses only before a scalar."""
    contracts = isinstance(a, Bin) and a.op in "*/" and _has_open_contraction(a)
    free = next_factor.axis is Axis.SCALAR if isinstance(a, Contract) or contracts else True
    return _text(a, _CHAIN if free else _UNARY)


def _has_open_contraction(e: Expr) -> bool:
    while isinstance(e, Bin) and e.op in "*/":
        e = e.a
    return isinstance(e, Contract)
