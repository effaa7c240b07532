"""Steps of the recall laboratory on a GPU, replayed as CUDA graphs and launched one by one.

    python benchmarks/lab_speed.py --out benchmarks/results/lab_speed.json [--presets frontier,overwriting]

For the first shape of each preset: milliseconds of a step with the runs that are trained together, first with graphs,
then without, on the same rows; what compiling took; runs per minute at the preset's steps without measurements.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from stateir.models.lab import jobs, versions
from stateir.models.presets import preset
from stateir.models.together import Together
from stateir.models.train_config import TrainConfig


def measured(configs: tuple[TrainConfig, ...], steps: int, device: str, graph: bool) -> dict[str, float]:
    """Seconds until all slices ran (or were recorded) and milliseconds of a step after that, losses at the end."""
    runs, started = Together(configs, device, graph=graph), time.perf_counter()
    slices = len(configs[0].slices)
    for _ in range(20):
        runs.advance()
    while graph and device != "cpu" and runs.replay.record and runs.replay.recorded < slices and runs.step < 200:
        runs.advance()
    runs.losses.tolist()
    warm, begun = time.perf_counter() - started, time.perf_counter()
    for _ in range(steps):
        runs.advance()
    losses = runs.losses.tolist()
    ms = 1000 * (time.perf_counter() - begun) / steps
    return {"warm_seconds": round(warm, 2), "ms": round(ms, 3), "loss": sum(losses) / len(losses)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/lab_speed.json"))
    parser.add_argument("--presets", default="frontier,overwriting,past_window_small,past_window,parity,queries_many")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=10)
    parser.add_argument("--rule", default="delta", help="of the presets that have it; else their first")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    found: list[dict[str, Any]] = []
    for name in options.presets.split(","):
        experiment = preset(name)
        own = tuple(c for c in experiment.configs if c.model.rule == options.rule) or experiment.configs
        configs = jobs(replace(experiment, configs=own), options.at_once)[0].configs
        configs = tuple(replace(c, steps=max(c.steps, 2 * (options.steps + 200))) for c in configs)
        line: dict[str, Any] = {
            "preset": name, "rule": configs[0].model.rule, "key_dim": configs[0].model.key_dim, "runs": len(configs),
        }  # fmt: skip
        for how, graph in (("replayed", True), ("launched", False)):
            line[how] = measured(configs, options.steps, options.device, graph)
            line[f"{how}_runs_per_minute"] = round(
                60_000 * len(configs) / (line[how]["ms"] * experiment.configs[0].steps), 1
            )
        if options.device != "cpu":
            line["gigabytes"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.empty_cache()
        found.append(line)
        print(json.dumps(line), flush=True)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"versions": versions(options.device), "steps": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
