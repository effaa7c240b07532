"""The experiments of docs/results.md on one GPU within a time limit; given again, it goes on where it was left.

    python benchmarks/lab_gpu.py --seconds 540 --only overwriting,past_window_small
    python benchmarks/lab_gpu.py --draw            # figures of what ended, later and elsewhere: it needs no GPU

Groups of runs that are trained together are dealt to several processes, those worth most first: one process alone
leaves the GPU idle while it compiles kernels and measures. Every run that ended is at once a line of
OUT/PRESET/runs.jsonl, with the card, the versions and the seconds of its group; a group that fails is a line of
OUT/errors.jsonl and stops no other. No group is begun that is not expected to end in time. OUT/speed.jsonl has a line
for each experiment and call.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stateir.models.lab import Experiment, Finished


@dataclass(frozen=True)
class Planned:
    """workers: the most processes, which memory bounds. seconds: of a group with others beside it, a guess until one
    was measured. changes: of the preset."""

    workers: int
    seconds: float
    changes: dict[str, Any] = field(default_factory=dict)


# By count, 6 runs of the frontier (width 128, 64 queries of 8,192 words) or 10 of past_window keep about 35 GB.
PLAN = {
    "frontier": Planned(3, 60, {"steps": 2_800}),
    "overwriting": Planned(16, 60),
    "past_window_small": Planned(16, 60),
    "parity": Planned(16, 60),
    "queries_many": Planned(8, 60),
    "queries_single": Planned(8, 60),
    "past_window": Planned(3, 150),
    "past_window_iid": Planned(3, 150),
    "distance": Planned(6, 60),
    "words_a5": Planned(16, 90),
    "words_s5": Planned(16, 90),
}
# Seconds of a group beside its training: imports, a CUDA context, the last measurement.
SPARE = 15.0


@dataclass
class Job:
    """A group of an experiment; `then` runs once all jobs of its shape have ended."""

    preset: str
    experiment: Experiment
    shape: str
    follows: bool = False


class Calls:
    """All jobs of a call in their order, and what became of them."""

    def __init__(self, options: argparse.Namespace, until: float) -> None:
        self.options, self.until = options, until
        self.experiments: dict[str, Experiment] = {}
        self.runs: dict[str, list[Finished]] = {}
        self.queue: list[Job] = []
        self.later: list[Job] = []
        self.before: dict[str, int] = {}
        self.started: dict[str, float] = {}
        self.failed = 0

    def add(self, preset: str, experiment: Experiment) -> None:
        from stateir.models.lab import follow_ups, jobs, pending, read_finished
        from stateir.models.together import shape_of

        runs = self.runs[preset] = read_finished(self.options.out / preset)
        self.experiments[preset], self.before[preset] = experiment, len(runs)
        first = [Job(preset, e, shape_of(e.configs[0])) for e in jobs(experiment, self.options.at_once)]
        first = [job for job in first if pending(job.experiment, runs)]
        later = [Job(preset, e, shape_of(e.configs[0]), True) for e in follow_ups(experiment)]
        self.queue += first
        self.later += later
        groups, seconds = len(first) + len(later), self.seconds(preset)
        most = min(self.options.workers, self.planned(preset).workers, max(1, groups))
        whole = seconds * math.ceil(groups / most)
        how = "as measured" if runs else "by guess"
        print(f"{preset}: {len(runs)} runs ended, at most {groups} groups of {seconds:.0f} s, {most} beside each "
              f"other: {whole:.0f} s {how}", flush=True)  # fmt: skip

    def planned(self, preset: str) -> Planned:
        return PLAN.get(preset, Planned(4, 60))

    def seconds(self, preset: str) -> float:
        """What a group is expected to take: the longest that ended, or the guess."""
        return max((r.seconds for r in self.runs[preset]), default=self.planned(preset).seconds)

    def next(self, running: Sequence[Job]) -> Job | None:
        """The first job that may start now; None if none may."""
        from stateir.models.lab import pending

        waiting = {(job.preset, job.shape) for job in (*self.queue, *running) if not job.follows}
        for job in [*self.queue, *self.later]:
            beside = sum(other.preset == job.preset for other in running)
            if job.follows and (job.preset, job.shape) in waiting:
                continue
            late = time.time() + self.seconds(job.preset) + SPARE > self.until
            if late or beside >= self.planned(job.preset).workers:
                continue
            (self.later if job.follows else self.queue).remove(job)
            if pending(job.experiment, self.runs[job.preset]):
                return job
        return None

    def run(self) -> None:
        """Runs what there is time for."""
        options = self.options
        running: dict[Future[tuple[int, str]], Job] = {}
        with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
            while True:
                while len(running) < options.workers and (job := self.next([*running.values()])):
                    self.started.setdefault(job.preset, time.time())
                    call = pool.submit(conduct_job, job.experiment, options.out / job.preset, options.device,
                                       options.at_once, self.until, options.graph)  # fmt: skip
                    running[call] = job
                if not running:
                    return
                for call in wait(running, return_when=FIRST_COMPLETED).done:
                    self.told(running.pop(call), *call.result())

    def told(self, job: Job, ended: int, error: str) -> None:
        """What became of a job, in words."""
        from stateir.models.lab import read_finished

        model = job.experiment.configs[0].model
        what = f"{job.preset} {model.rule} {model.key_dim}"
        if error:
            self.failed += 1
            with (self.options.out / "errors.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"job": what, "error": error}) + "\n")
            print(f"FAILED {what}: {error.strip().splitlines()[-1]}", flush=True)
            return
        runs = self.runs[job.preset] = read_finished(self.options.out / job.preset)
        best = max((r.final for r in runs if r.config.model == model), default=math.nan)
        left = len([j for j in (*self.queue, *self.later) if j.preset == job.preset])
        print(f"{self.until - time.time():5.0f} s left  {what}: {ended} runs, best {best:.3f}; "
              f"{len(runs)} runs in all, {left} groups to start", flush=True)  # fmt: skip

    def close(self) -> None:
        """A line of speed.jsonl for each experiment that ran, and what was not run."""
        from stateir.models.lab import pending, versions

        for preset, experiment in self.experiments.items():
            runs, left = self.runs[preset], pending(experiment, self.runs[preset])
            ended = len(runs) - self.before[preset]
            if ended:
                seconds = time.time() - self.started[preset]
                line = {
                    "preset": preset, "runs": ended, "seconds": round(seconds, 1), "workers": self.options.workers,
                    "at_once": self.options.at_once, "graph": self.options.graph,
                    "steps": experiment.configs[0].steps, "runs_per_minute": round(60 * ended / seconds, 2),
                    "versions": versions(self.options.device),
                }  # fmt: skip
                with (self.options.out / "speed.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
            print(f"{preset}: {len(runs)} runs ended, {len(left)} that can be named are left", flush=True)


def conduct_job(
    experiment: Experiment, folder: Path, device: str, at_once: int, until: float, graph: bool
) -> tuple[int, str]:
    """One group in a process of the pool, left at a time of `time.time`: the runs that ended, and its error."""
    import gc

    import torch

    from stateir.models.lab import conduct

    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    ended: list[int] = []
    try:
        conduct(experiment, folder, device=device, at_once=at_once, until=time.monotonic() + until - time.time(),
                graph=graph, ended=lambda found: ended.append(len(found)))  # fmt: skip
    except Exception:  # whatever it is, it is written down and the other groups go on
        return sum(ended), traceback.format_exc()
    finally:
        gc.collect()
        if device != "cpu":
            torch.cuda.empty_cache()
    return sum(ended), ""


def draw(out: Path) -> None:
    """The figures of every preset with runs in a folder."""
    from stateir.models.lab import read_finished
    from stateir.models.presets import PRESETS, as_run
    from stateir.models.results import draw_results

    for name in PRESETS:
        if runs := read_finished(out / name):
            files = draw_results(as_run(name, [r.config for r in runs]), runs, out / name)
            print(f"{name}: {len(runs)} runs, {len(files)} files", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/lab"))
    parser.add_argument("--seconds", type=float, default=540, help="time limit of the whole call")
    parser.add_argument("--only", default="", help=f"of {','.join(PLAN)}, in the order that they are to run")
    parser.add_argument("--steps", type=int, default=None, help="steps of every run, in place of the plan's")
    parser.add_argument("--rules", default="", help="of the rules of the presets these alone, with commas between")
    parser.add_argument("--lrs", default="", help="of the learning rates of the presets these alone, likewise")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=8, help="processes that share the GPU")
    parser.add_argument("--at-once", type=int, default=10, help="runs of one shape that are trained together")
    parser.add_argument("--no-graph", dest="graph", action="store_false", help="launch steps, record no CUDA graphs")
    parser.add_argument("--draw", action="store_true", help="draw the figures and run nothing")
    options = parser.parse_args(arguments)
    if options.draw:
        draw(options.out)
        return 0

    from stateir.models.presets import preset

    calls = Calls(options, time.time() + options.seconds)
    options.out.mkdir(parents=True, exist_ok=True)
    for name in [x for x in options.only.split(",") if x] or list(PLAN):
        changes = dict(calls.planned(name).changes)
        if options.steps is not None:
            changes["steps"] = options.steps
        there = preset(name).configs
        rules = [x for x in options.rules.split(",") if x in {c.model.rule for c in there}]
        rates = [float(x) for x in options.lrs.split(",") if x and float(x) in {c.lr for c in there}]
        if (options.rules and not rules) or (options.lrs and not rates):
            print(f"{name}: none of these rules or learning rates", flush=True)
            continue
        calls.add(name, preset(name, **changes, rules=rules, rates=rates))
    calls.run()
    calls.close()
    return int(calls.failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
