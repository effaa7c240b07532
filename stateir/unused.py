"""Names that nothing uses (W101)."""

from __future__ import annotations

from . import syntax as syn
from .report import Report


def warn_of_unused(file: syn.File, report: Report) -> None:
    """A warning for each input, param and let that no expression, length, index or loop bound uses."""
    used = {
        x.id for s in file.statements for e in syn.values(s) for x in syn.walk(e) if isinstance(x, syn.Name | syn.Item)
    }
    used |= {place.name for s in file.statements for place in syn.places(s) if place.name is not None}
    for s in file.statements:
        kind = s.kind if isinstance(s, syn.Declare) else "let" if isinstance(s, syn.Let) else "state"
        if kind != "state" and not isinstance(s, syn.Update | syn.Read) and s.name.id not in used:
            report.add("W101", s.name.span, kind=kind, name=s.name.id)
