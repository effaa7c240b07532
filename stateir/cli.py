"""The command line. Each command imports what it needs when it runs, so that `stateir explain` starts at once."""

from __future__ import annotations

import json
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
import typer.core

if TYPE_CHECKING:
    from .diagnostics import RuleError
    from .ir import Rule


class Commands(typer.core.TyperGroup):
    """The commands of this file, and `mqar`, whose module is imported when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), "mqar"]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name != "mqar":
            return super().get_command(ctx, cmd_name)
        from typer.main import get_command

        from .models.cli import app as mqar

        return get_command(mqar)


app = typer.Typer(
    cls=Commands,
    help="A compiler for recurrent state updates. RULE is a name of the library or the path of a .rule file.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

RuleNames = Annotated[list[str] | None, typer.Argument(metavar="RULE...", show_default=False)]
RuleName = Annotated[str, typer.Argument(metavar="RULE", show_default=False)]
All = Annotated[bool, typer.Option("--all", help="Every rule of the library.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


# Modules that the core installation does not bring -> the extra that does.
EXTRAS = {
    "torch": "torch",
    "triton": "torch",
    "safetensors": "zoo",
    "matplotlib": "zoo",
    "lsprotocol": "lsp",
    "pygls": "lsp",
}


class Form(StrEnum):
    """What `show` can print of a rule."""

    text = "text"
    normal = "normal"
    plan = "plan"
    latex = "latex"
    step = "step"
    torch = "torch"
    triton = "triton"


class Target(StrEnum):
    """What `emit` can write: the best PyTorch form of a rule, or its Triton kernels."""

    torch = "torch"
    triton = "triton"


@app.command()
def check(rules: RuleNames = None, all_: All = False, as_json: Json = False) -> None:
    """Check rules: axes, ranges, normal form, proofs, stability, plan."""
    from .compile_text import compile_text
    from .diagnostics import RuleError
    from .render import records, render_all
    from .screen import one_line, report
    from .summary import summarise

    names = _names(rules, all_)
    width = max(len(n) for n in names)
    done: list[dict[str, object]] = []
    failed = False
    for name in names:
        try:
            rule = _load(name)
            summary = summarise(rule, _backends(rule))
        except RuleError as error:
            failed = True
            if as_json:
                found = records(error.diagnostics, error.filename)
                done.append({"rule": name, "sound": False, "diagnostics": found})
            else:
                _print_errors(error)
            continue
        failed |= not summary.sound
        warnings = compile_text(rule.text)[1]
        if as_json:
            done.append({**summary.as_json(), "diagnostics": records(warnings, name)})
            continue
        print(report(summary) if len(names) == 1 else one_line(summary, width), flush=True)
        if warnings:
            print(render_all(warnings, rule.text, name), file=sys.stderr)
    if as_json:
        print(json.dumps(done, indent=2, ensure_ascii=False))
    if failed:
        raise typer.Exit(1)


@app.command()
def show(rule: RuleName, form: Annotated[Form, typer.Option("--as", help="The form to print.")] = Form.text) -> None:
    """Print a rule in one of its forms."""
    loaded = _load(rule)
    match form:
        case Form.text:
            from .fmt import text

            print(text(loaded), end="")
        case Form.latex:
            from .latex import rule as latex

            print(latex(loaded))
        case Form.step | Form.torch | Form.triton:
            print(_source(loaded, form), end="")
        case Form.normal | Form.plan:
            from .affine import normal_form
            from .core import core
            from .plan import describe, plan
            from .unicode import normal_form as written

            nf = normal_form(loaded)
            if nf is None:
                _refuse(f"{loaded.name} has matrix states beside S, so it has no normal form: the step reference only")
            if form is Form.normal:
                print(written(nf))
            else:
                lines = describe(plan(nf, core(nf)), _backends(loaded))
                print("\n".join(f"{what:<11} {how}" for what, how in lines))


@app.command()
def emit(
    rule: RuleName,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write.", show_default=False)],
    target: Annotated[Target, typer.Option(help="What to write.")] = Target.torch,
) -> None:
    """Write a rule's generated code as one file that needs neither stateir nor anything but its target."""
    text = _source(_load(rule), target)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        _refuse(str(error))
    print(f"{out}: {text.count(chr(10))} lines")


@app.command()
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
    from .prove import prove as decide
    from .screen import numbers
    from .within import replacements

    first, second = _load(a), _load(b)
    given = [*(with_ or []), *(more or [])]
    try:
        verdict = decide(first, second, replacements(given, second), state_only=state)
    except ValueError as error:
        _refuse(str(error))
    what = f"{first.name}{' with ' + ', '.join(given) if given else ''}"
    if as_json:
        from dataclasses import asdict

        print(json.dumps(asdict(verdict), indent=2, default=lambda x: x.tolist()))
    elif verdict.equal:
        print(f"proved: {what} is {second.name}{' in its state' if state else ''}")
    elif (found := verdict.counter_example) is None:
        print(f"not decided: no proof and no counter-example that {what} is {second.name}")
    else:
        print(f"refuted: {what} is not {second.name}: the {found.where} after one token differs at")
        values = {**found.values, "S": found.S, f"{found.where} of {first.name}": found.a}
        values[f"{found.where} of {second.name}"] = found.b
        width = max(len(n) for n in values)
        for name, value in values.items():
            print(f"  {name:<{width}} = {numbers(value, 9)}")
    if not verdict.equal:
        raise typer.Exit(1)


@app.command()
def verify(
    rules: RuleNames = None,
    all_: All = False,
    full: Annotated[bool, typer.Option("--full", help="More lengths, chunk sizes and seeds.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the random arguments.")] = 0,
    device: Annotated[
        str, typer.Option(help="cpu, or a GPU such as cuda: the kernels in bf16, fp32 and fp16.")
    ] = "cpu",
    as_json: Json = False,
) -> None:
    """Measure a rule's generated code against its step reference: outputs, states, every gradient."""
    from dataclasses import asdict

    from .codegen.verify import verify as measure
    from .codegen.verify_device import check_device, verify_on
    from .screen import checks_of_one, checks_of_several

    try:
        check_device(device)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--device") from error

    names = _names(rules, all_)
    width = max(len(n) for n in names)
    found: dict[str, Any] = {}
    failed = False
    for name in names:
        rule = _load(name)
        start = time.perf_counter()
        checks = measure(rule, full=full, seed=seed) if device == "cpu" else verify_on(rule, device, seed)
        seconds = time.perf_counter() - start
        failed |= not all(c.passed for c in checks)
        found[rule.name] = [{**asdict(c), "passed": c.passed} for c in checks]
        if not as_json and len(names) == 1:
            print(checks_of_one(rule.name, checks, seconds))
        elif not as_json:
            print(checks_of_several(f"{rule.name:<{width}}", checks, seconds), flush=True)
    if as_json:
        print(json.dumps(found, indent=2))
    if failed:
        raise typer.Exit(1)


@app.command()
def bench(
    rule: RuleName,
    batch: Annotated[int, typer.Option("-B", help="Sequences.")] = 1,
    tokens: Annotated[int, typer.Option("-T", help="Tokens a sequence.")] = 4096,
    heads: Annotated[int, typer.Option("-H", help="Heads.")] = 4,
    keys: Annotated[int, typer.Option("-K", help="Key channels.")] = 64,
    values: Annotated[int, typer.Option("-V", help="Value channels.")] = 64,
    repeats: Annotated[int, typer.Option(help="Timed calls of each backend.")] = 5,
    threads: Annotated[int, typer.Option(help="Threads of PyTorch.")] = 2,
) -> None:
    """Time a rule's backends on the CPU in float32, forward and with the backward pass."""
    from .codegen.bench import compare_backends

    sizes = {"B": batch, "T": tokens, "H": heads, "K": keys, "V": values}
    loaded = _load(rule)
    print(f"{loaded.name}: {', '.join(f'{name} = {size}' for name, size in sizes.items())}, float32")
    print(compare_backends(loaded, **sizes, repeats=repeats, threads=threads))


@app.command()
def fmt(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Rule files.", show_default=False)],
    check_only: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail if a file is not formatted.")
    ] = False,
) -> None:
    """Format rule files in place: white space and the order of attributes alone."""
    from .fmt import format_text

    changed = []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            _refuse(f"{file}: {error}")
        new = format_text(text, str(file))
        if new != text:
            changed.append(file)
            if not check_only:
                file.write_text(new, encoding="utf-8")
    for file in changed:
        print(f"{'not formatted' if check_only else 'formatted'}: {file}")
    if check_only and changed:
        raise typer.Exit(1)


@app.command()
def explain(code: Annotated[str, typer.Argument(help="A code such as E302.")]) -> None:
    """Explain an error code, with an example and a way out."""
    from .errors import explain as explanation

    try:
        print(explanation(code.upper()))
    except KeyError:
        _refuse(f"there is no error code {code}")


@app.command()
def lsp() -> None:
    """Serve an editor on standard input and output (language server; needs the extra `lsp`)."""
    from .editor.server import serve

    serve()


def main() -> None:
    """The entry point: errors of rule texts and of files are messages, not tracebacks."""
    from .diagnostics import RuleError

    try:
        app()
    except RuleError as error:
        _print_errors(error)
        sys.exit(1)
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        print(f"error: this needs {error.name}: pip install 'stateir[{EXTRAS[error.name]}]'", file=sys.stderr)
        sys.exit(1)


def _names(rules: list[str] | None, all_: bool) -> list[str]:
    if all_ == bool(rules):
        _refuse("name rules or say --all, one of the two")
    if rules:
        return rules
    from .library import names

    return list(names())


def _load(name: str) -> Rule:
    from . import load

    try:
        return load(name)
    except (ValueError, OSError) as error:
        _refuse(str(error))


def _backends(rule: Rule) -> dict[str, str | None]:
    """The backends by name: None, or why the rule does not have it."""
    from .codegen.backends import NAMES, lacks

    return {name: lacks(rule, name) for name in NAMES}


def _source(rule: Rule, target: str) -> str:
    from . import compile as compile_rule

    try:
        return compile_rule(rule).source(target)
    except ValueError as error:
        _refuse(str(error))


def _print_errors(error: RuleError) -> None:
    from .render import render

    print(render(error), file=sys.stderr)


def _refuse(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    raise typer.Exit(1)
