"""Public bug reports of this field on a GPU, by the numbers of tests/test_cases.py, with the kernels.

| case | where | what holds |
|---|---|---|
| H01 strong decay | test_cases | gradients finite and right |
| H02 zero keys, eps of the norm | test_cases | exact; `unit` documented (language rule 18) |
| H03 head sizes, T = 1, T < 16 | test_cases, here | what stands behind changes no bit; beyond 256 refused |
| H04 chunk algebra | test_cases | closed forms |
| H05 empty sequences, int32 / int64 | test_cases, test_packed, here | states kept bit for bit; both the same bits |
| H06 strides | test_cases, here | any stride has the bits of a contiguous tensor |
| H07 more than 2^31 elements | test_offsets, here | no 32-bit offset wraps; last row alone has the same bits |
| H08 more than 65,535 sequences x heads | here, test_gpu_kernels | halves have the same bits |
| H09 prefill in parts | test_cases, here | split = whole, gradients through both |
| H10 autocast, mixed dtypes | test_cases, here | documented dtypes |
| H11 strides of fakes | test_torch, here | opcheck; compiled = eager |
| H12 CUDA graphs with new offsets | test_packed, here | replay = eager; no sync |
| H13 another device | test_cases, here (2 GPUs) | same bits, current device kept |
| H14 checkpointing | test_cases, here | same bits |
| H15 determinism | test_cases, here, test_gpu_serving | 50 times the same bits, in each configuration |
| H16 backward twice | test_cases, here | same bits, nothing written to |
| H17 no_grad, one token | test_cases, here | state untouched, same structure |
| H18 one bad configuration | test_first_use, test_gpu_serving, here | each by itself, every gradient; cold = warm |
| H19 false warnings | test_operator | none; layouts refused by name |
| H20 recall data | test_mqar | no ambiguous query |
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import call_cases as calls
import pytest
import torch
from call_cases import drawn, drawn_state, equal, gradients, parts
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import stateir
from stateir.codegen.operator import Operator
from stateir.codegen.torch_ops import registered
from stateir.codegen.verify import rms_ratio

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

# Every kind of decay, a second erase, an undecayed erase, no erase; states beside S.
RULES = ["gated_delta", "kda", "gdn2", "qed", "rwkv7", "linear_attention", "mlstm"]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch.cuda.empty_cache()


def kernels(name: str) -> Operator:
    return stateir.compile(stateir.load(name), "triton")


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(("K", "V"), [(16, 80), (48, 16), (60, 256), (100, 80), (128, 16), (192, 80), (256, 16)])
def test_h03_head_sizes_and_short_sequences(name: str, K: int, V: int) -> None:
    for T in (1, 7, 8, 15, 63, 65):
        calls.tails_of_buffers(kernels(name), "cuda", K, V, T, 1e-5)


def test_h03_one_token() -> None:
    calls.one_token_without_a_state(kernels("gated_delta"), "cuda")


@pytest.mark.parametrize("name", ["gdn2", "kda", "gated_delta", "rwkv7"])
def test_h05_packed_with_empty_sequences(name: str) -> None:
    calls.packed_with_empty_sequences(kernels(name), "cuda", 1e-5)


@pytest.mark.parametrize("name", ["gdn2", "kda", "gated_delta", "rwkv7"])
def test_h06_strides(name: str) -> None:
    calls.strides(kernels(name), "cuda")


@pytest.mark.parametrize("backward", [False, True])
def test_h07_more_elements_than_32_bits_count(backward: bool) -> None:
    """https://github.com/fla-org/flash-linear-attention/issues/1080"""
    B, T, H, D = 2, 65_600, 128, 128
    need = 110 if backward else 60
    if torch.cuda.get_device_properties(0).total_memory < need * 2**30:
        pytest.skip(f"needs {need} GB")
    op = kernels("gated_delta")
    x = {n: torch.randn(B, T, H, D, device="cuda", dtype=torch.bfloat16) for n in "qkv"}
    x["k"] = torch.nn.functional.normalize(x["k"], dim=-1)
    x["g"], x["beta"] = (torch.full((B, T, H), c, device="cuda", dtype=torch.bfloat16) for c in (-0.05, 0.5))
    if not backward:
        with torch.no_grad():
            last, end = op(**{n: t[1:2] for n, t in x.items()}, return_state=True)
            o, state = op(**x, return_state=True)
        assert torch.equal(o[1:2], last) and torch.equal(parts(state)["S"][1:2], parts(end)["S"])
        return
    v = x.pop("v")  # one gradient of the size in question
    alone = v[1:2].clone().requires_grad_()
    o, _ = op(**{n: t[1:2] for n, t in x.items()}, v=alone)
    (want,) = torch.autograd.grad(o.float().sum(), [alone])
    del o
    torch.cuda.empty_cache()
    v.requires_grad_()
    (dv,) = torch.autograd.grad(op(**x, v=v)[0].sum(), [v])
    assert torch.equal(dv[1:2], want)


@pytest.mark.parametrize("name", ["gated_delta", "kda"])
def test_h08_many_sequences_and_heads(name: str) -> None:
    """https://github.com/fla-org/flash-linear-attention/issues/172"""
    op = kernels(name)
    x = drawn(op, "cuda", torch.float32, B=10_923, H=6, T=32, K=16, V=16)
    x = {n: t.detach().bfloat16().requires_grad_() for n, t in x.items()}

    def call(tensors: dict[str, Any]) -> list[Tensor]:
        o, state = op(**tensors, return_state=True)
        results = [o, *parts(state).values()]
        return [*results, *gradients(results, list(tensors.values()), [torch.ones_like(r) for r in results])]

    whole = call(x)
    pieces = [{n: t.detach()[part].requires_grad_() for n, t in x.items()} for part in (slice(5461), slice(5461, None))]
    halves = [call(piece) for piece in pieces]
    equal(whole, [torch.cat(pair) for pair in zip(*halves, strict=True)])
    token = {n: t.detach()[:, 0] for n, t in x.items()}
    with torch.no_grad():
        o, _ = op.step(**token)
        o_half, _ = op.step(**{n: t[5461:] for n, t in token.items()})
    assert torch.equal(o[5461:], o_half)


@pytest.mark.parametrize("split", [1, 37, 64, 99])
@pytest.mark.parametrize("name", ["gdn2", "rwkv7", "mlstm"])
def test_h09_prefill_in_parts(name: str, split: int) -> None:
    op = kernels(name)
    x, S = drawn(op, "cuda", T=100), drawn_state(op, "cuda")
    leaves = [t for t in [*x.values(), *parts(S).values()] if t.requires_grad]
    inputs = {i.name for i in op.rule.inputs}

    def piece(a: int, b: int) -> dict[str, Any]:
        return {n: t[:, a:b] if n in inputs else t for n, t in x.items()}

    o, end = op(**x, initial_state=S, return_state=True)
    o1, middle = op(**piece(0, split), initial_state=S, return_state=True)
    o2, last = op(**piece(split, 100), initial_state=middle, return_state=True)
    whole, cut = [o, *parts(end).values()], [torch.cat((o1, o2), 1), *parts(last).values()]
    a = [*whole, *gradients(whole, leaves, [torch.ones_like(t) for t in whole])]
    b = [*cut, *gradients(cut, leaves, [torch.ones_like(t) for t in cut])]
    for u, w in zip(a, b, strict=True):
        assert rms_ratio(u.detach(), w.detach()) <= 1e-4
    if split == 64:
        equal(whole[:1], cut[:1])


def test_h10_mixed_dtypes_under_autocast() -> None:
    calls.mixed_dtypes(kernels("kda"), "cuda")


@pytest.mark.parametrize("name", RULES)
def test_h11_compiled_and_checked(name: str) -> None:
    op = kernels(name)
    compiled = torch.compile(op, fullgraph=True, dynamic=True)
    for T in (100, 101):
        x = drawn(op, "cuda", T=T, H=3, K=32, V=32)
        x = {n: t.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_(t.requires_grad) if t.ndim > 2
             else t for n, t in x.items()}  # fmt: skip
        leaves = [t for t in x.values() if t.requires_grad]
        (o, _), (want, _) = compiled(**x), op(**x)
        equal([o], [want])
        equal(*(gradients([y], leaves, [torch.ones_like(y)]) for y in (o, want)))
    call = getattr(torch.ops.stateir, registered(op)).default
    torch.library.opcheck(call, (",".join(x), [*x.values()], "", [], None, False, torch.float32))


def test_h12_graph_of_packed_sequences_takes_new_offsets() -> None:
    """https://github.com/fla-org/flash-linear-attention/issues/1155"""
    op = kernels("gdn2")
    x = drawn(op, "cuda", B=1, T=256, K=64, V=64)
    cu = torch.tensor([0, 64, 128, 192, 256], dtype=torch.int32, device="cuda")
    leaves = list(x.values())

    def call() -> list[Tensor]:
        o, S = op(**x, return_state=True, cu_seqlens=cu)
        assert isinstance(S, Tensor)
        return [o, S, *gradients([o, S], leaves, [torch.ones_like(o), torch.ones_like(S)])]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    for offsets in ([0, 64, 128, 192, 256], [0, 1, 130, 131, 256], [0, 0, 0, 256, 256]):
        cu.copy_(torch.tensor(offsets, dtype=torch.int32))
        graph.replay()
        equal(captured, call())


@pytest.mark.parametrize("name", ["gdn2", "gated_delta", "linear_attention"])
def test_h12_no_sync(name: str) -> None:
    op = kernels(name)
    x = drawn(op, "cuda", B=1, T=256, K=64, V=64)
    cu = torch.tensor([0, 5, 256], device="cuda")
    for options in ({}, {"cu_seqlens": cu}):
        op(**x, **options)[0].sum().backward()  # compiled beforehand
        torch.cuda.set_sync_debug_mode("error")
        try:
            op(**x, return_state=True, **options)[0].sum().backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_h13_another_device() -> None:
    """https://github.com/state-spaces/mamba/pull/1003"""
    op = kernels("kda")
    x = drawn(op, "cuda:0", B=1, T=70, K=64, V=64)
    there = {n: t.detach().to("cuda:1").requires_grad_() for n, t in x.items()}
    (o, _), (far, _) = op(**x), op(**there)
    found: list[list[Tensor]] = []
    thread = threading.Thread(target=lambda: found.append(gradients([far], [*there.values()], [torch.ones_like(far)])))
    thread.start()
    thread.join()
    want = [o, *gradients([o], [*x.values()], [torch.ones_like(o)])]
    assert torch.cuda.current_device() == 0 and all(t.device.index == 1 for t in (far, *found[0]))
    equal([t.to("cuda:0") for t in (far, *found[0])], want)
    with pytest.raises(ValueError, match="argument 'g': expected device cuda:0, got cuda:1"):
        op(**x | {"g": there["g"]})


@pytest.mark.parametrize("reentrant", [False, True])
def test_h14_checkpointing(reentrant: bool) -> None:
    op = kernels("gdn2")
    x, S = drawn(op, "cuda", T=100), drawn_state(op, "cuda")
    names = list(x)

    def call(S: Tensor, *tensors: Tensor) -> Any:
        return op(**dict(zip(names, tensors, strict=True)), initial_state=S, return_state=True)  # type: ignore[arg-type]

    results = []
    for kept in (True, False):
        leaves = [t.detach().clone().requires_grad_() for t in (S, *x.values())]
        o, state = call(*leaves) if kept else checkpoint(call, *leaves, use_reentrant=reentrant)
        (o.sum() + state.sum()).backward()
        results.append([t.grad for t in leaves])
    equal(*results)


@pytest.mark.parametrize("name", RULES)
def test_h15_same_bits_every_time(name: str) -> None:
    """https://github.com/fla-org/flash-linear-attention/issues/945"""
    calls.same_bits(kernels(name), "cuda", 50, torch.bfloat16, B=1, T=2048, H=8, K=128, V=128)


@pytest.mark.parametrize("name", ["gdn2", "rwkv7"])
def test_h16_backward_twice(name: str) -> None:
    calls.backward_twice(kernels(name), "cuda")


@pytest.mark.parametrize("name", ["gdn2", "rwkv7"])
def test_h17_no_grad_and_inference_mode(name: str) -> None:
    calls.without_gradients(kernels(name), "cuda")


@pytest.mark.parametrize(("K", "V"), [(64, 128), (128, 64), (100, 33)])
def test_h18_the_first_call_is_like_the_second(K: int, V: int) -> None:
    """https://github.com/fla-org/flash-linear-attention/issues/640"""
    for dtype in (torch.bfloat16, torch.float32):
        op = stateir.compile(stateir.load("gated_delta"), "triton")
        calls.same_bits(op, "cuda", 2, dtype, B=1, T=256, K=K, V=V)


@pytest.mark.parametrize("name", ["gdn2", "mlstm", "mamba3"])
def test_carried_states(name: str) -> None:
    calls.carried_states(kernels(name), "cuda")


def test_graph_of_decode() -> None:
    op = kernels("gdn2")
    x = {n: t.detach()[:, 0].contiguous() for n, t in drawn(op, "cuda", T=1, K=64, V=64).items()}
    S = drawn_state(op, "cuda", K=64, V=64).detach()
    with torch.no_grad():
        want = [op.step(**x, state=S)]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = op.step(**x, state=S)
        S.mul_(0.5)
        graph.replay()
        want.append(op.step(**x, state=S))
    equal(list(captured), list(want[1]))  # type: ignore[arg-type]
    assert not torch.equal(captured[0], want[0][0])
