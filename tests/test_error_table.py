"""The table of errors keeps its word: every bad example gives its code, every good one is accepted."""

import re
from pathlib import Path

import pytest

import stateir
from stateir.compile_text import compile_text
from stateir.error_table import TABLE
from stateir.errors import explain

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("code", TABLE)
def test_the_bad_example_gives_the_code_and_the_good_one_none(code: str) -> None:
    row = TABLE[code]
    others = {"W101"} - {code}  # an example may define what it does not use
    found = {d.code for d in compile_text(row.bad)[1]} - others
    assert found == (set() if row.at == "backend" else {code})
    rule, found_in_good = compile_text(row.good)
    assert rule is not None
    assert {d.code for d in found_in_good} - others == set()


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
        if "error_table" not in file.parts
        for code in re.findall(r'"([EW]\d{3})"', file.read_text())
    }
    assert used - set(TABLE) == set()
    assert {c for c, row in TABLE.items() if row.at == "text"} <= used


@pytest.mark.parametrize("code", [code for code, row in TABLE.items() if row.at == "backend"])
def test_a_backend_refuses_the_bad_example_with_the_code_and_has_the_good_one(code: str) -> None:
    from stateir.codegen.backends import NAMES, lacks

    def refused(text: str) -> list[str]:
        return [why.partition(":")[0] for name in NAMES if (why := lacks(stateir.parse(text), name)) is not None]

    assert set(refused(TABLE[code].bad)) == {code}
    assert refused(TABLE[code].good) == []
