"""More refused and accepted texts: code, line, column; and every rewrite that is offered removes its finding."""

from __future__ import annotations

import pytest
from more_language_cases import CASES, HEAD

from stateir.compile_text import compile_text


@pytest.mark.parametrize(("name", "lines", "expected"), CASES, ids=[c[0] for c in CASES])
def test_findings(name: str, lines: str, expected: list[tuple[str, int, int, str | None]]) -> None:
    _, found = compile_text(HEAD + lines)
    assert [(d.code, d.span.line, d.span.column, d.suggestion) for d in found] == expected


@pytest.mark.parametrize(("name", "lines", "expected"), CASES, ids=[c[0] for c in CASES])
def test_a_rewrite_that_is_offered_helps(name: str, lines: str, expected: list[object]) -> None:
    text = HEAD + lines
    _, found = compile_text(text)
    for d in found:
        if d.suggestion is None:
            continue
        place = d.place or d.span
        rows = text.split("\n")
        row = rows[place.line - 1]
        rows[place.line - 1] = row[: place.column - 1] + d.suggestion + row[place.end - 1 :]
        _, after = compile_text("\n".join(rows))
        assert len(after) < len(found)
        assert (d.code, d.span.line) not in [(x.code, x.span.line) for x in after]
