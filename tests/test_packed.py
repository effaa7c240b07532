"""Packed sequences by chunk tables on the device, against the step loop, which runs them one by one."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import stateir
from stateir.codegen.arguments import State
from stateir.codegen.operator import Operator
from stateir.codegen.packed import chunk_size, chunks_of, segment_size, windows
from stateir.codegen.random_rules import RandomDraw, random_rule
from stateir.codegen.samples import sample_arguments
from stateir.codegen.verify import rms_ratio

H, K, V = 2, 6, 5
OFFSETS = [0, 0, 5, 5, 70, 71, 90, 90]  # empty ones in every place, one token, one of several chunks


def call(op: Operator, offsets: list[int], given: bool, dtype: torch.dtype = torch.int64, **options: Any) -> Any:
    """The output, states and gradients of one call with its own leaves."""
    N, T = len(offsets) - 1, offsets[-1]
    x = sample_arguments(op.rule, B=1, T=T, H=H, K=K, V=V, **options)
    fixed = {p.name for p in op.rule.params if p.fixed}
    leaves: dict[str, Any] = {n: t.requires_grad_(n not in fixed) for n, t in x.items()}
    earlier = sample_arguments(op.rule, B=max(N, 1), T=3, H=H, K=K, V=V, **options | {"seed": 1})
    _, before = stateir.compile(op.rule, "step")(**earlier, return_state=True)
    state: dict[str, Tensor] = {n: t.detach()[:N].clone().requires_grad_() for n, t in parts(before).items()}
    start: State | None = (state if op.carries_dict else state["S"]) if given else None
    cu = torch.tensor(offsets, dtype=dtype)
    o, after = op(**leaves, initial_state=start, return_state=True, cu_seqlens=cu)
    found = {"o": o} | parts(after)
    wanted = {n: t for n, t in leaves.items() if t.requires_grad} | (state if given else {})
    loss = sum((t.square().sum() for t in found.values() if t.requires_grad), start=torch.zeros(()))
    if not loss.requires_grad:
        return found, {}, state
    gradients = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True, materialize_grads=True)
    return found, dict(zip(wanted, gradients, strict=True)), state


def parts(state: State | None) -> dict[str, Tensor]:
    assert state is not None
    return state if isinstance(state, dict) else {"S": state}


def same(rule: stateir.Rule, backend: str, offsets: list[int], given: bool, limit: float, **options: Any) -> None:
    found, gradients, state = call(stateir.compile(rule, backend), offsets, given, **options)
    want, expected, _ = call(stateir.compile(rule, "step"), offsets, given, **options)
    for name, x in found.items():
        assert x.shape == want[name].shape
        assert rms_ratio(x.detach(), want[name].detach()) <= limit, name
        for n in range(len(offsets) - 1) if name != "o" else ():
            if offsets[n] == offsets[n + 1] and given:
                assert torch.equal(x[n], state[name][n]), name
    assert gradients.keys() == expected.keys()
    for name, g in gradients.items():
        assert rms_ratio(g, expected[name]) <= limit, name


# S alone; a normaliser and a running maximum; look-back and angles; several rows a token; no decay.
@pytest.mark.parametrize("name", ["gdn2", "mlstm", "mamba3", "delta_product", "rwkv7", "linear_attention"])
@pytest.mark.parametrize("given", [True, False])
def test_like_one_by_one(name: str, given: bool) -> None:
    same(stateir.load(name), "chunked", OFFSETS, given, 1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_random_rules(seed: int) -> None:
    """Every decay, place of the read, factor of a read and kind of state that random rules have."""
    rule = stateir.parse(random_rule(RandomDraw(seed)))
    same(rule, "chunked", [0, 3, 3, 20, 21], True, 1e-10, seed=seed)


def test_factors_and_states_of_each_kind() -> None:
    """Two reads, one with a factor that has a value axis; a sequential state that looks back further than a chunk."""
    rule = stateir.parse(
        "rule r\ninput q: key, k: key unit, v: value, w: value, a: scalar in [0, 1], x: key\n"
        "state z: scalar\nupdate z = min(z * a, prev(a, 20) + 1)\n"
        "update S = a * S + outer(k, z * v - k @ S)\n"
        "read o = w * (q @ S) + 2 * (prev(x, 2) @ S) + v\n"
    )
    same(rule, "chunked", [0, 3, 3, 45, 46], True, 1e-11)


@pytest.mark.parametrize("name", ["gdn2", "mlstm", "linear_attention"])
def test_chunks_that_are_computed_piece_by_piece(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: chunks of more tokens than are computed at a time."""
    monkeypatch.setattr("stateir.codegen.operator.chunk_size", segment_size)
    monkeypatch.setattr("stateir.codegen.operator.default_chunk", lambda shape: 8)
    assert segment_size(90, len(OFFSETS) - 1, 8) == 8 and segment_size(200, 3, 8) == 32
    same(stateir.load(name), "chunked", [0, 3, 150, 200], True, 1e-12)


@pytest.mark.parametrize("name", ["gdn2", "mlstm"])
def test_long_sequences_run_one_by_one_on_a_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = stateir.load(name)
    monkeypatch.setattr("stateir.codegen.operator.LONG", 30)
    same(rule, "chunked", [0, 0, 90, 91], True, 1e-12)
    monkeypatch.setattr("stateir.codegen.operator.run_packed", None)  # not called
    same(rule, "chunked", [0, 0, 90, 91], True, 1e-12)


@pytest.mark.parametrize("offsets", [[0, 0, 0], [0], [0, 0]], ids=str)
@pytest.mark.parametrize("name", ["gdn2", "mlstm"])
def test_no_tokens_or_no_sequences(name: str, offsets: list[int]) -> None:
    op = stateir.compile(stateir.load(name), "chunked")
    found, _, state = call(op, offsets, True)
    assert found["o"].shape == (1, 0, H, V)
    assert all(torch.equal(x, state[n]) and len(x) == len(offsets) - 1 for n, x in parts(found).items() if n != "o")


def test_both_integer_types_give_the_same_bits() -> None:
    op = stateir.compile(stateir.load("gdn2"), "chunked")
    a, b = (call(op, OFFSETS, True, dtype) for dtype in (torch.int32, torch.int64))
    for x, y in zip(a[:2], b[:2], strict=True):
        assert all(torch.equal(t, y[n]) for n, t in x.items())


def test_a_sequence_does_not_see_the_others() -> None:
    """Not even their NaN."""
    op = stateir.compile(stateir.load("mlstm"), "chunked")
    x = sample_arguments(op.rule, B=1, T=40, H=H, K=K, V=V)
    want, _ = op(**x, cu_seqlens=torch.tensor([0, 17, 40]))
    poisoned = {n: torch.cat((torch.full_like(t[:, :17], torch.nan), t[:, 17:]), 1) for n, t in x.items()}
    o, state = op(**poisoned, return_state=True, cu_seqlens=torch.tensor([0, 17, 40]))  # type: ignore[arg-type]
    assert torch.equal(o[:, 17:], want[:, 17:])
    assert all(torch.isfinite(t[1]).all() for t in parts(state).values())


class _NoReads(TorchDispatchMode):
    """Fails where a value would go from the device to the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "a value is read by the host"
        assert func is not torch.ops.aten.nonzero.default, "a shape depends on values"
        return func(*args, **(kwargs or {}))


def test_h12_tables_are_built_where_the_offsets_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """https://github.com/fla-org/flash-linear-attention/issues/1155: no value of the offsets is read by the host.

    On the CPU alone the offsets are also checked, which is left out here.
    """
    monkeypatch.setattr("stateir.codegen.operator.check_offsets", lambda *_: None)
    op = stateir.compile(stateir.load("mlstm"), "chunked")
    x = sample_arguments(op.rule, B=1, T=40, H=H, K=K, V=V)
    leaves: dict[str, Any] = {n: t.requires_grad_() for n, t in x.items()}

    class Offsets(Tensor):
        def tolist(self) -> list[int]:
            return []

    cu = torch.tensor([0, 0, 17, 40]).as_subclass(Offsets)
    with _NoReads():
        o, _ = op(**leaves, return_state=True, cu_seqlens=cu)
        o.sum().backward()


@pytest.mark.parametrize("C", [1, 4, 16])
def test_tables(C: int) -> None:
    offsets = [0, 0, 3, 4, 12, 12]
    chunks = chunks_of(torch.tensor(offsets), 12, C)
    assert chunks.n == -(-12 // C) + 5
    place = chunks.place.tolist()
    assert len(set(place)) == 12 and all(chunks.token[p] == t for t, p in enumerate(place))
    assert chunks.live.sum() == 12 and all(chunks.live.flatten()[p] for p in place)
    assert [n for n in range(5) if chunks.some[n]] == [1, 2, 3]
    starts = [c for c in range(chunks.n) if chunks.first[c]]
    assert [chunks.sequence[c].item() for c in starts] == [1, 2, 3]
    wrong = chunks_of(torch.tensor([-3, 50, 2, 12]), 12, C)
    assert wrong.token.min() >= 0 and wrong.token.max() < 12 and wrong.place.max() < wrong.n * C


def test_windows() -> None:
    x = torch.arange(10.0).view(1, 10, 1)
    start = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]]).unsqueeze(-1)
    offsets = torch.tensor([0, 1, 10])
    found = windows(x, start, torch.tensor([0, 1, 2, 3, 10]), torch.tensor([0, 0, 1, 1, 1]), offsets)
    assert found[..., 0].tolist() == [[-1, -2], [-2, 0], [-4, 1], [1, 2], [8, 9]]


def test_chunk_sizes() -> None:
    assert [chunk_size(T, N, 64) for T, N in ((4096, 1), (4096, 100), (4096, 1000), (3, 1))] == [64, 64, 16, 16]
    assert chunk_size(4096, 1, 4) == 4


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
@pytest.mark.parametrize(
    "name", ["linear_attention", *(pytest.param(n, marks=pytest.mark.slow) for n in ("gdn2", "mlstm", "mamba3"))]
)
def test_kernels(name: str) -> None:
    rule = stateir.load(name)
    offsets = [0, 0, 3, 20, 21]
    x = sample_arguments(rule, B=1, T=21, H=1, K=K, V=V, dtype=torch.float32)
    leaves: list[Any] = [t.requires_grad_() for t in x.values()]
    results = []
    for backend in ("triton", "chunked"):
        o, state = stateir.compile(rule, backend)(**x, return_state=True, cu_seqlens=torch.tensor(offsets))
        found = [o, *parts(state).values()]
        loss = sum((t.square().sum() for t in found), start=torch.zeros(()))
        results.append([*found, *torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)])
    for a, b in zip(*results, strict=True):
        assert rms_ratio(a.detach(), b.detach()) <= 1e-5
