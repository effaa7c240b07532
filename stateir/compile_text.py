"""The front end as one function: text -> typed rule, with all findings of all passes."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from .check import check
from .diagnostics import Diagnostic, RuleError
from .domains import check_domains
from .ir import Rule
from .parser import parse_text
from .report import Report

MAX_REPORTED = 20


def compile_text(text: str, constants: Mapping[str, float] | None = None) -> tuple[Rule | None, list[Diagnostic]]:
    """The typed rule, None if it has errors, and every finding, warnings too, in the order of the text."""
    report = Report()
    file, syntax_errors = parse_text(text)
    report.found += syntax_errors
    rule = check(file, text, constants or {}, report) if file is not None else None
    if rule is not None:
        check_domains(rule, report)
        report.found += _algebra(rule)
    found = sorted(report.found, key=lambda d: (d.span.line, d.span.column))
    return (None if report.failed else rule), found


def _algebra(rule: Rule) -> list[Diagnostic]:
    """The findings of the normal form: its pass reports by raising."""
    try:
        affine = importlib.import_module("stateir.affine")
    except ModuleNotFoundError:
        return []
    try:
        affine.normal_form(rule)
    except RuleError as error:
        return error.diagnostics
    return []
