"""What a run of the checker has found so far."""

from __future__ import annotations

from collections.abc import Sequence

from .diagnostics import Diagnostic
from .errors import finding
from .ir import Span


class Report:
    """Findings without repeats (a loop checks its line several times), and for some the rewrites worth trying."""

    def __init__(self) -> None:
        self.found: list[Diagnostic] = []
        self.rewrites: dict[Diagnostic, tuple[str, ...]] = {}
        self._seen: set[tuple[str, Span]] = set()

    def add(
        self,
        code: str,
        span: Span,
        *,
        help: str | None = None,
        rewrites: Sequence[str] = (),
        **facts: object,
    ) -> None:
        """`rewrites` are texts for the place of `span`, the likeliest first."""
        if (code, span) in self._seen:
            return
        self._seen.add((code, span))
        found = finding(code, span, facts, help)
        self.found.append(found)
        if rewrites:
            self.rewrites[found] = tuple(rewrites)

    @property
    def failed(self) -> bool:
        return any(not d.code.startswith("W") for d in self.found)
