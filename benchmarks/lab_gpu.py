"""The experiments of docs/results.md on one GPU within a time limit; given again, it goes on where it was left.

    python benchmarks/lab_gpu.py --out benchmarks/results/lab --seconds 540 --processes 4
    python benchmarks/lab_gpu.py --out benchmarks/results/lab --seconds 540 --only parity,past_window_small

Every run that ended is a line of OUT/PRESET/runs.jsonl, with the card, the versions and the seconds of its group;
OUT/speed.jsonl has a line for each experiment and call: runs ended, seconds, runs per minute. Several processes share
the GPU, each with other shapes: one of them alone waits for its launches most of the time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

# preset -> what is changed of it; the cheap ones come first, so that a short limit still ends some.
PLAN: dict[str, dict[str, Any]] = {
    "parity": {},
    "past_window_small": {},
    "overwriting": {},
    "queries_single": {},
    "queries_many": {},
    "distance": {},
    "past_window": {},
    "past_window_iid": {},
    "frontier": {"steps": 2_800},
}
# By count, 12 runs of width 128 with 64 queries of 8,192 words in each of 256 rows keep about 50 GB of activations.
MOST_PROCESSES = {"frontier": 2}


def conduct_part(experiment: Any, folder: Path, device: str, at_once: int, deadline: float) -> bool:
    """One process's part of an experiment, left at a time of `time.time`; whether all of it ended."""
    import torch

    from stateir.models.lab import conduct

    torch.set_num_threads(2)
    torch.set_float32_matmul_precision("high")
    return conduct(experiment, folder, device=device, at_once=at_once, until=time.monotonic() + deadline - time.time())


def conduct_all(
    name: str, changes: dict[str, Any], out: Path, device: str, at_once: int, processes: int, until: float
) -> bool:
    """An experiment in several processes, its figures, and a line of speed.jsonl; whether all of it ended."""
    from stateir.models.lab import parts, pending, read_finished, versions
    from stateir.models.presets import preset
    from stateir.models.results import draw_results

    experiment, folder, started = preset(name, **changes), out / name, time.monotonic()
    before = len(read_finished(folder))
    if not pending(experiment, read_finished(folder)):
        return True
    shares = parts(experiment, min(processes, MOST_PROCESSES.get(name, processes)))
    with ProcessPoolExecutor(len(shares), get_context("spawn")) as pool:
        deadline = time.time() + until - started
        calls = [pool.submit(conduct_part, share, folder, device, at_once, deadline) for share in shares]
        done = all([call.result() for call in calls])
    runs, seconds = read_finished(folder), time.monotonic() - started
    ended = len(runs) - before
    line = {
        "preset": name, "changes": changes, "runs": ended, "seconds": round(seconds, 1), "processes": len(shares),
        "at_once": at_once, "runs_per_minute": round(60 * ended / seconds, 2), "steps": experiment.configs[0].steps,
        "versions": versions(device),
    }  # fmt: skip
    with (out / "speed.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    if runs:
        draw_results(experiment, runs, folder)
    print(f"{name}: {ended} runs in {seconds:.0f} s, {len(runs)} in all; {'ended' if done else 'left'}", flush=True)
    return done


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/lab"))
    parser.add_argument("--seconds", type=float, required=True, help="time limit of the whole call")
    parser.add_argument("--only", default="", help=f"of {','.join(PLAN)}, in the order that they are to run")
    parser.add_argument("--steps", type=int, default=None, help="steps of every run, in place of the plan's")
    parser.add_argument("--rules", default="", help="of the rules of the presets these alone, with commas between")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--at-once", type=int, default=12, help="runs of one shape that are trained together")
    options = parser.parse_args(arguments)

    from stateir.models.presets import preset

    until = time.monotonic() + options.seconds
    names = [x for x in options.only.split(",") if x] or list(PLAN)
    for name in names:
        changes = dict(PLAN.get(name, {}))
        if options.steps is not None:
            changes["steps"] = options.steps
        if options.rules:
            there = {c.model.rule for c in preset(name).configs}
            changes["rules"] = [rule for rule in options.rules.split(",") if rule in there]
            if not changes["rules"]:
                print(f"{name}: none of these rules", flush=True)
                continue
        if time.monotonic() > until:
            print(f"{name}: no time left", flush=True)
            continue
        conduct_all(name, changes, options.out, options.device, options.at_once, options.processes, until)


if __name__ == "__main__":
    main()
