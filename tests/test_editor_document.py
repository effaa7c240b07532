"""Definitions, completion and hover as functions of a text and a place in it."""

import subprocess
import sys
from pathlib import Path

import pytest

from stateir import load
from stateir.editor.complete import complete
from stateir.editor.document import document
from stateir.editor.hover import hover
from stateir.library import names

HEAD = """rule mine "a # title"
let    n = 2
input  q: key unit, k[n]: key unit, v[n]: value, beta[n]: scalar in (0, 1)
param  lam: scalar in [0, max(1, 2)] = 0.5
state  z: key in [0, inf) = 0
"""
LOOP = "update S += outer(beta[i] * k[i], v[i] - k[i] @ S) for i in 0..n-1\n"
TEXT = HEAD + LOOP + "update z  = max(z + k[0]^2, 0)\nread   o = q @ S / sqrt(dim(key)) + lam * v[0]\n"


def place(text: str, mark: str = "¦") -> tuple[str, int, int]:
    """The text without its mark, and the mark's line and column."""
    above, _, below = text.partition(mark)
    return above + below, above.count("\n") + 1, len(above.rpartition("\n")[2]) + 1


def words(text: str) -> set[str]:
    """What completion offers at the mark."""
    whole, line, column = place(text)
    return {item.text for item in complete(document(whole), line, column)}


def said(text: str) -> str:
    whole, line, column = place(text)
    found = hover(document(whole), line, column)
    return "" if found is None else found[0]


def target(text: str) -> tuple[int, str] | None:
    """Line and line's text of the definition of the word at the mark."""
    whole, line, column = place(text)
    known = document(whole)
    word = known.word(line, column)
    found = None if word is None else known.definition(word)
    return None if found is None else (found.span.line, found.kind)


def test_the_example_compiles() -> None:
    assert document(TEXT).found == ()


@pytest.mark.parametrize(
    ("at", "marked", "line", "kind"),
    [
        ("outer(beta[i]", "outer(be¦ta[i]", 3, "input"),
        ("v[i] - k[i]", "v[i] - k¦[i]", 3, "input"),
        ("v[i] - k[i]", "v[i] - k[i¦]", 6, "for"),
        ("0..n-1", "0..¦n-1", 2, "let"),
        ("lam * v", "¦lam * v", 4, "param"),
        ("q @ S", "q @ ¦S", 6, "update"),
        ("max(z", "max(z¦", 5, "state"),
        ("mine", "mine¦", 1, "rule"),
    ],
)
def test_definitions(at: str, marked: str, line: int, kind: str) -> None:
    assert target(TEXT.replace(at, marked, 1)) == (line, kind)


@pytest.mark.parametrize("marked", ["ti¦tle", "upda¦te S", "ma¦x(1, 2)", "dim(ke¦y)"])
def test_what_has_no_definition(marked: str) -> None:
    assert marked.replace("¦", "") in TEXT
    assert target(TEXT.replace(marked.replace("¦", ""), marked, 1)) is None


def test_every_name_of_the_library_has_its_definition() -> None:
    for rule in names():
        known = document(load(rule).text)
        uses = [t for t in known.tokens if t.kind in ("name", "state")]
        assert len(uses) > 5
        assert [t.text for t in uses if known.definition(t) is None] == []


EXPRESSION = {"q", "k", "v", "beta", "n", "lam", "z", "S", "exp", "outer", "prev"}


@pytest.mark.parametrize(
    ("text", "offered", "missing"),
    [
        ("¦", {"rule"}, {"update"}),
        (HEAD + "¦", {"input", "let", "update", "read"}, {"rule", "q"}),
        (HEAD + "up¦", {"update"}, {"q", "exp"}),
        (HEAD + "update ¦", {"S", "z"}, {"q", "exp"}),
        (HEAD + "update S += ¦", EXPRESSION, {"mine", "rule", "key"}),
        (HEAD + "update S += outer(k[0], v¦", EXPRESSION, {"for"}),
        (HEAD + "update S += outer(k[0], v[0]) ¦", {"for"}, {"mine"}),
        (HEAD + "update S += outer(k[¦], v[i]) for i in 0..1", {"i", "n"}, {"mine"}),
        (HEAD + "read o = q @ S / sqrt(dim(¦", {"key", "value"}, {"q", "pair"}),
        (HEAD + "let a = ¦\nlet later = 1", EXPRESSION, {"a", "later"}),
        ("rule x\ninput q: ¦", {"key", "value", "scalar", "pair"}, {"matrix", "unit"}),
        ("rule x\nstate M: ¦", {"key", "matrix"}, {"unit"}),
        ("rule x\ninput q: key ¦", {"unit", "in"}, {"fixed", "key"}),
        ("rule x\nparam q: key unit ¦", {"fixed", "in"}, {"unit"}),
        ("rule x\ninput a: key in [0, ¦", {"inf", "exp"}, {"head", "a"}),
        ("rule x\ninput a: key in (0, 1], b: ¦", {"key"}, {"unit"}),
        ("rule x\nparam a: scalar = ¦", {"inf", "head", "exp"}, {"outer", "a"}),
        ("rule x\nlet n = 2\ninput k[¦", {"n"}, {"exp"}),
        ('rule x "up¦', set(), {"update"}),
        ("rule x # up¦", set(), {"update"}),
    ],
)
def test_completion(text: str, offered: set[str], missing: set[str]) -> None:
    found = words(text)
    assert offered <= found
    assert not missing & found


@pytest.mark.parametrize(
    ("marked", "parts"),
    [
        ("k¦[n]: key unit", ["input, array of 2, each key vector, unit", "Range of its entries: `[-1, 1]`"]),
        ("la¦m * v", ["param, scalar, in `[0, 2]`"]),
        ("let    n¦", ["let, a constant"]),
        ("z¦ + k[0]^2", ["state, key vector, in `[0, inf)`"]),
        ("for i¦ in", ["counts the passes", "0..n-1"]),
        ("read   o¦", ["read, value vector"]),
        ("di¦m(key)", ["size of an axis"]),
    ],
)
def test_hover(marked: str, parts: list[str]) -> None:
    plain = marked.replace("¦", "")
    assert plain in TEXT
    found = said(TEXT.replace(plain, marked, 1))
    assert [part for part in parts if part not in found] == []


def test_hover_of_a_rule_without_a_normal_form() -> None:
    assert "step reference" in said(load("titans_linear").text.replace("titans", "titans¦", 1))


def test_hover_while_the_text_has_errors() -> None:
    broken = TEXT.replace("lam * v[0]", "lam¦ * v[0] *")
    assert "param\n\n```stateir\nparam  lam: scalar" in said(broken)
    assert "E001: " in said(TEXT.replace("q @ S /", "q @ S $¦"))


def test_no_text_and_no_place_breaks_an_editor() -> None:
    """Prefixes of a text, with every request at their end: what an editor asks while one types."""
    for end in range(0, len(TEXT), 3):
        text, line, column = place(TEXT[:end] + "¦")
        known = document(text)
        hover(known, line, column)
        complete(known, line, column)


def test_editor_support_stays_out_of_the_light_import() -> None:
    code = (
        "import sys, stateir, stateir.cli;"
        "print(sorted({'pygls', 'lsprotocol', 'IPython', 'pygments', 'stateir.editor'} & set(sys.modules)))"
    )
    folder = Path(__file__).resolve().parent
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder)
    assert done.stdout.strip() == "[]"
