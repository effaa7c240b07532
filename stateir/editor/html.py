"""A rule and its findings as HTML, for notebooks and other pages. LaTeX stands in $$ … $$, for MathJax or KaTeX.

Everything from a rule's text is escaped. Colours are the page's own but for one red and one amber.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from stateir import latex
from stateir.affine import normal_form
from stateir.core import core
from stateir.diagnostics import Diagnostic
from stateir.ir import Rule
from stateir.plan import describe, plan
from stateir.render import steps
from stateir.unicode import normal_form as written

_PRE = "margin:0.3em 0;line-height:1.4;white-space:pre;overflow-x:auto;background:none"
_COLOURS = {"error": "#c62828", "warning": "#b26a00"}


def rule_html(rule: Rule, found: Sequence[Diagnostic] = ()) -> str:
    """The equation, the normal form, the plan and the text of a rule, and `found`, the warnings of its text."""
    title = f" <span>{escape(rule.title)}</span>" if rule.title else ""
    parts = [f"<div><b>{escape(rule.name)}</b>{title}</div>", f"<div>$${escape(latex.rule(rule))}$$</div>"]
    parts.append(forms_html(rule))
    parts.append(_section("Text", _pre(rule.text.rstrip()), is_open=False))
    if found:
        parts.append(findings_html(found, rule.text))
    return f'<div class="stateir-rule">{"".join(parts)}</div>'


def forms_html(rule: Rule) -> str:
    """The normal form and the plan of a rule, or that it has none."""
    nf = normal_form(rule)
    if nf is None:
        return "<div>No normal form: matrix states beside S, so the step reference alone.</div>"
    form, costs = _pre(written(nf)), _table(describe(plan(nf, core(nf))))
    return _section("Normal form", form) + _section("Plan", costs)


def findings_html(found: Sequence[Diagnostic], text: str) -> str:
    """Findings, each over its line of `text` with the culprit marked, its help and its rewrite."""
    lines = text.split("\n")
    return f'<div class="stateir-findings">{"".join(_finding(d, lines) for d in found)}</div>'


def _finding(d: Diagnostic, lines: list[str]) -> str:
    severity = "warning" if d.is_warning else "error"
    colour = _COLOURS[severity]
    parts = [f'<div><b style="color:{colour}">{severity} {escape(d.code)}</b> {_prose(d.message)}</div>']
    if 1 <= d.span.line <= len(lines):
        line = lines[d.span.line - 1].rstrip("\r")
        start, end = d.span.column - 1, max(d.span.end - 1, d.span.column)
        culprit = line[start:end] or " "
        mark = f'<mark style="background:none;color:inherit;border-bottom:2px solid {colour}">{escape(culprit)}</mark>'
        parts.append(f'<pre style="{_PRE}">{d.span.line:>3} | {escape(line[:start])}{mark}{escape(line[end:])}</pre>')
    if d.help is not None:
        parts.append(f"<div>help: {_prose(d.help)}</div>")
    for step in steps(d, lines):
        word, _, said = step.partition(": ")
        parts.append(f"<div>{word}: <code>{escape(said)}</code></div>")
    return f'<div style="margin:0.6em 0">{"".join(parts)}</div>'


def _prose(text: str) -> str:
    """Text whose `code` is in backticks."""
    pieces = escape(text).split("`")
    if len(pieces) % 2 == 0:
        return escape(text)
    return "".join(f"<code>{piece}</code>" if i % 2 else piece for i, piece in enumerate(pieces))


def _section(title: str, body: str, is_open: bool = True) -> str:
    return f"<details{' open' if is_open else ''}><summary>{title}</summary>{body}</details>"


def _pre(text: str) -> str:
    return f'<pre style="{_PRE}">{escape(text)}</pre>'


def _table(rows: Sequence[tuple[str, str]]) -> str:
    cells = "".join(
        f'<tr><th style="text-align:left">{escape(what)}</th><td style="text-align:left">{escape(how)}</td></tr>'
        for what, how in rows
    )
    return f"<table>{cells}</table>"
