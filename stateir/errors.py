"""Errors: making a finding from the table's row, and the long explanation of a code.

The table is imported when there is an error: a rule that has none loads sooner without it.
"""

from __future__ import annotations

from collections.abc import Mapping

from .diagnostics import Diagnostic
from .ir import Span


def diagnostic(code: str, span: Span, *, help: str | None = None, **facts: object) -> Diagnostic:
    """A finding of the table's row `code`; `facts` fill its message."""
    return finding(code, span, facts, help)


def finding(code: str, span: Span, facts: Mapping[str, object], help: str | None = None) -> Diagnostic:
    """The same with the facts in a mapping."""
    from .error_table import TABLE

    row = TABLE[code]
    return Diagnostic(code, span, row.message.format(**facts), help or row.help)


def explain(code: str) -> str:
    """The long form of a code, as `stateir explain` prints it. KeyError if there is no such code."""
    from .error_table import TABLE

    row = TABLE[code]
    parts = [f"{code}: {row.title}", row.why]
    if row.bad:
        refused = "Warned about:" if code.startswith("W") else "Refused:" if row.at == "text" else "Refused there:"
        parts += [f"{refused}\n\n{_indent(row.bad)}", f"Accepted:\n\n{_indent(row.good)}"]
    return "\n\n".join(parts)


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
