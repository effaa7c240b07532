"""Write what docs/ derives from the rule files: rules.md (the catalogue) and lattice.svg (the reductions).

    python docs/generate.py            # needs the extras `torch` and `zoo`
    python docs/generate.py --check    # fails if rules.md is stale

Every reduction of reductions.json is proved before it is drawn.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import stateir
from stateir import latex
from stateir.affine import normal_form
from stateir.codegen import backends
from stateir.core import core
from stateir.library import names
from stateir.plan import Shape, plan
from stateir.prove import prove
from stateir.within import replacements

HERE = Path(__file__).parent
SHAPE = Shape(K=128, V=128, chunk=64, itemsize=2)


@dataclass(frozen=True)
class Reduction:
    """Rule `a` is rule `b` where the names of `a` are replaced; `state` compares the states only."""

    a: str
    b: str
    replaced: tuple[str, ...]
    constants: dict[str, int]
    state: bool

    @property
    def label(self) -> str:
        constants = [f"{name}={value}" for name, value in self.constants.items()]
        return ", ".join([*constants, *(x for x in self.replaced if x.split("=")[0] != x.split("=")[1])])

    def holds(self) -> bool:
        b = stateir.load(self.b)
        return (
            prove(stateir.load(self.a, **self.constants), b, replacements(self.replaced, b), self.state).equal is True
        )


def reductions() -> list[Reduction]:
    """The reductions of reductions.json."""
    rows = json.loads((HERE / "reductions.json").read_text())
    return [
        Reduction(r["a"], r["b"], tuple(r.get("with", ())), r.get("constants", {}), r.get("state", False)) for r in rows
    ]


def catalogue() -> str:
    """The library as a Markdown page."""
    lines = [
        "# The library of rules",
        "",
        "Generated from the files of `recurrences/` by `python docs/generate.py`; do not edit.",
        "",
        f"State, flops and bytes are for one head at K = V = {SHAPE.K} and {SHAPE.itemsize}-byte inputs: flops of the "
        f"chunked forward a token at chunks of {SHAPE.chunk}, and the least bytes that a token has to move, forward.",
        "",
        "| rule | source | decay | rows (erasing) | state KiB | flops a token | bytes a token | backends |",
        "|---|---|---|---|---|---|---|---|",
    ]
    equations = []
    for name in names():
        rule = stateir.load(name)
        has = ", ".join(b for b in backends.NAMES if backends.lacks(rule, b) is None)
        form = normal_form(rule)
        if form is None:
            cells = ["-", "-", f"{2 * SHAPE.K * SHAPE.V * 4 / 1024:.0f}", "-", "-"]
        else:
            p = plan(form, core(form), SHAPE)
            decay = "none" if p.decay is None else p.decay.value
            rows = f"{p.rows} ({p.erases})"
            state = f"{p.cost.state_bytes / 1024:.1f}"
            cells = [decay, rows, state, f"{p.cost.chunk_flops:,}", f"{p.cost.forward_bytes:,}"]
        lines.append(f"| [{name}](#{name}) | {rule.title} | {' | '.join(cells)} | {has} |")
        equations += [f"### {name}", "", f"$$\n{latex.rule(rule)}\n$$", ""]
    edges = ["## Reductions", "", "![the reductions of the library](lattice.svg)", "", "Proved, in B's names:", ""]
    edges += [f"- {r.a} = {r.b}{' (state)' if r.state else ''}: {r.label or 'as it is'}" for r in reductions()]
    return "\n".join([*lines, "", *edges, "", "## Equations", "", *equations]).rstrip() + "\n"


def lattice(path: Path) -> None:
    """Draw the reductions, general rules above the special ones."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "stateir"
    import matplotlib.pyplot as plt

    edges = reductions()
    nodes = sorted({n for e in edges for n in (e.a, e.b)})
    depth = dict.fromkeys(nodes, 0)
    for _ in nodes:
        for e in edges:
            depth[e.b] = max(depth[e.b], depth[e.a] + 1)
    levels: dict[int, list[str]] = {}
    for n in nodes:
        levels.setdefault(depth[n], []).append(n)
    place: dict[str, tuple[float, float]] = {}
    for level in sorted(levels):
        above = {n: [place[e.a][0] for e in edges if e.b == n and e.a in place] for n in levels[level]}
        row = sorted(levels[level], key=lambda n: (sum(above[n]) / len(above[n]) if above[n] else 0.5, n))
        for i, n in enumerate(row):
            place[n] = ((i + 1) / (len(row) + 1), -level)
    figure, axes = plt.subplots(figsize=(12, 8))
    for e in edges:
        (x0, y0), (x1, y1) = place[e.a], place[e.b]
        axes.annotate("", (x1, y1 + 0.12), (x0, y0 - 0.12), arrowprops={"arrowstyle": "->", "color": "0.6"})
        style = {"fontsize": 6, "color": "0.35", "ha": "center", "va": "center"}
        label = e.label if len(e.label) <= 24 else "(listed below)"
        box = {"fc": "w", "ec": "none", "pad": 0.5}
        axes.text(0.45 * x0 + 0.55 * x1, 0.45 * y0 + 0.55 * y1, label, bbox=box, **style)
    for n, (x, y) in place.items():
        axes.text(
            x, y, n, ha="center", va="center", fontsize=9, bbox={"boxstyle": "round", "fc": "#eef3fb", "ec": "#4466aa"}
        )
    axes.set_xlim(0, 1)
    axes.set_ylim(-max(levels) - 0.5, 0.5)
    axes.axis("off")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    for r in reductions():
        if not r.holds():
            print(f"not proved: {r.a} = {r.b} with {r.label}", file=sys.stderr)
            return 1
    page = catalogue()
    target = HERE / "rules.md"
    if check:
        if not target.exists() or target.read_text() != page:
            print("docs/rules.md is stale: run python docs/generate.py", file=sys.stderr)
            return 1
        return 0
    target.write_text(page)
    lattice(HERE / "lattice.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
