"""One state of a text in an editor: what the compiler says of it, and its words with their definitions.

Words come from tokens, not from the syntax tree, so that they are there while a line is half written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from stateir.compile_text import compile_text
from stateir.diagnostics import Diagnostic
from stateir.ir import Rule, Span

from .patterns import Kind, Token, tokens

# A call and a keyword can be hovered too; what can be defined is a name, or S.
WORD_KINDS: frozenset[Kind] = frozenset(
    {"statement", "keyword", "function", "attribute", "axis", "state", "constant", "name"}
)


@dataclass(frozen=True)
class Definition:
    """Where a name is defined. `kind` is the statement's word, or `for`; a loop's name is known on its line only."""

    name: str
    kind: str
    span: Span


@dataclass(frozen=True)
class Document:
    """`rule` is None while the text has errors."""

    text: str
    tokens: tuple[Token, ...]
    definitions: tuple[Definition, ...]
    rule: Rule | None
    found: tuple[Diagnostic, ...]

    def word(self, line: int, column: int) -> Token | None:
        """The word at a place (both from 1), or ending just before it."""
        at = [t for t in self.tokens if t.kind in WORD_KINDS and t.span.line == line]
        return next((t for t in at if t.span.column <= column <= t.span.end), None)

    def definition(self, word: Token) -> Definition | None:
        """The first definition of the word's name; for a loop's name that of its line."""
        same = [d for d in self.definitions if d.name == word.text]
        if word.kind not in ("name", "state"):
            return None
        here = [d for d in same if d.kind == "for" and d.span.line == word.span.line]
        return next(iter(here + [d for d in same if d.kind != "for"]), None)

    def line(self, number: int) -> str:
        """The text of a line, counted from 1."""
        return self.text.split("\n")[number - 1].rstrip("\r")


@lru_cache(maxsize=16)
def document(text: str) -> Document:
    """What is known of `text`."""
    rule, found = compile_text(text)
    all_tokens = tuple(tokens(text))
    return Document(text, all_tokens, tuple(_definitions(all_tokens)), rule, tuple(found))


def _definitions(all_tokens: tuple[Token, ...]) -> Iterator[Definition]:
    """S is defined by its first update."""
    lines: dict[int, list[Token]] = {}
    for t in all_tokens:
        if t.kind != "comment":
            lines.setdefault(t.span.line, []).append(t)
    for line in lines.values():
        kind = line[0].text
        match kind:
            case "rule" | "let" | "read":
                yield from (Definition(t.text, kind, t.span) for t in line[1:2] if t.kind == "name")
            case "input" | "param" | "state":
                for place, t in enumerate(line):
                    if t.kind == "name" and line[place - 1].text in (kind, ",") and _declares(line[place + 1 :]):
                        yield Definition(t.text, kind, t.span)
            case "update":
                yield from (Definition(t.text, kind, t.span) for t in line[1:2] if t.kind == "state")
                yield from (
                    Definition(t.text, "for", t.span)
                    for word, t in pairwise(line)
                    if word.text == "for" and t.kind == "name"
                )


def _declares(after: list[Token]) -> bool:
    """Whether `:` or `[place]:` follows; a comma also stands between the bounds of a range and in calls."""
    if after and after[0].text == "[":
        closing = next((i for i, t in enumerate(after) if t.text == "]"), len(after))
        after = after[closing + 1 :]
    return bool(after) and after[0].text == ":"
