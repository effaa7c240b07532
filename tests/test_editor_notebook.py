"""The `%%rule` magic in a real IPython shell, in this process."""

from collections.abc import Iterator
from html.parser import HTMLParser

import pytest
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from IPython.utils.capture import CapturedIO, capture_output

import stateir
from stateir.diagnostics import Diagnostic, RuleError
from stateir.editor.html import findings_html, rule_html
from stateir.edits import replaced
from stateir.ir import Rule, Span
from stateir.library import names

GOOD = """rule mine "Mine & <b>others</b>"
input  q: key unit, k: key unit, v: value, beta: scalar in (0, 1)
update S += outer(beta * k, v - k @ S)
read   o = q @ S / sqrt(dim(key))
"""


@pytest.fixture(scope="module")
def shell() -> Iterator[InteractiveShell]:
    one = InteractiveShell.instance()
    one.run_line_magic("load_ext", "stateir.notebook")
    yield one
    one.run_line_magic("unload_ext", "stateir.notebook")
    InteractiveShell.clear_instance()


def run(shell: InteractiveShell, cell: str) -> tuple[ExecutionResult, CapturedIO]:
    with capture_output() as seen:
        result = shell.run_cell(cell)
    return result, seen


class Tags(HTMLParser):
    """Raises on a tag that is closed and not open; collects the tags and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_cell_is_the_compiled_rule(shell: InteractiveShell) -> None:
    result, _ = run(shell, "%%rule\n" + GOOD)
    assert isinstance(result.result, Rule)
    assert result.result == stateir.parse(GOOD)


def test_it_binds_a_name(shell: InteractiveShell) -> None:
    run(shell, "%%rule my_rule\n" + GOOD)
    assert shell.user_ns["my_rule"] == stateir.parse(GOOD)
    result, _ = run(shell, "%%rule my rule\n" + GOOD)
    assert "takes one name" in str(result.error_in_exec)


def test_the_display(shell: InteractiveShell) -> None:
    result, _ = run(shell, "%%rule\n" + GOOD)
    data, _ = shell.display_formatter.format(result.result)
    assert data["text/plain"] == "rule mine: Mine & <b>others</b>"
    page = Tags(data["text/html"])
    for part in ("Mine & <b>others</b>", r"$$\begin{aligned}", "β v − (β k)·S", "cost class", "outer(beta * k"):
        assert part in page.text
    assert page.tags <= {"div", "b", "span", "details", "summary", "pre", "table", "tr", "th", "td"}


def test_warnings_are_in_the_display(shell: InteractiveShell) -> None:
    result, _ = run(shell, "%%rule\n" + GOOD.replace("beta * k,", "beta * unit(k),"))
    html = shell.display_formatter.format(result.result)[0]["text/html"]
    assert "warning W102" in Tags(html).text
    assert ">unit(k)</mark>" in html


def test_a_refused_cell_shows_its_findings_and_stops(shell: InteractiveShell) -> None:
    result, seen = run(shell, "%%rule\n" + GOOD.replace("v - k @ S", "(v @ v) * tanh(k @ S)"))
    assert isinstance(result.error_in_exec, RuleError)
    (shown,) = seen.outputs
    page = Tags(shown.data["text/html"])
    assert "error E301" in page.text
    assert "mark" in page.tags
    assert "^^^^" in shown.data["text/plain"]
    assert "RuleError: 1 error in the rule" in seen.stdout
    assert "Traceback" not in seen.stdout + seen.stderr


def test_a_refused_cell_binds_nothing(shell: InteractiveShell) -> None:
    run(shell, "%%rule never\nrule x\n")
    assert "never" not in shell.user_ns


@pytest.mark.parametrize("name", names())
def test_the_library_as_html(name: str) -> None:
    rule = stateir.load(name)
    page = Tags(rule_html(rule))
    assert rule.title in page.text
    assert rule.text.strip() in page.text


def test_hostile_text_is_escaped() -> None:
    """Mark-up before a culprit, in it and after it, in messages and in the text of a rule is shown, not obeyed."""
    text = 'rule x "<i>1</i>" <script>alert("1")</script>\n'
    with pytest.raises(RuleError) as refused:
        stateir.parse(text)
    found = [
        *refused.value.diagnostics,
        Diagnostic("E001", Span(1, 1, 5), "one ` <i>", help="`<i>`", rewrite=replaced(Span(1, 1, 5), "<i>")),
    ]
    page = Tags(findings_html(found, text))
    assert page.tags <= {"div", "b", "pre", "mark", "code"}
    assert text.strip() in page.text
    assert "one ` <i>" in page.text
    assert page.text.endswith("help: <i>try: <i>")
    page = Tags(rule_html(stateir.parse(GOOD + "# <i>comment</i>\n")))
    assert "i" not in page.tags
    assert "# <i>comment</i>" in page.text
