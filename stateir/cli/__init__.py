"""The command line. Each command imports what it needs when it runs, so that `stateir explain` starts at once."""

from __future__ import annotations

import sys
from typing import Any

import typer
import typer.core

from .common import FAILED, print_errors
from .generated import bench, emit, verify
from .laboratory import report
from .language import check, explain, fmt, lsp, prove, show
from .play import play


class Commands(typer.core.TyperGroup):
    """The commands of this file, and `mqar` and `lm`, whose modules are imported when they are asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), "lm", "mqar"]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        from typer.main import get_command

        if cmd_name == "lm":
            from stateir.models.lm_cli import app as lm

            return get_command(lm)
        if cmd_name == "mqar":
            from stateir.models.cli import app as mqar

            return get_command(mqar)
        return super().get_command(ctx, cmd_name)


app = typer.Typer(
    cls=Commands,
    help="A compiler for recurrent state updates. RULE is a name of the library or the path of a .rule file. "
    "Exit status: 0, or 1 for a rule that is refused or not what was claimed, 2 for a call that cannot be done.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (check, show, emit, prove, verify, bench, fmt, explain, lsp, play, report):
    app.command()(command)

# Modules that the core installation does not bring -> the extra that does.
EXTRAS = {
    "torch": "torch",
    "triton": "torch",
    "safetensors": "zoo",
    "matplotlib": "zoo",
    "lsprotocol": "lsp",
    "pygls": "lsp",
    "ray": "ray",
    "transformers": "hub",
    "marimo": "play",
    "uvicorn": "play",
}


def main() -> None:
    """The entry point: errors of rule texts and of files are messages, not tracebacks."""
    from stateir.diagnostics import RuleError

    try:
        app()
    except RuleError as error:
        print_errors(error)
        sys.exit(FAILED)
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        print(f"error: this needs {error.name}: pip install 'stateir[{EXTRAS[error.name]}]'", file=sys.stderr)
        sys.exit(FAILED)
