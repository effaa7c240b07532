"""The TextMate grammar, as VS Code, Sublime Text, Zed's importers and GitHub read it."""

from __future__ import annotations

import json

from .patterns import PATTERNS, Kind

SCOPES: dict[Kind, str] = {
    "comment": "comment.line.number-sign",
    "string": "string.quoted.double",
    "statement": "keyword.declaration",
    "keyword": "keyword.control",
    "function": "support.function",
    "attribute": "storage.modifier",
    "axis": "storage.type",
    "state": "variable.language",
    "constant": "constant.language",
    "name": "variable.other",
    "number": "constant.numeric",
    "operator": "keyword.operator",
    "punctuation": "punctuation.separator",
}


def grammar() -> str:
    """The text of stateir.tmLanguage.json."""
    patterns = [{"name": f"{SCOPES[kind]}.stateir", "match": pattern} for kind, pattern in PATTERNS]
    whole = {"name": "stateir rule", "scopeName": "source.stateir", "fileTypes": ["rule"], "patterns": patterns}
    return json.dumps(whole, indent=2) + "\n"
