"""Errors of rule texts: one record a finding, one exception for all findings of a run."""

from __future__ import annotations

from dataclasses import dataclass

from .ir import Span


@dataclass(frozen=True)
class Diagnostic:
    """One finding.

    `code` is a row of the error table; `suggestion` is a text for the place of `span` with which the finding is gone.
    """

    code: str
    span: Span
    message: str
    help: str | None = None
    suggestion: str | None = None


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
