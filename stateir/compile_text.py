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
from .names import MAX_COUNT
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


def check_constants(text: str, constants: Mapping[str, float]) -> None:
    """ValueError, with the numbers that are allowed, if the text is accepted but not with one of `constants`.

    Only whole numbers that stand for a length, an index or the bound of a loop are looked at; they are few enough to be
    tried.
    """
    file, _, report = _passes(text, {})
    if file is None or report.failed:
        return
    counts = {place.name for s in file.statements for place in syn.places(s)}
    for name, value in constants.items():
        if name in counts:
            others = {n: x for n, x in constants.items() if n != name}
            allowed = [n for n in range(MAX_COUNT + 2) if not _passes(text, {**others, name: float(n)})[2].failed]
            if allowed and value not in allowed:
                raise ValueError(
                    f"{file.name}: {name} = {value}: expected a whole number from {allowed[0]} to {allowed[-1]}"
                )


def _with_suggestions(
    text: str, constants: Mapping[str, float], file: syn.File | None, rule: Rule | None, report: Report
) -> list[Diagnostic]:
    from .rewrites import candidates
    from .rewrites.context import Context
    from .suggest import with_suggestions

    context = Context(text, file or syn.File("", "", ()), report.names, rule)

    def worth_trying(d: Diagnostic) -> Iterable[Iterable[Rewrite]]:
        first, *others = candidates(context, d) or [()]
        return chain(report.rewrites.get(d, ()), first), *others

    def findings(other: str) -> list[Diagnostic]:
        try:
            return _passes(other, constants)[2].found
        except ValueError:  # a rewrite took away the let that a constant replaces
            return report.found

    return with_suggestions(text, report.found, worth_trying, findings)
