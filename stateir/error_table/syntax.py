"""E0xx, the syntax; E1xx, names."""

from __future__ import annotations

from .row import Row, rule, update

SYNTAX = {
    "E001": Row(
        "the text does not parse",
        "expected {expected}, found {found}",
        "A text is one rule: a `rule` line, then one statement a line (input, param, state, let, update, read). `#` "
        "starts "
        "a comment. Names are ASCII. There is no transpose: a matrix is made by `outer(key, value)` and read by `q @ "
        "S`.",
        update("S += k v^T"),
        update("S += outer(k, v)"),
    ),
    "E002": Row(
        "no read",
        "the rule has no `read` line",
        "One `read` line says what the rule puts out for every token. Above the updates it sees the state before the "
        "token, "
        "below them the state after.",
        rule(read=""),
        rule(),
        "add one: `read o = q @ S`",
    ),
    "E003": Row(
        "no update of S",
        "no line updates S",
        "S is the matrix state of every rule. A rule that never writes to it computes nothing.",
        rule(write=""),
        rule(),
        "add one: `update S += outer(k, v)`",
    ),
    "E004": Row(
        "two reads",
        "a second `read` line",
        "A rule has one output, so one `read` line, which may stand anywhere among the updates.",
        rule(read="read   o = q @ S\nread   p = k @ S\n"),
        rule(read="read   o = q @ S + k @ S\n"),
        "a rule has one: add the two, or write two rules",
    ),
    "E005": Row(
        "too large",
        "{what}: the limit is {limit}",
        "The size of a text, the nesting of an expression and the number of lines after unrolled loops are bounded, "
        "so that "
        "every text is answered soon and never by the interpreter's own stack. A rule of the size a person writes is "
        "far below the limits.",
        rule("let    a = " + "-" * 120 + "1"),
        rule("let    a = -1"),
        "name parts of it with `let`",
    ),
}

NAMES = {
    "E101": Row(
        "unknown name",
        "{what} `{name}` is not defined above this line",
        "A name is defined on a line above its use. There is no function for a former state: the order of the lines "
        "says "
        "which state is meant, so to use the state before an update, stand above it.",
        rule(read="read   o = qq @ S\n"),
        rule(read="read   o = q @ S\n"),
    ),
    "E102": Row(
        "name defined twice",
        "`{name}` is defined already, on line {line}",
        "A name is defined once and never rebound, so a name means one value on every line. Only states change.",
        rule("let    a = 2 * k", "let    a = 3 * k"),
        rule("let    a = 2 * k", "let    b = 3 * k"),
        "choose another name",
    ),
    "E103": Row(
        "reserved name",
        "`{name}` is {what} and cannot name a value",
        "Keywords, axes, functions, `S`, `head` and `inf` are not names. `S` needs no declaration; `head` and `inf` "
        "stand in "
        "start values and ranges.",
        rule("let    unit = 2 * k"),
        rule("let    doubled = 2 * k"),
        "choose another name",
    ),
    "E104": Row(
        "not allowed here",
        "{what}",
        "Start values and bounds of ranges are constants: numbers, `inf`, functions, `dim(key)` and `dim(value)` "
        "(these two "
        "not in bounds), and `head` in the start value of a param. Inputs have no start value. `fixed` is for params.",
        update("S += outer(head * k, v)"),
        update("S += outer(c * k, v)", "param  c: scalar fixed = 1 / (1 + head)"),
    ),
}
