"""`recompute`: the same results with less kept between the passes."""

from __future__ import annotations

import copy
import os
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import stateir
from stateir.codegen.operator import Operator
from stateir.codegen.samples import sample_arguments
from stateir.codegen.verify import make_call, results, rms_ratio

# S alone; a running maximum and a normaliser; look-back and angles; params; two matrix states, on the step reference.
RULES = ["gdn2", "mlstm", "mamba3", "rwkv7", "titans_linear"]


@pytest.mark.parametrize("tokens", [1, 7, 16, 64, 1000])
@pytest.mark.parametrize("name", RULES)
def test_same_results(name: str, tokens: int) -> None:
    rule = stateir.load(name)
    call = make_call(stateir.compile(rule, "step"), 70 if tokens > 1 else 9, 0)
    want, found = results(stateir.compile(rule), call), results(stateir.compile(rule, recompute=tokens), call)
    assert want.keys() == found.keys()
    for part, x in want.items():
        assert rms_ratio(found[part], x) <= 1e-11, part


def leaves_of(op: Operator, T: int, dtype: torch.dtype = torch.float32, **options: Any) -> dict[str, Any]:
    x = sample_arguments(op.rule, T=T, K=6, V=5, dtype=dtype, **options)
    return {n: t.requires_grad_() for n, t in x.items()}


def test_the_output_keeps_its_bits_at_multiples_of_a_chunk() -> None:
    rule = stateir.load("gdn2")
    x = leaves_of(stateir.compile(rule), 200)
    (a, S), (b, S2) = (stateir.compile(rule, recompute=n)(**x, return_state=True) for n in (None, 64))
    assert isinstance(S, Tensor) and isinstance(S2, Tensor)
    assert torch.equal(a, b) and torch.equal(S, S2)


def kept_bytes(op: Operator, x: dict[str, Any], **options: Any) -> int:
    """Bytes that autograd keeps for the backward pass, beside the arguments."""
    given, kept = {t.untyped_storage().data_ptr() for t in x.values()}, {}

    def pack(t: Tensor) -> Tensor:
        if t.untyped_storage().data_ptr() not in given:
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        o, _ = op(**x, **options)
    del o
    return sum(kept.values())


def test_what_is_kept() -> None:
    """One state for each segment; of packed sequences those before them."""
    rule, B, H, K, V = stateir.load("gdn2"), 2, 2, 6, 5
    x = leaves_of(stateir.compile(rule), 256)
    state = B * H * K * V * 4
    everything = kept_bytes(stateir.compile(rule), x)
    assert kept_bytes(stateir.compile(rule, recompute=64), x) == 4 * state < everything / 10
    assert kept_bytes(stateir.compile(rule, recompute=1000), x) == state
    packed = {n: t.detach()[:1].requires_grad_() if n != "lam" else t for n, t in x.items()}
    cu = torch.tensor([0, 100, 256])
    assert kept_bytes(stateir.compile(rule, recompute=64), packed, cu_seqlens=cu) == state
    with torch.no_grad():
        assert kept_bytes(stateir.compile(rule, recompute=64), x) == 0


@pytest.mark.parametrize("name", ["gdn2", "mlstm"])
def test_packed(name: str) -> None:
    rule = stateir.load(name)
    x = leaves_of(stateir.compile(rule), 40, torch.float64, B=1)
    cu = torch.tensor([0, 0, 17, 40])
    found = []
    for tokens in (None, 16):
        o, _ = stateir.compile(rule, recompute=tokens)(**x, cu_seqlens=cu)
        found.append([o, *torch.autograd.grad(o.square().sum(), [*x.values()])])
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


def test_without_tokens_or_gradients() -> None:
    op = stateir.compile(stateir.load("gdn2"), recompute=4)
    x = leaves_of(op, 0)
    o, state = op(**x, return_state=True)
    assert o.shape[1] == 0 and isinstance(state, Tensor) and not state.any()
    y = leaves_of(op, 9)
    only = {n: t.detach() for n, t in y.items()} | {"v": y["v"]}
    (g,) = torch.autograd.grad(op(**only)[0].sum(), [y["v"]])
    (want,) = torch.autograd.grad(stateir.compile(op.rule)(**only)[0].sum(), [y["v"]])
    torch.testing.assert_close(g, want)


@pytest.mark.parametrize("reentrant", [False, True])
def test_under_checkpointing_and_twice(reentrant: bool) -> None:
    op = stateir.compile(stateir.load("gdn2"), recompute=16)
    x = leaves_of(op, 40)
    names, leaves = list(x), list(x.values())

    def call(*tensors: Tensor) -> Tensor:
        return op(**dict(zip(names, tensors, strict=True)))[0]

    o = call(*leaves)
    first = torch.autograd.grad(o.sum(), leaves, retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(first, torch.autograd.grad(o.sum(), leaves), strict=True))
    checkpoint(call, *leaves, use_reentrant=reentrant).sum().backward()
    assert all(torch.equal(t.grad, g) for t, g in zip(leaves, first, strict=True))


def test_compiled() -> None:
    torch._dynamo.reset()
    op = stateir.compile(stateir.load("gdn2"), recompute=16)
    x = leaves_of(op, 40)
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager")
    a, b = (torch.autograd.grad(f(**x)[0].sum(), [*x.values()]) for f in (compiled, op))
    assert all(torch.equal(u, v) for u, v in zip(a, b, strict=True))


def test_refusals() -> None:
    rule = stateir.load("gdn2")
    with pytest.raises(ValueError, match="gdn2: recompute = 0: expected at least 1"):
        stateir.compile(rule, recompute=0)
    with pytest.raises(TypeError, match="gdn2: recompute: expected a whole number, got str"):
        stateir.compile(rule, recompute="all")  # type: ignore[arg-type]
    op = stateir.compile(rule, recompute=16)
    assert copy.deepcopy(op).recompute == 16
    x = leaves_of(op, 20)
    with pytest.raises(RuntimeError, match="cannot differentiate twice through recompute"):
        torch.autograd.grad(op(**x)[0].sum(), [x["q"]], create_graph=True)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
def test_kernels() -> None:
    rule = stateir.load("gla")
    x = sample_arguments(rule, B=1, T=70, H=1, K=5, V=3, dtype=torch.float32)
    leaves: dict[str, Any] = {n: t.requires_grad_() for n, t in x.items()}
    found = []
    for tokens in (None, 64):
        o, state = stateir.compile(rule, "triton", recompute=tokens)(**leaves, return_state=True)
        assert isinstance(state, Tensor)
        found.append([o, state, *torch.autograd.grad(o.sum() + state.square().sum(), [*leaves.values()])])
    for n, (a, b) in enumerate(zip(*found, strict=True)):
        assert torch.equal(a, b) if n < 2 else rms_ratio(a, b) <= 1e-5
