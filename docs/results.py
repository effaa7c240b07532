"""Write docs/results.md from the files in benchmarks/results/lab: every number there is read, none is typed.

python docs/results.py            # needs the extra `zoo`
python docs/results.py --check    # fails if the page is stale
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from stateir.models.config import config_hash
from stateir.models.lab import Experiment, Finished, pending, read_finished
from stateir.models.presets import PRESETS, as_run
from stateir.models.together import shape_of

HERE = Path(__file__).parent
RESULTS = HERE.parent / "benchmarks" / "results" / "lab"

INTRODUCTION = """\
# Results of the recall laboratory

Written by `python docs/results.py` from the files under `benchmarks/results/lab`; no number is typed by hand. Each
experiment is a preset (`stateir mqar presets`, models/presets.py), each run a line of its `runs.jsonl` with the full
configuration, its hash, the seed, the evaluations, the card and the versions. Medians stand with their range over seeds
in brackets. An accuracy is the mean over the slices that are named, of held-out rows."""


@dataclass(frozen=True)
class Part:
    """A section: which presets answer which question, and what the answer does not say."""

    title: str
    question: str
    presets: tuple[str, ...]


PARTS = (
    Part(
        "1. Frontier",
        "How much recall does a byte of state buy? Published points (mean over the same seven slices): DeltaNet .793,"
        " .963, .995 at 8,960, 34,304 and 134,144 bytes; Gated DeltaNet .890, .988, .994 at 17,152, 67,072 and "
        "265,216. Ours count two tokens of each gated convolution's window where the published sizes count three.",
        ("frontier", "readme"),
    ),
    Part(
        "2. Overwriting", "Which rules erase? Every key is written twice and the last value counts.", ("overwriting",)
    ),
    Part(
        "3. Past the training window",
        "Does QED keep a needle longer than GDN-2? The paper says twice as long. Usable context is the length at "
        "which a seed's accuracy first falls under 50, 80 or 90 %; its ratio to GDN-2 is taken seed by seed, where "
        "both were measured. `lam at the lower end` is QED with λ = 0 at inference.",
        ("past_window", "past_window_iid", "past_window_small"),
    ),
    Part(
        "4. Why multi-query",
        "With one query at the end a gated convolution may do; with a query for every key the gap to attention opens."
        " And: what does the distance of the queries do?",
        ("queries_single", "queries_many", "distance"),
    ),
    Part(
        "5. State tracking",
        "Parity with β in [0, 2] (`delta_negative`) against β in (0, 1) (`delta`). Fixed weights solve it exactly "
        "with β = 2, at any length: docs/recall.md, a test. Then groups that are not solvable, in one layer: a "
        "rotation is two reflections, so the two steps a token of `delta_product` can keep A₅; S₅ needs four.",
        ("parity", "words_a5", "words_s5"),
    ),
    Part("On a CPU", "The preset of `stateir mqar frontier --preset tiny`.", ("tiny",)),
)


def text() -> str:
    """The page."""
    parts = [INTRODUCTION]
    for part in PARTS:
        parts += [f"## {part.title}", part.question, *(section(name) for name in part.presets)]
    parts += [*_speed(), *_failed()]
    missing = [name for name in PRESETS if not read_finished(RESULTS / name)]
    parts += ["## Not run", "Presets without a run: " + ", ".join(f"`{name}`" for name in missing) + "."]
    return "\n\n".join(parts) + "\n"


def section(name: str) -> str:
    """What is there of one preset, and what is not."""
    folder, runs = RESULTS / name, read_finished(RESULTS / name)
    if not runs:
        return f"### `{name}`\n\nNot run. `stateir mqar frontier --preset {name} --device cuda`"
    experiment = as_run(name, [r.config for r in runs])
    own = {shape_of(c) for c in experiment.configs}
    runs = [r for r in runs if shape_of(r.config) in own]
    parts = [f"### `{name}`: {experiment.title}", _told(experiment, runs)]
    for file in sorted(folder.glob("*.json")):
        told = json.loads(file.read_text(encoding="utf-8"))
        image = Path("..") / folder.relative_to(HERE.parent) / f"{file.stem}.svg"
        parts.append(f"![{file.stem}]({image.as_posix()})")
        parts.append(f"`{told['command']}` in `{folder.relative_to(HERE.parent).as_posix()}`, hash {told['hash']}.")
        table = file.with_suffix(".md")
        if table.exists():
            parts.append(table.read_text(encoding="utf-8").strip())
    return "\n\n".join(parts)


def _lines(name: str) -> list[dict[str, Any]]:
    file = RESULTS / name
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def _speed() -> list[str]:
    """What each call of benchmarks/lab_gpu.py came to; experiments of a call share the card."""
    rows = [
        f"| `{x['preset']}` | {x['steps']:,} | {x['runs']} | {x['seconds']:.0f} | {x['runs_per_minute']:.1f} | "
        f"{x['workers']} | {x['at_once']} | {'replayed' if x['graph'] else 'launched'} | {x['versions']['device']} |"
        for x in _lines("speed.jsonl")
    ]
    head = "| experiment | steps | runs | seconds | runs per minute | processes | at once | steps are | card |\n" + (
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | --- |"
    )
    told = (
        "From `speed.jsonl`, a line for each experiment and call of `benchmarks/lab_gpu.py`; experiments of one call "
    )
    told += "share the card, and compiling kernels and measuring count."
    return ["## Speed", told, "\n".join([head, *rows])] if rows else []


def _failed() -> list[str]:
    rows = [f"- {x['job']}: {x['error'].strip().splitlines()[-1]}" for x in _lines("errors.jsonl")]
    return ["## Failed", "\n".join(rows)] if rows else []


def _told(experiment: Experiment, runs: list[Finished]) -> str:
    first = runs[0].config
    left = pending(experiment, runs)
    done = {config_hash(r.config) for r in runs}
    rules = sorted({c.model.rule for c in experiment.configs} - {r.config.model.rule for r in runs})
    cards = sorted({f"{r.versions['device']}, torch {r.versions['torch']}" for r in runs})
    speed = median(60 * r.together / r.seconds for r in runs)
    lines = [
        f"{len(done)} runs of {first.steps:,} steps, batch {first.batch}; {'; '.join(cards)}; "
        f"{speed:.2f} runs per minute, the median over groups."
    ]
    if first.steps != PRESETS[experiment.name]().configs[0].steps:
        lines.append(f"The preset's own {PRESETS[experiment.name]().configs[0].steps:,} steps were not run.")
    if left:
        whole = f", all of {', '.join(rules)}" if rules else ""
        lines.append(f"Not run: {len(left)} runs that can be named by now{whole}.")
    return " ".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing; 1 if the page is stale")
    file, new = HERE / "results.md", text()
    if parser.parse_args().check:
        return int(not file.exists() or file.read_text(encoding="utf-8") != new)
    file.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
