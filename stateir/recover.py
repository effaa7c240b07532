"""Syntax errors in words, one a line: a line that does not parse does not hide the others."""

from __future__ import annotations

import re
from typing import Any

from lark import Token
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from . import parser
from . import syntax as syn
from .diagnostics import Diagnostic
from .errors import diagnostic
from .ir import Span
from .rewrites.habits import hint
from .tables import grammar

_TERMINALS = {
    "KIND": "`input`, `param` or `state`",
    "AXIS": "an axis (scalar, key, value, pair, matrix)",
    "ASSIGN": "`=`, `+=` or `-=`",
    "UNIT": "`unit`",
    "FIXED": "`fixed`",
    "_IN": "`in`",
    "_FOR": "`for`",
    "_RULE": "`rule`",
    "_LET": "`let`",
    "_UPDATE": "`update`",
    "_READ": "`read`",
    "LPAR": "`(`",
    "RPAR": "`)`",
    "LSQB": "`[`",
    "RSQB": "`]`",
    "COMMA": "`,`",
    "COLON": "`:`",
    "EQUAL": "`=`",
    "PLUS": "`+`",
    "MINUS": "`-`",
    "INT": "a whole number",
    "NUMBER": "a number",
    "NAME": "a name",
    "STRING": "a title in double quotes",
    "_NL": "the end of the line",
    "$END": "the end of the line",
    "__ANON_0": "`..`",
}
_OPERATORS = frozenset({"PLUS", "MINUS", "STAR", "SLASH", "AT", "CIRCUMFLEX"})


def parse_lines(text: str) -> tuple[syn.File | None, list[Diagnostic]]:
    """The lines of `text` that parse, and an error for each that does not."""
    found: list[Diagnostic] = []
    statements: list[syn.Statement] = []
    broken: set[str] = set()
    head: tuple[str, str, Span] | None = None
    for above, raw in enumerate(text.split("\n")):
        code = parser.code_of(raw).rstrip()
        if not code.strip():
            continue
        is_rule = re.match(r"\s*rule\b", code) is not None
        span = Span(above + 1, len(code) - len(code.lstrip()) + 1, len(code) + 1)
        if is_rule and head is not None:
            found.append(
                diagnostic(
                    "E001",
                    span,
                    expected="one rule a file",
                    found="a second `rule` line",
                    help="put it in a file of its own",
                )
            )
            break
        if head is None and not is_rule:
            found.append(
                diagnostic("E001", span, expected='a line `rule NAME "title"` first', found=_quote(code.split()[0]))
            )
            head = ("rule", "", span)
        try:
            tree: Any = grammar().parse(code, start="header" if is_rule else "statement")
        except UnexpectedInput as error:
            found.append(_in_words(error, code, above))
            broken.update(parser.defined(code))
            if is_rule:
                head = ("rule", "", span)
            continue
        if is_rule:
            head = parser.heading(tree, above)
            continue
        made, malformed = parser.statement(tree, above)
        statements += made
        if malformed is not None:
            found.append(malformed)
            broken.update(parser.defined(code))
    if head is None:
        found.append(diagnostic("E001", Span(1, 1, 1), expected='a line `rule NAME "title"`', found="an empty text"))
        return None, found
    return syn.File(head[0], head[1], tuple(statements), frozenset(broken), head[2]), found


def _in_words(error: UnexpectedInput, code: str, above: int) -> Diagnostic:
    column = error.column
    if isinstance(error, UnexpectedToken) and error.token.type != "$END":
        width, allowed = len(error.token), set(error.accepts or error.expected)
        found = _quote(str(error.token))
    elif isinstance(error, UnexpectedCharacters):
        width, allowed = 1, set(error.allowed or ())
        found = _quote(code[column - 1])
    else:
        assert isinstance(error, UnexpectedToken)
        column, width, allowed = len(code) + 1, 1, set(error.accepts or error.expected)
        found = "the end of the line"
    span = Span(above + 1, column, column + max(width, 1))
    return diagnostic("E001", span, expected=_expected(allowed), found=found, help=hint(code, column))


def _expected(allowed: set[str]) -> str:
    """The allowed terminals in words, whole groups by their meaning."""
    words: list[str] = []
    if {"KIND", "_LET", "_UPDATE"} <= allowed:
        return "`input`, `param`, `state`, `let`, `update` or `read`"
    if {"NUMBER", "NAME", "LPAR"} <= allowed:
        words.append("an expression")
        allowed = allowed - {"NUMBER", "NAME", "LPAR", "MINUS"}
    if {"STAR", "SLASH"} <= allowed:
        words.append("an operator")
        allowed = allowed - _OPERATORS
        if "LPAR" in allowed and "LSQB" in allowed:
            allowed = allowed - {"LPAR", "LSQB"}
    words += sorted({_TERMINALS.get(name, name.lower()) for name in allowed})
    return (
        words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1] if words else "the end of the line"
    )


def _quote(found: str | Token) -> str:
    return f"`{found}`" if found.isprintable() else f"the character U+{ord(found[0]):04X}"
