"""Completion: the words that may stand at a place, of which the editor keeps those that fit what is typed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from stateir.names import AXES, BUILTINS

from .document import Document
from .glossary import WORDS
from .patterns import STATEMENTS, Token

What = Literal["keyword", "axis", "function", "constant", "input", "param", "state", "let", "for"]
DECLARATIONS = ("input", "param", "state")


@dataclass(frozen=True)
class Item:
    """`what` is the kind of word, `doc` its sentence: for a name the line that defines it."""

    text: str
    what: What
    doc: str


def complete(document: Document, line: int, column: int) -> list[Item]:
    """The words that may stand at a place (both from 1); none inside a comment or a title."""
    before = [t for t in document.tokens if t.span.line == line and t.span.column < column]
    if before and (before[-1].kind == "comment" or (before[-1].kind == "string" and column < before[-1].span.end)):
        return []
    if before and before[-1].span.end >= column and before[-1].text.isidentifier():
        before.pop()  # the word being typed
    return list(_items(document, line, before))


def _items(document: Document, line: int, before: list[Token]) -> Iterator[Item]:
    words = [t.text for t in before]
    match words:
        case []:
            first = not any(t.text == "rule" for t in document.tokens if t.span.line < line)
            yield from _reserved(("rule",) if first else STATEMENTS[1:], "keyword")
        case ["update"]:
            yield from _states(document, line)
        case [("input" | "param" | "state") as kind, *rest]:
            yield from _declaration(document, line, kind, rest)
        case [*_, "dim", "("]:
            yield from _reserved(("key", "value"), "axis")
        case ["let" | "read" | "update", _, "=" | "+=" | "-=", *rest]:
            if words[0] == "update" and rest and not _wants_operand(rest[-1]):
                yield from _reserved(("for",), "keyword")
            yield from _names(document, line)
            yield from _reserved(sorted(BUILTINS), "function")


def _declaration(document: Document, line: int, kind: str, rest: list[str]) -> Iterator[Item]:
    """After `x:` an axis, after that the claims, after `=` or inside a range what constants are made of."""
    piece = rest[max((i + 1 for i, t in enumerate(rest) if t == "," and _between(rest[:i])), default=0) :]
    if not piece or ":" not in piece:
        if piece[-1:] == ["["]:
            yield from _names(document, line, constants=True)
        return
    after = piece[piece.index(":") + 1 :]
    if not after:
        yield from _reserved(sorted(AXES if kind == "state" else AXES - {"matrix"}), "axis")
    elif "=" in after or not _between(after) or after[-1] == "in":
        yield from _names(document, line, constants=True)
        yield from _reserved(sorted(BUILTINS - {"outer", "prev", "rotate", "unit"}), "function")
        yield from _reserved(("inf", "head") if kind == "param" and "=" in after else ("inf",), "constant")
    else:
        left = [w for w in ("unit", "in", *(("fixed",) if kind == "param" else ())) if w not in after]
        yield from _reserved(left, "keyword")


def _between(rest: list[str]) -> bool:
    """Whether every bracket is closed. A range may open with one kind and close with the other."""
    return sum(t in ("(", "[") for t in rest) == sum(t in (")", "]") for t in rest)


def _wants_operand(last: str) -> bool:
    return last in {"+", "-", "*", "/", "@", "^", "(", ",", "["}


def _reserved(words: tuple[str, ...] | list[str], what: What) -> Iterator[Item]:
    yield from (Item(word, what, WORDS[word]) for word in words)


def _names(document: Document, line: int, constants: bool = False) -> Iterator[Item]:
    """The names defined above `line`, and the loop's of the line itself; only constants can be lets, so lets alone."""
    for d in document.definitions:
        if d.kind in ("rule", "read", "update") or (constants and d.kind != "let"):
            continue
        if d.span.line < line if d.kind != "for" else d.span.line == line:
            yield Item(d.name, d.kind, document.line(d.span.line).strip())  # type: ignore[arg-type]
    if not constants:
        yield Item("S", "state", WORDS["S"])


def _states(document: Document, line: int) -> Iterator[Item]:
    yield from (i for i in _names(document, line) if i.what == "state")
