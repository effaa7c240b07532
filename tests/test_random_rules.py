"""Random rules: the chunked form, derived, against the step reference, which follows the lines literally."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings

import stateir
from stateir.affine import normal_form
from stateir.codegen.random_rules import RandomDraw, random_rule
from stateir.codegen.strategies import rule_texts
from stateir.codegen.verify import against_step, over_time
from stateir.column import column
from stateir.core import core
from stateir.ir import Update
from stateir.scans import scans, turning

QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True, "print_blob": False}


def holds(text: str, seed: int) -> None:
    """Every result and gradient agrees for chunks of 1, of 5 and of more than the sequence; time runs one way."""
    rule = stateir.parse(text)
    for check in [*against_step(rule, (13,), (1, 5, 16), [seed]), *over_time(rule, "chunked", seed, chunk_size=4)]:
        assert check.passed, f"{check.name}: {check.error:.1e} of {check.limit:.0e}\n{text}"


@settings(max_examples=25, **QUIET)  # type: ignore[arg-type]
@given(rule_texts())
def test_rules_that_shrink(text: str) -> None:
    holds(text, seed=0)


@pytest.mark.slow
@settings(max_examples=500, **QUIET)  # type: ignore[arg-type]
@given(rule_texts())
def test_many_rules_that_shrink(text: str) -> None:
    holds(text, seed=1)


@pytest.mark.parametrize("seed", range(30))
def test_seeded_rules(seed: int) -> None:
    holds(random_rule(RandomDraw(seed)), seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(25))
def test_many_seeded_rules(block: int) -> None:
    """500 rules, in blocks that workers share."""
    for seed in range(1000 + 20 * block, 1020 + 20 * block):
        holds(random_rule(RandomDraw(seed)), seed)


def test_the_rules_cover_what_they_should() -> None:
    """Among 160 rules every kind of line stands, and none is refused."""
    kinds: Counter[str] = Counter()
    for seed in range(160):
        text = random_rule(RandomDraw(seed))
        rule = stateir.parse(text)
        form = normal_form(rule)
        assert form is not None
        c = core(form)
        kinds[f"decay {'none' if c.g is None else c.g.axis.value}"] += 1
        kinds["several erases"] += sum(row.e is not None for row in c.rows) > 1
        kinds["a pure write"] += any(row.e is None for row in c.rows)
        kinds["an undecayed erase"] += any(row.e is not None and not row.post for row in c.rows)
        kinds["a shared direction"] += any(row.p_same != j for j, row in enumerate(c.rows))
        kinds["a read above"] += form.read_line == 0 and bool(form.decays)
        kinds["a read below"] += form.read_line == len(form.decays)
        kinds["a read between"] += 0 < form.read_line < len(form.decays)
        kinds["a coupling through a decay"] += any(x is not None for row in c.rows for _, x in row.couplings)
        kinds["an epilogue"] += c.rest is not None
        for word in ("for i in", "prev(", "rotate(", "let "):
            kinds[word] += word in text
        axes = {s.name: s.axis.value for s in rule.states}
        updates = Counter(line.state for line in rule.lines if isinstance(line, Update) and line.state != "S")
        kinds["several updates of a state"] += any(n > 1 for n in updates.values())
        kinds["states that need each other"] += any(len(scan.states) > 1 for scan in scans(rule))
        kinds["a running angle"] += bool(turning(rule))
        kinds["a range proved by induction"] += any(s.range is not None for s in rule.states)
        kinds["a column of S"] += column(rule, c) is not None
        for kind in {f"{axes[scan.states[0]]} {scan.kind}" for scan in scans(rule)}:
            kinds[kind] += 1
    assert min(kinds.values()) >= 3, kinds
    assert len(kinds) == 33, kinds
