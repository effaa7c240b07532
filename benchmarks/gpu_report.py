"""What the kernels do on this GPU, as data: every rule verified, three rules trained.

    python benchmarks/gpu_report.py --out benchmarks/results [--only verify|full|train] [--rules gdn2,kda]

Writes verify.json (each output and gradient of every rule in three dtypes, its error and limit), full.json (what
`stateir verify --full` adds: strides, packed, states, groups, decode, checkpoints, compile, graphs, determinism, each
configuration of the kernels) and train.json (the demo's three rules and seeds: accuracy, steps per second), each with
card, versions and date, and written anew as each rule ends. Rules compile in parallel processes; the steps per second
are measured afterwards, one training at a time. `--device cpu` tries the script itself.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import platform
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parent.parent / "examples"


def environment() -> dict[str, str]:
    """Card, versions and date of a run."""
    import torch
    import triton

    return {
        "card": torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def verified(job: tuple[str, str, str]) -> tuple[str, dict[str, Any]]:
    """The checks of one rule on a device: those of its results, or with "full" those of its calls."""
    import stateir
    from stateir.codegen.operator import compile
    from stateir.codegen.verify_calls import verify_calls
    from stateir.codegen.verify_device import verify_on

    source, device, kind = job
    rule = stateir.load(source)
    op = compile(rule)
    backend = next(
        n for n in ("triton", "chunked", "step") if op.backends[n] is None and (n, device) != ("triton", "cpu")
    )
    start = time.perf_counter()
    try:
        checks = (verify_calls if kind == "full" else verify_on)(rule, device)
    except Exception as error:
        return rule.name, {"backend": backend, "error": f"{type(error).__name__}: {error}"[:2000]}
    errors: dict[str, dict[str, list[float | None]]] = {}
    for c in checks:
        error = float(f"{c.error:.2e}") if math.isfinite(c.error) else None
        errors.setdefault(c.note.split(";")[0], {})[c.name] = [error, c.limit]
    failed = [f"{c.name} ({c.note}): {c.error:.1e} > {c.limit:.1e}" for c in checks if not c.passed]
    seconds = round(time.perf_counter() - start, 1)
    return rule.name, {"backend": backend, "seconds": seconds, "failed": failed, "errors_and_limits": errors}


def trained(job: tuple[str, int]) -> dict[str, Any]:
    """One training of the demo's configuration on the GPU."""
    from stateir.models.demo import config_of
    from stateir.models.train import train

    rule, seed = job
    start = time.perf_counter()
    result = train(replace(config_of(rule), seed=seed), device="cuda")
    return {"rule": rule, "seed": seed, "accuracy": result.final, "seconds": time.perf_counter() - start}


def speed(rule: str, steps: int = 200) -> float:
    """Steps per second of the demo's training, compilation left out, evaluation left out."""
    from stateir.models.demo import config_of
    from stateir.models.train import train

    config = replace(config_of(rule, steps), eval_every=steps)
    train(replace(config, steps=10, warmup=1, eval_every=10), device="cuda")
    start = time.perf_counter()
    train(config, device="cuda")
    return steps / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--only", choices=("verify", "full", "train"), help="one of the three")
    parser.add_argument("--rules", help="of the library, for verify and full (default: all)")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    from rich.console import Console
    from rich.progress import track

    from stateir.library import names
    from stateir.models.demo import EXPECTED

    def save(name: str, data: dict[str, Any]) -> None:
        (options.out / name).write_text(
            json.dumps({"environment": environment(), **data}, separators=(",", ":")) + "\n"
        )

    sources = options.rules.split(",") if options.rules else [*names(), str(EXAMPLES / "two_erases.rule")]
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        trainings = [(rule, seed) for rule in EXPECTED for seed in range(3)] if options.only in (None, "train") else []
        runs = list(pool.map(trained, trainings))
        for r in runs:
            print(f"{r['rule']:<10} seed {r['seed']}  accuracy {r['accuracy']:.3f}", flush=True)
        for kind in ("verify", "full"):
            if options.only not in (None, kind):
                continue
            rules: dict[str, Any] = {}
            jobs = [pool.submit(verified, (s, options.device, kind)) for s in sources]
            for job in track(as_completed(jobs), f"{kind:<6}", total=len(jobs), console=Console(stderr=True)):
                name, found = job.result()
                rules[name] = found
                print(f"{name:<20} {found.get('seconds')} s  {found.get('error', '')[:200]}", flush=True)
                for line in found.get("failed", []):
                    print(f"    {line}", flush=True)
                save(f"{kind}.json", {"rules": dict(sorted(rules.items()))})
    if runs:
        steps = {rule: speed(rule) for rule in EXPECTED}
        print("steps per second", steps)
        save("train.json", {"runs": runs, "steps_per_second": steps})


if __name__ == "__main__":
    main()
