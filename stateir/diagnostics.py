"""Errors of rule texts: one record a finding, one exception for all findings of a run."""

from __future__ import annotations

from dataclasses import dataclass

from .edits import Rewrite
from .ir import Span


@dataclass(frozen=True)
class Diagnostic:
    """One finding.

    `code` is a row of the error table. `rewrite` was tried: with it the finding is gone; empty where there is none.
    """

    code: str
    span: Span
    message: str
    help: str | None = None
    rewrite: Rewrite = ()

    @property
    def is_warning(self) -> bool:
        """A warning refuses nothing."""
        return self.code.startswith("W")

    @property
    def suggestion(self) -> str | None:
        """The text of the rewrite's first piece."""
        return self.rewrite[0].text if self.rewrite else None

    @property
    def place(self) -> Span | None:
        """Where `suggestion` goes."""
        return self.rewrite[0].span if self.rewrite else None


class RuleError(Exception):
    """A rule text was refused. `diagnostics` holds every finding, in the order of the text."""

    def __init__(self, diagnostics: list[Diagnostic], text: str = "", filename: str = "<rule>") -> None:
        self.diagnostics = sorted(diagnostics, key=lambda d: (d.span.line, d.span.column))
        self.text = text
        self.filename = filename
        super().__init__(self.diagnostics, text, filename)

    def __str__(self) -> str:
        from .render import render

        return render(self)
