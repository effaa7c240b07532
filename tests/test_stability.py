"""Stability facts: what is proved, what is refuted, and that a witness is what it says."""

import numpy as np
import pytest

import stateir
from stateir.affine import normal_form
from stateir.stability import stability


def facts(name):
    return stability(normal_form(stateir.load(name)))


@pytest.mark.parametrize("name", ["additive", "gla", "delta", "gated_delta", "kda", "mamba2", "rwkv6"])
def test_contractions_are_proved_in_norm(name):
    radius, norm = facts(name)
    assert radius.status == "proved" and norm.status == "proved"


def test_gdn2_radius_is_proved_and_its_norm_refuted():
    radius, norm = facts("gdn2")
    assert radius.status == "proved"
    assert norm.status == "refuted" and norm.value > 1.001


def test_qed_radius_is_refuted_with_a_witness():
    """At lam = 1/4, k = (sqrt(2/3), sqrt(1/3)), q = b = (0, 1) and opposite gates the radius is 1 + 1 / (6 sqrt 3)."""
    radius, _ = facts("qed")
    assert radius.status == "refuted"
    assert radius.value == pytest.approx(1 + 1 / (6 * np.sqrt(3)), abs=2e-3)
    w = {n: np.asarray(v) for n, v in radius.witness.items()}
    q, k, b, lam = w["q"], w["k"], w["b"], w["lam"]
    e = b * k + lam * (b * q - (k @ (b * q)) * k)
    transition = (np.eye(2) - np.outer(k, e)) @ np.diag(np.exp(w["g"]))
    assert max(abs(np.linalg.eigvals(transition))) == pytest.approx(radius.value)


def test_qed_with_a_scalar_decay_is_proved():
    text = stateir.load("qed").text.replace("g: key in", "g: scalar in")
    radius, _ = stability(normal_form(stateir.parse(text)))
    assert radius.status == "proved"


def test_a_step_past_two_is_refuted():
    text = stateir.load("delta").text.replace("in (0, 1)", "in [0, 2.5]")
    radius, _ = stability(normal_form(stateir.parse(text)))
    assert radius.status == "refuted" and radius.value == pytest.approx(1.5, abs=0.05)
