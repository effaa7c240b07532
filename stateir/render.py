"""Diagnostics as a person reads them, under the line of text they speak of, and as data."""

from __future__ import annotations

from .diagnostics import Diagnostic, RuleError
from .edits import described
from .ir import Span
from .parser import code_of

MAX_SHOWN = 20
_WINDOW = 160


def render(error: RuleError) -> str:
    """Every finding of a refused text, in the order of the text."""
    return render_all(error.diagnostics, error.text, error.filename)


def render_all(found: list[Diagnostic], text: str, filename: str) -> str:
    """Findings under their lines; beyond MAX_SHOWN only their number."""
    lines = text.split("\n")
    shown = [_one(d, lines, filename) for d in found[:MAX_SHOWN]]
    if len(found) > MAX_SHOWN:
        shown.append(f"... and {len(found) - MAX_SHOWN} more")
    return "\n\n".join(shown)


def records(found: list[Diagnostic], filename: str) -> list[dict[str, object]]:
    """Findings as plain data; lines and columns count from 1, `end` is the column after the last character.

    `edits` are made together: with them the finding is gone. `suggestion` is the text of the first.
    """
    return [
        {
            "code": d.code,
            "severity": _severity(d),
            "file": filename,
            "line": d.span.line,
            "column": d.span.column,
            "end": d.span.end,
            "message": d.message,
            "help": d.help,
            "suggestion": d.suggestion,
            "edits": [
                {"line": e.span.line, "column": e.span.column, "end": e.span.end, "text": e.text} for e in d.rewrite
            ],
        }
        for d in found
    ]


def steps(d: Diagnostic, lines: list[str]) -> list[str]:
    """The rewrite of a finding in words: what to write, and where if it is neither the culprit nor its line."""
    out: list[str] = []
    for edit in d.rewrite:
        piece = _piece(lines, edit.span)
        whole = piece.strip() != "" and piece.strip() == code_of(lines[edit.span.line - 1]).strip()
        here = edit.text.strip() != "" and (edit.span == d.span or whole)
        said = edit.text if here else described(edit, piece)
        out.append(f"{'and' if out else 'try'}: {said}")
    return out


def _severity(d: Diagnostic) -> str:
    return "warning" if d.is_warning else "error"


def _one(d: Diagnostic, lines: list[str], filename: str) -> str:
    out = [f"{_severity(d)}[{d.code}]: {d.message}", f" --> {filename}:{d.span.line}:{d.span.column}"]
    if 1 <= d.span.line <= len(lines):
        out += _quoted(lines[d.span.line - 1], d.span.column, d.span.end)
    if d.help is not None:
        out.append(f"  = help: {d.help}")
    out += [f"  = {step}" for step in steps(d, lines)]
    return "\n".join(out)


def _piece(lines: list[str], span: Span) -> str:
    return lines[span.line - 1][span.column - 1 : span.end - 1]


def _quoted(line: str, column: int, end: int) -> list[str]:
    """The line and carets under its culprit. A tab is one column here, as in spans; a very long line is cut."""
    start = max(0, column - 1 - _WINDOW // 2) if len(line) > _WINDOW else 0
    shown = "".join(c if c.isprintable() else " " for c in line[start : start + _WINDOW]).rstrip()
    width = max(1, min(end, start + _WINDOW + 1) - column)
    before, after = ("..." if start else ""), ("..." if start + _WINDOW < len(line) else "")
    return [f"  | {before}{shown}{after}", "  | " + " " * (len(before) + column - 1 - start) + "^" * width]
