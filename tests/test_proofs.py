"""The chunk form's proofs hold for the library, and fail for each way of getting a form wrong."""

from dataclasses import replace

import pytest

import stateir
from stateir.affine import normal_form
from stateir.build import exp, mul
from stateir.core import core
from stateir.library import names
from stateir.proofs import prove_rule


@pytest.mark.parametrize("name", names())
def test_the_library_is_proved_in_time(name):
    nf = normal_form(stateir.load(name))
    if nf is None:
        pytest.skip("more than one matrix state: no normal form")
    for proof in prove_rule(nf, core(nf)):
        assert proof.holds, proof.claim
        assert proof.seconds < 5


HEAD = "rule x\ninput q: key, k: key, v: value, a: key, g: key in (-inf, 0]\n"
TURN = "update S += outer(k, v - a @ S)\nupdate S = exp(g) * S\nupdate S += outer(a, v - k @ S)\nread o = q @ S\n"


def in_turn():
    nf = normal_form(stateir.parse(HEAD + TURN))
    return nf, core(nf)


def holds(nf, c):
    return [p.holds for p in prove_rule(nf, c)]


def test_rows_in_turn_are_proved():
    assert holds(*in_turn()) == [True] * 3


def test_a_dropped_coupling_is_refuted():
    nf, c = in_turn()
    wrong = replace(c, rows=(c.rows[0], replace(c.rows[1], couplings=())))
    assert holds(nf, wrong)[1] is False


def test_a_read_of_the_wrong_level_is_refuted():
    nf, c = in_turn()
    wrong = replace(c, rows=(replace(c.rows[0], post=True), c.rows[1]))
    assert holds(nf, wrong)[1] is False


def test_a_write_not_scaled_by_later_decays_is_refuted():
    nf, c = in_turn()
    wrong = replace(c, rows=(replace(c.rows[0], p=nf.rows[0].p), c.rows[1]))
    assert holds(nf, wrong)[1] is False


def test_a_wrong_line_is_refuted():
    nf, c = in_turn()
    wrong = replace(nf, rows=(replace(nf.rows[0], e=mul(nf.rows[0].e, exp(nf.decays[1]))), nf.rows[1]))
    assert holds(wrong, c)[0] is False


def test_a_wrong_decay_is_refuted():
    nf, c = in_turn()
    wrong = replace(nf, decays=(nf.decays[1], nf.decays[1], None))
    assert holds(wrong, c)[0] is False


def test_a_decay_found_through_its_log_is_proved():
    lines = "let s = exp(g / 2)\nupdate S = s^2 * sigmoid(k) * S + outer(k, v - a @ S)\nread o = q @ S\n"
    nf = normal_form(stateir.parse(HEAD + lines))
    assert holds(nf, core(nf)) == [True] * 3
