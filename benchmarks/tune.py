"""Which tiles, warps and stages each kernel of a rule is fastest with on this GPU.

    python benchmarks/tune.py gdn2 gla --out tune.json [--shape 8,4096,16,128] [--seconds 240] [--kernels intra,...]

Every candidate is tried for each kernel by itself, the others as they ship; other chunks too with --chunks 32,64. All
are compiled first, in a process for each kernel; one that gives other values than the shipped launch is reported as
wrong and not timed. Then the kernels are timed one after the other. Prints each kernel's fastest launches beside the
shipped one. What is found goes into codegen/triton_config.py by hand.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from queue import Empty
from types import ModuleType
from typing import Any

import torch
from gpu_report import environment
from peer import arguments, differentiable
from torch import Tensor

import stateir
from stateir.affine import normal_form
from stateir.codegen.triton_module import triton_source
from stateir.core import core
from stateir.ir import Rule

CANDIDATES = [(block, warps, stages) for block in (16, 32, 64, 128) for warps in (1, 2, 4, 8) for stages in (1, 2, 3)]
KERNELS = ("intra", "keys", "values", "scan", "reverse_scan", "couplings_grad", "local_grad")
STRAIGHT = ("keys", "values")
FORWARD = ("intra", "keys", "values", "scan")
# A launch may round otherwise than the shipped one; a wrong one is off by orders of magnitude.
WRONG = 2e-2

Launch = tuple[int, int, int]


def module_of(rule: Rule, chunk: int) -> ModuleType:
    """The rule's kernels, with chunks of another size if `chunk`."""
    form = normal_form(rule)
    assert form is not None, f"{rule.name} has no kernels"
    source = triton_source(rule, core(form))
    if chunk:
        source = re.sub(r"^CHUNK = \d+", f"CHUNK = {chunk}", source, flags=re.M)
    path = Path(tempfile.mkdtemp()) / f"{rule.name}_{chunk}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def set_launch(module: ModuleType, shipped: dict[str, Launch], kernel: str, launch: Launch) -> None:
    module.LAUNCHES[torch.bfloat16] = shipped | {kernel: launch}
    module._launches.cache_clear()


def run(module: ModuleType, rule: Rule, x: dict[str, Tensor], do: Tensor | None = None) -> list[Tensor]:
    """The output and, for `do`, the gradients."""
    given = [x[d.name] for d in (*rule.inputs, *rule.params)]
    o, _ = module.run(*given)
    leaves = [v for v in given if v.requires_grad]
    return [o.detach(), *(torch.autograd.grad(o, leaves, do) if do is not None else ())]


def off(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest relative error of a tensor; NaN counts as infinite."""
    errors = [
        float((a.float() - b.float()).norm() / (b.float().norm() + 1e-6)) for a, b in zip(found, expected, strict=True)
    ]
    return max(e if e == e else float("inf") for e in errors)


def candidates(shipped: Launch, kernel: str) -> Iterator[Launch]:
    """The shipped launch, then the others; kernels without a loop have no stages."""
    yield shipped
    for x in CANDIDATES:
        if x != shipped and (kernel not in STRAIGHT or x[2] == 1):
            yield x


class Timed:
    """A kernel whose launches are timed on the device."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.events = kernel, []

    def __getitem__(self, grid: Any) -> Any:
        def launch(*arguments: Any, **options: Any) -> None:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            self.kernel[grid](*arguments, **options)
            end.record()
            self.events.append((start, end))

        return launch

    def ms(self) -> float:
        """The middle of the launches since the last call."""
        torch.cuda.synchronize()
        times = sorted(start.elapsed_time(end) for start, end in self.events)
        self.events.clear()
        return round(times[len(times) // 2], 4)


def tune(name: str, chunk: int, kernel: str, shape: tuple[int, ...], times: tuple[float, float], ready: Any, alone: Any,
         results: Any) -> None:  # fmt: skip
    """One kernel of a rule: compiles until the first of `times`, is timed until the second."""
    rule = stateir.load(name)
    module = module_of(rule, chunk)
    shipped = dict(module.LAUNCHES[torch.bfloat16])
    right: list[Launch] = []
    if kernel in shipped:
        small = differentiable(rule, arguments(rule, 1, 256, 2, shape[3]))
        do = torch.randn_like(run(module, rule, small)[0])
        expected = run(module, rule, small, do)
        for launch in candidates(shipped[kernel], kernel):
            if time.time() > times[0]:
                break
            row = {"rule": name, "chunk": module.CHUNK, "kernel": kernel, "launch": launch}
            try:
                set_launch(module, shipped, kernel, launch)
                error = off(run(module, rule, small, do), expected)
            except Exception as failure:  # too much shared memory, a compiler's refusal: no candidate
                results.put(row | {"failed": str(failure).splitlines()[0][:120]})
                continue
            if error > WRONG:
                results.put(row | {"wrong": error})
            else:
                right.append(launch)
    ready.wait(timeout=max(1.0, times[1] - time.time()))
    with alone:
        if not right:
            return
        x = differentiable(rule, arguments(rule, *shape))
        do = torch.randn_like(run(module, rule, x)[0])
        timed = Timed(getattr(module, kernel))
        setattr(module, kernel, timed)
        for launch in right:
            if time.time() > times[1]:
                return
            set_launch(module, shipped, kernel, launch)
            for _ in range(4):
                with torch.set_grad_enabled(kernel not in FORWARD):
                    run(module, rule, x, None if kernel in FORWARD else do)
            row = {"rule": name, "chunk": module.CHUNK, "kernel": kernel, "launch": launch, "ms": timed.ms()}
            results.put(row | {"shipped": launch == shipped[kernel]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rules", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shape", default="8,4096,16,128", help="B,T,H,D with K = V = D")
    parser.add_argument("--chunks", default="0", help="tokens of a chunk to try; 0 is the shipped number")
    parser.add_argument("--kernels", default=",".join(KERNELS))
    parser.add_argument("--seconds", type=float, default=240)
    given = parser.parse_args()
    shape = tuple(int(x) for x in given.shape.split(","))
    jobs = [(r, int(c), k) for r in given.rules for c in given.chunks.split(",") for k in given.kernels.split(",")]
    start = time.time()
    times = start + 0.6 * given.seconds, start + given.seconds
    context = get_context("spawn")
    results, ready, alone = context.Queue(), context.Barrier(len(jobs)), context.Lock()
    workers = [context.Process(target=tune, args=(*job, shape, times, ready, alone, results)) for job in jobs]
    for worker in workers:
        worker.start()
    rows: list[dict[str, Any]] = []
    while any(worker.is_alive() for worker in workers) or not results.empty():
        try:
            rows.append(results.get(timeout=1))
        except Empty:
            if time.time() > times[1] + 30:
                break
            continue
        given.out.write_text(json.dumps({**environment(), "shape": shape, "rows": rows}, indent=1))
    for worker in workers:
        worker.kill()
    report(rows)


def report(rows: list[dict[str, Any]]) -> None:
    """Each kernel's three fastest launches and the shipped one."""
    keys = dict.fromkeys((r["rule"], r["chunk"], r["kernel"]) for r in rows if "ms" in r)
    for key in keys:
        timed = sorted((r for r in rows if "ms" in r and (r["rule"], r["chunk"], r["kernel"]) == key), key=_ms)
        shipped = [f"shipped {r['ms']} {r['launch']}" for r in timed if r["shipped"]]
        best = "  ".join(f"{r['ms']} {r['launch']}" for r in timed[:3])
        print(*key, *shipped, "| best", best)
    for r in rows:
        if "wrong" in r:
            print("wrong", r["rule"], r["chunk"], r["kernel"], r["launch"], r["wrong"])


def _ms(row: dict[str, Any]) -> float:
    return float(row["ms"])


if __name__ == "__main__":
    main()
