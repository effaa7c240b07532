"""Rewrites for texts that do not parse (E0xx): slips of the pen, one wrong token, a line that is missing."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from lark.exceptions import UnexpectedInput

from ..diagnostics import Diagnostic
from ..edits import Edit, Rewrite, line_above, line_below, replaced
from ..ir import Axis, Span
from ..names import AXES, KEYWORDS
from ..tables import grammar
from .axes import READ_FIRST
from .context import Context
from .habits import all_corrected, corrected

_STARTS = ("update", "read", "let", "input", "param", "state", "rule")
_INSERTED = (")", "*", "@", ",", ":", "=", "(", "]", "[", ": key", ": value", ": scalar", '"', "1", " S", ")" * 2)
_TEMPLATE = "rule example\ninput  q: key, k: key, v: value\nupdate S += outer(k, v)\nread   o = q @ S"


def rewrites(c: Context, d: Diagnostic) -> Iterator[Rewrite]:
    match d.code:
        case "E001":
            yield from _unparsed(c, d.span)
        case "E002":
            key, declared = c.vector(Axis.KEY, len(c.text), READ_FIRST)
            last = c.text.rstrip().count("\n") + 1
            yield line_below(last, len(c.line(last)) + 1, f"read   {c.fresh('o')} = {key} @ S"), *declared
        case "E003":
            key, declared = c.vector(Axis.KEY, len(c.text))
            value, also = c.vector(Axis.VALUE, len(c.text))
            text = f"update S += outer({key}, {value})"
            last = c.text.rstrip().count("\n") + 1
            edit = line_above(c.read.line, text) if c.read is not None else line_below(last, len(c.line(last)) + 1, text)
            yield edit, *declared, *also
        case "E004":
            yield c.without(d.span)


def _unparsed(c: Context, span: Span) -> Iterator[Rewrite]:
    """The whole line, corrected in a way that parses."""
    if not c.text.strip():
        yield (Edit(Span(1, 1, 1), _TEMPLATE),)
        return
    place = c.code(span.line)
    code, shift = c.source(place), place.column
    at = min(max(span.column - shift, 0), len(code))
    seen: set[str] = set()
    for line in _lines(code, at, max(span.end - span.column, 1)):
        if line not in seen and all(_parses(part) for part in line.split("\n")):
            yield replaced(place, line)
        seen.add(line)
    if c.file.span == place:
        yield (line_above(span.line, "rule example"),)
    yield replaced(place, f"# {code}")


def _lines(code: str, at: int, width: int) -> Iterator[str]:
    yield from corrected(code)
    for line in (code, *all_corrected(code)):
        yield from _first_word(line)
    yield from _one_token(code, at, width)


def _first_word(code: str) -> Iterator[str]:
    """Another first word; one that was left out."""
    found = re.match(r"(\w+)(.*)", code, re.S)
    if found is None:
        return
    word, rest = found.groups()
    near = difflib.get_close_matches(word.lower(), _STARTS, n=2, cutoff=0.6)
    near += {"return": ["read"], "output": ["read"], "out": ["read"], "def": ["let"], "const": ["let"]}.get(word, [])
    yield from (w + rest for w in near)
    for start in _STARTS:
        yield f"{start} {code}"


def _one_token(code: str, at: int, width: int) -> Iterator[str]:
    """One token too much, too little, or another at a place."""
    before, after = code[:at], code[at + width :]
    words = sorted(AXES | KEYWORDS)
    wrong = code[at : at + width]
    near = difflib.get_close_matches(wrong.lower(), words, n=2, cutoff=0.5)
    yield from (before + w + after for w in near)
    yield from (before.rstrip() + (x if x in ",:)]" else f" {x} ") + code[at:].lstrip() for x in _INSERTED)
    yield (before.rstrip() + after).rstrip()
    yield f"{before.rstrip()} {after.lstrip()}".rstrip()
    yield from (before + axis + after for axis in ("key", "value", "scalar"))
    yield (before.rstrip()[:-1] + code[at:]).rstrip()
    yield before.rstrip()


def _parses(line: str) -> bool:
    if not line.strip():
        return False
    try:
        grammar().parse(line, start="header" if re.match(r"\s*rule\b", line) else "statement")
    except UnexpectedInput:
        return False
    return True
