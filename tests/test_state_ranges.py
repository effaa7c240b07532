"""Ranges of states are proved by induction: over a sequence, every expression has values in its proved range."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stateir
from stateir import evaluate as numeric
from stateir.codegen.random_rules import RandomDraw, random_rule
from stateir.consts import evaluate as constant
from stateir.ir import Axis, Interval, Prev, Rule, Update, walk
from stateir.printer import expression
from stateir.ranges import Ranges

DIMS = {Axis.KEY: 6, Axis.VALUE: 5, Axis.PAIR: 3}
TOKENS = 12

CLAIMS = """
input q: key unit, k: key unit, v: value, f: scalar in (-inf, 0], i: scalar, b: key in [0, 1], c: scalar in [0, 1]
input w: value in [0, 1], th: pair in [-3, 3], p: scalar in (0, inf), e: scalar in [1, 2]
state s: scalar in [0, 1], n: key in [0, inf), m: scalar in [-2, inf) = -2, u: key unit, y: value in [-1, 1]
state a: pair in (-inf, 4], t: scalar in (0, inf) = 1, l: scalar in (-1, 1)
update s = max(s + f, c)
update s = s / 2 + min(s, c) / 2
update n = exp(f) * n + b * k^2
update m = max(m + f, max(i, -2))
update m = max(m - p, -2)
update u = rotate(-u, th)
update y = y * w / 2 + tanh(v) / 2
update a = min(a + th, 4)
update t = sqrt(t * p) + prev(e, 2) + 1 / (1 + n @ n)
update l = tanh(l + i) * c
update S = s * S + outer(k + n + u, v + y)
read o = q @ S + (m + t + l) * y
"""


def simulate(rule: Rule, rng: np.random.Generator, ends: bool, tokens: int) -> int:
    """Runs the rule from its start and checks every expression of every token; how many it checked."""
    ranges, checked = Ranges(rule), 0
    states: dict[str, Any] = {}
    for s in rule.states[1:]:
        shape = () if s.axis is Axis.SCALAR else (DIMS[s.axis],)
        states[s.name] = np.full(shape, 0.0 if s.start is None else constant(s.start))
    S = np.zeros((DIMS[Axis.KEY], DIMS[Axis.VALUE]))
    params: numeric.Values = {}
    past: list[numeric.Values] = []
    looks = {e for line in rule.lines for e in walk(line.value) if isinstance(e, Prev)}
    for _ in range(tokens):
        given = numeric.draw(rule, rng, DIMS, ends)
        for x in rule.inputs:
            if x.unit and ends and rng.random() < 0.3:
                given[x.name, None] = np.zeros(DIMS[x.axis])  # padding
        params = params or {key: x for key, x in given.items() if key[0] in {p.name for p in rule.params}}
        given |= params | {(name, None): x for name, x in states.items()}
        for e in looks:
            earlier = past[-e.n][e.of.name, e.of.index] if len(past) >= e.n else 0 * given[e.of.name, e.of.index]
            given[numeric.past(e), e.of.index] = earlier
        past.append(given)
        with np.errstate(all="ignore"):
            names = numeric.run_lines(rule, given, S, DIMS)
            for line in rule.lines:
                for e in walk(line.value):
                    checked += contained(numeric.evaluate(e, names, DIMS), ranges.of(e), ranges.norm(e), expression(e))
            for s in rule.states[1:]:
                last = sum(isinstance(x, Update) and x.state == s.name for x in rule.lines)
                states[s.name] = names[s.name, None, last]
                checked += contained(states[s.name], s.range or Interval(-np.inf, np.inf), np.inf, s.name)
            S = numeric.token(rule, given, S, DIMS)[1]["S"]
    return checked


def contained(value: Any, bound: Interval, norm: float, what: str) -> bool:
    """Whether the value was a number to check; an AssertionError where it is outside."""
    if not np.all(np.isfinite(value)):
        return False
    slack = 1e-9 * (1 + np.abs(value))
    assert np.all((value >= bound.lo - slack) & (value <= bound.hi + slack)), f"{what} = {value} is not in {bound}"
    if np.ndim(value) == 1:
        assert np.linalg.norm(value) <= norm * (1 + 1e-9), f"the norm of {what} is above {norm}"
    return True


@pytest.mark.parametrize("ends", [False, True])
def test_claims_of_every_kind_hold_over_a_sequence(ends: bool) -> None:
    assert simulate(stateir.parse(f"rule x{CLAIMS}"), np.random.default_rng(0), ends, 200) > 10_000


@pytest.mark.parametrize("seed", range(20))
def test_random_states_stay_in_their_ranges(seed: int) -> None:
    """Inputs inside their ranges and at the ends, with zero keys."""
    rule, rng = stateir.parse(random_rule(RandomDraw(seed))), np.random.default_rng(seed)
    assert sum(simulate(rule, rng, ends, TOKENS) for ends in (False, True)) > 10 * TOKENS


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_random_states_stay_in_their_ranges(block: int) -> None:
    for seed in range(5000 + 25 * block, 5025 + 25 * block):
        rule, rng = stateir.parse(random_rule(RandomDraw(seed))), np.random.default_rng(seed)
        assert simulate(rule, rng, True, TOKENS) > 5 * TOKENS
