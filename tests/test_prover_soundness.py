"""Statements that are false and look provable: the prover and the stability facts must not say that they hold."""

from __future__ import annotations

import pytest

import stateir
from stateir.affine import normal_form
from stateir.prove import prove
from stateir.stability import stability
from stateir.within import replacements

H = "rule a\ninput q: key, k: key, v: value\n"
END = "update S += outer(k, v)\n"

FALSE = {
    "another update of a state": (
        H + "state m: scalar\nupdate m += 1\n" + END + "read o = m * (q @ S)\n",
        H + "state m: scalar\nupdate m += 2\n" + END + "read o = m * (q @ S)\n",
    ),
    "another start": (
        H + "state m: scalar = 1\nupdate m += 1\n" + END + "read o = m * (q @ S)\n",
        H + "state m: scalar = 2\nupdate m += 1\n" + END + "read o = m * (q @ S)\n",
    ),
    "another second matrix": (
        H + "state M: matrix\nupdate M += outer(k, v)\nupdate S += 1 * M\nread o = q @ S\n",
        H + "state M: matrix\nupdate M += 2 * outer(k, v)\nupdate S += 1 * M\nread o = q @ S\n",
    ),
    "the root of a square": (
        H + "input x: scalar in (-inf, 0)\n" + END + "read o = exp(log(x * x) / 2) * (q @ S)\n",
        H + "input x: scalar in (-inf, 0)\n" + END + "read o = x * (q @ S)\n",
    ),
    "the log of a root of a square": (
        H + "input x: scalar in (-inf, 0)\n" + END + "read o = exp(log(sqrt(x * x))) * (q @ S)\n",
        H + "input x: scalar in (-inf, 0)\n" + END + "read o = x * (q @ S)\n",
    ),
    "a floor of one's own": (
        H + "input x: scalar in [-1, 1]\n" + END + "read o = max(x, 1.2e-38) * (q @ S)\n",
        H + "input x: scalar in [-1, 1]\n" + END + "read o = x * (q @ S)\n",
    ),
    "the size of the key axis": (
        H + END + "read o = (k^0 @ k^0) * (q @ S)\n",
        H + END + "read o = 3 * (q @ S)\n",
    ),
    "an identity of two channels": (
        H + END + "read o = (2 * (v @ v^2)) * (q @ S)\n",
        H + "let p = v @ v^0\n" + END + "read o = (3 * p * (v @ v) - p^3) * (q @ S)\n",
    ),
    "unit in one of the rules": (
        H + "input r[2]: key unit\n" + END + "read o = (r[0] @ r[0]) * (q @ S) + r[1] @ S\n",
        H + "input r[2]: key\n" + END + "read o = q @ S + r[1] @ S\n",
    ),
    "another fixed param": (
        H + "param c: scalar fixed = 2\n" + END + "read o = c * (q @ S)\n",
        H + "param c: scalar fixed = 3\n" + END + "read o = c * (q @ S)\n",
    ),
}


@pytest.mark.parametrize("name", FALSE)
def test_a_false_equality_is_not_proved(name: str) -> None:
    a, b = FALSE[name]
    assert prove(stateir.parse(a), stateir.parse(b)).equal is not True


@pytest.mark.parametrize("name", FALSE)
def test_each_rule_is_itself(name: str) -> None:
    for text in FALSE[name]:
        assert prove(stateir.parse(text), stateir.parse(text)).equal is True


def test_a_replacement_reaches_the_past() -> None:
    rule = stateir.parse(H + "input w: value, u: value\n" + END + "read o = q @ S + prev(w) + prev(u)\n")
    assert prove(rule, rule, replacements(["w=u"], rule)).equal is False
    assert prove(rule, rule, replacements(["w=u", "u=w"], rule)).equal is True
    with pytest.raises(ValueError, match=r"prev\(\)"):
        prove(rule, rule, replacements(["w=2*w"], rule))


UNIT = "rule a\ninput q: key, v: value, k: key unit\n"
UNSTABLE = {
    "a name that the algebra uses": "input inverse: scalar in [0, 1], x: scalar in [1e-3, 1]\n"
    "update S += outer((1 / x) * k, v - k @ S)\nread o = (q * inverse) @ S\n",
    "another": "input root: scalar in [0, 1], x: scalar in [1, 9]\n"
    "update S += outer(sqrt(x) * k, v - k @ S)\nread o = (q * root) @ S\n",
    "the root of a square": "input x: scalar in [-4, -1]\nlet c = exp(log(x * x) / 2)\n"
    "update S += outer(k, v - (c * k) @ S)\nread o = q @ S\n",
    "a sum over the key axis": "let p = q^0\nupdate S += outer(p * 0.6, v - p @ S)\nread o = q @ S\n",
    "the size of the value axis": "let n = v^0 @ v^0\nupdate S += outer(n * k, v - k @ S)\nread o = q @ S\n",
    "a unit vector that is zero": "input p: key unit, beta: scalar in [0, 2]\n"
    "update S += outer(beta * (2 - k @ k) * p, v - p @ S)\nread o = q @ S\n",
    "a norm of a quotient": "input c: key in [1, 2]\nlet d = 1 / c\n"
    "update S += outer(2 * (d @ d) * k, v - k @ S)\nread o = q @ S\n",
}


@pytest.mark.parametrize("name", UNSTABLE)
def test_a_false_stability_is_not_proved(name: str) -> None:
    form = normal_form(stateir.parse(UNIT + UNSTABLE[name]))
    assert form is not None
    assert [fact.status != "proved" for fact in stability(form)] == [True, True]


@pytest.mark.parametrize(
    "decay", ["min(h, 1)", "0.9", "2", "min(exp(-h), 0.5)", "max(sigmoid(h), 0.1)", "sqrt(h)", "(1 - h / 4)"]
)
def test_a_decay_of_any_form_is_proved(decay: str) -> None:
    from stateir.core import core
    from stateir.proofs import prove_rule

    text = UNIT + f"input h: scalar in [0, 2]\nupdate S = {decay} * S + outer(k, v)\nread o = q @ S\n"
    form = normal_form(stateir.parse(text))
    assert form is not None and all(p.holds for p in prove_rule(form, core(form)))


def test_a_rotation_by_a_scalar_angle_is_proved() -> None:
    from stateir.core import core
    from stateir.proofs import prove_rule

    text = UNIT + "input th: scalar\nupdate S += outer(rotate(k, th), v)\nread o = rotate(q, th) @ S\n"
    form = normal_form(stateir.parse(text))
    assert form is not None and all(p.holds for p in prove_rule(form, core(form)))


def test_a_name_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="given twice"):
        replacements(["lam=1", "lam=0"], stateir.load("gdn2"))


def test_a_rule_with_two_matrices_can_be_compared() -> None:
    assert prove(stateir.load("qed"), stateir.load("titans_linear")).equal is not True
