"""The front end as one function: text -> typed rule, with all findings of all passes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

from . import syntax as syn
from .affine import normal_form
from .check import check
from .diagnostics import Diagnostic, RuleError
from .domains import check_domains
from .edits import Rewrite
from .ir import Rule
from .parser import parse_text
from .report import Report
from .unused import warn_of_unused


def compile_text(text: str, constants: Mapping[str, float] | None = None) -> tuple[Rule | None, list[Diagnostic]]:
    """The typed rule, None if it has errors, and every finding, warnings too, in the order of the text.

    `constants` replace the values of constant lets by name; ValueError if one names no such let.
    """
    given = constants or {}
    file, rule, report = _passes(text, given)
    found = _with_suggestions(text, given, file, rule, report) if report.found else []
    return (None if report.failed else rule), sorted(found, key=lambda d: (d.span.line, d.span.column))


def _passes(text: str, constants: Mapping[str, float]) -> tuple[syn.File | None, Rule | None, Report]:
    report = Report()
    file, syntax_errors = parse_text(text)
    report.found += syntax_errors
    if file is None:
        return None, None, report
    rule = check(file, text, constants, report)
    if rule is not None:
        check_domains(rule, report)
        try:
            normal_form(rule)
        except RuleError as error:
            report.found += error.diagnostics
    if not report.failed:
        warn_of_unused(file, report)
    return file, rule, report


def _with_suggestions(
    text: str, constants: Mapping[str, float], file: syn.File | None, rule: Rule | None, report: Report
) -> list[Diagnostic]:
    from .rewrites import candidates
    from .rewrites.context import Context
    from .suggest import with_suggestions

    context = Context(text, file or syn.File("", "", ()), report.names, rule)

    def worth_trying(d: Diagnostic) -> Iterable[Iterable[Rewrite]]:
        own, *others = candidates(context, d)
        return chain(report.rewrites.get(d, ()), own), *others

    def findings(other: str) -> list[Diagnostic]:
        try:
            return _passes(other, constants)[2].found
        except ValueError:  # a rewrite took away the let that a constant replaces
            return report.found

    return with_suggestions(text, report.found, worth_trying, findings)
