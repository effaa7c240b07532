"""The front end as one function: text -> typed rule, with all findings of all passes."""

from __future__ import annotations

from collections.abc import Mapping

from .affine import normal_form
from .check import check
from .diagnostics import Diagnostic, RuleError
from .domains import check_domains
from .ir import Rule
from .parser import parse_text
from .report import Report
from .suggest import with_suggestions


def compile_text(text: str, constants: Mapping[str, float] | None = None) -> tuple[Rule | None, list[Diagnostic]]:
    """The typed rule, None if it has errors, and every finding, warnings too, in the order of the text.

    `constants` replace the values of constant lets by name; ValueError if one names no such let.
    """
    given = constants or {}
    rule, report = _passes(text, given)
    found = report.found
    if report.rewrites:
        found = with_suggestions(text, found, report.rewrites, lambda other: _passes(other, given)[1].found)
    return (None if report.failed else rule), sorted(found, key=lambda d: (d.span.line, d.span.column))


def _passes(text: str, constants: Mapping[str, float]) -> tuple[Rule | None, Report]:
    report = Report()
    file, syntax_errors = parse_text(text)
    report.found += syntax_errors
    rule = check(file, text, constants, report) if file is not None else None
    if rule is not None:
        check_domains(rule, report)
        try:
            normal_form(rule)
        except RuleError as error:
            report.found += error.diagnostics
    return rule, report
