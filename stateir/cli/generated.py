"""The commands that write, measure and time generated code."""

from __future__ import annotations

import json
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from .common import FAILED, All, Json, RuleName, RuleNames, load, names, refuse, source, trouble


class Target(StrEnum):
    """What `emit` can write: the best PyTorch form of a rule, or its Triton kernels."""

    torch = "torch"
    triton = "triton"


def emit(
    rule: RuleName,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write.", show_default=False)],
    target: Annotated[Target, typer.Option(help="What to write.")] = Target.torch,
) -> None:
    """Write a rule's generated code as one file that needs neither stateir nor anything but its target.

    Run as a program, a file of kernels tests itself.
    """
    from stateir.codegen.standalone import standalone

    loaded = load(rule)
    text = source(loaded, target)
    if target is Target.triton:
        text = standalone(loaded, text)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        refuse(trouble(error))
    print(f"{out}: {text.count(chr(10))} lines")


def verify(
    rules: RuleNames = None,
    all_: All = False,
    full: Annotated[
        bool, typer.Option("--full", help="More sizes, and every kind of call: strides, graphs ...")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the random arguments.")] = 0,
    device: Annotated[
        str, typer.Option(help="cpu, or a GPU such as cuda: the kernels in bf16, fp32 and fp16.")
    ] = "cpu",
    as_json: Json = False,
) -> None:
    """Measure a rule's generated code against its step reference: outputs, states, every gradient.

    With --full also what real code does around it: strides, packed sequences, carried states, head groups, decode,
    checkpoints, torch.compile, CUDA graphs, determinism.
    """
    from dataclasses import asdict

    from rich.console import Console

    from stateir.codegen.verify import verify as measure
    from stateir.codegen.verify_calls import verify_calls
    from stateir.codegen.verify_device import check_device, verify_on
    from stateir.screen import checks_of_one, checks_of_several

    try:
        check_device(device)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--device") from error

    chosen = names(rules, all_)
    width = max(len(n) for n in chosen)
    found: dict[str, Any] = {}
    failed = False
    console = Console(stderr=True)
    for name in chosen:
        rule = load(name)
        start = time.perf_counter()
        with console.status(rule.name):
            checks = measure(rule, full=full, seed=seed) if device == "cpu" else verify_on(rule, device, seed)
            checks += verify_calls(rule, device, seed) if full else []
        seconds = time.perf_counter() - start
        failed |= not all(c.passed for c in checks)
        found[rule.name] = [{**asdict(c), "passed": c.passed} for c in checks]
        if not as_json and len(chosen) == 1:
            print(checks_of_one(rule.name, checks, seconds))
        elif not as_json:
            print(checks_of_several(f"{rule.name:<{width}}", checks, seconds), flush=True)
    if as_json:
        print(json.dumps(found, indent=2))
    if failed:
        raise typer.Exit(FAILED)


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
    from stateir.codegen.bench import compare_backends

    sizes = {"B": batch, "T": tokens, "H": heads, "K": keys, "V": values}
    loaded = load(rule)
    print(f"{loaded.name}: {', '.join(f'{name} = {size}' for name, size in sizes.items())}, float32")
    print(compare_backends(loaded, **sizes, repeats=repeats, threads=threads))
