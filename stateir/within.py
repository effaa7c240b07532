"""Expressions in the names of a rule, as the command line takes them: `--with b=beta`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .ir import Bin, Expr, Rule
from .library import parse

_REPLACEMENT = re.compile(r"\s*([A-Za-z_][A-Za-z_0-9]*)\s*(?:\[\s*([0-9]+)\s*\])?\s*=(.*)")


def expression(text: str, rule: Rule) -> Expr:
    """The typed expression that `text` is where the rule's text ends. RuleError, as for a line of the rule."""
    name = "value"
    while name in rule.text:
        name += "_"
    # divided by what is no constant, or a number would be folded away with its let
    longer = parse(f"{rule.text.rstrip()}\nlet {name} = ({text.strip()}) / dim(key)\n", f"--with {text.strip()}")
    quotient = longer.lets[name]
    assert isinstance(quotient, Bin)
    return quotient.a


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
