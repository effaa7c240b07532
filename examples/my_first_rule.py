"""A rule of one's own, from its text to a decoded token: python examples/my_first_rule.py"""

from __future__ import annotations

import torch

import stateir
from stateir.codegen.samples import sample_arguments
from stateir.codegen.verify import verify

TEXT = """\
rule careful_delta "A gated delta rule that may erase along a second direction"
input  q: key unit, k: key unit, v: value
input  g: key in (-inf, 0]                       # log decay
input  b: key in [0, 1], w: value in [0, 1]      # erase gate, write gate
param  c: scalar in [0, 0.5] = 0.1
let    d = q - (k @ q) * k                       # the part of the query that the key does not cover
update S  = exp(g) * S
update S += outer(k, w * v - (b * k + c * d) @ S)
read   o = q @ S / sqrt(dim(key))
"""


def main() -> None:
    """Check the rule, verify its generated code, run it over a sequence, and decode one more token."""
    # A text that is not a rule raises stateir.RuleError, with every finding and where it stands.
    rule = stateir.parse(TEXT, "careful_delta.rule")
    print(f"{rule.name}: {len(rule.inputs)} inputs, {len(rule.params)} param, {len(rule.lines)} lines")

    checks = verify(rule)
    worst = max(checks, key=lambda c: c.error / c.limit if c.limit else float(c.error > 0))
    print(f"verified: {sum(c.passed for c in checks)} of {len(checks)} checks hold")
    print(f"nearest to its limit: {worst.name}, {worst.error:.1e} of {worst.limit:.0e}")

    op = stateir.compile(rule)
    x = sample_arguments(rule, B=1, T=100, H=2, K=16, V=8, dtype=torch.float32)
    prompt = {name: t if name == "c" else t[:, :99] for name, t in x.items()}
    o, state = op(**prompt, return_state=True)
    print(f"99 tokens: output {list(o.shape)}, state {list(state.shape)}")

    token = {name: t if name == "c" else t[:, 99] for name, t in x.items()}
    o, state = op.step(**token, state=state)
    whole, _ = op(**x)
    print(f"token 100 decoded: {list(o.shape)}, {(o - whole[:, 99]).abs().max():.1e} from the whole run's")


if __name__ == "__main__":
    main()
