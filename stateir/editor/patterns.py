"""The language's tokens as an ordered list of patterns, of which the Pygments lexer and the TextMate grammar are made.

The lark grammar is the authority; the tests compare every word and every token of the library with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from stateir.ir import Span
from stateir.names import AXES, BUILTINS

Kind = Literal[
    "comment", "string", "statement", "keyword", "function", "attribute", "axis", "state", "constant", "name", "number",
    "operator", "punctuation",
]  # fmt: skip

STATEMENTS = ("rule", "input", "param", "state", "let", "update", "read")
ATTRIBUTES = ("unit", "fixed")
OTHERS = ("for", "in")
CONSTANTS = ("head", "inf")


def _words(words: Iterable[str]) -> str:
    return rf"\b(?:{'|'.join(sorted(words))})\b"


# The first pattern that matches at a place decides.
PATTERNS: tuple[tuple[Kind, str], ...] = (
    ("comment", r"#[^\n]*"),
    ("string", r'"[^"\n]*"'),
    ("statement", _words(STATEMENTS)),
    ("keyword", _words(OTHERS)),
    ("function", _words(BUILTINS) + r"(?=[ \t]*\()"),
    ("attribute", _words(ATTRIBUTES)),
    ("axis", _words(AXES)),
    ("state", r"\bS\b"),
    ("constant", _words(CONSTANTS)),
    ("name", r"[A-Za-z_][A-Za-z_0-9]*"),
    ("number", r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"),
    ("operator", r"\.\.|\+=|-=|[-+*/@^=]"),
    ("punctuation", r"[()\[\],:]"),
)

_ANY = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in PATTERNS))


@dataclass(frozen=True)
class Token:
    kind: Kind
    text: str
    span: Span


def tokens(text: str) -> Iterator[Token]:
    """The tokens of any text, however broken; characters outside the language are passed over."""
    for number, line in enumerate(text.split("\n"), 1):
        for match in _ANY.finditer(line):
            span = Span(number, match.start() + 1, match.end() + 1)
            yield Token(match.lastgroup, match[0], span)  # type: ignore[arg-type]
