"""Changes of a text: pieces to replace, and lines to insert."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .ir import Span


@dataclass(frozen=True)
class Edit:
    """`text` in place of what stands at `span`. At an empty span it is inserted; a text with a line end makes lines."""

    span: Span
    text: str


# Edits that are made together; none overlaps another. Empty where there is nothing to offer.
Rewrite = tuple[Edit, ...]


def replaced(span: Span, text: str) -> Rewrite:
    """The rewrite of one piece."""
    return (Edit(span, text),)


def line_above(line: int, text: str) -> Edit:
    """`text` as a new line above a line."""
    return Edit(Span(line, 1, 1), text + "\n")


def line_below(line: int, end: int, text: str) -> Edit:
    """`text` as a new line below a line whose text ends before column `end`."""
    return Edit(Span(line, end, end), "\n" + text)


def applied(text: str, rewrite: Rewrite) -> str:
    """`text` after a rewrite."""
    lines = text.split("\n")
    for edit in sorted(rewrite, key=lambda e: (e.span.line, e.span.column), reverse=True):
        line = lines[edit.span.line - 1]
        lines[edit.span.line - 1] = line[: edit.span.column - 1] + edit.text + line[edit.span.end - 1 :]
    return "\n".join(lines)


def line_before(line: int, rewrite: Rewrite) -> int:
    """The line of the text that `line` of the rewritten text comes from; an inserted line counts as its neighbour."""
    for edit in sorted(rewrite, key=lambda e: (e.span.line, e.span.column)):
        inserted = edit.text.count("\n")
        if line > edit.span.line:
            line = max(edit.span.line, line - inserted)
    return line


def described(edit: Edit, piece: str) -> str:
    """An edit in words; `piece` is what stands at its place."""
    if edit.text.strip() == "":
        return f"leave out `{piece}`"
    if edit.text.endswith("\n"):
        return f"{edit.text[:-1]}  as a line above line {edit.span.line}"
    if edit.text.startswith("\n"):
        return f"{edit.text[1:]}  as a line below line {edit.span.line}"
    return f"{edit.text}{f' in place of `{piece}`' if piece else ''}"


def grouped(text: str) -> str:
    """A piece of text as a factor: in parentheses, unless it is a name, a number, a call or a group already."""
    return text if re.fullmatch(r"[\w.]+(\[[^\[\]]*\])?|\w*\([^()]*\)", text) else f"({text})"
