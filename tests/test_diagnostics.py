"""Several errors of a text: each at its place, each under its line, none the follow-up of another."""

import json
import pickle

import pytest
from language_cases import H, R, U

import stateir
from stateir.compile_text import compile_text
from stateir.ir import Span
from stateir.render import MAX_SHOWN, records, render

SEVERAL = """\
rule several "Six errors"   # and a comment
input  q: key, k: key, v: value
input  b: kee
let    a = b * q +
\tlet    n = kk @ k
update S += outer(k + v, v - b * k @ S)
update S  = tanh(S) * exq(1)
update z += n
read   o = a + log(k) @ S
"""


def refused(text: str, filename: str = "<rule>") -> stateir.RuleError:
    with pytest.raises(stateir.RuleError) as caught:
        stateir.parse(text, filename)
    return caught.value


def places(text: str) -> list[tuple[str, int, int, int]]:
    return [(d.code, d.span.line, d.span.column, d.span.end) for d in compile_text(text)[1]]


def test_lines_and_columns_of_several_errors_are_exact() -> None:
    assert places(SEVERAL) == [
        ("E001", 3, 11, 14),
        ("E001", 4, 19, 20),
        ("E101", 5, 13, 15),
        ("E202", 6, 19, 24),
        ("E101", 7, 23, 26),
        ("E204", 8, 8, 9),
    ]


def test_a_broken_name_is_not_reported_again() -> None:
    text = H + "let a = kk\nlet b2 = a * 2\nlet c2 = b2 + a\n" + U + "read o = c2 * (q @ S)\n"
    assert places(text) == [("E101", 3, 9, 11)]


def test_a_name_of_a_malformed_line_is_not_reported_again() -> None:
    text = H + "let a = " + "-" * 120 + "k\n" + "input s: scalar unit unit, s2: scalar\nlet b2 = a + s2 * k\n" + U + R
    assert [place[:2] for place in places(text)] == [("E005", 3), ("E001", 4)]


def test_errors_of_the_algebra_and_of_ranges_stand_beside_those_of_names() -> None:
    text = H + "let a = log(k)\nupdate S += outer(k, (q @ S) * (k @ S))\nread o = qq @ S\n"
    assert [place[:2] for place in places(text)] == [("E403", 3), ("E302", 4), ("E101", 5)]


def test_a_lost_update_leaves_no_false_ranges() -> None:
    lines = "state z: key in [0, inf)\nupdate z = max(kk, 1)\nlet a = 1 / z\n"
    assert [place[:2] for place in places(H + lines + U + R)] == [("E101", 4)]


def test_a_bad_range_is_the_only_finding_about_its_name() -> None:
    text = H + "input s: scalar in [2, 1]\nlet a = 1 / s\nupdate S = s * S\n" + R
    assert [place[:2] for place in places(text)] == [("E401", 3)]


def test_two_errors_of_one_line_are_both_reported() -> None:
    assert places(H + "let a = (k + v) * (q @ v)\n" + U + R) == [("E202", 3, 10, 15), ("E202", 3, 20, 25)]


def test_a_loop_reports_its_line_once() -> None:
    text = H + "input a[3]: key\nupdate S += outer(a[i] + v, v) for i in 0..2\n" + R
    assert places(text) == [("E202", 4, 19, 27)]


def test_an_expression_of_several_tokens_has_the_span_of_all() -> None:
    rule = stateir.parse(H + "let  a = -(k @ q) * 2 / dim(key)\n" + U + R)
    assert rule.lines[0].span == Span(3, 1, 33)
    assert rule.lines[0].value.span == Span(3, 10, 33)


def test_the_rendering_is_the_documented_one() -> None:
    text = "rule x\ninput q: key, k: key, v: value\n\n\n" + "update S += outer(k, v - (q @ S) * (k @ S))\n" + R
    with pytest.raises(stateir.RuleError) as caught:
        stateir.parse(text, "my.rule")
    assert str(caught.value).splitlines()[:4] == [
        "error[E302]: not affine in S: product of two expressions that both contain S",
        " --> my.rule:5:26",
        "  | update S += outer(k, v - (q @ S) * (k @ S))",
        "  |                          ^^^^^^^^^^^^^^^^^",
    ]


def test_carets_stand_under_the_culprit_after_tabs_and_in_long_lines() -> None:
    for text in (
        H + "\tlet\ta = kk\n" + U + R,
        H + "let a = " + "k + " * 60 + "kk + " + "+ ".join(["k "] * 20) + "\n" + U + R,
    ):
        with pytest.raises(stateir.RuleError) as caught:
            stateir.parse(text)
        quoted, carets = str(caught.value).splitlines()[2:4]
        assert [q for q, c in zip(quoted, carets, strict=False) if c == "^"] == ["k", "k"]


def test_many_errors_are_cut_with_their_number() -> None:
    error = refused(H + "let a = kk\n" * 50 + U + R)
    assert len(error.diagnostics) == 50
    assert render(error).endswith(f"... and {50 - MAX_SHOWN} more")


def test_json_has_every_finding() -> None:
    error = refused(SEVERAL, "my.rule")
    found = json.loads(json.dumps(records(error.diagnostics, error.filename)))
    assert [(r["file"], r["code"], r["line"], r["column"], r["end"]) for r in found] == [
        ("my.rule", *place) for place in places(SEVERAL)
    ]
    assert {r["severity"] for r in found} == {"error"}


def test_an_error_survives_pickling() -> None:
    error = refused(SEVERAL, "my.rule")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(
    ("line", "suggestion"),
    [
        ("update S += outer(k, v - b * k @ S)", "(b * k) @ S"),
        ("update S += outer(k, v - w * k @ S)", "k @ S"),
        ("update S += outer(kk, v)", "k"),
        ("update S += k * v", "outer(k, v)"),
        ("update S += outer(k / (k @ k), v)", "max(k @ k, 1e-6)"),
        ("update S += outer(sqrt(k), v)", "max(k, 0)"),
        ("update S += outer(sigmod(k), v)", "sigmoid"),
        ("update S += outer(k[1], v)", "k"),
        ("update S += outer(c @ k, v)", "c * k"),
    ],
)
def test_suggestions(line: str, suggestion: str | None) -> None:
    assert compile_text(f"{H}{line}\n{R}")[1][0].suggestion == suggestion


def test_both_groupings_are_named() -> None:
    (found,) = compile_text(H + "update S += outer(k, v - w * k @ S)\n" + R)[1]
    assert found.help == "write `(w * k) @ S` or `w * (k @ S)`"


def test_warnings_do_not_refuse() -> None:
    rule, found = compile_text("rule x\ninput q: key unit, v: value\nupdate S += outer(unit(q), v)\n" + R)
    assert rule is not None
    assert [(d.code, d.span) for d in found] == [("W102", Span(3, 19, 26))]


@pytest.mark.parametrize("use", ["S = exp(g) * S + o", "S += outer(k, o)"])
def test_the_output_is_of_no_use_to_a_line(use: str) -> None:
    text = f"rule x\ninput q: key, k: key, v: value, g: key in (-inf, 0]\nread o = q @ S + v\nupdate {use}\n"
    (found,) = [d for d in compile_text(text)[1] if not d.is_warning]
    assert (found.code, text.split("\n")[3][found.span.column - 1 : found.span.end - 1]) == ("E104", "o")
