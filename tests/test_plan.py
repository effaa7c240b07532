"""The analytic plan: counts that can be derived by hand."""

import pytest

from stateir import load, parse
from stateir.affine import normal_form
from stateir.core import core
from stateir.ir import Axis
from stateir.plan import Plan, Shape, carried, describe, plan


def of(name: str, shape: Shape | None = None) -> Plan:
    nf = normal_form(load(name))
    assert nf is not None
    return plan(nf, core(nf), shape)


@pytest.mark.parametrize(
    ("name", "decay", "rows", "erases", "products"),
    [
        ("additive", None, 1, 0, 1),
        ("mamba2", Axis.SCALAR, 1, 0, 1),
        ("gdn2", Axis.KEY, 1, 1, 2),
        ("qed", Axis.KEY, 1, 1, 2),
        ("rwkv7", Axis.KEY, 2, 1, 4),
        ("delta_product", Axis.SCALAR, 2, 2, 6),
    ],
)
def test_the_shape_of_a_rule(name: str, decay: Axis | None, rows: int, erases: int, products: int) -> None:
    p = of(name)
    assert (p.decay, p.rows, p.erases, p.products) == (decay, rows, erases, products)


def test_qed_costs_what_gdn2_costs() -> None:
    assert of("qed").cost == of("gdn2").cost


def test_compulsory_bytes_are_inputs_and_output() -> None:
    # q, k, g, b have K numbers, v, w and o have V.
    cost = of("gdn2", Shape(K=128, V=64, itemsize=2)).cost
    assert cost.forward_bytes == 2 * (4 * 128 + 3 * 64)
    assert cost.backward_bytes == 2 * (2 * (4 * 128 + 2 * 64) + 64)
    assert cost.state_bytes == 4 * 128 * 64


def test_flops_of_the_cheapest_rule() -> None:
    K, V, C = 16, 8, 32
    cost = of("additive", Shape(K=K, V=V, chunk=C)).cost
    # q @ S_0 and the update; Q P^T and M U.
    assert cost.chunk_flops == 4 * K * V + 2 * C * K + 2 * C * V
    assert cost.step_flops == 4 * K * V


def test_what_is_carried_besides_s() -> None:
    assert carried(load("mamba3")) == ("S", "a", "the last B", "the last x")


def test_a_decay_above_one_states_its_largest_exponent() -> None:
    text = (
        "rule grows\ninput q: key, k: key, v: value, h: scalar in [0, 0.5]\n"
        "update S = exp(h) * S + outer(k, v)\nread o = q @ S\n"
    )
    nf = normal_form(parse(text))
    assert nf is not None
    p = plan(nf, core(nf), Shape(chunk=64))
    assert p.largest_exponent == pytest.approx(32.0)
    assert "32" in dict(describe(p, {}))["growth"]
    assert of("gdn2").largest_exponent == 0
    assert "growth" not in dict(describe(of("gdn2"), {}))
