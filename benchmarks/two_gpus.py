"""What needs two GPUs of one host, as data, in under 8 minutes.

    torchrun --nproc-per-node 2 benchmarks/two_gpus.py --out benchmarks/results [--seconds 420]

Writes two_gpus.json, after each part, with card, versions and date:

    exact      sequence parallelism of gdn2 and qed in bf16, outputs and gradients relative to those of one GPU
    speed      its forward and backward at T = 128k and 1M tokens on one GPU and on two, with the bytes exchanged
    training   the language model by DDP and FSDP2: losses relative to one GPU's, tokens per second on one and two
    guard      kernels on the second GPU while the first is current: the same bits, the current device unchanged

A part that fails is written with its error. Parts begin only before `--seconds`. NVLink multicast should be off
(NCCL_NVLS_ENABLE=0). With `--device cpu --small` the script tries itself over gloo.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import stateir
from stateir.codegen.operator import compile
from stateir.codegen.parallel import SequenceParallel
from stateir.codegen.samples import sample_arguments
from stateir.codegen.verify_device import relative
from stateir.ir import Rule
from stateir.models.lm import LMConfig
from stateir.models.lm_train import LMTrainConfig, train

sys.path.insert(0, str(Path(__file__).parent))
from gpu_report import environment

RULES = ("gdn2", "qed")


class Bench:
    """The processes, and what they run on."""

    def __init__(self, device: str, small: bool) -> None:
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        self.cuda, self.small = device == "cuda", small
        self.device = torch.device("cuda", self.rank) if self.cuda else torch.device("cpu")

    def arguments(self, rule: Rule, T: int, H: int, D: int, whole: bool) -> dict[str, Tensor]:
        """bf16 inputs and float32 params of this rank's tokens, or of all; the same on each call."""
        part = T // self.count
        places = range(self.count) if whole else (self.rank,)
        inputs = {i.name for i in rule.inputs}
        pieces = [self._piece(rule, part, H, D, place) for place in places]
        joined = {n: torch.cat([p[n] for p in pieces], 1) if n in inputs else x for n, x in pieces[0].items()}
        fixed = {p.name for p in rule.params if p.fixed}
        return {n: x.requires_grad_(n not in fixed) for n, x in joined.items()}

    def _piece(self, rule: Rule, T: int, H: int, D: int, place: int) -> dict[str, Tensor]:
        """One rank's tokens: a sample of 2,048 tokens, turned by its place and repeated.

        Log decays are a hundredth of the sample's, so that a state is remembered far beyond a border.
        """
        drawn = sample_arguments(rule, B=1, T=min(T, 2048), H=H, K=D, V=D, dtype=torch.float32)
        inputs = {i.name for i in rule.inputs}
        decays = [i.name for i in rule.inputs if i.range is not None and i.range.lo == -math.inf]
        drawn |= {n: drawn[n] / 100 for n in decays}
        found = {}
        for n, x in drawn.items():
            if n in inputs:
                x = x.roll(37 * place, 1).to(self.device, torch.bfloat16)
                x = x.repeat(1, -(-T // x.shape[1]), *[1] * (x.ndim - 2))[:, :T]
            found[n] = x.to(self.device)
        return found

    def gradients(self, call: Callable[..., Any], x: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        o = call(**x)[0]
        wanted = {n: t for n, t in x.items() if t.requires_grad}
        found = torch.autograd.grad(o, list(wanted.values()), torch.ones_like(o))
        return o.detach(), dict(zip(wanted, found, strict=True))

    def seconds(self, call: Callable[[], Any], repeats: int = 3) -> float:
        """The least of some runs, on the slowest of the ranks that run it."""
        call()
        best = float("inf")
        for _ in range(repeats):
            self.wait()
            start = time.perf_counter()
            call()
            self.wait()
            best = min(best, time.perf_counter() - start)
        return best

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def exact(self) -> dict[str, Any]:
        T, H, D = (64, 2, 8) if self.small else (8192, 8, 128)
        report: dict[str, Any] = {}
        for name in RULES:
            rule = stateir.load(name)
            op = compile(rule)
            parallel = SequenceParallel(op)
            o, found = self.gradients(parallel, self.arguments(rule, T, H, D, False))
            inputs = {i.name for i in rule.inputs}
            parts = {"o": o, **{f"d{n}": g for n, g in found.items()}}
            whole = {n: self._joined(x, n == "o" or n[1:] in inputs) for n, x in parts.items()}
            if self.rank == 0:
                o, found = self.gradients(op, self.arguments(rule, T, H, D, True))
                wanted = {"o": o, **{f"d{n}": g for n, g in found.items()}}
                report[name] = {n: float(f"{relative(whole[n], x):.2e}") for n, x in wanted.items()}
            dist.barrier()
        return report

    def _joined(self, x: Tensor, tokens: bool) -> Tensor:
        """The tokens of all ranks, or the sum of their shares."""
        every = [torch.empty_like(x) for _ in range(self.count)]
        dist.all_gather(every, x.contiguous())
        return torch.cat(every, 1) if tokens else torch.stack(every).sum(0)

    def speed(self, T: int) -> dict[str, Any]:
        H, D = (2, 8) if self.small else (8, 128)
        report: dict[str, Any] = {}
        for name in RULES:
            rule = stateir.load(name)
            op = compile(rule)
            x = self.arguments(rule, T, H, D, False)
            parallel = SequenceParallel(op)
            self.gradients(parallel, x)
            received = dict(parallel.traffic.received)
            many = self.seconds(lambda p=parallel, x=x: self.gradients(p, x))
            del x
            dist.barrier()
            if self.rank == 0:
                x = self.arguments(rule, T, H, D, True)
                one = self.seconds(lambda op=op, x=x: self.gradients(op, x))
                del x
                report[name] = {
                    "T": T, "B": 1, "H": H, "K": D, "V": D, "one_ms": round(1e3 * one, 2),
                    f"on_{self.count}_ms": round(1e3 * many, 2), "speed_up": round(one / many, 3),
                    "bytes_received_by_a_rank": received,
                }  # fmt: skip
                print(name, report[name], flush=True)
            if self.cuda:
                torch.cuda.empty_cache()
            dist.barrier()
        return report

    def training(self) -> dict[str, Any]:
        model = LMConfig(layers=12, hidden=768, heads=6, key_dim=128, value_dim=128, mlp=2048)
        config = LMTrainConfig(model, batch=16, length=2048, steps=30, warmup=10, lr=1e-3, save_every=10**9)
        if self.small:
            model = LMConfig(layers=1, hidden=16, heads=2, key_dim=8, value_dim=6, mlp=16)
            config = replace(config, model=model, batch=4, length=32, steps=6, warmup=2)
        report: dict[str, Any] = {}
        for bf16 in (False, True):
            own = replace(config, bf16=bf16)
            runs: dict[str, Any] = {}
            if self.rank == 0:
                runs["one"] = train(own, device=str(self.device))
            dist.barrier()
            for kind in ("ddp", "fsdp"):
                runs[kind] = train(own, device=str(self.device), parallel=kind)  # type: ignore[arg-type]
                dist.barrier()
            if self.rank == 0:
                one = runs["one"].losses
                report["bf16" if bf16 else "float32"] = {
                    kind: {
                        "tokens_per_second": round(run.tokens_per_second),
                        "mfu": run.mfu,
                        "last_loss": run.losses[-1],
                        "largest_relative_difference_of_a_loss": max(
                            abs(a / b - 1) for a, b in zip(run.losses, one, strict=True)
                        ),
                    }
                    for kind, run in runs.items()
                }
        return report

    def guard(self) -> dict[str, Any]:
        """On the first process alone; the other waits."""
        report: dict[str, Any] = {}
        if self.rank == 0 and self.cuda:
            for name in RULES:
                rule = stateir.load(name)
                op = compile(rule)
                first = self.arguments(rule, 2 * 70, 2, 64, False)
                second = {n: x.detach().to("cuda:1").requires_grad_(x.requires_grad) for n, x in first.items()}
                torch.cuda.set_device(0)
                o, grads = self.gradients(op, first)
                o2, grads2 = self.gradients(op, second)
                pairs = zip((o, *grads.values()), (o2, *grads2.values()), strict=True)
                report[name] = {
                    "same_bits": all(torch.equal(a.cpu(), b.cpu()) for a, b in pairs),
                    "current_device_after": torch.cuda.current_device(),
                    "devices": sorted({str(x.device) for x in (o2, *grads2.values())}),
                }  # fmt: skip
        dist.barrier()
        return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--seconds", type=float, default=420)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    start = time.monotonic()
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    bench = Bench(options.device, options.small)
    versions = environment() if bench.cuda else {"card": "cpu", "torch": torch.__version__}
    report: dict[str, Any] = {"environment": versions, "processes": bench.count}
    lengths = (128, 256) if options.small else (2**17, 2**20)
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "guard": bench.guard,
        "exact": bench.exact,
        f"speed_{lengths[0]}": lambda: bench.speed(lengths[0]),
        "training": bench.training,
        f"speed_{lengths[1]}": lambda: bench.speed(lengths[1]),
    }
    for name, part in parts.items():
        late = torch.tensor(float(time.monotonic() - start > options.seconds), device=bench.device)
        dist.broadcast(late, 0)
        if bool(late):
            report[name] = {"left_out": "no time was left"}
            continue
        try:
            report[name] = part()
        except Exception as error:  # the other process may wait in an exchange: this part is the last
            report[name] = {"error": f"{type(error).__name__}: {error}"[:1000]}
        if bench.rank == 0:
            print(f"{name} after {time.monotonic() - start:.0f} s: {json.dumps(report[name])}", flush=True)
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / "two_gpus.json").write_text(json.dumps(report, indent=1) + "\n")
        if "error" in report[name]:
            sys.exit(f"{name}: {report[name]['error']}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
