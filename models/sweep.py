"""Sweeps: a grid of training runs, in processes of this machine or as tasks of Ray, that lose nothing when killed.

A sweep file is JSON:

    {"base": {"steps": 300, "model": {"rule": "gdn2"}},
     "grid": {"model.rule": ["gdn2", "qed"], "task.pairs": [8, 16], "seed": [0, 1]},
     "retries": 1}

`base` is a TrainConfig, `grid` names fields of it, each with its values; every combination is a point. Each point has a
folder, named by its configuration's hash, with the run's own log and checkpoint; `result.json` is there once it is
done, `failures.jsonl` says what went wrong each time. Starting a sweep again in its folder goes on from all of that.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from .config import config_hash, from_dict, require, to_dict
from .train import train
from .train_config import TrainConfig


@dataclass(frozen=True)
class Point:
    """One run: what it sets of the grid, and its whole configuration."""

    settings: tuple[tuple[str, Any], ...]
    config: TrainConfig

    def folder(self, out: Path) -> Path:
        return out / config_hash(self.config)


@dataclass(frozen=True)
class Sweep:
    """The points of a grid in its order; one that fails is tried `retries` times more in each start of the sweep."""

    points: tuple[Point, ...]
    retries: int


def read_sweep(path: Path) -> Sweep:
    """The sweep of a file.

    Raises:
        ValueError: for anything that is not a sweep, naming the field.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    require(isinstance(data, dict), f"{path}: expected an object, got {type(data).__name__}")
    unknown = set(data) - {"base", "grid", "retries"}
    require(not unknown, f"{path}: unknown {', '.join(sorted(unknown))}; expected base, grid, retries")
    base, grid, retries = data.get("base", {}), data.get("grid", {}), data.get("retries", 1)
    lists = isinstance(grid, dict) and all(isinstance(x, list) and x for x in grid.values())
    require(isinstance(base, dict) and lists, f"{path}: base is an object, grid an object of lists that are not empty")
    require(isinstance(retries, int) and retries >= 0, f"{path}: retries must be a number from 0, got {retries!r}")
    points = []
    for values in itertools.product(*grid.values()):
        settings = tuple(zip(grid, values, strict=True))
        points.append(Point(settings, from_dict(TrainConfig, _with(base, settings))))
    require(len({config_hash(p.config) for p in points}) == len(points), f"{path}: two points of the grid are the same")
    return Sweep(tuple(points), retries)


def _with(base: Mapping[str, Any], settings: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The base with dotted fields set."""
    data: dict[str, Any] = json.loads(json.dumps(base))
    for name, value in settings:
        *above, last = name.split(".")
        place = data
        for part in above:
            place = place.setdefault(part, {})
        place[last] = value
    return data


def run_point(point: Point, out: Path, device: str) -> str | None:
    """Runs a point to its end, from its checkpoint if there is one; the error's text if it fails, which is recorded.

    A lock keeps it from running twice at once: the worker of a driver that was killed finishes what it is at.
    """
    folder = point.folder(out)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / "result.json").exists():
            return None
        try:
            result = train(point.config, folder, device=device, resume=True)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            record_failure(folder, text, traceback.format_exc())
            return text
        found = {"final": result.final, "best": result.best, "steps": result.steps, "config": to_dict(point.config)}
        partial = folder / "result.json.partial"
        partial.write_text(json.dumps(found) + "\n", encoding="utf-8")
        partial.replace(folder / "result.json")
        return None


def record_failure(folder: Path, text: str, trace: str = "") -> None:
    with (folder / "failures.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"error": text, "traceback": trace}) + "\n")


Report = Callable[[Point, str | None], None]


def run_sweep(
    sweep: Sweep, out: Path, *, devices: Sequence[str] = ("cpu",), ray: str | None = None, report: Report | None = None
) -> list[dict[str, Any]]:
    """Runs what is not done yet and gives the table, which is written to table.json too.

    Args:
        devices: one worker process for each, so ("cuda:0", "cuda:1") uses two GPUs, ("cpu", "cpu") two processes.
        ray: the address of a Ray cluster, "local" for one of this machine; `out` is then a folder that all see. A task
            takes one CPU, and one GPU if the first device is a GPU.
        report: called when a point is done or has failed for the last time.
    """
    out.mkdir(parents=True, exist_ok=True)
    for _ in range(sweep.retries + 1):
        left = [p for p in sweep.points if not (p.folder(out) / "result.json").exists()]
        if left:
            runner = _on_ray(left, out, devices[0], ray) if ray else _in_processes(left, out, devices)
            for point, error in runner:
                if report is not None:
                    report(point, error)
    rows = table(sweep, out)
    (out / "table.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return rows


def table(sweep: Sweep, out: Path) -> list[dict[str, Any]]:
    """A row for each point: its settings and accuracy, or the error of its last try, or neither if it never ran."""
    rows = []
    for point in sweep.points:
        row, folder = dict(point.settings), point.folder(out)
        if (folder / "result.json").exists():
            found = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            row |= {name: found[name] for name in ("final", "best", "steps")}
        elif (folder / "failures.jsonl").exists():
            *_, last = (folder / "failures.jsonl").read_text(encoding="utf-8").splitlines()
            row |= {"error": json.loads(last)["error"]}
        rows.append(row)
    return rows


def _in_processes(points: Sequence[Point], out: Path, devices: Sequence[str]) -> Iterator[tuple[Point, str | None]]:
    """One worker process a device. One that dies costs its point a try, and is replaced."""
    todo: SimpleQueue[Point] = SimpleQueue()
    done: SimpleQueue[tuple[Point, str | None]] = SimpleQueue()
    for point in points:
        todo.put(point)
    threads = [threading.Thread(target=_drive, args=(todo, done, out, device), daemon=True) for device in devices]
    for thread in threads:
        thread.start()
    for _ in points:
        yield done.get()
    for thread in threads:
        thread.join()


def _drive(
    todo: SimpleQueue[Point], done: SimpleQueue[tuple[Point, str | None]], out: Path, device: str
) -> None:  # fmt: skip
    """Gives points to one worker at a time until none is left."""
    context = get_context("spawn")
    worker, here = None, None
    while True:
        try:
            point = todo.get_nowait()
        except Empty:
            break
        if worker is None or here is None or not worker.is_alive():
            here, there = context.Pipe()
            worker = context.Process(target=_work, args=(there, out, device))
            worker.start()
            there.close()
        try:
            here.send(point)
            error = here.recv()
        except (EOFError, OSError):
            worker.join()
            error = f"the worker process ended with status {worker.exitcode}"
            record_failure(point.folder(out), error)
        done.put((point, error))
    if worker is not None and here is not None:
        here.close()
        worker.join()


def _work(points: Connection, out: Path, device: str) -> None:
    """Runs the points that come until the driver is gone."""
    while True:
        try:
            point = points.recv()
            error = run_point(point, out, device)
            points.send(error)
        except (EOFError, OSError):
            return


def _on_ray(
    points: Sequence[Point], out: Path, device: str, address: str
) -> Iterator[tuple[Point, str | None]]:  # fmt: skip
    """Each point as a Ray task. A task that Ray loses costs its point a try."""
    import ray

    ray.init(None if address == "local" else address, ignore_reinit_error=True, log_to_driver=False)
    gpus = 0 if device == "cpu" else 1
    task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(run_point)
    running = {task.remote(point, out.absolute(), device): point for point in points}
    while running:
        (finished, *_), _ = ray.wait(list(running))
        point = running.pop(finished)
        try:
            error = ray.get(finished)
        except Exception as lost:
            error = f"{type(lost).__name__}: {lost}"
            point.folder(out).mkdir(parents=True, exist_ok=True)
            record_failure(point.folder(out), error)
        yield point, error
