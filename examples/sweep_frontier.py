"""A small sweep, and its frontier of accuracy against state: python examples/sweep_frontier.py --out results/frontier

Rules x sizes of the state x learning rates x seeds on recall of overwritten bindings, each judged on held-out rows.
The figure comes with the CSV and JSON that draw it again, and with a table of matched sizes.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import stateir
from stateir.models.config import config_hash
from stateir.models.figures import Frontier, frontier
from stateir.models.frontier import Run, points, table
from stateir.models.mqar import MqarConfig
from stateir.models.state_size import state_bytes
from stateir.models.train import train
from stateir.models.train_config import TrainConfig
from stateir.models.zoo import ModelConfig

TASK = MqarConfig(length=32, pairs=4, vocab=64, overwrites=4)


def run(name: str, size: int, lr: float, seed: int, steps: int) -> Run:
    """One training, with K = V = size."""
    model = ModelConfig(rule=name, hidden=32, key_dim=size, value_dim=size)
    config = TrainConfig(task=TASK, model=model, steps=steps, batch=32, lr=lr, warmup=steps // 10, seed=seed)
    rule = stateir.load(name)
    result = train(config, rule=rule)
    return Run(name, state_bytes(model, rule, TASK.length), lr, seed, result.final, config_hash(config))


def main(arguments: list[str] | None = None) -> None:
    """Sweep, print the table, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rules", nargs="+", default=["additive", "delta"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[4, 8, 16])
    parser.add_argument("--lrs", nargs="+", type=float, default=[3e-3, 1e-2, 3e-2])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("results/frontier"), help="the figure, without a suffix")
    o = parser.parse_args(arguments)
    runs = []
    for name, size, lr, seed in itertools.product(o.rules, o.sizes, o.lrs, o.seeds):
        runs.append(run(name, size, lr, seed, o.steps))
        print(f"{name:<10} K = V = {size:<3} lr {lr:<6g} seed {seed}: accuracy {runs[-1].accuracy:.3f}", flush=True)
    print(table(points(runs)))
    o.out.parent.mkdir(parents=True, exist_ok=True)
    task = f"{TASK.pairs} keys, {TASK.overwrites} rewrites, {o.steps} steps"
    files = frontier(Frontier(title="A small sweep", task=task), runs, o.out)
    print("written: " + ", ".join(str(f) for f in files))


if __name__ == "__main__":
    main()
