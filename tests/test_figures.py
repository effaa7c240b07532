"""The frontier's numbers on made-up runs, and figures that redraw themselves."""

import csv
import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from stateir.models import theory
from stateir.models.config import config_hash
from stateir.models.figures import ErrorByAge, Frontier, error_by_age, frontier, read_runs, redraw
from stateir.models.frontier import Point, Run, matched_sizes, points, staircase, table
from stateir.models.interference import BindingsConfig

# Made up: "slow" needs three times the state of "fast", and its middle size is worse than its small one.
RUNS = [
    *(Run("fast", 1024, lr, 0, a) for lr, a in [(1e-3, 0.2), (1e-2, 0.6), (1e-1, 0.9)]),
    *(Run("fast", 1024, 1e-2, seed, a) for seed, a in [(1, 0.4), (2, 0.7)]),
    Run("fast", 4096, 1e-2, 0, 0.95),
    *(Run("slow", size, 1e-2, 0, a) for size, a in [(3072, 0.5), (6144, 0.45), (12288, 0.8)]),
]


def test_a_point_is_the_median_at_the_best_learning_rate() -> None:
    first, second, *rest = points(reversed(RUNS))
    # The single run at 1e-1 is higher than the median of three seeds, but a single run.
    assert first == Point("fast", 1024, 1e-2, 3, 0.6, 0.4, 0.7, at_edge=False)
    assert second == Point("fast", 4096, 1e-2, 1, 0.95, 0.95, 0.95, at_edge=False)
    assert [(p.rule, p.state_bytes) for p in rest] == [("slow", 3072), ("slow", 6144), ("slow", 12288)]


def test_a_best_learning_rate_at_the_edge_is_flagged() -> None:
    accuracies = {1e-3: 0.2, 1e-2: 0.6, 1e-1: 0.9}
    assert points([Run("fast", 8, lr, 0, a) for lr, a in accuracies.items()])[0].at_edge
    assert points([Run("fast", 8, lr, 0, 1 - a) for lr, a in accuracies.items()])[0].at_edge
    accuracies[1.0] = 0.1
    assert not points([Run("fast", 8, lr, 0, a) for lr, a in accuracies.items()])[0].at_edge


def test_staircase_and_matched_sizes() -> None:
    found = points(RUNS)
    assert staircase(found, "slow") == [(3072, 0.5), (12288, 0.8)]
    assert matched_sizes(found) == {
        1024: {"fast": 0.6, "slow": None},
        3072: {"fast": 0.6, "slow": 0.5},
        4096: {"fast": 0.95, "slow": 0.5},
        6144: {"fast": 0.95, "slow": 0.5},
        12288: {"fast": 0.95, "slow": 0.8},
    }
    assert table(found).splitlines()[:4] == [
        "| state bytes, at most | fast | slow |",
        "| ---: | ---: | ---: |",
        "| 1,024 | 0.600 | – |",
        "| 3,072 | 0.600 | 0.500 |",
    ]


def test_bad_runs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"fast with 4096 bytes, lr 0\.01 and seed 0 is there twice"):
        points([*RUNS, RUNS[5]])
    for field, bad in [("state_bytes", 0), ("lr", 0.0), ("accuracy", 1.5)]:
        with pytest.raises(ValueError, match=f"^{field} must be"):
            Run(**{"rule": "fast", "state_bytes": 8, "lr": 0.1, "seed": 0, "accuracy": 0.5} | {field: bad})
    with pytest.raises(ValueError, match="runs must be at least one, got none"):
        frontier(Frontier(), [], Path("never"))
    with pytest.raises(ValueError, match="unit must be one of"):
        Frontier(unit="bits")  # type: ignore[arg-type]


def test_the_frontier_redraws_itself_from_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Frontier(title="Made up", task="a test", unit="elements")
    files = frontier(config, RUNS, tmp_path / "frontier")
    assert [f.suffix for f in files] == [".png", ".svg", ".csv", ".json", ".md"]
    assert read_runs(files[2]) == RUNS
    svg = files[1].read_text()
    assert "state of all layers (elements, float32)" in svg and "accuracy (a test)" in svg
    before = [f.read_bytes() for f in files[1:]]
    told = json.loads(files[3].read_text())
    assert told["hash"] == config_hash(config)
    for f in (files[0], files[1], files[4]):
        f.unlink()
    python, dash_m, module, *arguments = told["command"].split()
    assert (python, dash_m) == ("python", "-m")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [module, *arguments])
    monkeypatch.delitem(sys.modules, module)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    assert [f.read_bytes() for f in files[1:]] == before and files[0].stat().st_size > 1000


def test_error_by_age_shows_simulation_and_closed_form(tmp_path: Path) -> None:
    config = ErrorByAge(bindings=BindingsConfig(writes=12, key_dim=8, value_dim=5), beta=0.7, repetitions=400)
    files = error_by_age(config, tmp_path / "age")
    with files[2].open(newline="") as file:
        rows = list(csv.DictReader(file))
    series = {name: [r for r in rows if r["series"] == name] for name in {r["series"] for r in rows}}
    assert set(series) == {"additive", "delta", "additive, closed form", "delta, closed form"}
    for name, curve in [
        ("additive", [theory.additive_error(12, 8)] * 12),
        ("delta", theory.delta_error_by_age(12, 8, 0.7)),
    ]:
        own = series[name]
        assert [int(r["age"]) for r in own] == list(range(12))
        z = (np.array([float(r["error"]) for r in own]) - curve) / [float(r["standard_error"]) for r in own]
        assert np.abs(z).max() < 5
        assert [float(r["error"]) for r in series[f"{name}, closed form"]] == list(curve)
    before = [f.read_bytes() for f in files[1:]]
    assert redraw(files[3]) == files
    assert [f.read_bytes() for f in files[1:]] == before


@pytest.mark.parametrize("geometry", ["orthonormal", "correlated", "repeated"])
def test_error_by_age_for_other_keys(geometry: str, tmp_path: Path) -> None:
    keys = BindingsConfig(writes=6, key_dim=8, value_dim=5, geometry=geometry)  # type: ignore[arg-type]
    files = error_by_age(ErrorByAge(rules=("gated_delta", "qed"), bindings=keys, repetitions=3), tmp_path / geometry)
    with files[2].open(newline="") as file:
        assert {"gated_delta", "qed"} <= {r["series"] for r in csv.DictReader(file)}


def test_what_is_no_figure_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text('{"figure": "pie", "config": {}}')
    with pytest.raises(ValueError, match=r"other.json: figure must be curves, error_by_age or frontier, got 'pie'"):
        redraw(file)
    file.write_text('{"figure": "frontier", "config": {"wrong": 1}}')
    with pytest.raises(ValueError, match="Frontier has no field wrong"):
        redraw(file)
