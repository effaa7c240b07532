"""`stateir lm`: train a language model on one device or under torchrun, and continue texts with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    help="A language model of any rule: train it, on one device or by `torchrun -m stateir lm train`, and generate.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command()
def train(
    rule: Annotated[str, typer.Argument(metavar="RULE", help="A name of the library or a .rule file.")],
    out: Annotated[Path, typer.Option(help="Folder for log and checkpoint.", show_default=False)],
    pattern: Annotated[str, typer.Option(help="Layers, repeated: r for the rule, a for attention.")] = "r",
    text: Annotated[str, typer.Option(help="A file or folder; python: the standard library's sources.")] = "python",
    layers: Annotated[int, typer.Option(help="Layers.")] = 4,
    hidden: Annotated[int, typer.Option(help="Width of the residual stream.")] = 128,
    heads: Annotated[int, typer.Option(help="Heads a layer.")] = 2,
    key_dim: Annotated[int, typer.Option(help="K.")] = 64,
    value_dim: Annotated[int, typer.Option(help="V.")] = 64,
    mlp: Annotated[int, typer.Option(help="Units of the gated MLP.")] = 256,
    steps: Annotated[int, typer.Option(help="Steps of training.")] = 1000,
    batch: Annotated[int, typer.Option(help="Rows a step, of all processes.")] = 16,
    length: Annotated[int, typer.Option(help="Tokens of a row.")] = 256,
    lr: Annotated[float, typer.Option(help="Largest learning rate.")] = 3e-3,
    seed: Annotated[int, typer.Option(help="Seed of the rows and of the weights.")] = 0,
    bf16: Annotated[bool, typer.Option("--bf16", help="Autocast to bfloat16.")] = False,
    checkpointing: Annotated[bool, typer.Option("--checkpointing", help="Gradient checkpointing.")] = False,
    parallel: Annotated[
        str | None, typer.Option(help="ddp or fsdp, under torchrun.", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(help="Where to train; under torchrun cuda is a GPU a process.")] = "cpu",
    save_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 200,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the folder's checkpoint.")] = False,
) -> None:  # fmt: skip
    """Train and print loss, tokens per second and the share of the peak flops (mfu)."""
    from .lm import LMConfig
    from .lm_train import LMTrainConfig
    from .lm_train import train as run

    try:
        config = LMTrainConfig(
            model=LMConfig(rule, pattern, 256, layers, hidden, heads, key_dim, value_dim, mlp=mlp),
            text=text, steps=steps, batch=batch, length=length, lr=lr, warmup=steps // 10, seed=seed, bf16=bf16,
            checkpointing=checkpointing, save_every=save_every,
        )  # fmt: skip
        device = _join(parallel, device)
        result = run(config, out, device=device, parallel=parallel, resume=resume, report=_print)  # type: ignore[arg-type]
    except (ValueError, OSError) as error:
        raise _refusal(error) from None
    if int(os.environ.get("RANK", "0")) == 0:
        print(f"{result.parameters:,} parameters, held-out loss {result.held_out:.4f} nats a byte")
    if parallel is not None:
        import torch.distributed as dist

        dist.destroy_process_group()


@app.command()
def generate(
    checkpoint: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A checkpoint.safetensors.")],
    prompt: Annotated[str, typer.Option(help="The text to continue.")] = "def ",
    count: Annotated[int, typer.Option(help="Bytes to add.")] = 200,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest byte each time.")] = 0.8,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    device: Annotated[str, typer.Option(help="Where to run.")] = "cpu",
) -> None:
    """Continue a text with the rule's text that is in the checkpoint, carrying its state from byte to byte."""
    import torch

    from .lm_train import load_model

    try:
        model = load_model(checkpoint).to(device)
        if not prompt:
            raise ValueError("--prompt needs at least one character")
    except (ValueError, OSError) as error:
        raise _refusal(error) from None
    ids = torch.tensor([list(prompt.encode())], device=device)
    generator = torch.Generator(device).manual_seed(seed)
    found = model.generate(ids, count, temperature, generator)[0].tolist()
    print(bytes(found).decode(errors="replace"))


def _join(parallel: str | None, device: str) -> str:
    """Joins torchrun's process group, and gives this process's device."""
    if parallel is None:
        return device
    import torch
    import torch.distributed as dist

    if "RANK" not in os.environ:
        raise ValueError("--parallel needs torchrun: torchrun --nproc-per-node N -m stateir lm train ...")
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        device = f"cuda:{os.environ['LOCAL_RANK']}"
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    return device


def _print(record: dict[str, Any]) -> None:
    if record["step"] == 1 or record["step"] % 20 == 0:
        mfu = "" if record["mfu"] is None else f"  mfu {record['mfu']:.1%}"
        speed = record["tokens_per_second"]
        print(f"step {record['step']:>6}  loss {record['loss']:.4f}  {speed:>10,.0f} tokens/s{mfu}", flush=True)


def _refusal(error: ValueError | OSError) -> typer.Exit:
    typer.echo(f"error: {error}", err=True)
    return typer.Exit(1)
