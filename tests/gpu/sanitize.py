"""compute-sanitizer over the kernels of every shape of the matrix, forward and backward.

    python tests/gpu/sanitize.py --out benchmarks/results/sanitizer.json [--shards 14] [--seconds 300]

Runs memcheck and racecheck, each over the shapes in parallel processes: all in bfloat16, every fourth in float32 too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

TOOLS = ("memcheck", "racecheck")


def run_shard(shard: int, shards: int) -> None:
    """The shapes of one shard; prints a line for each that ran."""
    import torch
    from kernel_cases import errors_of, make_tensors, matrix_of_shapes, name_of

    jobs = [(s, torch.bfloat16) for s in matrix_of_shapes()]
    jobs += [(s, torch.float32) for s in matrix_of_shapes()[::4]]
    for shape, dtype in jobs[shard::shards]:
        B, T, H, K, V = 1, 70, 2, 48, 80  # those of the tests, whose kernels are compiled already
        S = torch.zeros(B, H, K, V, dtype=torch.float64)
        errors_of(shape, make_tensors(shape, B, T, H, K, V), S, dtype, "cuda")
        print(f"ran {name_of(shape)} {str(dtype)[6:]}", flush=True)


def sanitized(tool: str, shards: int, deadline: float, folder: Path) -> dict[str, Any]:
    """The shapes that ran under one tool, and the tool's summaries."""
    jobs = []
    for i in range(shards):
        log = (folder / f"{tool}-{i}.log").open("w")
        command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", sys.executable, __file__]
        jobs.append(subprocess.Popen([*command, "--shard", str(i), "--shards", str(shards)], stdout=log, stderr=log))
    for job in jobs:
        try:
            job.wait(max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            job.kill()
    ran, summaries = [], []
    for i in range(shards):
        lines = (folder / f"{tool}-{i}.log").read_text(errors="replace").splitlines()
        ran += [line[4:] for line in lines if line.startswith("ran ")]
        summaries += [line.strip("= ") for line in lines if "SUMMARY" in line]
    codes = sorted({job.returncode for job in jobs})
    return {"ran": sorted(ran), "summaries": sorted(set(summaries)), "finished": len(summaries), "exit_codes": codes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--shards", type=int, default=14)
    parser.add_argument("--shard", type=int)
    parser.add_argument("--seconds", type=float, default=600)
    options = parser.parse_args()
    if options.shard is not None:
        run_shard(options.shard, options.shards)
        return
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    from gpu_report import environment

    options.out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp())
    found: dict[str, Any] = {"environment": environment()}
    for tool in TOOLS:
        deadline = time.monotonic() + options.seconds / len(TOOLS)
        found[tool] = sanitized(tool, options.shards, deadline, folder)
        ran = found[tool]
        print(f"{tool}: {len(ran['ran'])} runs, {ran['finished']} of {options.shards} shards ended, {ran['summaries']}")
        options.out.write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
