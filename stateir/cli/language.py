"""The commands of the language: what a rule says, and what is true of it."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .common import (
    FAILED,
    All,
    Json,
    RuleName,
    RuleNames,
    backends,
    kernel_table,
    load,
    names,
    print_errors,
    refuse,
    source,
    trouble,
)


class Form(StrEnum):
    """What `show` can print of a rule."""

    text = "text"
    normal = "normal"
    plan = "plan"
    latex = "latex"
    step = "step"
    torch = "torch"
    triton = "triton"


def check(rules: RuleNames = None, all_: All = False, as_json: Json = False) -> None:
    """Check rules: axes, ranges, normal form, proofs, stability, plan."""
    from stateir.compile_text import compile_text
    from stateir.diagnostics import RuleError
    from stateir.render import records, render_all
    from stateir.screen import one_line, report
    from stateir.summary import summarise

    chosen = names(rules, all_)
    width = max(len(n) for n in chosen)
    done: list[dict[str, object]] = []
    failed = False
    for name in chosen:
        try:
            rule = load(name)
            summary = summarise(rule, backends(rule))
        except RuleError as error:
            failed = True
            if as_json:
                found = records(error.diagnostics, error.filename)
                done.append({"rule": name, "sound": False, "diagnostics": found})
            else:
                print_errors(error)
            continue
        failed |= not summary.sound
        warnings = compile_text(rule.text)[1]
        if as_json:
            done.append({**summary.as_json(), "diagnostics": records(warnings, name)})
            continue
        print(report(summary) if len(chosen) == 1 else one_line(summary, width), flush=True)
        if warnings:
            print(render_all(warnings, rule.text, name), file=sys.stderr)
    if as_json:
        print(json.dumps(done, indent=2, ensure_ascii=False))
    if failed:
        raise typer.Exit(FAILED)


def show(
    rule: RuleName,
    form: Annotated[Form, typer.Option("--as", help="The form to print.")] = Form.text,
    shape: Annotated[
        str, typer.Option(metavar="BxTxHxKxV", help="The call that a plan's kernels are counted for.")
    ] = "8x4096x16x128x128",
    card: Annotated[str, typer.Option(help="The GPU that they are timed for: h200, h100 or a100.")] = "h200",
) -> None:
    """Print a rule in one of its forms."""
    loaded = load(rule)
    match form:
        case Form.text:
            from stateir.fmt import text

            print(text(loaded), end="")
        case Form.latex:
            from stateir.latex import rule as latex

            print(latex(loaded))
        case Form.step | Form.torch | Form.triton:
            print(source(loaded, form), end="")
        case Form.normal | Form.plan:
            from stateir.affine import normal_form
            from stateir.core import core
            from stateir.plan import describe, plan
            from stateir.unicode import normal_form as written

            nf = normal_form(loaded)
            if nf is None:
                refuse(f"{loaded.name} has matrix states beside S, so it has no normal form: the step reference only")
            if form is Form.normal:
                print(written(nf))
            else:
                lines = describe(plan(nf, core(nf)), backends(loaded))
                print("\n".join(f"{what:<11} {how}" for what, how in lines))
                if backends(loaded)["triton"] is None:
                    print("", *kernel_table(loaded, core(nf), shape, card), sep="\n")


def prove(
    a: Annotated[str, typer.Argument(metavar="A", show_default=False)],
    b: Annotated[str, typer.Argument(metavar="B", show_default=False)],
    with_: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="NAME=EXPR...", help="Names of A as expressions in B's names, all at once."),
    ] = None,
    more: Annotated[list[str] | None, typer.Argument(metavar="[NAME=EXPR]...", show_default=False)] = None,
    state: Annotated[bool, typer.Option("--state", help="Leave the reads out.")] = False,
    as_json: Json = False,
) -> None:
    """Prove that rule A, with some of its names replaced, is rule B; or refute it with numbers."""
    from stateir.prove import prove as decide
    from stateir.screen import numbers
    from stateir.within import replacements

    first, second = load(a), load(b)
    given = [*(with_ or []), *(more or [])]
    try:
        verdict = decide(first, second, replacements(given, second), state_only=state)
    except ValueError as error:
        refuse(str(error))
    # Two rules of one name are told apart as they were called.
    one, other = (a, b) if first.name == second.name and a != b else (first.name, second.name)
    what = f"{one}{' with ' + ', '.join(given) if given else ''}"
    if as_json:
        from dataclasses import asdict

        print(json.dumps(asdict(verdict), indent=2, default=lambda x: x.tolist()))
    elif verdict.equal:
        print(f"proved: {what} is {other}{' in its state' if state else ''}")
    elif (found := verdict.counter_example) is None:
        print(f"not decided: no proof and no counter-example that {what} is {other}")
    else:
        print(f"refuted: {what} is not {other}: the {found.where} after one token differs at")
        values = {**found.values, "S": found.S, f"{found.where} of {one}": found.a}
        values[f"{found.where} of {other}"] = found.b
        width = max(len(n) for n in values)
        for name, value in values.items():
            print(f"  {name:<{width}} = {numbers(value, 9)}")
    if not verdict.equal:
        raise typer.Exit(FAILED)


def fmt(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Rule files.", show_default=False)],
    check_only: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail if a file is not formatted.")
    ] = False,
) -> None:
    """Format rule files in place: white space and the order of attributes alone."""
    from stateir.fmt import format_text
    from stateir.library import read_rule_text

    changed = []
    for file in files:
        try:
            text = read_rule_text(file)
        except (OSError, ValueError) as error:
            refuse(trouble(error))
        new = format_text(text, str(file))
        if new != text:
            changed.append(file)
            if not check_only:
                file.write_text(new, encoding="utf-8")
    for file in changed:
        print(f"{'not formatted' if check_only else 'formatted'}: {file}")
    if check_only and changed:
        raise typer.Exit(FAILED)


def explain(code: Annotated[str, typer.Argument(help="A code such as E302.")]) -> None:
    """Explain an error code, with an example and a way out."""
    from stateir.errors import explain as explanation

    try:
        print(explanation(code.upper()))
    except KeyError:
        refuse(f"there is no error code {code}")


def lsp() -> None:
    """Serve an editor on standard input and output (language server; needs the extra `lsp`)."""
    from stateir.editor.server import serve

    serve()
