"""Every refused text has a way out: a rewrite that was compiled, with which the finding is gone.

The texts are those of the project's language cases, of `more_language_cases.py`, of the slips, of the error table and
of `test_language_cases.py`. What has no rewrite in principle is listed here, and in docs/language.md with the reason.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import language_cases
import more_language_cases
import pytest
import slip_cases
from test_language_cases import MORE

from stateir.compile_text import compile_text
from stateir.diagnostics import Diagnostic
from stateir.edits import applied, line_before, replaced
from stateir.error_table import TABLE
from stateir.ir import Span
from stateir.suggest import with_suggestions

LANGUAGE = (Path(__file__).parents[1] / "docs" / "language.md").read_text()


def slip_text(line: str, where: str) -> str:
    parts = {
        "let": (line + "\n", slip_cases.UPDATE, slip_cases.READ),
        "update": (line + "\n", slip_cases.READ),
        "read": (slip_cases.UPDATE, line + "\n"),
    }
    return slip_cases.HEAD + "".join(parts[where])


TEXTS = {
    **{f"{code}: {name}": text for name, code, text in language_cases.CASES if code},
    **{f"ours: {name}": more_language_cases.HEAD + lines for name, lines, found in more_language_cases.CASES if found},
    **{f"slip: {name}": slip_text(line, where) for name, line, where, code, *_ in slip_cases.CASES if code},
    **{f"further {code}: {number}": text for number, (code, text) in enumerate(MORE)},
    **{f"example of {code}": row.bad for code, row in TABLE.items() if row.at == "text"},
}
# The message of what has no rewrite, and its reason in docs/language.md.
WITHOUT = {
    "an expression nested this deep": "what to shorten is not for the compiler to say",
    "a second `rule` line": "a file of its own",
}


@cache
def findings(text: str) -> list[Diagnostic]:
    return compile_text(text)[1]


def errors(text: str) -> list[Diagnostic]:
    return [d for d in findings(text) if not d.is_warning]


def has_none(d: Diagnostic) -> bool:
    return any(words in d.message for words in WITHOUT)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_every_finding_has_a_rewrite_with_which_it_is_gone(text: str) -> None:
    found = findings(text)
    assert found
    for d in found:
        if has_none(d):
            assert d.rewrite == ()
            continue
        assert d.rewrite, d
        after = findings(applied(text, d.rewrite))
        places = [(x.code, line_before(x.span.line, d.rewrite)) for x in after]
        before = [(x.code, x.span.line) for x in found]
        assert places.count((d.code, d.span.line)) < before.count((d.code, d.span.line))


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_taking_every_suggestion_ends_in_a_rule(text: str) -> None:
    taken = 0
    while (found := errors(text)) and not has_none(found[0]):
        text = applied(text, found[0].rewrite)
        taken += 1
        assert taken < 12, text


@pytest.mark.parametrize("words", WITHOUT.values())
def test_the_document_says_what_has_no_rewrite(words: str) -> None:
    assert words in LANGUAGE


@pytest.mark.parametrize(("name", "line", "where", "code", "column", "corrected", "word"), slip_cases.CASES)
def test_slip(name: str, line: str, where: str, code: str | None, column: int, corrected: str, word: str) -> None:
    text = slip_text(line, where)
    found = errors(text)
    if code is None:
        assert found == []
        return
    (d,) = found
    assert (d.code, d.span.column) == (code, column)
    assert word in (d.help or "") + d.message
    before, after = text.split("\n"), applied(text, d.rewrite).split("\n")
    assert after[d.span.line - 1 : len(after) - len(before) + d.span.line] == corrected.split("\n")


def test_our_own_texts_are_many() -> None:
    assert sum(bool(found) for _, _, found in more_language_cases.CASES) >= 40
    assert len(slip_cases.CASES) >= 90


def test_every_code_of_a_text_is_walked() -> None:
    seen = {d.code for text in TEXTS.values() for d in findings(text)}
    assert {code for code, row in TABLE.items() if row.at == "text"} - seen == set()


def test_a_rewrite_of_several_pieces_is_applied_as_one() -> None:
    text = language_cases.H + "let r = k @ S\nupdate S += outer(k, v - r)\nread o = q @ S + r\n"
    (d,) = errors(text)
    assert applied(text, d.rewrite) == (
        language_cases.H + "# let r = k @ S\nupdate S += outer(k, v - (k @ S))\nread o = q @ S + (k @ S)\n"
    )


def test_an_error_that_hid_a_later_one_still_gets_its_rewrite() -> None:
    text = language_cases.H + "update S += outer(kk, v)\nupdate S += outer(k, tanh(k @ S))\n" + language_cases.R
    (d,) = errors(text)
    assert (d.code, d.suggestion) == ("E101", "k")


def offered(after: list[Diagnostic]) -> tuple[object, ...]:
    """The rewrite that is offered for an E202 on line 3, if the rewritten text has the findings `after`."""
    d = Diagnostic("E202", Span(3, 1, 2), "")
    rewrite = replaced(Span(3, 1, 2), "x")
    (out,) = with_suggestions("a\nb\nc\n", [d], lambda _: [[rewrite]], lambda _: after)
    return out.rewrite


@pytest.mark.parametrize(
    ("code", "line", "is_offered"),
    [
        ("E202", 3, False),
        ("E202", 2, False),
        ("E101", 3, False),
        ("E001", 1, False),
        ("E301", 3, True),
        ("W101", 1, True),
    ],
)
def test_a_rewrite_is_offered_if_what_is_left_was_not_seen_before(code: str, line: int, is_offered: bool) -> None:
    assert bool(offered([Diagnostic(code, Span(line, 1, 2), "")])) == is_offered
    assert offered([])
