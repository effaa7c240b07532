"""Defects that were reported in public libraries of this field, each as a test; links in the docstrings."""

from __future__ import annotations

from typing import Any

import call_cases as calls
import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import stateir
from stateir.codegen.operator import Operator
from stateir.codegen.samples import sample_arguments
from stateir.codegen.verify import rms_ratio

BACKENDS = ["step", "chunked"]
NORMED = """rule normed
input q: key, k: key, v: value
input g: scalar in (-inf, 0], beta: scalar in [0, 1]
let kn = unit(k)
update S = exp(g) * S
update S += outer(beta * kn, v - kn @ S)
read o = unit(q) @ S
"""
GDN = """rule gdn
input q: key, k: key unit, v: value
input g: scalar in (-inf, 0], beta: scalar in [0, 1]
update S = exp(g) * S
update S += outer(beta * k, v - k @ S)
read o = q @ S
"""
GDN2 = """rule gdn2_unscaled
input q: key, k: key unit, v: value
input g: key in (-inf, 0], b: key in [0, 1], w: value in [0, 1]
update S = exp(g) * S
update S += outer(k, w * v - (b * k) @ S)
read o = q @ S
"""
DPLR = """rule dplr_unscaled
input q: key, k: key, v: value, a: key, b: key
input g: key in (-inf, 0]
update S = exp(g) * S + outer(b, a @ S) + outer(k, v)
read o = q @ S
"""


def with_gradients(op: Operator, arguments: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    leaves = {name: x.detach().clone().requires_grad_() for name, x in arguments.items()}
    o, _ = op(**leaves)
    gradients = torch.autograd.grad(o.sum(), list(leaves.values()))
    return o.detach(), dict(zip(leaves, gradients, strict=True))


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("name", ["gla", "kda"])
@pytest.mark.parametrize("T", [64, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_h01_strong_decay_gives_finite_gradients(name: str, T: int, dtype: torch.dtype) -> None:
    """https://github.com/huggingface/transformers/pull/48455: the mask must come before the exponential."""
    rule, D = stateir.load(name), 16
    generator = torch.Generator().manual_seed(0)
    x = {n: normal(generator, 1, T, 1, D) / D**0.5 for n in "qkv"}
    x["g"] = torch.full((1, T, 1, D), -0.01, dtype=torch.float64)
    x["g"][..., : D // 2] = -8.0
    if name == "kda":
        x["k"] = torch.nn.functional.normalize(x["k"], dim=-1)
        x["beta"] = torch.full((1, T, 1), 0.5, dtype=torch.float64)
    x = {n: t.to(dtype) for n, t in x.items()}
    o, gradients = with_gradients(stateir.compile(rule, "chunked", chunk_size=64), x)
    exact_o, exact = with_gradients(stateir.compile(rule, "step"), {n: t.double() for n, t in x.items()})
    limit = {torch.float32: (1e-5, 1e-4), torch.bfloat16: (5e-3, 1e-2)}[dtype]
    assert rms_ratio(o, exact_o) <= limit[0]
    for n, gradient in gradients.items():
        assert torch.isfinite(gradient).all() and rms_ratio(gradient, exact[n]) <= limit[1], n


@pytest.mark.parametrize("backend", BACKENDS)
def test_h02_zero_keys_of_padding(backend: str) -> None:
    """https://github.com/AI-Hypercomputer/maxtext/pull/5295: unit(x) is x * rsqrt(sum x^2 + 1e-6)."""
    op, (T, P, H, K, V) = stateir.compile(stateir.parse(NORMED), backend), (128, 48, 2, 32, 48)
    generator = torch.Generator().manual_seed(0)
    x = {"q": normal(generator, 1, T, H, K), "k": normal(generator, 1, T, H, K), "v": normal(generator, 1, T, H, V)}
    x["g"] = -0.1 * torch.rand(1, T, H, generator=generator, dtype=torch.float64)
    x["beta"] = torch.rand(1, T, H, generator=generator, dtype=torch.float64)
    x["k"][:, :P] = 0
    values = x["v"].clone()
    x["v"][:, :P] = 0
    o, state = op(**x, return_state=True)
    tail, end = op(**{n: t[:, P:] for n, t in x.items()}, return_state=True)
    assert isinstance(state, Tensor) and isinstance(end, Tensor)
    torch.testing.assert_close(o[:, P:], tail, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state, end, rtol=1e-12, atol=1e-12)
    assert (o[:, :P] == 0).all()
    _, gradients = with_gradients(op, x)
    assert all(torch.isfinite(t).all() for t in gradients.values())
    assert (gradients["k"][:, :P] == 0).all()
    # Values at the padding make the gradient of its keys large, but finite and right.
    _, gradients = with_gradients(op, x | {"v": values})
    _, exact = with_gradients(stateir.compile(op.rule, "step"), x | {"v": values})
    assert gradients["k"][:, :P].abs().max() > 10 * gradients["k"][:, P:].abs().max()
    assert rms_ratio(gradients["k"], exact["k"]) <= 1e-10


def as_rule(text: str, x: dict[str, Tensor]) -> dict[str, Tensor]:
    """Arguments of the gated delta rule as those of a rule that contains it."""
    K, V = x["q"].shape[-1], x["v"].shape[-1]
    g, beta = x["g"][..., None].expand(*x["g"].shape, K), x["beta"][..., None]
    if text == GDN:
        return x
    if text == GDN2:
        # k (w v - b k S) with k -> k, w = b = beta.
        return {
            "q": x["q"],
            "k": x["k"],
            "v": x["v"],
            "g": g,
            "b": beta.expand_as(g),
            "w": beta.expand(*g.shape[:3], V),
        }
    # Its erase reads the decayed state, this rule's the undecayed one.
    a = -g.exp() * x["k"] * beta
    return {"q": x["q"], "k": beta * x["k"], "v": x["v"], "a": a, "b": x["k"], "g": g}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("text", [GDN, GDN2, DPLR], ids=["gated_delta", "gdn2", "dplr"])
def test_h04_closed_forms_of_repeated_keys(backend: str, text: str) -> None:
    """https://github.com/NVlabs/GatedDeltaNet/issues/15: a mask without the decay hides behind weak gates."""
    op = stateir.compile(stateir.parse(text), backend)
    T, D = 64, 16
    generator = torch.Generator().manual_seed(0)
    u = torch.nn.functional.normalize(normal(generator, D), dim=0)
    x = {"q": normal(generator, 1, T, 1, D), "k": u.expand(1, T, 1, D), "v": normal(generator, 1, T, 1, D + 1)}
    x["g"] = torch.full((1, T, 1), 0.5, dtype=torch.float64).log()
    x["beta"] = torch.ones(1, T, 1, dtype=torch.float64)
    # A full write over the only key leaves nothing of the past: o_t = (q_t . u) v_t whatever the decay.
    o, _ = op(**as_rule(text, x))
    torch.testing.assert_close(o, (x["q"] @ u)[..., None] * x["v"], rtol=1e-12, atol=1e-12)
    # Half writes of 1 with decay 1/2, decay first: 1/2, 5/8, 21/32, ...
    half = x | {"q": x["k"], "v": torch.ones_like(x["v"]), "beta": torch.full_like(x["beta"], 0.5)}
    o, _ = op(**as_rule(text, half))
    expected = 2 / 3 * (1 - 0.25 ** torch.arange(1, T + 1, dtype=torch.float64))
    torch.testing.assert_close(o, expected[:, None, None].expand_as(o), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("modes", [("chunked", "chunked"), ("chunked", "step"), ("step", "chunked")])
@pytest.mark.parametrize("split", [1, 37, 64, 99])
def test_h09_split_run_with_gradients_through_both_calls(modes: tuple[str, str], split: int) -> None:
    """https://github.com/huggingface/transformers/pull/45513: the second call starts from the state of the first."""
    rule = stateir.load("gdn2")
    first, second = (stateir.compile(rule, mode) for mode in modes)
    x = sample_arguments(rule, T=100, K=32, V=48)
    start = torch.randn(2, 2, 32, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def run(halves: bool) -> list[Tensor]:
        leaves: dict[str, Any] = {n: t.clone().requires_grad_() for n, t in x.items()}
        S = start.clone().requires_grad_()
        if halves:
            o1, state = first(**{n: t[:, :split] for n, t in leaves.items()}, initial_state=S, return_state=True)
            o2, state = second(**{n: t[:, split:] for n, t in leaves.items()}, initial_state=state, return_state=True)
            o = torch.cat((o1, o2), 1)
        else:
            o, state = stateir.compile(rule, "step")(**leaves, initial_state=S, return_state=True)
        assert isinstance(state, Tensor)
        loss = o.square().sum() + state.square().sum()
        return [o, state, *torch.autograd.grad(loss, [*leaves.values(), S])]

    for a, b in zip(run(halves=True), run(halves=False), strict=True):
        assert rms_ratio(a, b) <= 1e-12


def test_h09_split_at_a_chunk_keeps_the_bits_and_detach_cuts_the_gradient() -> None:
    rule = stateir.load("gdn2")
    op = stateir.compile(rule, "chunked", chunk_size=32)
    x: dict[str, Any] = sample_arguments(rule, T=100, K=32, V=48, dtype=torch.float32)
    x["v"].requires_grad_()
    whole, _ = op(**x)
    o1, state = op(**{n: t[:, :64] for n, t in x.items()}, return_state=True)
    o2, _ = op(**{n: t[:, 64:] for n, t in x.items()}, initial_state=state)
    assert torch.equal(torch.cat((o1, o2), 1), whole)
    assert isinstance(state, Tensor)
    o2, _ = op(**{n: t[:, 64:] for n, t in x.items()}, initial_state=state.detach())
    (gradient,) = torch.autograd.grad(o2.sum(), [x["v"]])
    assert (gradient[:, :64] == 0).all() and (gradient[:, 64:] != 0).any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reentrant", [False, True])
def test_h14_checkpointing(backend: str, reentrant: bool) -> None:
    """https://github.com/NVIDIA/cudnn-frontend/pull/958: a saved tensor may be unpacked once."""
    rule = stateir.load("gdn2")
    op = stateir.compile(rule, backend)
    x = sample_arguments(rule, T=100, K=32, V=48)
    names = list(x)

    def call(S: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        o, state = op(**dict(zip(names, tensors, strict=True)), initial_state=S, return_state=True)  # type: ignore[arg-type]
        assert isinstance(state, Tensor)
        return o, state

    def gradients(kept: bool) -> tuple[Tensor, ...]:
        leaves = [torch.ones(2, 2, 32, 48, dtype=torch.float64), *(t.clone() for t in x.values())]
        leaves = [t.requires_grad_() for t in leaves]
        o, state = call(*leaves) if kept else checkpoint(call, *leaves, use_reentrant=reentrant)
        (o.sum() + state.sum()).backward()
        return tuple(t.grad for t in leaves if t.grad is not None)

    plain, recomputed = gradients(kept=True), gradients(kept=False)
    assert len(plain) == len(recomputed) == 1 + len(names)
    for a, b in zip(plain, recomputed, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_decay_of_exactly_zero_has_its_gradient(backend: str) -> None:
    """The log of 1 - c at c = 1 is floored; the gradient must not be."""
    rule = stateir.parse(
        "rule r\ninput q: key, k: key, v: value, c: scalar in [0, 1]\n"
        "update S = (1 - c) * S + outer(k, v)\nread o = q @ S\n"
    )
    op = stateir.compile(rule, backend)
    for dtype, limit in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        x = sample_arguments(rule, T=20, ends=1.0, dtype=dtype)
        assert (x["c"] == 1).any()
        _, gradients = with_gradients(op, x)
        _, exact = with_gradients(stateir.compile(rule, "step"), {n: t.double() for n, t in x.items()})
        assert rms_ratio(gradients["c"], exact["c"]) <= limit


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("K", "V", "T"), [(16, 80, 1), (48, 16, 7), (60, 100, 63), (100, 48, 65)])
def test_h03_tails_of_buffers(backend: str, K: int, V: int, T: int) -> None:
    """https://github.com/fla-org/flash-linear-attention/issues/1134: nothing behind a row is read."""
    calls.tails_of_buffers(stateir.compile(stateir.load("kda"), backend), "cpu", K, V, T, 1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_h03_one_token(backend: str) -> None:
    """https://github.com/fla-org/flash-linear-attention/issues/88"""
    calls.one_token_without_a_state(stateir.compile(stateir.load("gated_delta"), backend), "cpu")


@pytest.mark.parametrize("backend", BACKENDS)
def test_h05_packed_with_empty_sequences(backend: str) -> None:
    """https://github.com/fla-org/flash-linear-attention/issues/103: repeated offsets, int32 and int64, T = 0."""
    calls.packed_with_empty_sequences(stateir.compile(stateir.load("gdn2"), backend), "cpu", 1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["gdn2", "mamba3"])
def test_h06_strides(backend: str, name: str) -> None:
    """https://github.com/fla-org/flash-linear-attention/issues/1138: an expanded gradient is like any other."""
    calls.strides(stateir.compile(stateir.load(name), backend), "cpu")


@pytest.mark.parametrize("backend", BACKENDS)
def test_h10_mixed_dtypes_under_autocast(backend: str) -> None:
    """https://github.com/fla-org/flash-linear-attention/issues/1264"""
    calls.mixed_dtypes(stateir.compile(stateir.load("kda"), backend), "cpu")


@pytest.mark.parametrize("backend", BACKENDS)
def test_h13_mixed_devices_are_refused_by_name(backend: str) -> None:
    """https://github.com/state-spaces/mamba/pull/1003"""
    op = stateir.compile(stateir.load("kda"), backend)
    x = sample_arguments(op.rule)
    with pytest.raises(ValueError, match="argument 'g': expected device cpu, got meta"):
        op(**x | {"g": x["g"].to("meta")})  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", BACKENDS)
def test_h15_same_bits_every_time(backend: str) -> None:
    """https://github.com/fla-org/flash-linear-attention/issues/945"""
    calls.same_bits(stateir.compile(stateir.load("gated_delta"), backend), "cpu", T=70 if backend == "chunked" else 9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_h16_backward_twice(backend: str) -> None:
    """https://github.com/triton-lang/triton/issues/4004"""
    calls.backward_twice(stateir.compile(stateir.load("gdn2"), backend), "cpu")


@pytest.mark.parametrize("backend", BACKENDS)
def test_h17_no_grad_and_inference_mode(backend: str) -> None:
    """https://github.com/fla-org/flash-linear-attention/pull/1191"""
    calls.without_gradients(stateir.compile(stateir.load("gdn2"), backend), "cpu")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["gdn2", "mlstm", "mamba3"])
def test_carried_states(backend: str, name: str) -> None:
    calls.carried_states(stateir.compile(stateir.load(name), backend), "cpu")
