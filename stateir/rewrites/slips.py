"""Rewrites for texts that do not parse (E0xx): slips of the pen, one wrong token, a line that is missing."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from lark.exceptions import UnexpectedInput

from stateir.diagnostics import Diagnostic
from stateir.edits import Rewrite, line_above, line_below, replaced
from stateir.ir import Axis, Span
from stateir.names import AXES, KEYWORDS
from stateir.parser import code_of
from stateir.tables import grammar

from .axes import READ_FIRST
from .context import Context
from .habits import LONGEST, all_corrected, corrected, multiplied

PARSED = 5_000  # characters of corrected lines, to find those that parse
_STARTS = ("update", "read", "let", "input", "param", "state", "rule")
_TEMPLATE = "rule example\ninput  q: key, k: key, v: value\nupdate S += outer(k, v)\nread   o = q @ S"


def rewrites(c: Context, d: Diagnostic) -> Iterator[Rewrite]:
    match d.code:
        case "E002":
            key, declared = c.vector(Axis.KEY, len(c.text), READ_FIRST)
            last = c.text.rstrip().count("\n") + 1
            yield line_below(last, len(c.line(last)) + 1, f"read   {c.fresh('o')} = {key} @ S"), *declared
        case "E003":
            key, declared = c.vector(Axis.KEY, len(c.text))
            value, also = c.vector(Axis.VALUE, len(c.text))
            text = f"update S += outer({key}, {value})"
            last = c.text.rstrip().count("\n") + 1
            edit = (
                line_above(c.read.line, text) if c.read is not None else line_below(last, len(c.line(last)) + 1, text)
            )
            yield edit, *declared, *also
        case "E004":
            yield c.without(d.span)


def groups(c: Context, span: Span) -> list[Iterable[Rewrite]]:
    """For a line that does not parse: slips that are known, then guesses at one token, then the line as a comment."""
    if not any(code_of(line).strip() for line in c.text.split("\n")):
        return [[(line_above(1, _TEMPLATE),)]]
    place = c.code(span.line)
    code = c.source(place)
    if len(code) > LONGEST:
        return []
    at = min(max(span.column - place.column, 0), len(code))
    if c.file.span == place:
        headed: list[Rewrite] = [(line_above(span.line, "rule example"),)]
    else:
        headed = []
    known = _parsing(place, chain(corrected(code), all_corrected(code)))
    lines = [*all_corrected(code), code]
    signs = (x for y in lines for x in multiplied(y, code))
    words = (x for y in lines for x in _first_word(y))
    guesses = _parsing(place, chain(signs, words, _one_token(code, at, max(span.end - span.column, 1))))
    return [known, guesses, headed, [replaced(place, f"# {code}")]]


def _parsing(place: Span, lines: Iterable[str]) -> Iterator[Rewrite]:
    """Each of the lines that parses, once, in place of the line; of a long line fewer are looked at."""
    seen: set[str] = set()
    for line in (line.strip() for line in islice(lines, max(8, PARSED // (place.end - place.column + 1)))):
        if line not in seen and all(_parses(part) for part in line.split("\n")):
            yield replaced(place, line)
        seen.add(line)


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
    before, wrong, after = code[:at].rstrip(), code[at : at + width], code[at + width :]
    for word in difflib.get_close_matches(wrong.lower(), sorted(AXES | KEYWORDS), n=2, cutoff=0.5):
        yield f"{code[:at]}{word}{after}"
    yield from (f"{before}{close}{code[at:]}" for close in (")", "))", "]", '"'))
    if not after:
        yield before
        yield before.rstrip("+-*/@^=,([ ")
    yield from (f"{before}{sign} {code[at:]}" for sign in (",", ":", " =", " *", " @", " (", " ["))
    yield from (f"{before}{sign} {after.lstrip()}" for sign in (" =", ":", ",", "", " *"))
    if before.endswith(":"):
        yield from (f"{before} {axis}{after}" for axis in ("key", "value", "scalar"))
    yield from (f"{before}: {axis}{code[at:]}" for axis in ("key", "value", "scalar"))
    yield f"{before[:-1].rstrip()} {code[at:]}"
    yield f"{before}{'' if before.endswith('.') else ' '}1 {code[at:]}"
    yield before


def _parses(line: str) -> bool:
    code = code_of(line).rstrip()
    if not code:
        return False
    try:
        grammar().parse(code, start="header" if re.match(r"\s*rule\b", code) else "statement")
    except UnexpectedInput:
        return False
    return True
