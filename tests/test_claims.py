"""Arguments against the declarations: what breaks a claim is named with its value and its place."""

from __future__ import annotations

import math

import pytest
import torch

import stateir
from stateir.codegen.samples import sample_arguments
from stateir.library import names

B, T, H, K, V = 2, 7, 2, 6, 5
SIZES = {"B": B, "T": T, "H": H, "K": K, "V": V}


@pytest.mark.parametrize("name", names())
def test_random_arguments_of_every_rule_keep_their_claims(name: str) -> None:
    rule = stateir.load(name)
    stateir.check_claims(rule, **sample_arguments(rule, **SIZES))


def arguments() -> tuple[stateir.ir.Rule, dict[str, torch.Tensor]]:
    rule = stateir.load("qed")
    return rule, sample_arguments(rule, **SIZES)


def test_a_value_outside_its_range_is_named() -> None:
    rule, x = arguments()
    x["b"][1, 2, 0, 3] = 1.5
    x["b"][1, 3, 0, 3] = -0.1
    with pytest.raises(
        ValueError, match=r"qed: argument 'b': declared in \[0, 1\], but 2 of 168 values are not: 1.5 at "
    ):
        stateir.check_claims(rule, **x)


def test_a_vector_of_another_norm_is_named_and_a_zero_one_is_padding() -> None:
    rule, x = arguments()
    x["k"][0, 1, 1] = 0
    stateir.check_claims(rule, **x)
    x["k"][0, 2, 1] *= 1.01
    with pytest.raises(
        ValueError, match=r"'k': declared unit, but 1 of 28 vectors have another norm: 1.01 at \[0, 2, 1\]"
    ):
        stateir.check_claims(rule, **x)


def test_an_open_end_may_be_reached() -> None:
    rule = stateir.load("delta")
    x = sample_arguments(rule, **SIZES)
    x["beta"][0, 0, 0] = 1
    x["beta"][0, 1, 0] = 0
    stateir.check_claims(rule, beta=x["beta"])


def test_infinite_values_are_in_no_range_but_a_log_decay_resets() -> None:
    rule, x = arguments()
    x["g"][0, 3] = -math.inf
    stateir.check_claims(rule, g=x["g"])
    for name, value in (("g", math.inf), ("g", math.nan), ("v", math.inf), ("v", math.nan), ("w", math.nan)):
        _, y = arguments()
        y[name][0, 3] = value
        with pytest.raises(ValueError, match=f"'{name}': declared in"):
            stateir.check_claims(rule, **{name: y[name]})


def test_a_factor_of_a_log_decay_does_not_reset() -> None:
    """exp(a * t) is 0 * inf, no number, at a = -inf and t = 0: so -inf is not in the range of a."""
    rule = stateir.parse(
        "rule x\ninput q: key, k: key, v: value, a: scalar in (-inf, 0], t: scalar in [0, 1]\n"
        "update S = exp(a * t) * S + outer(k, v)\nread o = q @ S\n"
    )
    with pytest.raises(
        ValueError, match=r"'a': declared in \(-inf, 0\], but 1 of 14 values are not: -inf at \[1, 4, 0\]"
    ):
        stateir.check_claims(
            rule, a=torch.zeros(2, 7, 1).index_put((torch.tensor(1), torch.tensor(4)), torch.tensor(-math.inf))
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_rounding_breaks_no_norm(dtype: torch.dtype) -> None:
    rule = stateir.load("delta")
    k = torch.nn.functional.normalize(torch.randn(3, 50, 2, 200, dtype=torch.float64), dim=-1).to(dtype)
    stateir.check_claims(rule, k=k)


def test_an_unknown_argument_is_refused() -> None:
    with pytest.raises(ValueError, match="unexpected argument 'z'; the arguments are q, k, v, beta"):
        stateir.check_claims(stateir.load("delta"), z=torch.zeros(1))
