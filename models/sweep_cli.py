"""`stateir mqar sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def sweep(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", exists=True, dir_okay=False, help="A sweep file.")],
    out: Annotated[Path, typer.Option(help="Folder of the sweep; one that has it goes on.", show_default=False)],
    workers: Annotated[int, typer.Option(min=1, help="Processes; on cuda one for each of so many GPUs.")] = 1,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="A Ray cluster instead; local starts one.", show_default=False)
    ] = None,
) -> None:
    """Train every point of a grid, here or on Ray, and print the table. Killed, it goes on from where it was."""
    from .sweep import Point, read_sweep, run_sweep

    try:
        found = read_sweep(config)
    except (ValueError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None

    def report(point: Point, error: str | None) -> None:
        print(f"{_settings(dict(point.settings))}: {'done' if error is None else error}", flush=True)

    devices = [f"cuda:{n}" if device == "cuda" and ray is None else device for n in range(workers)]
    rows = run_sweep(found, out, devices=devices, ray=ray, report=report)
    for row in rows:
        print(_settings(row))
    if any("error" in row for row in rows):
        raise typer.Exit(1)


def _settings(row: dict[str, Any]) -> str:
    return "  ".join(f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items())
