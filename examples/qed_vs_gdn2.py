"""QED beside GDN-2: what the texts prove, what each memory keeps, what each costs: python examples/qed_vs_gdn2.py"""

from __future__ import annotations

import numpy as np

import stateir
from stateir.affine import normal_form
from stateir.core import core
from stateir.models.interference import BindingsConfig, draw_bindings, write_bindings
from stateir.plan import plan
from stateir.prove import prove
from stateir.within import replacements

LAMBDAS = (0.0, 0.03, 0.1, 0.25)


def main(repetitions: int = 50) -> None:
    """Print the proof, the plans, and the retrieval error for a few strengths of the second erase."""
    qed, gdn2 = stateir.load("qed"), stateir.load("gdn2")
    verdict = prove(qed, gdn2, replacements(["lam=0"], gdn2))
    print(f"qed with lam = 0 is gdn2: {'proved' if verdict.equal else 'not proved'}")

    for rule in (qed, gdn2):
        form = normal_form(rule)
        assert form is not None
        p = plan(form, core(form))
        print(f"{rule.name:<5} {p.rows} row, {p.cost.chunk_flops:,} flops a token, {p.cost.forward_bytes:,} bytes")

    # Keys with cosine 0.5 interfere. While a key is written, the query is the key written just before it.
    config = BindingsConfig(writes=24, key_dim=16, value_dim=12, geometry="correlated", r=0.5)
    keys, values = draw_bindings(config, repetitions, seed=0)
    before = np.concatenate([keys[:, :1], keys[:, :-1]], axis=1)
    print(f"\nmean |Sᵀk − v|² after {config.writes} writes, {repetitions} repetitions, unit values, gates open")
    for lam in LAMBDAS:
        trace = write_bindings(qed, keys, values, queries=before, inputs={"lam": lam})
        error = trace.error_by_age
        print(f"lam {lam:<5} all keys {error.mean():.3f}   newest {error[:, 0].mean():.3f}   "
              f"the one before {error[:, 1].mean():.3f}")  # fmt: skip
    same = write_bindings(gdn2, keys, values, queries=before)
    print(f"gdn2      all keys {same.error_by_age.mean():.3f}")


if __name__ == "__main__":
    main()
