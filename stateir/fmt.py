"""The formatter: one layout for rule files. It is idempotent, and changes white space and the order of
attributes alone."""

from __future__ import annotations

from itertools import chain, zip_longest

from . import syntax as syn
from .diagnostics import RuleError
from .ir import Rule
from .parser import code_of, parse_text

COMMENT_COLUMN = 49
_KEYWORD_WIDTH = len("update ")


def text(rule: Rule) -> str:
    """The text that `rule` was read from, formatted."""
    return format_text(rule.text)


def format_text(source: str, filename: str = "<rule>") -> str:
    """`source` in the layout of the library's files. RuleError if it does not parse."""
    file, errors = parse_text(source)
    if file is None or errors:
        raise RuleError(errors, source, filename)
    written = {file.span.line: f'rule {file.name} "{file.title}"' if file.title else f"rule {file.name}"}
    written |= _statements(file.statements)
    out: list[str] = []
    for number, raw in enumerate(source.split("\n"), 1):
        code, comment = written.get(number, ""), raw[len(code_of(raw)) :].rstrip()
        line = f"{code:<{COMMENT_COLUMN - 2}}  {comment}" if code and comment else code or comment
        if line or (out and out[-1]):
            out.append(line)
    return "\n".join(out).rstrip("\n") + "\n"


def _statements(statements: tuple[syn.Statement, ...]) -> dict[int, str]:
    """The text of each line that holds a statement; where updates have `+=` or `-=`, a plain `=` is aligned to it."""
    wide = any(isinstance(s, syn.Update) and s.op != "=" for s in statements)
    out: dict[int, str] = {}
    for s in statements:
        line = s.span.line
        match s:
            case syn.Declare():
                out[line] = _keyword(s.kind) + _declaration(s) if s.first else f"{out[line]}, {_declaration(s)}"
            case syn.Let(name, value):
                out[line] = f"{_keyword('let')}{name.id} = {expression(value)}"
            case syn.Read(name, value):
                out[line] = f"{_keyword('read')}{name.id} = {expression(value)}"
            case syn.Update(state, op, value, loop):
                over = f" for {loop.name.id} in {loop.lo.text}..{loop.hi.text}" if loop else ""
                out[line] = f"{_keyword('update')}{state.id} {op:>{2 if wide else 1}} {expression(value)}{over}"
    return out


def _keyword(word: str) -> str:
    return f"{word:<{_KEYWORD_WIDTH}}"


def _declaration(d: syn.Declare) -> str:
    size = f"[{d.size.text}]" if d.size is not None else ""
    parts = [f"{d.name.id}{size}: {d.axis}"]
    if d.unit is not None:
        parts.append("unit")
    if d.fixed is not None:
        parts.append("fixed")
    if d.range is not None:
        r = d.range
        left, right = "(" if r.lo_open else "[", ")" if r.hi_open else "]"
        parts.append(f"in {left}{expression(r.lo)}, {expression(r.hi)}{right}")
    if d.start is not None:
        parts.append(f"= {expression(d.start)}")
    return " ".join(parts)


def expression(e: syn.Expr) -> str:
    """An expression as it is written, with the spaces of the layout."""
    match e:
        case syn.Number(text):
            return text
        case syn.Name(id):
            return id
        case syn.Item(id, place):
            return f"{id}[{place.text}]"
        case syn.Apply(fn, args):
            return f"{fn.id}({', '.join(map(expression, args))})"
        case syn.Group(x):
            return f"({expression(x)})"
        case syn.Negate(x):
            return f"-{expression(x)}"
        case syn.Power(base, exponent):
            return f"{expression(base)}^{expression(exponent)}"
        case syn.Sum(parts, ops) | syn.Chain(parts, ops):
            return "".join(
                chain.from_iterable(zip_longest(map(expression, parts), (f" {op} " for op in ops), fillvalue=""))
            )
    raise TypeError(f"not an expression: {e!r}")
