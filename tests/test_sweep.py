"""Sweeps: the grid, failures, and a driver that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import stateir
from stateir.models.sweep import read_sweep, run_sweep
from stateir.models.train import train

BASE = {
    "task": {"length": 16, "pairs": 2, "vocab": 16, "overwrites": 2},
    "model": {"rule": "delta", "hidden": 8, "key_dim": 4, "value_dim": 3},
    "steps": 30, "batch": 4, "warmup": 2, "eval_every": 5, "eval_rows": 8,
}  # fmt: skip


def written(folder: Path, grid: dict[str, Any], **more: Any) -> Path:
    file = folder / "sweep.json"
    file.write_text(json.dumps({"base": BASE, "grid": grid, **more}))
    return file


def test_the_grid_is_every_combination(tmp_path: Path) -> None:
    sweep = read_sweep(written(tmp_path, {"model.rule": ["delta", "qed"], "seed": [0, 1, 2]}))
    assert [dict(p.settings) for p in sweep.points][1] == {"model.rule": "delta", "seed": 1}
    assert [(p.config.model.rule, p.config.seed) for p in sweep.points][-1] == ("qed", 2)
    assert sweep.points[0].config.model.hidden == 8


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"grid": {"seeds": [1]}}, "TrainConfig has no field seeds"),
        ({"grid": {"seed": []}}, "lists that are not empty"),
        ({"grid": {"seed": [1, 1]}}, "two points"),
        ({"grids": {}}, "unknown grids"),
        ({"retries": -1}, "retries must be"),
    ],
)
def test_what_is_no_sweep_is_refused(tmp_path: Path, data: dict[str, Any], said: str) -> None:
    file = tmp_path / "sweep.json"
    file.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=said):
        read_sweep(file)


def test_failures_are_recorded_and_tried_again(tmp_path: Path) -> None:
    """A rule file that is missing in the first sweep and there in the second; the other point runs once."""
    rule = tmp_path / "later.rule"
    sweep = read_sweep(written(tmp_path, {"model.rule": ["delta", str(rule)]}, retries=1))
    said = []
    rows = run_sweep(sweep, tmp_path / "out", report=lambda p, e: said.append((p.config.model.rule, e is None)))
    assert said == [("delta", True), (str(rule), False), (str(rule), False)]
    assert "final" in rows[0] and "later.rule" in rows[1]["error"]
    failed = sweep.points[1].folder(tmp_path / "out") / "failures.jsonl"
    assert len(failed.read_text().splitlines()) == 2
    rule.write_text(stateir.load("delta").text)
    again = run_sweep(sweep, tmp_path / "out")
    assert again[0] == rows[0] and again[1]["final"] == rows[0]["final"]
    want = train(sweep.points[0].config)
    assert (rows[0]["final"], rows[0]["steps"]) == (want.final, 30)


def test_a_killed_driver_and_a_killed_worker_lose_nothing(tmp_path: Path) -> None:
    """kill -9 in the middle; the same command again gives the table of a sweep that nobody killed."""
    file = written(tmp_path, {"seed": [0, 1, 2]})
    sweep, out = read_sweep(file), tmp_path / "out"
    command = [sys.executable, "-m", "stateir", "mqar", "sweep", str(file), "--out", str(out)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    driver = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
    while not list(out.glob("*/checkpoint.safetensors")):
        assert driver.poll() is None
        time.sleep(0.02)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert not (out / "table.json").exists()
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
    rows = json.loads((out / "table.json").read_text())
    want = [train(p.config) for p in sweep.points]
    assert [(r["seed"], r["final"], r["best"]) for r in rows] == [(n, w.final, w.best) for n, w in enumerate(want)]


def test_a_worker_that_dies_costs_a_try(tmp_path: Path) -> None:
    """The first try of the point ends its process; the second, in a new one, is as if nothing had been."""
    rule = tmp_path / "mine.rule"
    rule.write_text(stateir.load("delta").text)
    sweep = read_sweep(written(tmp_path, {"model.rule": [str(rule)]}))
    folder = sweep.points[0].folder(tmp_path / "out")
    folder.mkdir(parents=True)
    killed = []

    def kill_the_worker() -> None:
        import multiprocessing

        while not killed:
            for child in multiprocessing.active_children():
                if (folder / "log.jsonl").exists():
                    child.kill()
                    killed.append(child.pid)
            time.sleep(0.005)

    import threading

    killer = threading.Thread(target=kill_the_worker)
    killer.start()
    rows = run_sweep(sweep, tmp_path / "out")
    killer.join()
    assert rows[0]["final"] == train(sweep.points[0].config).final
    assert "status -9" in (folder / "failures.jsonl").read_text()


def test_on_ray(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    sweep = read_sweep(written(tmp_path, {"seed": [0, 1]}))
    rows = run_sweep(sweep, tmp_path / "out", ray="local")
    assert [r["final"] for r in rows] == [train(p.config).final for p in sweep.points]
