"""The playground with a rule of one's own in it: python examples/playground.py (needs the extra `play`)

The same as `stateir play FILE`. With --numbers it prints what the page would draw, and opens none.
"""

from __future__ import annotations

import sys

import stateir
from stateir.models.interference import BindingsConfig
from stateir.models.play.memory import ask, watch

TEXT = """\
rule two_hands "A delta rule with one erase gate and one write gate"
input  q: key unit, k: key unit, v: value
input  a: scalar in (0, 1], b: scalar in [0, 1], w: scalar in [0, 1]
update S  = a * S
update S += outer(k, w * v - b * k @ S)
read   o = q @ S / sqrt(dim(key))
"""


def numbers() -> None:
    """The error of the first key after each write, for the rule and two others."""
    config = BindingsConfig(writes=8, key_dim=16, value_dim=12, geometry="correlated", r=0.5)
    rules = {"additive": stateir.load("additive"), "delta": stateir.load("delta"), "two_hands": stateir.parse(TEXT)}
    for name, rule in rules.items():
        trace = watch(rule, config, seed=0, given={"b": 0.5})
        errors = " ".join(f"{ask(trace, writes, 0).error:.3f}" for writes in range(1, 9))
        print(f"{name:<12} error of key 0 after each write: {errors}")


def main() -> None:
    """Open the page, or print."""
    if "--numbers" in sys.argv[1:]:
        numbers()
        return
    from stateir.models.play.server import serve

    serve(TEXT)


if __name__ == "__main__":
    main()
