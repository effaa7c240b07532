"""What the commands share: their arguments, loading rules, and refusing a call."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from stateir.diagnostics import RuleError
    from stateir.ir import Rule
    from stateir.normal import Core

# Exit codes: a rule was refused, or is not what was claimed; the call itself cannot be done.
FAILED = 1
WRONG_CALL = 2

RuleNames = Annotated[list[str] | None, typer.Argument(metavar="RULE...", show_default=False)]
RuleName = Annotated[str, typer.Argument(metavar="RULE", show_default=False)]
All = Annotated[bool, typer.Option("--all", help="Every rule of the library.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def names(rules: list[str] | None, all_: bool) -> list[str]:
    if all_ == bool(rules):
        refuse("name rules or say --all, one of the two")
    if rules:
        return rules
    from stateir.library import names

    return list(names())


def load(name: str) -> Rule:
    from stateir import load

    try:
        return load(name)
    except (ValueError, OSError) as error:
        refuse(trouble(error))


def trouble(error: Exception) -> str:
    """What went wrong, in one line; of a file its name first."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return f"{error.filename}: {error.strerror[0].lower()}{error.strerror[1:]}"
    return str(error)


def backends(rule: Rule) -> dict[str, str | None]:
    """The backends by name: None, or why the rule does not have it."""
    from stateir.codegen.backends import NAMES, lacks

    return {name: lacks(rule, name) for name in NAMES}


def kernel_table(rule: Rule, form: Core, shape: str, card: str) -> list[str]:
    """What each kernel of a call moves and multiplies, and the least time that this takes on a card."""
    from stateir.codegen.roofline import CARDS, Sizes, describe, kernel_costs

    if card not in CARDS:
        refuse(f"--card {card}: expected one of {', '.join(CARDS)}")
    numbers = shape.split("x")
    if len(numbers) != 5 or not all(n.isdigit() and int(n) for n in numbers):
        refuse(f"--shape {shape}: expected five numbers BxTxHxKxV such as 8x4096x16x128x128")
    sizes = Sizes(*map(int, numbers))
    return describe(kernel_costs(rule, form, sizes), sizes, CARDS[card])


def source(rule: Rule, target: str) -> str:
    """Generated code. Where a rule has no chunked form, its PyTorch form is the step reference, which a note says."""
    from stateir import compile as compile_rule

    why = backends(rule)["chunked"]
    if target == "torch" and why is not None:
        print(f"note: {rule.name} has no chunked form: {why}. This is its step reference", file=sys.stderr)
    try:
        return compile_rule(rule).source(target)
    except ValueError as error:
        refuse(str(error))


def print_errors(error: RuleError) -> None:
    from stateir.render import render

    print(render(error), file=sys.stderr)


def refuse(message: str) -> NoReturn:
    """Ends the command: the call cannot be done."""
    print(f"error: {message}", file=sys.stderr)
    raise typer.Exit(WRONG_CALL)
