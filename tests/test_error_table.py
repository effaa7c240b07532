"""The table of errors keeps its word: every bad example gives its code, every good one is accepted."""

import re
from pathlib import Path

import pytest

from stateir.compile_text import compile_text
from stateir.error_table import TABLE
from stateir.errors import explain

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("code", TABLE)
def test_the_bad_example_gives_the_code_and_the_good_one_none(code: str) -> None:
    row = TABLE[code]
    found = {d.code for d in compile_text(row.bad)[1]}
    assert found == (set() if row.at == "backend" else {code})
    rule, found_in_good = compile_text(row.good)
    assert rule is not None
    assert found_in_good == []


@pytest.mark.parametrize("code", TABLE)
def test_explain_shows_both_examples(code: str) -> None:
    text, row = explain(code), TABLE[code]
    for line in (row.bad + row.good).splitlines():
        assert f"    {line}" in text
    assert text.startswith(f"{code}: {row.title}")


def test_explain_knows_no_other_code() -> None:
    with pytest.raises(KeyError):
        explain("E999")


def test_every_code_in_the_sources_is_a_row() -> None:
    used = {
        code
        for folder in ("stateir", "codegen")
        for file in (ROOT / folder).rglob("*.py")
        if file.name != "error_table.py"
        for code in re.findall(r'"([EW]\d{3})"', file.read_text())
    }
    assert used - set(TABLE) == set()
    assert {c for c, row in TABLE.items() if row.at == "text"} <= used
