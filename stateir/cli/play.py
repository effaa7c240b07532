"""The command that opens a page."""

from __future__ import annotations

from typing import Annotated

import typer

from .common import load, refuse, trouble


def play(
    rule: Annotated[str, typer.Argument(metavar="[RULE]", help="What to start with.", show_default=False)] = "qed",
    port: Annotated[int, typer.Option(help="Where to serve; 0 takes a free port.")] = 2718,
    browser: Annotated[bool, typer.Option(help="Open a browser.")] = True,
) -> None:
    """Open a page that compiles a rule as you type and shows what its memory keeps (needs the extra `play`)."""
    from pathlib import Path

    from stateir.library import names, read_rule_text
    from stateir.models.play.server import serve

    try:
        # The text of a file may be one that is refused: the page is where one mends it.
        text = load(rule).text if rule in names() else read_rule_text(Path(rule))
        serve(text, port, browser)
    except (OSError, ValueError) as error:
        refuse(trouble(error))
