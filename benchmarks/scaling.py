"""A model on paper of sequence parallelism: 8 to 1,024 GPUs, 1M to 16M tokens. Nothing here is measured but its input.

    python benchmarks/scaling.py [--results benchmarks/results] [--rules gdn2,qed,gla]

Reads the measured milliseconds of one GPU from peer.json and writes scaling.json. Of one layer with B = 1 and the heads
and head sizes of the measurement, the time of forward and backward on R ranks is the sum of

    kernels    T / R tokens at the measured time of a token, and once more the forward's for the summary, times
               (V + K) / V where rows erase: the summary runs K more columns
    exchange   forward an all-gather of turn and add, backward one of a state's gradient, in float32: ring steps and bytes
    fold       the last rank applies R - 1 turns one after the other, two launches each, and as many in reverse

Assumptions, all arguments: the measured time of a token does not depend on T (at least MIN tokens a rank keep the card
full); 8 GPUs a host on links of LINK GB/s, hosts joined at NET GB/s a GPU; LATENCY us for a step of the ring within a
host and NET_LATENCY between hosts; LAUNCH us a launch, during which nothing else runs. Exchange and kernels do not
overlap.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import stateir
from stateir.codegen.shape import shape_of
from stateir.affine import normal_form
from stateir.core import core

RANKS = (8, 16, 32, 64, 128, 256, 512, 1024)
TOKENS = (2**20, 2**22, 2**24)
HOST = 8


@dataclass(frozen=True)
class Machine:
    """GB/s and us, as in the text above."""

    link: float = 300.0
    net: float = 40.0
    latency: float = 5.0
    net_latency: float = 20.0
    launch: float = 5.0


@dataclass(frozen=True)
class Measured:
    """One GPU's time of a token with all heads, in us, and the sizes."""

    forward: float
    both: float
    heads: int
    K: int
    V: int
    erases: bool


def measured(rows: list[dict[str, Any]], rule: str) -> Measured:
    """The figures of a rule from the longest measured sequence."""
    of_rule = [r for r in rows if r["rule"] == rule]
    if not of_rule:
        raise SystemExit(f"peer.json has no row of {rule}")
    row = max(of_rule, key=lambda r: (r["T"], r["H"]))
    tokens = row["B"] * row["T"]
    form = normal_form(stateir.load(rule))
    assert form is not None
    erases = bool(shape_of(core(form)).erasing)
    return Measured(1e3 * row["fwd_ms"] / tokens, 1e3 * row["fwdbwd_ms"] / tokens, row["H"], row["K"], row["V"], erases)


def gathered(total: float, ranks: int, machine: Machine) -> float:
    """Microseconds of a ring all-gather that leaves `total` bytes on every rank."""
    far = ranks > HOST
    rate = machine.net if far else machine.link
    step = machine.net_latency if far else machine.latency
    return (ranks - 1) * step + total * (ranks - 1) / ranks / (rate * 1e3)


def predicted(m: Measured, ranks: int, tokens: int, machine: Machine) -> dict[str, Any]:
    """The parts of the time in milliseconds, and how much of R times one GPU is left."""
    state, turn = m.heads * m.K * m.V * 4, m.heads * m.K * (m.K if m.erases else 1) * 4
    summary = m.forward * ((m.V + m.K) / m.V if m.erases else 1)
    kernels = tokens / ranks * (m.both + summary)
    exchange = gathered(ranks * (state + turn), ranks, machine) + gathered(ranks * state, ranks, machine)
    fold = 2 * 2 * (ranks - 1) * machine.launch
    total = kernels + exchange + fold
    parts = {"kernels_ms": kernels, "exchange_ms": exchange, "fold_ms": fold, "total_ms": total}
    flops = 2 * 2 * (ranks - 1) * m.heads * m.K * m.V * (m.K if m.erases else 1)
    return {
        "ranks": ranks, "tokens": tokens, **{n: round(x / 1e3, 3) for n, x in parts.items()},
        "speed_up": round(tokens * m.both / total, 2),
        "efficiency": round(tokens * m.both / total / ranks, 3),
        "bytes_received_by_a_rank": (ranks - 1) * (2 * state + turn),
        "fold_flops_of_the_last_rank": flops,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--rules", default="gdn2,qed,gla")
    for name, value in asdict(Machine()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=value)
    options = parser.parse_args()
    machine = Machine(**{name: getattr(options, name) for name in asdict(Machine())})
    data = json.loads((options.results / "peer.json").read_text())
    report: dict[str, Any] = {"what": "a model, not a measurement", "machine": asdict(machine), "card": data["card"]}
    for rule in options.rules.split(","):
        m = measured(data["rows"], rule)
        rows = [predicted(m, ranks, tokens, machine) for tokens in TOKENS for ranks in RANKS]
        report[rule] = {"measured_us_a_token": asdict(m), "rows": rows}
        print(f"{rule}: {m.forward:.3f} us a token forward, {m.both:.3f} with backward, {m.heads} heads of {m.K}x{m.V}")
        print(f"{'tokens':>10}{'GPUs':>6}{'kernels':>10}{'exchange':>10}{'fold':>8}{'total ms':>10}{'speed-up':>10}")
        for r in rows:
            print(
                f"{r['tokens']:>10}{r['ranks']:>6}{r['kernels_ms']:>10.2f}{r['exchange_ms']:>10.2f}{r['fold_ms']:>8.2f}"
                f"{r['total_ms']:>10.2f}{r['speed_up']:>10.1f}"
            )
    (options.results / "scaling.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
