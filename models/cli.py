"""`stateir mqar`: look at the task, train on it, evaluate a checkpoint. PyTorch is imported when a command needs it."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from .cli_lab import frontier, presets
from .config import config_hash
from .mqar import Filler, MqarConfig, generate, render_row
from .sweep_cli import sweep

if TYPE_CHECKING:
    from .train_config import TrainConfig

app = typer.Typer(
    help="Multi-query associative recall: show rows of the task, train a rule on it, evaluate a checkpoint; run whole "
    "experiments.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(sweep)

app.command()(frontier)
app.command()(presets)

Length = Annotated[int, typer.Option(help="Tokens of a row.")]
Pairs = Annotated[int, typer.Option(help="Different keys of a row, D.")]
Vocab = Annotated[int, typer.Option(help="Size of the vocabulary.")]
Overwrites = Annotated[int, typer.Option(help="Further writes in all, spread evenly over the keys.")]
Queries = Annotated[int | None, typer.Option(help="Keys asked; all of them by default.", show_default=False)]
Near = Annotated[float, typer.Option("--a", help="Distance knob: 0.01 near, 1 uniform, more is far.")]
Fill = Annotated[str, typer.Option(help=f"One of {', '.join(get_args(Filler))}.")]
Seed = Annotated[int, typer.Option(help="Seed of the data and of the weights.")]


@app.command()
def show(
    length: Length = 32, pairs: Pairs = 4, vocab: Vocab = 128, overwrites: Overwrites = 0, num_queries: Queries = None,
    a: Near = 0.01, filler: Fill = "zero", seed: Seed = 0,
    rows: Annotated[int, typer.Option(help="Rows to print.")] = 2,
) -> None:  # fmt: skip
    """Print rows: keys as letters, values as numbers, `.` for filler, `-` where nothing is asked."""
    task = _task(length, pairs, vocab, overwrites, num_queries, a, filler)
    data = generate(task, rows, seed)
    print("\n\n".join(render_row(task, x, y) for x, y in zip(data.inputs, data.labels, strict=True)))


@app.command()
def train(
    rule: Annotated[
        str,
        typer.Argument(
            metavar="RULE",
            help="A name of the library, a .rule file, or attention, sliding_window or gated_convolution.",
        ),
    ],
    length: Length = 64, pairs: Pairs = 8, vocab: Vocab = 128, overwrites: Overwrites = 8, num_queries: Queries = None,
    a: Near = 0.01, filler: Fill = "zero", seed: Seed = 0,
    steps: Annotated[int, typer.Option(help="Steps of training.")] = 600,
    batch: Annotated[int, typer.Option(help="Rows a step.")] = 64,
    lr: Annotated[float, typer.Option(help="Largest learning rate.")] = 1e-2,
    layers: Annotated[int, typer.Option(help="Layers.")] = 1,
    heads: Annotated[int, typer.Option(help="Heads a layer.")] = 1,
    hidden: Annotated[int, typer.Option(help="Width of the residual stream.")] = 32,
    key_dim: Annotated[int, typer.Option(help="K.")] = 32,
    value_dim: Annotated[int, typer.Option(help="V.")] = 32,
    scalar_lr: Annotated[float, typer.Option(help="Factor on the learning rate of the rule's scalar params.")] = 1.0,
    stop_at: Annotated[float | None, typer.Option(help="Stop at this accuracy.", show_default=False)] = None,
    kind: Annotated[str, typer.Option(help="The stack of layers: zoo or hybrid.")] = "zoo",
    window: Annotated[int, typer.Option(help="Of a sliding window, or the filter of a gated convolution.")] = 0,
    budget: Annotated[
        int | None, typer.Option("--state-bytes", help="In place of K and V or the window: the largest within so many "
                                 "bytes of state.", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(help="Where to train.")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="Folder for log and checkpoint.", show_default=False)] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the folder's checkpoint.")] = False,
) -> None:  # fmt: skip
    """Train a model of one rule on the overwriting task (--overwrites 0: the plain one) and print its accuracy."""
    from stateir.codegen.verify_device import check_device

    from .state_size import with_state_bytes
    from .train_config import TrainConfig
    from .zoo import load_rule, model_of_kind

    task = _task(length, pairs, vocab, overwrites, num_queries, a, filler)
    try:
        model = model_of_kind(
            kind,  # type: ignore[arg-type]
            rule, layers=layers, heads=heads, hidden=hidden, key_dim=key_dim, value_dim=value_dim, window=window,
        )  # fmt: skip
        if budget is not None:
            model = with_state_bytes(model, load_rule(model), task.length, budget)
        config = TrainConfig(
            task=task,
            model=model,
            steps=steps, batch=batch, lr=lr, warmup=steps // 10, scalar_lr=scalar_lr, seed=seed, stop_at=stop_at,
        )  # fmt: skip
        if resume and (out is None or not (out / "checkpoint.safetensors").exists()):
            where = "needs --out" if out is None else f"finds no checkpoint.safetensors in {out}"
            raise ValueError(f"--resume {where}")
        check_device(device)
        result = _with_progress(config, out, device, resume)
    except (ValueError, OSError) as error:
        raise _refusal(error) from None
    print(f"{rule}: accuracy {result.final:.3f} (best {result.best:.3f}) after {result.steps} steps")
    print(describe(config))


@app.command("eval")
def eval_(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", exists=True, dir_okay=False, help="A checkpoint.safetensors.")
    ],
    rows: Annotated[int, typer.Option(help="Held-out rows.")] = 1024,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the rows; the run's where none.", show_default=False)
    ] = None,
    length: Annotated[int | None, typer.Option(help="Another length than in training.", show_default=False)] = None,
    pairs: Annotated[int | None, typer.Option(help="Another number of keys.", show_default=False)] = None,
    overwrites: Annotated[int | None, typer.Option(help="Another number of rewrites.", show_default=False)] = None,
    stored_rule: Annotated[
        bool, typer.Option("--stored-rule", help="Use the rule's text in the checkpoint, whatever the rule is today.")
    ] = False,
    edited_rule: Annotated[
        bool, typer.Option("--edited-rule", help="Use the rule as it is today, even if it was edited since.")
    ] = False,
    device: Annotated[str, typer.Option(help="Where to evaluate.")] = "cpu",
) -> None:
    """Evaluate a checkpoint on held-out rows, also of another length or number of keys."""
    from . import checkpoint as checkpoints
    from .config import from_dict
    from .train import evaluate, load_model
    from .train_config import TrainConfig
    from .zoo import Model, load_rule

    try:
        config = from_dict(TrainConfig, checkpoints.facts(checkpoint)["config"])
        rule = None if stored_rule else load_rule(config.model)
        saved = checkpoints.load(checkpoint, rule, allow_other_rule=edited_rule)
        asked = {"length": length, "pairs": pairs, "overwrites": overwrites}
        changed: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        task = replace(config.task, **changed)
    except ValueError as error:
        raise _refusal(error) from None
    model = Model(config.model, saved.rule, config.tokens, config.seed).to(device)
    load_model(model, saved)
    score = evaluate(model, task, rows, config.seed if seed is None else seed)
    print(f"{config.model.rule}: accuracy {score:.3f} on {rows} rows after {saved.facts['step']} steps")
    print(f"evaluated on {_fields(task)}")
    print(describe(config))


def describe(config: TrainConfig) -> str:
    """A run's configuration in three lines: an accuracy never stands without it."""
    rest = ", ".join(f"{f.name} {getattr(config, f.name)}" for f in fields(config) if f.name not in ("task", "model"))
    return f"task   {_fields(config.task)}\nmodel  {_fields(config.model)}\nrun    {rest}, hash {config_hash(config)}"


def _fields(config: Any) -> str:
    return ", ".join(f"{f.name} {getattr(config, f.name)}" for f in fields(config))


def _task(
    length: int, pairs: int, vocab: int, overwrites: int, num_queries: int | None, a: float, filler: str
) -> MqarConfig:  # fmt: skip
    try:
        return MqarConfig(length, pairs, vocab, overwrites, num_queries, a, filler)  # type: ignore[arg-type]
    except ValueError as error:
        raise _refusal(error) from None


def _refusal(error: ValueError | OSError) -> typer.Exit:
    typer.echo(f"error: {error}", err=True)
    return typer.Exit(1)


def _with_progress(config: TrainConfig, out: Path | None, device: str, resume: bool) -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from .train import train as run

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[seen]}")) as progress:
        task = progress.add_task(config.model.rule, total=config.steps, seen="")

        def report(record: dict[str, Any]) -> None:
            progress.update(task, completed=record["step"])
            if record["event"] == "eval":
                progress.update(task, seen=f"loss {record['loss']:.3f}  accuracy {record['accuracy']:.3f}")

        return run(config, out, device=device, resume=resume, report=report)
