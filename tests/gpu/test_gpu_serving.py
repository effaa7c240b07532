"""What serves and trains, with kernels on a GPU: kinds of calls, each configuration, decode, recompute, start-up."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import call_cases as calls
import pytest
import torch
from call_cases import drawn, drawn_state, equal, gradients, parts
from torch import Tensor

import stateir
from stateir.codegen import backends, first_use
from stateir.codegen.first_use import CONFIGURATIONS, Configuration, KernelError, choose, configured, failing, measured
from stateir.codegen.generated import load_source
from stateir.codegen.operator import Operator
from stateir.codegen.step import step_source
from stateir.codegen.verify import rms_ratio
from stateir.codegen.verify_calls import SUBJECTS, verify_calls
from stateir.codegen.verify_device import poisoned

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

GPU = torch.device("cuda", 0)
# Every kind of decay, a second erase, an undecayed erase, states beside S, two matrix states (no kernels).
RULES = ["gated_delta", "kda", "gdn2", "qed", "rwkv7", "gla", "mlstm", "mamba3", "titans_linear"]
EACH = pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=str)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Verdicts in a folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    torch._dynamo.reset()
    yield
    torch.cuda.empty_cache()


def forced(name: str, configuration: Configuration) -> Operator:
    op = stateir.compile(stateir.load(name), "triton")
    op.forced = configuration
    return op


@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("name", RULES)
def test_every_kind_of_call(name: str, subject: str, record_property: Any) -> None:
    checks = verify_calls(stateir.load(name), "cuda", subjects=[subject])
    record_property("errors", {c.name: float(f"{c.error:.3g}") for c in checks})
    assert all(c.passed for c in checks), [c for c in checks if not c.passed]


@EACH
@pytest.mark.parametrize("name", ["gated_delta", "gdn2"])
def test_h15_same_bits_every_time_in_every_configuration(name: str, configuration: Configuration) -> None:
    """https://github.com/fla-org/flash-linear-attention/issues/945"""
    calls.same_bits(forced(name, configuration), "cuda", 50, torch.bfloat16, B=1, T=2048, H=8, K=128, V=128)


@EACH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("K", "V"), [(64, 64), (128, 128)])
@pytest.mark.parametrize("name", ["gated_delta", "gdn2"])
def test_h18_each_configuration_by_itself(
    name: str, K: int, V: int, dtype: torch.dtype, configuration: Configuration, record_property: Any
) -> None:
    """https://github.com/fla-org/flash-linear-attention/issues/640: every gradient, with buffers full of NaN."""
    rule = stateir.load(name)
    source, label = backends.source(rule, "triton", None), backends.label(rule, "triton")
    reference = load_source(step_source(rule), f"{name}.step")
    module, twin = (configured(source, part, configuration) for part in (label, f"{label}.dry"))
    with poisoned():
        errors = measured(rule, module, reference, K, V, dtype, GPU, twin)
    record_property("errors", {n: float(f"{e:.3g}") for n, e in errors.items()})
    assert {f"gradient of {i.name}" for i in rule.inputs} <= errors.keys()
    assert not failing(errors, dtype)


def _broken(monkeypatch: pytest.MonkeyPatch, *wrong: Configuration) -> None:
    """Kernels of these configurations have a wrong gradient, as a compiler that is wrong for them would make."""

    def altered(source: str, label: str, configuration: Configuration) -> ModuleType:
        if configuration in wrong:
            assert "grad_q.to(dtype)" in source
            source, label = source.replace("grad_q.to(dtype)", "(1.5 * grad_q).to(dtype)"), f"{label}.broken"
        return configured(source, label, configuration)

    monkeypatch.setattr(first_use, "configured", altered)


def test_a_broken_configuration_is_dropped_and_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _broken(monkeypatch, CONFIGURATIONS[0])
    rule = stateir.load("gdn2")
    source, reference = backends.source(rule, "triton", None), load_source(step_source(rule), "gdn2.step")
    given = rule, source, "gdn2.triton", reference, 64, 64, torch.bfloat16, GPU
    assert choose(*given) == CONFIGURATIONS[1]
    verdicts = [json.loads(f.read_text()) for f in (tmp_path / "stateir").iterdir()]
    wrong = [sorted(failing(v["errors"], torch.bfloat16)) for v in verdicts]
    assert sorted(wrong) == [[], ["gradient of q"]] and all(v["gpu"] and v["triton"] for v in verdicts)
    monkeypatch.setattr(first_use, "measured", None)  # not asked again
    assert choose(*given) == CONFIGURATIONS[1]


def test_with_no_configuration_left_the_operator_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    _broken(monkeypatch, *CONFIGURATIONS)
    op = stateir.compile(stateir.load("gdn2"), "triton")
    x = drawn(op, "cuda", T=20, K=32, V=32)
    with pytest.raises(KernelError, match=r"gdn2: no configuration .* gradient of q off by"):
        op(**x)
    plain = stateir.compile(op.rule, "triton", check_kernels=False)
    assert torch.isfinite(plain(**x)[0]).all()


def test_after_the_check_nothing_is_left_to_compile() -> None:
    """The first call of a rule, forward, backward and decode, finds all its kernels."""
    op = stateir.compile(stateir.load("kda"), "triton")
    op._configuration(op._checked(drawn(op, "cuda", K=64, V=64), False), torch.bfloat16, GPU)
    module = op._functions("triton", next(iter(op._chosen.values())))

    def compiled() -> dict[str, int]:
        kernels = {n: k for n, k in vars(module).items() if hasattr(k, "device_caches")}
        return {n: sum(len(cache[0]) for cache in k.device_caches.values()) for n, k in kernels.items()}

    before = compiled()
    assert sum(before.values()) > 5
    x = drawn(op, "cuda", torch.bfloat16, B=3, T=130, H=4, K=64, V=64)
    op(**x)[0].sum().backward()
    with torch.no_grad():
        op.step(**{n: t[:, 0] for n, t in x.items()})
    assert compiled() == before


@pytest.mark.parametrize("tokens", [64, 100, 1024, 10_000])
@pytest.mark.parametrize("name", ["gdn2", "qed", "mlstm"])
def test_recompute(name: str, tokens: int) -> None:
    rule = stateir.load(name)
    found = []
    for level in (None, tokens):
        op = stateir.compile(rule, "triton", recompute=level)
        x, S = drawn(op, "cuda", T=2000, K=64, V=64), drawn_state(op, "cuda", K=64, V=64)
        leaves = [t for t in [*x.values(), *parts(S).values()] if t.requires_grad]
        o, state = op(**x, initial_state=S, return_state=True)
        results = [o, *parts(state).values()]
        found.append([*results, *gradients(results, leaves, [torch.ones_like(r) for r in results])])
    for a, b in zip(*found, strict=True):
        assert rms_ratio(b.detach(), a.detach()) <= 1e-4
    if tokens % 64 == 0:
        equal([found[0][0]], [found[1][0]])


def test_recompute_keeps_less() -> None:
    """Peak memory of a forward and backward pass, beyond arguments and gradients."""
    peaks = {}
    for level in (None, 4096, 512):
        op = stateir.compile(stateir.load("gdn2"), "triton", recompute=level)
        x = drawn(op, "cuda", torch.bfloat16, B=2, T=4096, H=8, K=128, V=128)
        leaves = [t for t in x.values() if t.requires_grad]
        for _ in range(2):
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            o, _ = op(**x)
            between = torch.cuda.memory_allocated() - before
            found = torch.autograd.grad(o.sum(), leaves)
            peak = torch.cuda.max_memory_allocated() - before
            del o, found
        peaks[level] = between, peak
    assert peaks[4096][0] < 0.5 * peaks[None][0] and peaks[512][1] < 0.7 * peaks[None][1], peaks


@pytest.mark.parametrize("B", [1, 64, 512])
@pytest.mark.parametrize("name", ["gdn2", "mlstm"])
def test_decode_in_place_and_by_slots_in_a_graph(name: str, B: int) -> None:
    """A captured step takes whatever slots and token stand in its tensors when it is replayed."""
    op = stateir.compile(stateir.load(name), "triton")
    inputs = {i.name for i in op.rule.inputs}
    x = {n: t.detach() for n, t in drawn(op, "cuda", B=B, T=3, K=64, V=64).items()}
    token = {n: t[:, 0].clone() if n in inputs else t for n, t in x.items()}
    pool = drawn_state(op, "cuda", N=B + 5, K=64, V=64)
    pool = {n: t.detach().clone() for n, t in parts(pool).items()}
    twin = {n: t.clone() for n, t in pool.items()}
    slots = torch.randperm(B + 5, device="cuda")[:B]

    def step() -> Tensor:
        with torch.no_grad():
            return op.step(**token, state=pool if op.carries_dict else pool["S"], slots=slots, inplace=True)[0]

    step()
    for n, t in pool.items():
        t.copy_(twin[n])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = step()
    for t in range(3):
        for n in inputs:
            token[n].copy_(x[n][:, t])
        slots.copy_(torch.randperm(B + 5, device="cuda")[:B])
        graph.replay()
        mine = {n: s[slots] for n, s in twin.items()}
        with torch.no_grad():
            want, after = op.step(**token, state=mine if op.carries_dict else mine["S"])
        for n, s in parts(after).items():
            twin[n][slots] = s
        equal([o, *pool.values()], [want, *twin.values()])


@pytest.mark.parametrize("name", ["gdn2", "gla", "linear_attention"])
@pytest.mark.parametrize("cuts", [[0, 1000, 2048, 3000, 4096], [0, 4096], [0, 0, 5, 4096]], ids=str)
def test_long_packed_sequences_are_like_their_own_calls(name: str, cuts: list[int]) -> None:
    op = stateir.compile(stateir.load(name), "triton")
    x = drawn(op, "cuda", B=1, T=4096, K=64, V=64)
    leaves = [t for t in x.values() if t.requires_grad]
    inputs = {i.name for i in op.rule.inputs}
    cu = torch.tensor(cuts, device="cuda")
    o, _ = op(**x, cu_seqlens=cu)
    pairs = [(a, b) for a, b in itertools.pairwise(cuts) if a < b]
    alone = [op(**{n: t[:, a:b] if n in inputs else t for n, t in x.items()})[0] for a, b in pairs]
    want = torch.cat(alone, 1)
    both = [[y, *gradients([y], leaves, [torch.ones_like(y)])] for y in (o, want)]
    for a, b in zip(*both, strict=True):
        assert rms_ratio(a.detach(), b.detach()) <= 1e-4
