"""Candidates for the suggestion of every finding. `suggest.py` compiles the text with each and offers what helps."""

from __future__ import annotations

from collections.abc import Iterable

from stateir.diagnostics import Diagnostic
from stateir.edits import Rewrite

from .context import Context


def candidates(context: Context, d: Diagnostic) -> list[Iterable[Rewrite]]:
    """Rewrites worth trying for a finding: groups in the order of trust, the likeliest first in each."""
    from . import algebra, axes, names, ranges, slips

    if d.code == "E001":
        return slips.groups(context, d.span)
    family = {"E0": slips, "E1": names, "E2": axes, "E3": algebra, "E4": ranges, "W1": ranges}.get(d.code[:2])
    return [() if family is None else family.rewrites(context, d)]
