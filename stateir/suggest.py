"""Suggestions that are known to help: a rewrite is offered only if the text with it was compiled and is better."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from .diagnostics import Diagnostic
from .edits import Rewrite, applied, line_before

# A try compiles the text: for a text of the size a person writes there are enough, a huge one gets a few.
MOST_TRIES = 150
FEWEST_TRIES = 2
CHARACTERS = 100_000
TRIES_EACH = 24
MOST_FINDINGS = 20  # of a text, that get a suggestion: as many as are shown

Finding = tuple[str, int]


def with_suggestions(
    text: str,
    found: list[Diagnostic],
    candidates: Callable[[Diagnostic], Iterable[Iterable[Rewrite]]],
    findings: Callable[[str], list[Diagnostic]],
) -> list[Diagnostic]:
    """`found`, where a finding gets a rewrite with which it is gone, from the first group of candidates that has one.

    In a group the first rewrite that brings no new finding is taken, else the first that brings only findings of later
    passes, which had not seen the line yet.
    """
    left = max(FEWEST_TRIES, min(MOST_TRIES, CHARACTERS // (len(text) + 1)))
    out = []
    for number, d in enumerate(found):
        best: Rewrite = ()
        for group in candidates(d) if number < MOST_FINDINGS else ():
            for _, rewrite in zip(range(min(left, TRIES_EACH)), group, strict=False):
                left -= 1
                after = findings(applied(text, rewrite))
                if (new := _new(d, found, rewrite, after)) is None:
                    continue
                if not new:
                    best = rewrite
                    break
                if not best and all(_rank(code) > _rank(d.code) for code in new):
                    best = rewrite
            if best:
                break
        out.append(replace(d, rewrite=best))
    return out


def _new(d: Diagnostic, found: list[Diagnostic], rewrite: Rewrite, after: list[Diagnostic]) -> set[str] | None:
    """The codes of the errors that a rewrite brings; None if it leaves d."""

    def counted(some: Iterable[Diagnostic]) -> Counter[Finding]:
        return Counter((x.code, x.span.line) for x in some)

    before = counted(found)
    now = counted(replace(x, span=replace(x.span, line=line_before(x.span.line, rewrite))) for x in after)
    if now[d.code, d.span.line] >= before[d.code, d.span.line]:
        return None
    return {code for code, _ in now - before if not code.startswith("W")}


def _rank(code: str) -> int:
    """Which pass a finding is of: syntax, names and axes, the algebra and the ranges."""
    return {"E0": 0, "E1": 1, "E2": 1}.get(code[:2], 2)
