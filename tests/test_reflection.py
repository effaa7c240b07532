"""State tracking without training: beta = 2 solves parity exactly, beta <= 1 cannot."""

import pytest
import torch

import stateir
from stateir.models.reflection import reflected_parity, reflected_reads
from stateir.models.tasks.parity import ParityConfig, generate


@pytest.mark.parametrize("backend", ["step", "auto"])
def test_reflections_solve_parity_exactly(backend: str) -> None:
    op = stateir.compile(stateir.load("delta_negative"), backend=backend)
    rows = generate(ParityConfig(length=512), 8, 0)
    assert torch.equal(reflected_parity(op, torch.tensor(rows.inputs)), torch.tensor(rows.labels))
    ones = torch.ones(1, 512, dtype=torch.long)
    # A reflection keeps the norm, so nothing fades: only rounding, a few units in the last place a token.
    assert (reflected_reads(op, ones)[0] - torch.tensor([-1.0, 1.0]).repeat(256)).abs().max() < 512 * 4 * 2.3e-16


def test_without_reflection_a_threshold_is_crossed_once() -> None:
    """On 1 1 1 ... every input is the same, so any weights give one q, k, v and beta at every token."""
    op = stateir.compile(stateir.load("delta_negative"), backend="step")
    B, T, K, V = 400, 24, 5, 3
    g = torch.Generator().manual_seed(0)
    q, k = (
        torch.nn.functional.normalize(torch.randn(B, 1, 1, K, generator=g, dtype=torch.float64), dim=-1) for _ in "qk"
    )
    v = torch.randn(B, 1, 1, V, generator=g, dtype=torch.float64)
    start = torch.randn(B, 1, K, V, generator=g, dtype=torch.float64)
    every = torch.ones(B, T, 1, 1, dtype=torch.float64)

    def reads(beta: torch.Tensor) -> torch.Tensor:
        o, _ = op(q=q * every, k=k * every, v=v * every, beta=beta[:, None, None] * every[..., 0], initial_state=start)
        return o[:, :, 0]

    moves = reads(torch.linspace(0, 1, B, dtype=torch.float64)).diff(dim=1)
    # Monotone up to rounding: steps of a read never change their sign.
    assert (moves[:, :-1] * moves[:, 1:] > -1e-28).all()
    swings = reads(torch.full((B,), 2.0, dtype=torch.float64)).diff(dim=1)
    assert (swings[:, :-1] * swings[:, 1:] < 0).all()


def test_the_rule_must_be_able_to_reflect() -> None:
    bits = torch.ones(1, 4)
    with pytest.raises(ValueError, match="delta must have a scalar input beta that reaches 2, got 1"):
        reflected_parity(stateir.compile(stateir.load("delta"), backend="step"), bits)
    with pytest.raises(ValueError, match="additive must have a scalar input beta that reaches 2, got None"):
        reflected_parity(stateir.compile(stateir.load("additive"), backend="step"), bits)
    with pytest.raises(ValueError, match=r"bits must be \[B, T\], got \[4\]"):
        reflected_parity(stateir.compile(stateir.load("delta_negative"), backend="step"), bits[0])
