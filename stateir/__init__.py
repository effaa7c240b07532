"""stateir: a compiler for recurrent state updates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .codegen.claims import check_claims as check_claims
    from .codegen.operator import compile as compile
    from .diagnostics import RuleError as RuleError
    from .library import load as load
    from .library import parse as parse
    from .printer import fingerprint as fingerprint

__all__ = ["RuleError", "check_claims", "compile", "fingerprint", "load", "parse"]

_HOMES = {
    "parse": "stateir.library",
    "load": "stateir.library",
    "fingerprint": "stateir.printer",
    "RuleError": "stateir.diagnostics",
    "compile": "stateir.codegen.operator",
    "check_claims": "stateir.codegen.claims",
}


def __getattr__(name: str) -> Any:
    """Public names are imported on first use, so that `import stateir` costs next to nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'stateir' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
