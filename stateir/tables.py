"""The parser of `grammar.lark`.

Its LALR tables are kept in `grammar.json`: making them takes as long as all else that loading a rule does.
`python -m stateir.tables` makes the file anew after a change of the grammar.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import lark

_GRAMMAR = Path(__file__).with_name("grammar.lark")
TABLES = Path(__file__).with_name("grammar.json")
STARTS = ["start", "header", "statement"]


@cache
def grammar() -> lark.Lark:
    """The parser: from the tables if they belong to this grammar and to this version of lark, else from the grammar."""
    text = _GRAMMAR.read_text(encoding="utf-8")
    made = json.loads(TABLES.read_text(encoding="utf-8"))
    if made["of"] != _stamp(text):
        return build(text)
    return lark.Lark.load({"data": _whole_keys(made["data"]), "memo": _whole_keys(made["memo"])})


def build(text: str) -> lark.Lark:
    return lark.Lark(text, parser="lalr", lexer="contextual", start=STARTS, propagate_positions=True)


def tables(text: str) -> str:
    """The content of `grammar.json` for a grammar."""
    saved = io.BytesIO()
    build(text).save(saved)
    content = pickle.loads(saved.getvalue())
    return (
        json.dumps({"of": _stamp(text), "data": content["data"], "memo": content["memo"]}, separators=(",", ":")) + "\n"
    )


def _stamp(text: str) -> list[str]:
    return [hashlib.sha256(text.encode()).hexdigest(), lark.__version__]


def _whole_keys(x: Any) -> Any:
    """x with the whole-number keys that JSON turned into strings."""
    if isinstance(x, dict):
        return {int(k) if k.isdecimal() else k: _whole_keys(v) for k, v in x.items()}
    return [_whole_keys(v) for v in x] if isinstance(x, list) else x


if __name__ == "__main__":
    TABLES.write_text(tables(_GRAMMAR.read_text(encoding="utf-8")), encoding="utf-8")
