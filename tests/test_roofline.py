"""What kernels move and multiply: counts that can be derived by hand."""

import pytest
from typer.testing import CliRunner

import stateir
from stateir.affine import normal_form
from stateir.cli import app
from stateir.codegen.roofline import CARDS, KernelCost, Sizes, describe, kernel_costs
from stateir.core import core

SIZES = Sizes(B=2, T=128, H=3, K=32, V=48)
HEADS = SIZES.B * SIZES.H


def costs(name: str, sizes: Sizes = SIZES) -> dict[str, KernelCost]:
    rule = stateir.load(name)
    form = normal_form(rule)
    assert form is not None
    return {c.name: c for c in kernel_costs(rule, core(form), sizes)}


def test_linear_attention() -> None:
    """Two chunks of 64 tokens; k and q stand for themselves, nothing is decayed, and the scans form the matrix."""
    found = costs("additive")
    assert list(found) == ["scan", "reverse_scan", "couplings_grad", "local_grad"]
    keys, values, matrix, state = 2 * 128 * 32 * 2, 128 * 48 * 2, 2 * 64 * 64 * 2, 2 * 32 * 48 * 2
    assert found["scan"].bytes == HEADS * (keys + 2 * values + state)  # q, k, v; o and the states
    assert found["scan"].flops == HEADS * 2 * (2 * 2 * 64 * 32 * 48 + 2 * 64 * 64 * 48 + 2 * 64 * 64 * 32)
    assert found["local_grad"].bytes == HEADS * (2 * keys + 2 * values + matrix + 2 * state)


def test_a_prologue_reads_inputs_and_writes_rows() -> None:
    """gdn2 makes e = b * k and y = w * v; backward it reads these four and de, dp, dy, and writes four gradients."""
    found = costs("gdn2")
    tokens = 2 * SIZES.B * SIZES.T * SIZES.H
    assert found["prologue"].bytes == tokens * (2 * 32 + 2 * 48 + 32 + 48)
    assert found["prologue_grad"].bytes == tokens * (2 * 32 + 2 * 48 + 2 * 32 + 48 + 2 * 32 + 2 * 48)


def test_tokens_scale_and_time_is_the_larger_bound() -> None:
    one, two = costs("gdn2"), costs("gdn2", Sizes(B=2, T=256, H=3, K=32, V=48))
    card = CARDS["h200"]
    for name, cost in one.items():
        assert two[name].bytes == 2 * cost.bytes and two[name].flops == 2 * cost.flops
        assert cost.seconds(card) == max(cost.bytes / card.bandwidth, cost.flops / card.flops)
    total = sum(c.seconds(card) for c in one.values() if c.pass_ == "forward") * 1e3
    assert describe([*one.values()], SIZES, card)[-2].split() == ["forward", f"{total:.3f}"]


def test_the_command() -> None:
    shown = CliRunner().invoke(app, ["show", "gdn2", "--as", "plan", "--shape", "2x128x3x32x48", "--card", "a100"])
    assert shown.exit_code == 0 and "NVIDIA A100" in shown.output and "local_grad" in shown.output


@pytest.mark.parametrize("wrong", [["--card", "b300"], ["--shape", "8x4096"], ["--shape", "0x1x1x1x1"]])
def test_a_wrong_call(wrong: list[str]) -> None:
    shown = CliRunner().invoke(app, ["show", "gdn2", "--as", "plan", *wrong])
    assert shown.exit_code == 2 and wrong[1] in shown.output
