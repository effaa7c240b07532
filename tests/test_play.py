"""The playground's numbers are those of `interference.py`, and its page runs as an ordinary marimo app."""

import numpy as np
import pytest

import stateir
from stateir.library import names
from stateir.models.interference import BindingsConfig, Trace, interference
from stateir.models.play.memory import Knob, ask, knobs, watch

CONFIG = BindingsConfig(writes=6, key_dim=5, value_dim=3, geometry="correlated", r=0.4)


def test_own_queries_are_what_interference_traces() -> None:
    ours = watch(stateir.load("delta"), CONFIG, seed=3, given={"beta": 0.5, "lam": 0.1})
    theirs = interference(stateir.load("delta"), CONFIG, seed=3, inputs={"beta": 0.5})
    for one, other in zip(vars(ours).values(), vars(theirs).values(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_query_while_writing_moves_only_rules_that_read_it() -> None:
    def states(name: str, queries: str) -> Trace:
        return watch(stateir.load(name), CONFIG, 0, queries)  # type: ignore[arg-type]

    for queries in ("previous key", "random"):
        assert np.abs(states("qed", queries).states - states("qed", "own key").states).max() > 1e-3
        np.testing.assert_array_equal(states("delta", queries).states, states("delta", "own key").states)
    with pytest.raises(ValueError, match="queries must be one of"):
        states("delta", "none")


def test_an_answer_is_the_state_applied_to_the_key() -> None:
    trace = watch(stateir.load("additive"), CONFIG, seed=1)
    answer = ask(trace, writes=4, key=2)
    read = sum(trace.values[0, j] * (trace.keys[0, j] @ trace.keys[0, 2]) for j in range(4))
    np.testing.assert_allclose(answer.read, read, atol=1e-14)
    assert answer.error == pytest.approx(((read - trace.values[0, 2]) ** 2).sum(), abs=1e-14)
    assert ask(trace, writes=2, key=2).error is None
    assert ask(trace, writes=0, key=2).nearest is None
    single = watch(stateir.load("additive"), BindingsConfig(2, 4, 3, "orthonormal"), seed=0)
    assert ask(single, writes=2, key=1).nearest == 1


def test_knobs_keep_to_what_every_rule_allows() -> None:
    found = {k.name: k for k in knobs([stateir.load("delta"), stateir.load("qed"), stateir.load("additive")])}
    assert set(found) == {"beta", "g", "b", "w", "lam"}
    assert found["g"] == Knob("g", -4.0, 0.0, 0.0)
    assert (found["lam"].low, found["lam"].high) == (0.0, 0.25)
    assert found["lam"].start == pytest.approx(0.25 / (1 + np.exp(2)), abs=1e-12)
    negative = stateir.parse(stateir.load("delta").text.replace("(0, 1)", "[-1, 0.5]"))
    assert knobs([stateir.load("delta"), negative])[0] == Knob("beta", 0.0, 0.5, 0.5)


@pytest.mark.parametrize("name", names())
def test_the_ends_of_every_knob_are_allowed(name: str) -> None:
    rule = stateir.load(name)
    for knob in knobs([rule]):
        for end in (knob.low, knob.high):
            trace = watch(rule, BindingsConfig(2, 4, 3), seed=0, given={knob.name: end})
            assert np.isfinite(trace.states).all()


def test_the_page_runs() -> None:
    pytest.importorskip("marimo")
    from stateir.models.play.app import app

    _, defined = app.run()
    assert list(defined["traces"]) == ["additive", "delta", "qed"]
    expected = watch(
        stateir.load("delta"), BindingsConfig(12, 16, 12, "correlated", 0.5), 0, "random", {"beta": 1.0}
    )  # fmt: skip
    np.testing.assert_array_equal(defined["traces"]["delta"].states, expected.states)
