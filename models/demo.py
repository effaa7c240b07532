"""Three rules learn to recall overwritten bindings, on the CPU: the training half of `make demo`.

Every key is written twice and the last value counts. An additive state keeps the sum of both values; the delta rule and
QED erase the old one first.
"""

from __future__ import annotations

import argparse
import multiprocessing
import queue
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from .config import config_hash
from .mqar import MqarConfig
from .state_size import state_bytes
from .train import Result, train
from .train_config import TrainConfig
from .zoo import ModelConfig, load_rule

TASK = MqarConfig(length=64, pairs=8, vocab=128, overwrites=8)
# rule -> the accuracies that count as the expected outcome, (least, most)
EXPECTED = {"additive": (0.0, 0.70), "delta": (0.95, 1.0), "qed": (0.95, 1.0)}


def config_of(rule: str, steps: int = 600) -> TrainConfig:
    """The run of one rule: 1 layer, 1 head, K = V = 32, fresh data every step."""
    model = ModelConfig(rule=rule, layers=1, hidden=32, heads=1, key_dim=32, value_dim=32, conv=4)
    return TrainConfig(task=TASK, model=model, steps=steps, batch=64, lr=1e-2, warmup=steps // 10, eval_every=50)


def main(arguments: list[str] | None = None) -> int:
    """Trains, prints, saves the figure; 0 if every accuracy is as expected."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/demo"), help="folder of the figure")
    parser.add_argument("--workers", type=int, default=2, help="trainings side by side, one thread each")
    options = parser.parse_args(arguments)
    configs = [config_of(rule) for rule in EXPECTED]
    results = _run_all(configs, options.workers)
    _print(results)
    files = save(results, options.out)
    print("\nfigure and its data: " + ", ".join(str(f) for f in files))
    missed = [r.config.model.rule for r in results if not _as_expected(r)]
    if missed:
        print(f"not as expected: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


def save(results: list[Result], folder: Path) -> list[Path]:
    """The demo's figure with its CSV and JSON."""
    from .curves import Curves, Measured, curves

    title = f"Recall of overwritten bindings: D={TASK.pairs} keys, U={TASK.overwrites} rewrites, L={TASK.length}"
    rows = [
        Measured(
            r.config.model.rule, r.config.lr, r.config.seed, float(e["step"]), e["accuracy"], config_hash(r.config)
        )
        for r in results
        for e in r.records
    ]
    config = Curves("steps", title, f"{results[0].config.eval_rows} rows", plateau=TASK.plateau)
    return curves(config, rows, folder / "overwriting")


def _as_expected(result: Result) -> bool:
    least, most = EXPECTED[result.config.model.rule]
    return least <= result.final <= most


def _work(config: TrainConfig, reports: Any) -> Result:
    import torch

    torch.set_num_threads(1)
    return train(config, report=lambda record: reports.put((config.model.rule, record)))


def _run_all(configs: list[TrainConfig], workers: int) -> list[Result]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    context = multiprocessing.get_context("spawn")
    with (
        context.Manager() as manager,
        ProcessPoolExecutor(workers, context) as pool,
        Progress(*columns, TextColumn("{task.fields[seen]}")) as progress,
    ):
        reports = manager.Queue()
        bars = {c.model.rule: progress.add_task(c.model.rule, total=c.steps, seen="", start=False) for c in configs}
        # The slowest one, the last, goes first: the others share the second worker meanwhile.
        runs = [pool.submit(_work, config, reports) for config in reversed(configs)]
        while not (all(run.done() for run in runs) and reports.empty()):
            try:
                rule, record = reports.get(timeout=0.2)
            except queue.Empty:
                continue
            progress.start_task(bars[rule])
            progress.update(bars[rule], completed=record["step"])
            if record["event"] == "eval":
                progress.update(bars[rule], seen=f"accuracy {record['accuracy']:.3f}")
        return [run.result() for run in reversed(runs)]


def _print(results: list[Result]) -> None:
    from rich.console import Console
    from rich.table import Table

    from .cli import describe

    table = Table(title="Overwriting: each key written twice, the last value counts")
    for column in ("rule", "held-out accuracy", "expected", "state bytes", "seconds", "config"):
        table.add_column(column)
    for result in results:
        model, (least, most) = result.config.model, EXPECTED[result.config.model.rule]
        expected = f"<= {most:.2f}" if least == 0 else f">= {least:.2f}"
        carried = state_bytes(model, load_rule(model), result.config.task.length)
        seconds = f"{result.records[-1]['seconds']:.0f}"
        table.add_row(model.rule, f"{result.final:.3f}", expected, f"{carried:,}", seconds, config_hash(result.config))
    console = Console()
    console.print(table)
    for result in results:
        print(f"\n{config_hash(result.config)} {result.config.model.rule}\n{describe(result.config)}")


if __name__ == "__main__":
    sys.exit(main())
