"""Suggestions that are known to help: a rewrite is offered only if the text with it was compiled and is better."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from .diagnostics import Diagnostic
from .edits import Rewrite, applied, line_before

# A try compiles the text: for a text of the size a person writes there are enough, a huge one gets a few.
MOST_TRIES = 150
FEWEST_TRIES = 6
CHARACTERS = 100_000
TRIES_EACH = 16

Finding = tuple[str, int]


def with_suggestions(
    text: str,
    found: list[Diagnostic],
    candidates: Callable[[Diagnostic], Iterable[Rewrite]],
    findings: Callable[[str], list[Diagnostic]],
) -> list[Diagnostic]:
    """`found`, where a finding gets the first of its candidates with which it is gone and that brings no new one.

    An error that hid later stages from an update may bring their findings to light, on other lines.
    """
    left = max(FEWEST_TRIES, min(MOST_TRIES, CHARACTERS // (len(text) + 1)))
    out = []
    for d in found:
        for _, rewrite in zip(range(min(left, TRIES_EACH)), candidates(d), strict=False):
            left -= 1
            if _helps(d, found, rewrite, findings(applied(text, rewrite))):
                d = replace(d, rewrite=rewrite)
                break
        out.append(d)
    return out


def _helps(d: Diagnostic, found: list[Diagnostic], rewrite: Rewrite, after: list[Diagnostic]) -> bool:
    def keys(some: Iterable[Diagnostic]) -> Counter[Finding]:
        return Counter((x.code, x.span.line) for x in some if d.is_warning or not x.is_warning)

    before = keys(found)
    now = keys(replace(x, span=replace(x.span, line=line_before(x.span.line, rewrite))) for x in after)
    touched = {edit.span.line for edit in rewrite}
    new = [(code, line) for code, line in now - before if not _was_hidden(d, code, line not in touched)]
    return not new and now[d.code, d.span.line] < before[d.code, d.span.line]


def _was_hidden(d: Diagnostic, code: str, elsewhere: bool) -> bool:
    """The algebra and the ranges are not looked at while an update has another error."""
    return elsewhere and d.code < "E3" <= code < "E5"
