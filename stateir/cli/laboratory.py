"""`stateir report`: a page of what an experiment found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", exists=True, file_okay=False, help="Results of `stateir mqar frontier`.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="The page; FOLDER/report.html by default.", show_default=False)
    ] = None,
) -> None:
    """Write one HTML page from a results folder: configuration, tables, figures, seeds, versions."""
    from stateir.models.page import page

    try:
        text = page(folder)
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    file = folder / "report.html" if out is None else out
    file.write_text(text, encoding="utf-8")
    print(file)
