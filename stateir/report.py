"""What a run of the checker has found so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .diagnostics import Diagnostic
from .edits import Rewrite, replaced
from .errors import finding
from .ir import Span
from .names import Entry


class Report:
    """Findings without repeats (a loop checks its line several times), and for some the rewrites worth trying.

    `names` are those that are defined where the text ends.
    """

    def __init__(self) -> None:
        self.found: list[Diagnostic] = []
        self.rewrites: dict[Diagnostic, tuple[Rewrite, ...]] = {}
        self.names: Mapping[str, Entry] = {}
        self._seen: set[tuple[str, Span]] = set()

    def add(
        self,
        code: str,
        span: Span,
        *,
        help: str | None = None,
        rewrites: Sequence[str | Rewrite] = (),
        **facts: object,
    ) -> None:
        """`rewrites` are worth trying, the likeliest first; a text goes to the place of `span`."""
        if (code, span) in self._seen:
            return
        self._seen.add((code, span))
        found = finding(code, span, facts, help)
        self.found.append(found)
        if rewrites:
            self.rewrites[found] = tuple(replaced(span, x) if isinstance(x, str) else x for x in rewrites)

    @property
    def failed(self) -> bool:
        return any(not d.is_warning for d in self.found)
