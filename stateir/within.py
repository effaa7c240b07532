"""Expressions in the names of a rule, as the command line takes them: `--with b=beta`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from .diagnostics import RuleError
from .edits import Edit
from .ir import Bin, Expr, Rule, Span
from .library import parse

_REPLACEMENT = re.compile(r"\s*([A-Za-z_][A-Za-z_0-9]*)\s*(?:\[\s*([0-9]+)\s*\])?\s*=(.*)")


def expression(text: str, rule: Rule) -> Expr:
    """The typed expression that `text` is where the rule's text ends. RuleError, as for a line of the rule."""
    name = "value"
    while name in rule.text:
        name += "_"
    # divided by what is no constant, or a number would be folded away with its let
    before = f"let {name} = ("
    try:
        longer = parse(f"{rule.text.rstrip()}\n{before}{text.strip()}) / dim(key)\n")
    except RuleError as error:
        raise _of_expression(error, text.strip(), len(before)) from None
    quotient = longer.lets[name]
    assert isinstance(quotient, Bin)
    return quotient.a


def _of_expression(error: RuleError, text: str, shift: int) -> RuleError:
    """The findings of the line that an expression was put on, as findings of the expression alone."""

    def moved(span: Span) -> Span:
        column = min(max(span.column - shift, 1), len(text) + 1)
        return Span(1, column, min(max(span.end - shift, column + 1), len(text) + 2))

    found = []
    for d in error.diagnostics:
        inside = all(e.span.line == d.span.line and e.span.column > shift for e in d.rewrite)
        rewrite = tuple(Edit(moved(e.span), e.text) for e in d.rewrite) if inside else ()
        found.append(replace(d, span=moved(d.span), rewrite=rewrite))
    return RuleError(found, text, "--with")


def replacements(given: Iterable[str], rule: Rule) -> dict[tuple[str, int | None], Expr]:
    """`name=expression` and `name[i]=expression`, each right side in the rule's names. ValueError: no such form."""
    out: dict[tuple[str, int | None], Expr] = {}
    for item in given:
        found = _REPLACEMENT.fullmatch(item)
        if found is None:
            raise ValueError(f"`{item}` is not of the form name=expression")
        name, index, text = found.groups()
        key = (name, None if index is None else int(index))
        if key in out:
            raise ValueError(f"`{item.split('=')[0].strip()}` is given twice")
        out[key] = expression(text, rule)
    return out
