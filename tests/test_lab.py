"""Experiments: skipped when done, resumed when killed, drawn from what they wrote."""

import csv
import importlib.util
import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stateir.cli import app as main_app
from stateir.models.cli import app
from stateir.models.config import config_hash
from stateir.models.curves import Curves, Measured, best_series, curves
from stateir.models.figures import redraw
from stateir.models.lab import (
    RUNS,
    Experiment,
    conduct,
    follow_ups,
    jobs,
    pending,
    read_finished,
    runs_in_all,
    second_stage,
)
from stateir.models.mqar import MqarConfig
from stateir.models.presets import PRESETS, preset
from stateir.models.results import draw_results, matched
from stateir.models.together import shape_of
from stateir.models.train_config import TrainConfig
from stateir.models.zoo import ModelConfig

TASK = MqarConfig(length=16, pairs=2, vocab=16)
BASE = TrainConfig(
    task=TASK, tests=(TASK, replace(TASK, length=32), replace(TASK, length=32, pairs=4)),
    model=ModelConfig(rule="qed", layers=1, hidden=8, key_dim=4, value_dim=3),
    steps=6, batch=4, warmup=2, eval_every=2, eval_rows=16, at_lower=("lam",),
)  # fmt: skip
RATES = (1e-3, 1e-2, 1e-1, 1.0)


def experiment(**fields: object) -> Experiment:
    models = [BASE.model, replace(BASE.model, key_dim=8)]
    configs = tuple(replace(BASE, model=m, lr=lr) for m in models for lr in RATES)
    return replace(
        Experiment("made_up", "Made up", configs, (1, 2), ("frontier", "pairs", "length", "lr", "steps")), **fields
    )


def test_runs_that_ended_are_skipped(tmp_path: Path) -> None:
    """A second stage runs the best learning rate and its neighbours on further seeds; then nothing is left."""
    groups: list[int] = []
    assert conduct(experiment(), tmp_path, at_once=3, ended=lambda found: groups.append(len(found)))
    runs = read_finished(tmp_path)
    assert sum(groups) == len(runs) == len({config_hash(r.config) for r in runs})
    assert max(groups) == 3
    for size in (4, 8):
        own = [r for r in runs if r.config.model.key_dim == size]
        first = {r.config.lr: r.final for r in own if r.config.seed == 0}
        assert sorted(first) == list(RATES)
        at = RATES.index(max(RATES, key=lambda lr: first[lr]))
        near = RATES[max(0, at - 1) : at + 2]
        assert {(r.config.lr, r.config.seed) for r in own if r.config.seed} == {(lr, s) for lr in near for s in (1, 2)}
    assert pending(experiment(), runs) == []
    before = (tmp_path / RUNS).read_bytes()
    assert conduct(experiment(), tmp_path, ended=lambda found: pytest.fail("ran again"))
    assert (tmp_path / RUNS).read_bytes() == before
    assert list((tmp_path / "unfinished").iterdir()) == []


def test_the_second_stage_waits_for_all_rates() -> None:
    assert second_stage(experiment(), []) == []
    assert runs_in_all(experiment()) == 8 + 2 * 3 * 2


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_lab import experiment
from stateir.models.lab import conduct
seen = 0
def report(together):
    global seen
    seen += 1
    if seen == {at}:
        os.kill(os.getpid(), signal.SIGKILL)
conduct(experiment(more_seeds=()), Path({folder!r}), at_once=4, report=report)
"""


def test_killed_and_resumed(tmp_path: Path) -> None:
    """Killed in the second group, behind a checkpoint: the first is kept, and all accuracies are those of an unbroken
    experiment. A line that was cut off is dropped."""
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    script = KILLED.format(tests=str(Path(__file__).parent), folder=str(cut), at=6 + 3)
    ended = subprocess.run([sys.executable, "-c", script], check=False, timeout=120)
    assert ended.returncode == -signal.SIGKILL
    assert len(read_finished(cut)) == 4
    assert len(list((cut / "unfinished").iterdir())) == 1
    with (cut / RUNS).open("a") as file:
        file.write('{"config_hash": "half a li')
    steps: list[int] = []
    assert conduct(experiment(more_seeds=()), cut, at_once=4, report=lambda runs: steps.append(runs.step))
    assert steps == [3, 4, 5, 6]
    assert conduct(experiment(more_seeds=()), whole, at_once=4)
    a, b = (
        [(config_hash(r.config), r.final, [e["loss"] for e in r.records]) for r in read_finished(f)]
        for f in (cut, whole)
    )
    assert a == b


def test_left_in_time(tmp_path: Path) -> None:
    assert not conduct(experiment(), tmp_path, until=time.monotonic() - 1)
    assert read_finished(tmp_path) == []


def test_runs_of_an_edited_rule_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.rule"
    text = "rule mine\ninput q: key, k: key, v: value\nupdate S += outer(k, v)\nread o = q @ S\n"
    file.write_text(text)
    model = replace(BASE.model, rule=str(file))
    mine = Experiment("mine", "", (replace(BASE, model=model, at_lower=()),))
    assert conduct(mine, tmp_path / "runs")
    file.write_text(text.replace("q @ S", "2 * q @ S"))
    with pytest.raises(ValueError, match="was edited since run"):
        conduct(mine, tmp_path / "runs")


def test_figures_are_drawn_from_the_runs_and_redraw_themselves(tmp_path: Path) -> None:
    made_up = experiment(more_seeds=(1,))
    conduct(made_up, tmp_path)
    runs = read_finished(tmp_path)
    draw_results(made_up, runs, tmp_path)
    with (tmp_path / "accuracy_by_length.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    run = runs[0]
    own = {r["x"]: float(r["accuracy"]) for r in rows if r["config_hash"] == config_hash(run.config)
           and "lower end" not in r["series"]}  # fmt: skip
    assert own == {"16.0": run.tests[0], "32.0": (run.tests[1] + run.tests[2]) / 2}
    arms = {r["series"] for r in rows}
    assert {f"qed, {run.state_bytes:,} B", f"qed, {run.state_bytes:,} B, lam at the lower end"} <= arms
    assert "usable context" in (tmp_path / "accuracy_by_length.md").read_text()
    for name in ("frontier", "accuracy_by_length", "accuracy_by_steps"):
        told = tmp_path / f"{name}.json"
        others = [told.with_suffix(s) for s in (".svg", ".csv", ".md")]
        before = [f.read_bytes() for f in others]
        assert json.loads(told.read_text())["command"] == f"python -m stateir.models.figures {name}.json"
        redraw(told)
        assert [f.read_bytes() for f in others] == before, name


def test_matched_sizes_take_the_largest_within_the_budget(tmp_path: Path) -> None:
    conduct(experiment(more_seeds=()), tmp_path)
    runs = read_finished(tmp_path)
    small, large = sorted({r.state_bytes for r in runs})
    assert {r.state_bytes for r in matched(runs, large - 1)} == {small}
    assert {r.state_bytes for r in matched(runs, large)} == {large}
    assert matched(runs, small - 1) == []


# Made up: a is best at an edge of the rates that it tried, b in the middle; c falls between 64 and 128.
ROWS = [
    *(Measured("a", lr, seed, 64, acc) for lr, acc in [(1e-3, 0.2), (1e-2, 0.4)] for seed in (0, 1)),
    *(Measured("b", lr, 0, x, acc) for lr, acc in [(1e-3, 0.2), (1e-2, 0.9), (1e-1, 0.3)] for x in (64, 128)),
    *(Measured("c", 1e-2, seed, x, acc) for seed in (0, 1) for x, acc in [(64, 1.0), (128, 0.8), (256, 0.1)]),
]


def test_series_at_their_best_rate() -> None:
    a, b, c = best_series(ROWS)
    assert (a.lr, a.at_edge, b.lr, b.at_edge, c.at_edge) == (1e-2, True, 1e-2, False, False)
    assert c.by_x[128] == {0: 0.8, 1: 0.8}
    # One seed at a rate that is better by luck does not count against two.
    assert best_series([*ROWS, Measured("a", 1.0, 0, 64, 0.99)])[0].lr == 1e-2
    with pytest.raises(ValueError, match="is there twice"):
        best_series([*ROWS, ROWS[0]])


def test_curves_warn_of_the_edge_and_name_the_usable_context(tmp_path: Path) -> None:
    config = Curves("length", thresholds=(90, 50), against="b")
    curves(config, ROWS, tmp_path / "c")
    text = (tmp_path / "c.md").read_text()
    assert "may lie outside: a (0.01)." in text
    # c falls from 1 to .8 over one octave: .9 in its middle, 64 sqrt(2).
    assert "| c | 91, 91 |" in text
    assert "best lr at the edge" in (tmp_path / "c.svg").read_text()
    with pytest.raises(ValueError, match="thresholds must be empty along pairs"):
        Curves("pairs", thresholds=(50,))
    rates = Curves("lr")
    curves(rates, [Measured("a", lr, 0, lr, lr) for lr in (0.1, 0.2, 0.3)], tmp_path / "lr")
    assert "may lie outside: a (0.3)." in (tmp_path / "lr.md").read_text()


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_experiments(name: str) -> None:
    made = preset(name)
    assert made.name == name
    short = preset(name, steps=10, rules=[made.configs[-1].model.rule], rates=[made.configs[-1].lr])
    assert all(c.steps == 10 and c.warmup <= 10 for c in short.configs)
    assert 0 < len(short.configs) <= len(made.configs)


def test_published_state_sizes() -> None:
    """The README's protocol at its three widths: K V numbers a layer, and the window of the gated convolution."""
    from stateir.models.state_size import state_bytes
    from stateir.models.zoo import load_rule

    sizes = {state_bytes(c.model, load_rule(c.model), c.longest) for c in preset("readme", rules=["delta"]).configs}
    # Published: 8,960, 34,304, 134,144, with three tokens of the convolution's window where two are carried.
    assert sizes == {2 * 4 * (d * d + 2 * d) for d in (32, 64, 128)}
    assert {n + 2 * 4 * d for n, d in zip(sorted(sizes), (32, 64, 128), strict=True)} == {8_960, 34_304, 134_144}


def test_unknown_presets_and_parts() -> None:
    with pytest.raises(ValueError, match="preset must be one of tiny, readme"):
        preset("big")
    with pytest.raises(ValueError, match="rules must be among additive, delta in tiny, got qed"):
        preset("tiny", rules=["qed"])
    with pytest.raises(ValueError, match="rates must be among"):
        preset("tiny", rates=[0.5])


def test_commands(tmp_path: Path) -> None:
    run = CliRunner()
    listed = run.invoke(app, ["presets"])
    assert listed.exit_code == 0 and all(name in listed.output for name in PRESETS)
    small = f"frontier --preset tiny --steps 2 --rules delta --lrs 0.01 --out {tmp_path}".split()
    done = run.invoke(app, small)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "frontier.csv").exists() and "frontier.svg" in done.output
    lines = (tmp_path / RUNS).read_text()
    assert run.invoke(app, small).exit_code == 0
    assert (tmp_path / RUNS).read_text() == lines
    left = run.invoke(app, [*small[:-1], str(tmp_path / "other"), "--seconds", "0"])
    assert "0 runs ended; the same command goes on" in left.output
    refused = run.invoke(app, ["frontier", "--preset", "nothing"])
    assert refused.exit_code == 1 and "preset must be one of" in refused.output


def test_jobs_share_a_folder(tmp_path: Path) -> None:
    """Dealt out in groups of a shape, the first ones of every shape first, nothing is lost or done twice."""
    whole = experiment()
    dealt = jobs(whole, 3)
    assert [len(job.configs) for job in dealt] == [3, 3, 1, 1]
    assert all(len({shape_of(c) for c in job.configs}) == 1 for job in dealt)
    assert sorted(config_hash(c) for job in dealt for c in job.configs) == sorted(config_hash(c) for c in whole.configs)
    assert all(conduct(job, tmp_path) for job in dealt)
    assert pending(replace(whole, more_seeds=()), read_finished(tmp_path)) == []
    for job in follow_ups(whole):
        assert {r.config.seed for r in read_finished(tmp_path) if r.config.model == job.configs[0].model} == {0}
        assert conduct(job, tmp_path)
    assert pending(whole, read_finished(tmp_path)) == []
    assert follow_ups(experiment(more_seeds=())) == []


def test_runs_on_a_gpu_are_dealt_to_processes(tmp_path: Path) -> None:
    """The script as it is, on the CPU: no time, then enough, then nothing left, then a group that fails."""
    command = f"benchmarks/lab_gpu.py --device cpu --out {tmp_path} --workers 2 --only tiny --steps 2 --lrs 0.01"
    root, file = Path(__file__).parent.parent, tmp_path / "tiny" / RUNS

    def call(seconds: int) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, *command.split(), "--seconds", str(seconds)]
        return subprocess.run(words, cwd=root, capture_output=True, text=True, timeout=240, check=False)

    none = call(1)
    assert none.returncode == 0 and "0 runs ended, 12 that can be named are left" in none.stdout
    done = call(900)
    assert done.returncode == 0, done.stderr
    runs = read_finished(tmp_path / "tiny")
    assert len(runs) == len({config_hash(r.config) for r in runs}) == 12
    told = json.loads((tmp_path / "speed.jsonl").read_text())
    assert (told["runs"], told["workers"], told["steps"]) == (12, 2, 2)
    again = call(900)
    assert again.returncode == 0 and "12 runs ended, at most 0 groups" in again.stdout
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-1]).replace(runs[0].rule_hash, "another"))
    failed = call(900)
    assert failed.returncode == 1 and "was edited since run" in failed.stdout
    assert "was edited since run" in json.loads((tmp_path / "errors.jsonl").read_text())["error"]


def test_report_is_one_page(tmp_path: Path) -> None:
    """All runs, the shared configuration, and figures within the page, each with ids of its own."""
    made_up = experiment(more_seeds=(), figures=("frontier", "lr"))
    conduct(made_up, tmp_path)
    runs = read_finished(tmp_path)
    draw_results(made_up, runs, tmp_path)
    told = CliRunner().invoke(main_app, ["report", str(tmp_path)])
    assert told.exit_code == 0, told.output
    text = (tmp_path / "report.html").read_text()
    assert all(config_hash(r.config) in text for r in runs)
    assert text.count("<svg ") == 2 and "src=" not in text
    ids = re.findall(r'id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert all(target in ids for target in re.findall(r'href="#([^"]+)"', text) + re.findall(r"url\(#([^)]+)\)", text))
    assert "&quot;steps&quot;: 6" in text and "&quot;lr&quot;" not in text
    assert runs[0].versions["torch"] in text
    empty = tmp_path / "empty"
    empty.mkdir()
    refused = CliRunner().invoke(main_app, ["report", str(empty)])
    assert refused.exit_code == 1 and "folder must hold a runs.jsonl" in refused.output


def test_the_results_page_of_partial_data(tmp_path: Path) -> None:
    """A few runs of one experiment: their numbers, what is left of it by rule, and the presets that were not begun."""
    spec = importlib.util.spec_from_file_location("page", Path(__file__).parent.parent / "docs" / "results.py")
    assert spec and spec.loader
    page = importlib.util.module_from_spec(spec)
    sys.modules["page"] = page
    spec.loader.exec_module(page)
    page.HERE, page.RESULTS = tmp_path / "docs", tmp_path / "lab"
    whole = preset("tiny", steps=2)
    first = [job for job in jobs(whole, 4) if job.configs[0].model == whole.configs[0].model]
    assert conduct(first[0], tmp_path / "lab" / "tiny")
    (tmp_path / "lab" / "errors.jsonl").write_text('{"job": "tiny delta 16", "error": "Trace\\nRuntimeError: why"}\n')
    text = page.text()
    assert "4 runs of 2 steps" in text and "The preset's own 250 steps were not run." in text
    assert "Not run: 20 runs that can be named by now, all of delta." in text
    assert "`frontier`, `blog`" in text.split("## Not run")[1] and "`tiny`" not in text.split("## Not run")[1]
    assert "- tiny delta 16: RuntimeError: why" in text
    draw_results(whole, read_finished(tmp_path / "lab" / "tiny"), tmp_path / "lab" / "tiny")
    assert "| state bytes, at most | additive |" in page.text()


def test_the_results_page_is_that_of_its_files() -> None:
    page = Path(__file__).resolve().parent.parent / "docs" / "results.py"
    checked = subprocess.run([sys.executable, str(page), "--check"], check=False, timeout=120)
    assert checked.returncode == 0, "run python docs/results.py"
