"""The one table of errors: title, message, help and the long explanation with a bad and a good example."""

from __future__ import annotations

from dataclasses import dataclass

from .diagnostics import Diagnostic
from .ir import Span


@dataclass(frozen=True)
class Row:
    """`message` is a format string over the facts of the finding."""

    title: str
    message: str
    help: str | None = None


TABLE: dict[str, Row] = {
    "E001": Row("the text does not parse", "expected {expected}, found {found}"),
    "E002": Row("no read", "the rule has no `read` line"),
    "E003": Row("no update of S", "no line updates S"),
    "E004": Row("two reads", "a second `read` line; a rule has one"),
    "E005": Row("too large", "{what} is too much: at most {limit}"),
    "E101": Row("unknown name", "{what} `{name}` is not defined above this line"),
    "E102": Row("name defined twice", "`{name}` is defined already, on line {line}"),
    "E103": Row("reserved name", "`{name}` is {what}, not a name for a value"),
    "E104": Row("not allowed here", "{what}"),
    "E202": Row("axes do not fit", "{what}"),
    "E203": Row("a state indexed by time", "`{name}` is a state: it has no index"),
    "E204": Row("not a declared state", "`{name}` is {what}; only states are updated"),
    "E205": Row("no such declaration", "{what}"),
    "E206": Row("update of another axis", "`{name}` is {axis}, its new value {found}"),
    "E207": Row("the output is not a value vector", "the output must be a value vector, this is {found}"),
    "E208": Row("bad array, index or loop", "{what}"),
    "E209": Row("index and array do not fit", "{what}"),
    "E210": Row("a let reads a matrix state", "a `let` may not read {name}"),
    "E211": Row("unit of no vector", "{what}"),
    "E212": Row("wrong arguments", "{what}"),
    "E214": Row("bad look-back", "{what}"),
    "E215": Row("ambiguous product", "{what}"),
    "E305": Row("a vector state that reads S", "the update of `{name}` reads {matrix}"),
    "E401": Row("empty range", "no number lies in {range}"),
    "E402": Row("range not kept", "{what}"),
    "E403": Row("undefined for some values", "{what}"),
    "E406": Row("a constant that is not finite", "the constant {what} is not finite"),
}


def diagnostic(code: str, span: Span, *, help: str | None = None, suggestion: str | None = None, **facts: object) -> Diagnostic:
    """A finding of the table's row `code`; `facts` fill its message."""
    row = TABLE[code]
    return Diagnostic(code, span, row.message.format(**facts), help or row.help, suggestion)
