"""A real session with the language server over its standard input and output."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lsp_client import URI, Client

from stateir.fmt import format_text

GOOD = """rule mine "Mine"
input  q: key unit, k: key unit, v: value, beta: scalar in (0, 1)
let    half = beta / 2                             # no more than 1/2
update S += outer(half * k, v - k @ S)
read   o = q @ S / sqrt(dim(key))
"""
BROKEN = GOOD.replace("v - k @ S", "v - (q @ S) * (k @ S)")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    one = Client(tmp_path_factory.mktemp("lsp"))
    try:
        one.open(GOOD)
        yield one
    finally:
        one.close()


def culprit(text: str, found: dict[str, Any]) -> str:
    start, end = found["range"]["start"], found["range"]["end"]
    assert start["line"] == end["line"]
    return text.split("\n")[start["line"]][start["character"] : end["character"]]


def applied(text: str, edits: list[dict[str, Any]]) -> str:
    """`text` after edits, as an editor makes them, the last first; a place beyond the end is the end."""
    lines = text.split("\n")

    def offset(place: dict[str, int]) -> int:
        return min(len(text), sum(len(x) + 1 for x in lines[: place["line"]]) + place["character"])

    places = [(offset(e["range"]["start"]), offset(e["range"]["end"]), e["newText"]) for e in edits]
    for start, end, new in sorted(places, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def test_it_says_what_it_can(client: Client) -> None:
    for what in ("hoverProvider", "definitionProvider", "completionProvider", "documentFormattingProvider"):
        assert client.capabilities[what], what


def test_diagnostics_come_with_spans_and_help_and_go(client: Client) -> None:
    assert client.change(GOOD) == []
    (found,) = client.change(BROKEN)
    assert (found["code"], found["severity"], found["source"]) == ("E302", 1, "stateir")
    assert culprit(BROKEN, found) == "(q @ S) * (k @ S)"
    assert "product" in found["message"]
    assert client.change(GOOD) == []


def test_a_warning_is_one(client: Client) -> None:
    text = GOOD.replace("half * k,", "half * unit(k),")
    (found,) = client.change(text)
    assert (found["code"], found["severity"]) == ("W102", 2)
    assert culprit(text, found) == "unit(k)"


def test_an_unused_name_is_a_warning(client: Client) -> None:
    text = GOOD.replace("update", "let    spare = 2 * k\nupdate", 1)
    (found,) = client.change(text)
    assert (found["code"], found["severity"]) == ("W101", 2)
    assert culprit(text, found) == "spare"


def test_several_errors_and_half_a_line(client: Client) -> None:
    text = GOOD.replace("beta / 2", "beta /").replace("q @ S /", "q @ S * v /").replace("- k @", "- kk @")
    found = client.change(text)
    assert [f["range"]["start"]["line"] for f in found] == [2, 3, 4]
    assert "help: did you mean" in found[1]["message"]


def test_hover(client: Client) -> None:
    client.change(GOOD)
    rule = client.at("hover", 0, 6)
    assert rule["contents"]["kind"] == "markdown"
    assert "u₀ = half v − (half k)·S" in rule["contents"]["value"]
    assert "cost class" in rule["contents"]["value"]
    half = client.at("hover", 3, 19)
    assert "let, scalar" in half["contents"]["value"]
    assert "`(0, 0.5)`" in half["contents"]["value"]
    assert half["range"] == {"start": {"line": 3, "character": 18}, "end": {"line": 3, "character": 22}}
    assert "input, key vector, unit" in client.at("hover", 1, 20)["contents"]["value"]
    assert client.at("hover", 3, 10) is None


def test_hover_explains_an_error(client: Client) -> None:
    client.change(BROKEN)
    assert "E302: " in client.at("hover", 3, BROKEN.split("\n")[3].index("(q @") + 1)["contents"]["value"]
    assert "errors" in client.at("hover", 0, 6)["contents"]["value"]


def test_go_to_definition(client: Client) -> None:
    client.change(GOOD)
    found = client.at("definition", 3, 19)
    assert found["uri"] == URI
    assert found["range"] == {"start": {"line": 2, "character": 7}, "end": {"line": 2, "character": 11}}
    assert client.at("definition", 3, 12) is None


def test_completion_in_a_half_written_line(client: Client) -> None:
    lines = GOOD.split("\n")
    lines[3] = "update S += outer(ha"
    client.change("\n".join(lines))
    found = {item["label"]: item for item in client.at("completion", 3, len(lines[3]))}
    assert {"half", "q", "k", "v", "beta", "S", "outer", "exp"} <= set(found)
    assert found["half"]["documentation"].startswith("let    half")
    assert "o" not in found


def test_formatting(client: Client) -> None:
    untidy = GOOD.replace("beta / 2  ", "beta/2").replace("update S += ", "update   S+=")
    client.change(untidy)
    options = {"textDocument": {"uri": URI}, "options": {"tabSize": 4, "insertSpaces": True}}
    formatted = applied(untidy, client.request("textDocument/formatting", options))
    assert formatted == format_text(untidy) != untidy
    assert "# no more than 1/2" in formatted
    assert client.change(formatted) == []
    assert client.request("textDocument/formatting", options) == []
    client.change(GOOD.replace("beta / 2", "beta /"))
    assert client.request("textDocument/formatting", options) is None


def test_the_suggested_rewrite_is_a_quick_fix(client: Client) -> None:
    text = GOOD.replace("- k @", "- kk @")
    (found,) = client.change(text)
    where = {"textDocument": {"uri": URI}, "range": found["range"], "context": {"diagnostics": [found]}}
    (action,) = client.request("textDocument/codeAction", where)
    assert action["kind"] == "quickfix"
    assert client.change(applied(text, action["edit"]["changes"][URI])) == []


def test_a_rewrite_of_several_pieces_is_one_quick_fix(client: Client) -> None:
    text = GOOD.replace("update", "let    r = k @ S\nupdate", 1).replace("- k @ S", "- r")
    (found,) = client.change(text)
    where = {"textDocument": {"uri": URI}, "range": found["range"], "context": {"diagnostics": [found]}}
    (action,) = client.request("textDocument/codeAction", where)
    assert action["title"].startswith("(k @ S) in place of `r`; # let")
    assert client.change(applied(text, action["edit"]["changes"][URI])) == []


WIDE = GOOD.replace('"Mine"', '"🙂🙂" x')


def test_places_count_utf16_units(client: Client) -> None:
    (found,) = client.change(WIDE)
    assert [found["range"][end]["character"] for end in ("start", "end")] == [17, 18]


def test_places_count_code_points_for_a_client_that_does(tmp_path: Path) -> None:
    client = Client(tmp_path, ["utf-32"])
    try:
        assert client.capabilities["positionEncoding"] == "utf-32"
        (found,) = client.open(WIDE)
        assert [found["range"][end]["character"] for end in ("start", "end")] == [15, 16]
        assert client.leave() == 0
    finally:
        client.close()
