"""More refused and accepted texts: code, line, column, rewrite. That the rewrites help is in `test_suggestions.py`."""

from __future__ import annotations

import pytest
from more_language_cases import CASES, HEAD

from stateir.compile_text import compile_text


@pytest.mark.parametrize(("name", "lines", "expected"), CASES, ids=[c[0] for c in CASES])
def test_findings(name: str, lines: str, expected: list[tuple[str, int, int, str | None]]) -> None:
    _, found = compile_text(HEAD + lines)
    assert [(d.code, d.span.line, d.span.column, d.suggestion) for d in found if d.code != "W101"] == expected
