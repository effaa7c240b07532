"""The normal form and its core: what rows a rule's lines become."""

import pytest

import stateir
from stateir.affine import normal_form
from stateir.core import core
from stateir.ir import Axis
from stateir.library import names

HEAD = (
    "rule x\ninput q: key, k: key, v: value, a: key\n"
    "input beta: scalar in (0, 1), g: key in (-inf, 0], h: scalar in (-inf, 0]\n"
)


def forms(lines: str):
    nf = normal_form(stateir.parse(HEAD + lines))
    assert nf is not None
    return nf, core(nf)


def test_terms_of_one_direction_are_one_row():
    nf, c = forms("update S += outer(k, v) - outer(beta * k, a @ S) + outer(k / 2, v)\nread o = q @ S\n")
    assert len(nf.rows) == 1 and c.rows[0].e is not None


def test_a_let_does_not_hide_a_shared_direction():
    nf, _ = forms("let kk = beta * k\nupdate S += outer(kk, v) - outer(k, a @ S)\nread o = q @ S\n")
    assert len(nf.rows) == 1


def test_two_directions_are_two_rows_that_do_not_see_each_other():
    nf, c = forms("update S += outer(k, v) - outer(a, k @ S)\nread o = q @ S\n")
    assert [r.e is None for r in nf.rows] == [True, False]
    assert c.rows[1].couplings == ()


def test_erase_below_the_decay_is_post_and_beside_it_is_not():
    _, below = forms("update S = exp(g) * S\nupdate S += outer(k, v - k @ S)\nread o = q @ S\n")
    _, beside = forms("update S = exp(g) * S + outer(k, v - k @ S)\nread o = q @ S\n")
    assert below.rows[0].post and below.rows[0].e == beside.rows[0].e
    assert not beside.rows[0].post


def test_rows_in_turn_see_each_other_and_later_decays_scale_the_write():
    nf, c = forms(
        "update S += outer(k, v - k @ S)\nupdate S = exp(g) * S\nupdate S += outer(a, v - a @ S)\nread o = q @ S\n"
    )
    assert [r.line for r in nf.rows] == [0, 2]
    assert not c.rows[0].post and c.rows[1].post
    assert c.rows[1].couplings == ((0, None),)
    assert c.rows[0].p != nf.rows[0].p and c.rows[1].p == nf.rows[1].p


def test_read_above_the_update_sees_no_row():
    nf, c = forms("read o = q @ S\nupdate S = exp(h) * S + outer(k, v)\n")
    assert nf.read_line == 0 and c.reads[0].couplings == () and not c.reads[0].post


def test_read_between_has_an_explicit_coupling():
    _, c = forms("update S += outer(k, v)\nread o = q @ S\nupdate S = exp(g) * S\n")
    ((row, coupling),) = c.reads[0].couplings
    assert row == 0 and coupling is not None and coupling.axis is Axis.SCALAR


def test_scalar_and_key_decays_add_to_a_key_decay():
    _, c = forms("update S = exp(g) * S\nupdate S = exp(h) * S + outer(k, v)\nread o = q @ S\n")
    assert c.g is not None and c.g.axis is Axis.KEY


@pytest.mark.parametrize(("name", "rows", "erasing"), [
    ("additive", 1, 0), ("delta", 1, 1), ("gdn2", 1, 1), ("qed", 1, 1), ("rwkv7", 2, 1), ("delta_product", 2, 2),
])  # fmt: skip
def test_rows_of_the_library(name, rows, erasing):
    nf = normal_form(stateir.load(name))
    assert len(nf.rows) == rows and sum(r.e is not None for r in nf.rows) == erasing


def test_every_library_rule_has_a_core():
    for name in names():
        nf = normal_form(stateir.load(name))
        if nf is not None:
            assert core(nf).rows
