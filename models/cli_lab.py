"""`stateir mqar frontier` and `presets`: whole experiments by name, resumed where they were left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from .lab import Experiment, Finished


def presets() -> None:
    """List the experiments that `frontier --preset` takes, with the most runs that each comes to."""
    from rich.console import Console
    from rich.table import Table

    from .lab import runs_in_all
    from .presets import PRESETS

    table = Table("preset", "runs", "steps each", "what", box=None)
    for name, build in PRESETS.items():
        experiment = build()
        told = getattr(build, "func", build).__doc__ or ""
        table.add_row(name, str(runs_in_all(experiment)), f"{experiment.configs[0].steps:,}", told.splitlines()[0])
    Console().print(table)


def frontier(
    preset: Annotated[str, typer.Option(help="An experiment by name; `stateir mqar presets` lists them.")] = "tiny",
    out: Annotated[
        Path | None, typer.Option(help="Folder of the runs and figures; results/PRESET by default.", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(help="Where to train.")] = "cpu",
    at_once: Annotated[int, typer.Option(help="Runs of one shape that are trained together.")] = 8,
    seconds: Annotated[
        float | None, typer.Option(help="Leave after this time; the same command goes on.", show_default=False)
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Steps of a run, in place of the preset's.", show_default=False)
    ] = None,
    rules: Annotated[str, typer.Option(help="Of the preset's rules these alone, with commas between.")] = "",
    lrs: Annotated[str, typer.Option(help="Of the preset's learning rates these alone, with commas between.")] = "",
    draw_only: Annotated[
        bool, typer.Option("--draw", help="Draw the figures of the runs that ended, run nothing.")
    ] = False,
) -> None:  # fmt: skip
    """Run an experiment and draw its figures. Runs that ended are skipped, so an interrupted command is given again."""
    import torch

    from stateir.codegen.verify_device import check_device

    from .lab import conduct, read_finished
    from .presets import preset as build
    from .results import draw_results

    try:
        rates = [float(x) for x in lrs.split(",") if x]
        experiment = build(preset, steps=steps, rules=[x for x in rules.split(",") if x], rates=rates)
        folder = Path("results") / preset if out is None else out
        check_device(device)
        done = draw_only
        if device == "cpu":
            # Small operations gain little from more threads, and lose much where another program has a core.
            torch.set_num_threads(1)
        if not draw_only:
            until = float("inf") if seconds is None else time.monotonic() + seconds
            with _progress(experiment, read_finished(folder)) as (report, ended):
                done = conduct(
                    experiment, folder, device=device, at_once=at_once, until=until, report=report, ended=ended
                )
        runs = read_finished(folder)
        files = draw_results(experiment, runs, folder) if runs else []
    except (ValueError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    _print_tables(files)
    print("files: " + ", ".join(str(f) for f in files))
    if not done:
        print(f"{len(runs)} runs ended; the same command goes on")


def _print_tables(files: list[Path]) -> None:
    for file in files:
        if file.suffix == ".md":
            print(f"\n{file.stem}\n{file.read_text(encoding='utf-8')}")


@contextmanager
def _progress(experiment: Experiment, finished: list[Finished]) -> Iterator[tuple[Any, Any]]:
    """Two bars: runs that ended, and the steps of the group that is being trained."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from .lab import pending, runs_in_all

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[seen]}")) as progress:
        total = runs_in_all(experiment)
        first = len(experiment.configs) - sum(c in experiment.configs for c in pending(experiment, finished))
        runs = progress.add_task("runs", total=total, completed=first, seen="")
        group = progress.add_task("steps", total=1, seen="")

        def report(together: Any) -> None:
            config, last = together.configs[0], [r[-1]["accuracy"] for r in together.records if r]
            seen = f"{len(together.configs)} x {config.model.rule}"
            if last:
                seen += f"  accuracy {min(last):.3f} to {max(last):.3f}"
            progress.update(group, total=config.steps, completed=together.step, seen=seen)

        def ended(found: list[Finished]) -> None:
            best = max(found, key=lambda r: r.final)
            progress.update(
                runs,
                advance=len(found),
                seen=f"last: {best.config.model.rule} {best.final:.3f} at lr {best.config.lr:g}",
            )

        yield report, ended
