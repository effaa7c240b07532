"""The step reference against loops written by hand from the papers' formulas, in float64."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import stateir
from stateir.codegen.samples import sample_arguments
from stateir.ir import Rule

T, K, V = 29, 6, 5
Token = SimpleNamespace
Loop = Callable[[Tensor, Token], tuple[Tensor, Tensor]]

scale = K**-0.5
eye = torch.eye(K, dtype=torch.float64)


def additive(S: Tensor, x: Token) -> tuple[Tensor, Tensor]:
    S = S + torch.outer(x.k, x.v)
    return scale * S.T @ x.q, S


def delta(S: Tensor, x: Token) -> tuple[Tensor, Tensor]:
    S = (eye - x.beta * torch.outer(x.k, x.k)) @ S + x.beta * torch.outer(x.k, x.v)
    return scale * S.T @ x.q, S


def gated_delta(S: Tensor, x: Token) -> tuple[Tensor, Tensor]:
    S = x.g.exp() * (eye - x.beta * torch.outer(x.k, x.k)) @ S + x.beta * torch.outer(x.k, x.v)
    return scale * S.T @ x.q, S


def gla(S: Tensor, x: Token) -> tuple[Tensor, Tensor]:
    S = torch.diag(x.g.exp()) @ S + torch.outer(x.k, x.v)
    return scale * S.T @ x.q, S


def kda(S: Tensor, x: Token) -> tuple[Tensor, Tensor]:
    S = (eye - x.beta * torch.outer(x.k, x.k)) @ torch.diag(x.g.exp()) @ S + x.beta * torch.outer(x.k, x.v)
    return scale * S.T @ x.q, S


def gdn2(S: Tensor, x: Token) -> tuple[Tensor, Tensor]:
    return erased_along(S, x, x.b * x.k)


def erased_along(S: Tensor, x: Token, e: Tensor) -> tuple[Tensor, Tensor]:
    S = (eye - torch.outer(x.k, e)) @ torch.diag(x.g.exp()) @ S + torch.outer(x.k, x.w * x.v)
    return scale * S.T @ x.q, S


def off(k: Tensor, x: Tensor) -> Tensor:
    """The part of x that is orthogonal to the unit vector k."""
    return (eye - torch.outer(k, k)) @ x


def qed(S: Tensor, x: Token) -> tuple[Tensor, Tensor]:
    return erased_along(S, x, x.b * x.k + x.lam * off(x.k, x.b * x.q))


def qed_nogate(S: Tensor, x: Token) -> tuple[Tensor, Tensor]:
    return erased_along(S, x, x.b * x.k + x.lam * off(x.k, x.q))


def qed_noproj(S: Tensor, x: Token) -> tuple[Tensor, Tensor]:
    return erased_along(S, x, x.b * x.k + x.lam * x.q)


def qed_rand(S: Tensor, x: Token) -> tuple[Tensor, Tensor]:
    return erased_along(S, x, x.b * x.k + x.lam * off(x.k, x.b * x.u))


def delta_product(S: Tensor, x: Token) -> tuple[Tensor, Tensor]:
    S = x.g.exp() * S
    for k, v, beta in zip(x.k, x.v, x.beta, strict=True):
        S = (eye - beta * torch.outer(k, k)) @ S + beta * torch.outer(k, v)
    return scale * S.T @ x.q, S


def rwkv6(S: Tensor, x: Token) -> tuple[Tensor, Tensor]:
    o = (S + torch.outer(x.u * x.k, x.v)).T @ x.r
    return o, torch.diag(x.w.exp()) @ S + torch.outer(x.k, x.v)


def rwkv7(S: Tensor, x: Token) -> tuple[Tensor, Tensor]:
    S = (torch.diag(x.w.exp()) - torch.outer(x.a * x.kappa, x.kappa)) @ S + torch.outer(x.k, x.v)
    return S.T @ x.r + x.r.dot(x.u * x.k) * x.v, S


def mamba2(S: Tensor, x: Token) -> tuple[Tensor, Tensor]:
    S = (x.A * x.dt).exp() * S + torch.outer(x.dt * x.B, x.x)
    return S.T @ x.C + x.D * x.x, S


LOOPS: dict[str, Loop] = {
    f.__name__: f
    for f in (
        additive, delta, gated_delta, gla, kda, gdn2, qed, qed_nogate, qed_noproj, qed_rand, delta_product, rwkv6,
        rwkv7, mamba2,
    )
}  # fmt: skip


def by_hand(loop: Loop, rule: Rule, arguments: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The outputs and last states of a loop that does one sequence and head at a time."""
    B, H = next(arguments[i.name].shape[::2][:2] for i in rule.inputs)
    outputs, states = torch.empty(B, T, H, V, dtype=torch.float64), torch.empty(B, H, K, V, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            S = torch.zeros(K, V, dtype=torch.float64)
            for t in range(T):
                token = {i.name: arguments[i.name][b, t, h] for i in rule.inputs}
                token |= {p.name: arguments[p.name][h] for p in rule.params}
                outputs[b, t, h], S = loop(S, Token(**token))
            states[b, h] = S
    return outputs, states


@pytest.mark.parametrize("name", LOOPS)
def test_step_equals_a_loop_by_hand(name: str) -> None:
    rule = stateir.load(name)
    for seed in range(2):
        arguments = sample_arguments(rule, B=1, T=T, H=2, K=K, V=V, seed=seed)
        o, state = stateir.compile(rule, "step")(**arguments, return_state=True)
        expected_o, expected_state = by_hand(LOOPS[name], rule, arguments)
        # float64 rounding over 29 tokens of norm about 1
        torch.testing.assert_close(o, expected_o, rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(state, expected_state, rtol=1e-13, atol=1e-13)


def test_vector_state_and_division() -> None:
    """Linear attention with its normaliser, as the ratio of two sums over the past."""
    rule = stateir.load("linear_attention")
    x = sample_arguments(rule, T=T, K=K, V=V)
    o, state = stateir.compile(rule, "step")(**x, return_state=True)
    fq, fk = (torch.nn.functional.elu(x[n]) + 1 for n in "qk")
    weights = torch.einsum("bthk,bshk->bhts", fq, fk).tril()
    expected = torch.einsum("bhts,bshv->bthv", weights / weights.sum(-1, keepdim=True), x["v"])
    torch.testing.assert_close(o, expected, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(state["z"], fk.sum(1), rtol=1e-13, atol=1e-13)


def test_running_maximum() -> None:
    """mLSTM against its form without a stabiliser, which exists where no exponential overflows."""
    rule = stateir.load("mlstm")
    x = sample_arguments(rule, T=T, K=K, V=V)
    o, _ = stateir.compile(rule, "step")(**x)
    F = x["f"].cumsum(1).movedim(1, -1)
    log_weights = F[..., :, None] - F[..., None, :] + x["i"].movedim(1, -1)[..., None, :]
    qs = x["q"] * scale
    weights = torch.einsum("bthk,bshk->bhts", qs, x["k"]) * log_weights.exp().tril()
    norm = weights.sum(-1).abs().clamp(min=1.0)
    expected = torch.einsum("bhts,bshv->bthv", weights / norm[..., None], x["v"])
    torch.testing.assert_close(o, expected, rtol=1e-12, atol=1e-12)


def test_rotation_and_look_back() -> None:
    """Mamba-3 in its direct form: the state itself turns, S <- exp(dt A) R S, and no running angle is kept."""
    rule = stateir.load("mamba3")
    x = sample_arguments(rule, B=1, T=T, H=1, K=K, V=V)
    o, state = stateir.compile(rule, "step")(**x, return_state=True)
    S = torch.zeros(K, V, dtype=torch.float64)
    B_before, x_before = torch.zeros(K, dtype=torch.float64), torch.zeros(V, dtype=torch.float64)
    for t in range(T):
        C, B, u = (x[n][0, t, 0] for n in ("C", "B", "x"))
        dt, A, lam, th = (x[n][0, t, 0] for n in ("dt", "A", "lam", "th"))
        turn = torch.block_diag(*(torch.stack((torch.stack((a.cos(), -a.sin())), torch.stack((a.sin(), a.cos()))))
                                  for a in th))  # fmt: skip
        decay = (dt * A).exp()
        S = (
            decay * turn @ S
            + lam * dt * torch.outer(B, u)
            + (1 - lam) * dt * decay * torch.outer(turn @ B_before, x_before)
        )
        B_before, x_before = B, u
        torch.testing.assert_close(o[0, t, 0], S.T @ C + x["D"][0] * u, rtol=1e-12, atol=1e-12)
    assert torch.equal(state["prev.B"], x["B"][:, -1:])


def test_two_matrix_states() -> None:
    rule = stateir.load("titans_linear")
    x = sample_arguments(rule, B=1, T=T, H=1, K=K, V=V)
    o, state = stateir.compile(rule, "step")(**x, return_state=True)
    S, M = torch.zeros(K, V, dtype=torch.float64), torch.zeros(K, V, dtype=torch.float64)
    for t in range(T):
        q, k, v, eta, theta, alpha = (x[n][0, t, 0] for n in ("q", "k", "v", "eta", "theta", "alpha"))
        M = eta * M - theta * (torch.outer(k, S.T @ k) - torch.outer(k, v))
        S = (1 - alpha) * S + M
        torch.testing.assert_close(o[0, t, 0], scale * S.T @ q, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(state["M"][0, 0], M, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", ["gdn2", "linear_attention", "mamba3", "mlstm", "titans_linear", "delta_product"])
def test_split_run_is_whole_run(name: str) -> None:
    """With everything that the rule carries handed over, a split changes no bit; so does decoding."""
    rule = stateir.load(name)
    op = stateir.compile(rule, "step")
    x = sample_arguments(rule, T=11, K=K, V=V)
    inputs = {i.name for i in rule.inputs}
    whole, state = op(**x, return_state=True)

    def part(first: int, last: int) -> dict[str, Tensor]:
        return {n: t[:, first:last] if n in inputs else t for n, t in x.items()}

    o1, middle = op(**part(0, 4), return_state=True)
    o2, end = op(**part(4, 11), initial_state=middle, return_state=True)
    assert torch.equal(torch.cat((o1, o2), 1), whole)
    as_dict = state if isinstance(state, dict) else {"S": state}
    for key, value in (end if isinstance(end, dict) else {"S": end}).items():
        assert torch.equal(value, as_dict[key]), key
    carried = middle
    for t in range(4, 11):
        o, carried = op.step(**{n: v[:, t] if n in inputs else v for n, v in x.items()}, state=carried)
        assert torch.equal(o, whole[:, t])


def test_look_back_of_several_tokens() -> None:
    rule = stateir.parse(
        "rule r\ninput q: key, k[2]: key, v: value\n"
        "update S += outer(prev(k[1], 3), prev(v)) + outer(prev(k[0]), v)\nread o = q @ S\n"
    )
    x = sample_arguments(rule, B=1, T=9, H=1, K=4, V=3)
    o, state = stateir.compile(rule, "step")(**x, return_state=True)
    S = torch.zeros(4, 3, dtype=torch.float64)
    for t in range(9):
        if t >= 3:
            S = S + torch.outer(x["k"][0, t - 3, 0, 1], x["v"][0, t - 1, 0])
        if t >= 1:
            S = S + torch.outer(x["k"][0, t - 1, 0, 0], x["v"][0, t, 0])
        torch.testing.assert_close(o[0, t, 0], S.T @ x["q"][0, t, 0], rtol=1e-13, atol=1e-13)
    assert state["prev.k"].shape == (1, 3, 1, 2, 4)


def test_the_text_runs_on_its_own() -> None:
    """The emitted module needs torch and nothing of this package."""
    rule = stateir.load("mamba2")
    x = sample_arguments(rule, T=7, K=K, V=V, dtype=torch.float32)
    text = stateir.compile(rule, "step").source("step")
    assert "stateir" not in text.replace("mamba2.rule", "")
    module: dict[str, object] = {}
    exec(text, module)
    o, _ = module["run"](**x)  # type: ignore[operator]
    assert torch.equal(o, stateir.compile(rule, "step")(**x)[0])


def test_every_line_of_the_rule_stands_in_the_text() -> None:
    text = stateir.compile(stateir.load("qed"), "step").source("step")
    for line in (
        "# qed.rule:5 let d = b * q - (k @ (b * q)) * k",
        "# qed.rule:6 update S = exp(g) * S",
        "# qed.rule:7 update S += outer(k, w * v - (b * k + lam * d) @ S)",
        "# qed.rule:8 read o = q @ S / sqrt(dim(key))",
    ):
        assert line in text.replace("  ", " ")
