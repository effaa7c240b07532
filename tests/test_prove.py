"""Reductions between library rules: proved exactly, or refuted by numbers that are checked here again."""

import numpy as np
import pytest

import stateir
from stateir.prove import prove
from stateir.within import replacements

TRUE = [
    ("qed", "gdn2", ["lam=0"], False),
    ("gdn2", "kda", ["b=beta", "w=beta"], False),
    ("kda", "gated_delta", ["g=g"], False),
    ("gated_delta", "delta", ["g=0"], False),
    ("gdn2", "gla", ["b=0", "w=1"], False),
    ("gla", "additive", ["g=0"], False),
    ("gla", "retention", ["g=log(gamma)"], False),
    ("dplr", "rwkv7", ["q=r", "a=kappa", "b=-a*kappa", "g=w"], True),
    ("dplr", "qed", ["a=-exp(g)*(b*k+lam*d)", "b=k", "v=w*v"], False),
]
FALSE = [
    ("kda", "rwkv7", ["q=r", "g=w", "beta=1"]),
    ("delta", "additive", ["beta=0.5"]),
]


def decide(a, b, given, state_only=False, **constants):
    rule_a, rule_b = stateir.load(a, **constants), stateir.load(b)
    return prove(rule_a, rule_b, replacements(given, rule_b), state_only)


@pytest.mark.parametrize(("a", "b", "given", "state_only"), TRUE)
def test_reduction_is_proved(a, b, given, state_only):
    assert decide(a, b, given, state_only).equal is True


def test_delta_product_of_one_step_is_gated_delta():
    assert decide("delta_product", "gated_delta", [], n=1).equal is True


@pytest.mark.parametrize(("a", "b", "given"), FALSE)
def test_false_reduction_is_refuted_by_numbers(a, b, given):
    verdict = decide(a, b, given)
    assert verdict.equal is False
    found = verdict.counter_example
    assert np.max(np.abs(np.asarray(found.a) - np.asarray(found.b))) > 1e-6


def test_the_counter_example_of_delta_and_additive_by_hand():
    found = decide("delta", "additive", ["beta=0.5"]).counter_example
    k, v, S = (np.asarray(found.values[n]) if n != "S" else np.asarray(found.S) for n in ("k", "v", "S"))
    assert found.where == "state"
    assert np.allclose(found.b, S + np.outer(k, v))
    assert np.allclose(found.a, S + np.outer(0.5 * k, v - k @ S))


def test_unit_norm_counts_in_a_proof():
    head = "input q: key, k: key unit, v: value\n"
    a = stateir.parse("rule a\n" + head + "update S += outer((k @ k) * k, v - k @ S)\nread o = q @ S\n")
    b = stateir.parse("rule b\n" + head + "update S += outer(k, v - k @ S)\nread o = q @ S\n")
    assert prove(a, b).equal is True
    loose = stateir.parse(a.text.replace(" unit", ""))
    assert prove(loose, stateir.parse(b.text.replace(" unit", ""))).equal is False


@pytest.mark.parametrize(("given", "message"), [
    (["nosuch=0"], "no input, param or state `nosuch`"),
    (["beta=k"], "its replacement a key"),
])  # fmt: skip
def test_wrong_replacements_are_named(given, message):
    with pytest.raises(ValueError, match=message):
        decide("delta", "additive", given)
