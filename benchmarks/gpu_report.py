"""What the kernels do on this GPU, as data: every rule verified, three rules trained.

    python benchmarks/gpu_report.py --out benchmarks/results

Writes verify.json (each output and gradient of every rule in three dtypes, its error and limit) and train.json (the
demo's three rules and seeds: accuracy, steps per second), each with card, versions and date. Rules compile in parallel
processes; the steps per second are measured afterwards, one training at a time.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import time
from concurrent.futures import ProcessPoolExecutor
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
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def verified(source: str) -> tuple[str, dict[str, Any]]:
    """The checks of one rule on the GPU."""
    import stateir
    from stateir.codegen.operator import compile
    from stateir.codegen.verify_device import verify_on

    rule = stateir.load(source)
    op = compile(rule)
    backend = "triton" if op.backends["triton"] is None else "step"
    start = time.perf_counter()
    try:
        checks = verify_on(rule, "cuda")
    except Exception as error:
        return rule.name, {"backend": backend, "error": f"{type(error).__name__}: {error}"[:2000]}
    errors: dict[str, dict[str, list[float]]] = {}
    for c in checks:
        errors.setdefault(c.note.split(";")[0], {})[c.name] = [float(f"{c.error:.2e}"), c.limit]
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
    parser.add_argument("--only", choices=("verify", "train"), help="one of the two")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    from stateir.library import names
    from stateir.models.demo import EXPECTED

    def save(name: str, data: dict[str, Any]) -> None:
        (options.out / name).write_text(
            json.dumps({"environment": environment(), **data}, separators=(",", ":")) + "\n"
        )

    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        trainings = [(rule, seed) for rule in EXPECTED for seed in range(3)] if options.only != "verify" else []
        runs = list(pool.map(trained, trainings))
        for r in runs:
            print(f"{r['rule']:<10} seed {r['seed']}  accuracy {r['accuracy']:.3f}", flush=True)
        rules: dict[str, Any] = {}
        sources = [*names(), str(EXAMPLES / "two_erases.rule")] if options.only != "train" else []
        jobs = [pool.submit(verified, s) for s in sources]
        for job in jobs:
            name, found = job.result()
            rules[name] = found
            print(f"{name:<20} {found.get('seconds')} s  {found.get('error', '')[:200]}", flush=True)
            for line in found.get("failed", []):
                print(f"    {line}", flush=True)
            save("verify.json", {"rules": rules})
    if runs:
        steps = {rule: speed(rule) for rule in EXPECTED}
        print("steps per second", steps)
        save("train.json", {"runs": runs, "steps_per_second": steps})


if __name__ == "__main__":
    main()
