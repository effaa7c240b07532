"""The Pygments lexer: `stateir`, `rule` and *.rule files, through the entry point `pygments.lexers`."""

from __future__ import annotations

from typing import Any, ClassVar

from pygments import token as t
from pygments.lexer import RegexLexer

from .patterns import PATTERNS, Kind

TOKENS: dict[Kind, Any] = {
    "comment": t.Comment.Single,
    "string": t.String.Double,
    "statement": t.Keyword.Declaration,
    "keyword": t.Keyword,
    "function": t.Name.Builtin,
    "attribute": t.Keyword.Pseudo,
    "axis": t.Keyword.Type,
    "state": t.Name.Variable.Magic,
    "constant": t.Keyword.Constant,
    "name": t.Name,
    "number": t.Number,
    "operator": t.Operator,
    "punctuation": t.Punctuation,
}


class RuleLexer(RegexLexer):
    """Rules of recurrent state updates."""

    name = "stateir rule"
    aliases: ClassVar[list[str]] = ["stateir", "rule"]
    filenames: ClassVar[list[str]] = ["*.rule"]
    mimetypes: ClassVar[list[str]] = ["text/x-stateir-rule"]
    tokens: ClassVar[dict[str, Any]] = {
        "root": [(r"\s+", t.Whitespace), *((pattern, TOKENS[kind]) for kind, pattern in PATTERNS)]
    }
