"""Suggestions that are known to help: a rewrite is offered only if the text with it has fewer errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from .diagnostics import Diagnostic
from .ir import Span

MAX_TRIED = 6


def with_suggestions(
    text: str,
    found: list[Diagnostic],
    rewrites: Mapping[Diagnostic, tuple[str, ...]],
    findings: Callable[[str], list[Diagnostic]],
) -> list[Diagnostic]:
    """`found`, where a finding gets the first of its rewrites that leaves the other findings and makes no new one."""
    before = _errors(found)
    out = []
    tried = 0
    for d in found:
        for rewrite in rewrites.get(d, ()) if tried < MAX_TRIED else ():
            tried += 1
            after = _errors(findings(_replaced(text, d.span, rewrite)))
            if after < before:
                d = replace(d, suggestion=rewrite)
                break
        out.append(d)
    return out


def _errors(found: list[Diagnostic]) -> Counter[tuple[str, int]]:
    return Counter((d.code, d.span.line) for d in found if not d.code.startswith("W"))


def _replaced(text: str, span: Span, new: str) -> str:
    lines = text.split("\n")
    line = lines[span.line - 1]
    lines[span.line - 1] = line[: span.column - 1] + new + line[span.end - 1 :]
    return "\n".join(lines)
