"""The grammar: no conflict and no collision of terminals, and the kept tables are of this grammar."""

import json
from pathlib import Path

import lark
import pytest

import stateir
from stateir import library, tables

GRAMMAR = Path(tables.__file__).with_name("grammar.lark").read_text()


def test_the_grammar_is_strict() -> None:
    pytest.importorskip("interegular")
    lark.Lark(GRAMMAR, parser="lalr", lexer="contextual", strict=True)


def test_a_collision_would_be_seen() -> None:
    pytest.importorskip("interegular")
    with pytest.raises(lark.exceptions.LexError):
        lark.Lark(GRAMMAR.replace('"-" unary -> neg', "WORD -> neg") + "WORD: /[a-z]+/\n", parser="lalr", strict=True)


def test_the_tables_are_of_this_grammar() -> None:
    assert json.loads(tables.TABLES.read_text())["of"][0] == json.loads(tables.tables(GRAMMAR))["of"][0]


def test_the_tables_parse_as_the_grammar_does() -> None:
    built = tables.build(GRAMMAR)
    assert tables.grammar().options.start == built.options.start
    for name in library.names():
        text = stateir.load(name).text
        assert tables.grammar().parse(text, start="start") == built.parse(text, start="start")


def test_other_tables_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = tmp_path / "grammar.json"
    stale.write_text(json.dumps({"of": ["another grammar", lark.__version__], "data": {}, "memo": {}}))
    monkeypatch.setattr(tables, "TABLES", stale)
    tables.grammar.cache_clear()
    try:
        assert stateir.load("qed").name == "qed"
    finally:
        tables.grammar.cache_clear()
