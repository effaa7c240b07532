"""The Triton kernels in Triton's interpreter: every output and each gradient by itself, against float64 step loops.

The interpreter multiplies the raw bits of bfloat16, so that dtype is tested on a GPU only (tests/gpu).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from kernel_cases import (
    errors_of,
    failures,
    make_shape,
    make_tensors,
    matrix_of_shapes,
    name_of,
    rule_errors,
    scan_module,
    step_loop,
)

import stateir
from stateir.codegen import triton_config
from stateir.codegen.random_rules import RandomDraw, random_rule
from stateir.codegen.shape import Shape

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")

MATRIX = matrix_of_shapes()
FAST = 8  # every eighth shape of the matrix is in the fast suite
SHAPES = [pytest.param(x, marks=[] if n % FAST == 0 else pytest.mark.slow, id=name_of(x)) for n, x in enumerate(MATRIX)]
RULES = [pytest.param(n, marks=[] if n < 16 else pytest.mark.slow) for n in range(100)]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Chunks of 16 tokens, so that short sequences have several."""
    monkeypatch.setattr(triton_config, "chunk_size", lambda tiles: 16)
    yield


def state(B: int, H: int, K: int, V: int) -> torch.Tensor:
    return torch.randn(B, H, K, V, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("shape", SHAPES)
def test_matrix(shape: Shape) -> None:
    tensors = make_tensors(shape, 1, 21, 1, 20, 17)
    assert not failures(errors_of(shape, tensors, state(1, 1, 20, 17), torch.float32), torch.float32)


def test_matrix_has_every_kind() -> None:
    """Decays, numbers of erasing and writing rows, mixed levels, and reads at each place, also in the fast part."""
    for shapes in (MATRIX, MATRIX[::FAST]):
        assert {x.decay for x in shapes} == {"none", "scalar", "key"}
        assert {len(x.erasing) for x in shapes} == {0, 1, 2, 3}
        assert {len(x.writing) for x in shapes} == {0, 1, 2}
        assert {len({row.post for row in x.rows if row.erases}) for x in shapes} == {0, 1, 2}
        assert {bool(x.reads[0].couplings) for x in shapes} == {True, False}
        assert any(row.p_same != j for x in shapes for j, row in enumerate(x.rows))
        assert any(not row.has_y for x in shapes for row in x.rows)
        assert any(c.explicit for x in shapes for row in x.rows for c in row.couplings)
        assert any(not c.explicit for x in shapes for row in x.rows for c in row.couplings)


@pytest.mark.parametrize("seed", RULES)
def test_random_rules(seed: int) -> None:
    """Without values at the ends of their ranges: a decay of exactly 0 has no gradient as a log."""
    rule = stateir.parse(random_rule(RandomDraw(seed), max_lines=3))
    if reason := stateir.compile(rule).backends["triton"]:
        pytest.skip(reason)
    dtype = torch.float16 if seed % 5 == 4 else torch.float32
    errors = rule_errors(rule, dtype, T=21, H=1, K=6, V=5, seed=seed, resets=seed % 2 == 0, ends=0.0)
    assert not failures(errors, dtype), rule.text


@pytest.mark.parametrize("dims", [(1, 1), (20, 33)], ids=str)
def test_dimensions(dims: tuple[int, int]) -> None:
    shape = make_shape("key", 1, 1, "mixed", "below")
    tensors = make_tensors(shape, 2, 17, 2, *dims)
    assert not failures(errors_of(shape, tensors, state(2, 2, *dims), torch.float32), torch.float32)


@pytest.mark.parametrize("gate", [(1e4, 0.0), (40.0, 39.0), (-0.5, -1.0)], ids=str)
@pytest.mark.parametrize("decay", ["scalar", "key"])
def test_gates(decay: str, gate: tuple[float, float]) -> None:
    """From no decay within a token to a full reset, and bounded growth."""
    shape = make_shape(decay, 1, 0, "post", "below")
    tensors = make_tensors(shape, 1, 21, 1, 4, 3, gate=gate[0], lowest=gate[1])
    assert not failures(errors_of(shape, tensors, state(1, 1, 4, 3), torch.float32), torch.float32)


@pytest.mark.parametrize("shape", MATRIX[::6], ids=name_of)
def test_decode(shape: Shape) -> None:
    tensors = make_tensors(shape, 2, 1, 2, 20, 17)
    S = state(2, 2, 20, 17)
    before = S.float()
    kept = before.clone()
    with torch.no_grad():
        reads, after = scan_module(shape)._token({name: x.float() for name, x in tensors.items()}, before)
    want, want_after = step_loop(shape, tensors, S)
    assert torch.allclose(reads.double(), want, atol=1e-5)
    assert torch.allclose(after.double(), want_after, atol=1e-5)
    assert torch.equal(before, kept)


def test_decode_through_the_operator() -> None:
    """Decode continues a prefill; where a gradient is needed the differentiable reference steps instead."""
    rule = stateir.load("qed")
    op = stateir.compile(rule, backend="triton")
    tensors = {name: x.float() for name, x in stateir_samples(rule, T=6).items()}
    params = {p.name for p in rule.params}
    whole, last = op(**tensors, return_state=True)
    part = {name: x if name in params else x[:, :5] for name, x in tensors.items()}
    token = {name: x if name in params else x[:, 5] for name, x in tensors.items()}
    _, middle = op(**part, return_state=True)
    with torch.no_grad():
        o, after = op.step(**token, state=middle)
    assert torch.allclose(o, whole[:, 5], atol=1e-5) and torch.allclose(after, last, atol=1e-5)
    o, _ = op.step(**token, state=middle.requires_grad_())
    assert torch.autograd.grad(o.sum(), middle)[0].any()
    with pytest.raises(RuntimeError, match="no gradient"):
        scan_module(make_shape("none", 0, 1, "post", "below"))._token(
            {"p0": torch.ones(1, 1, 1, 2), "y0": torch.ones(1, 1, 1, 2), "q0": torch.ones(1, 1, 1, 2)},
            torch.zeros(1, 1, 2, 2, requires_grad=True),
        )


def stateir_samples(rule, T):  # type: ignore[no-untyped-def]
    from stateir.codegen.samples import sample_arguments

    return sample_arguments(rule, B=1, T=T, H=2, K=6, V=5)


def test_backward_twice_and_checkpoint() -> None:
    """Nothing saved is overwritten, saved tensors are unpacked once, and an expanded gradient is as good as any."""
    shape = make_shape("key", 1, 0, "post", "below")
    module = scan_module(shape)
    tensors = {name: x.float().requires_grad_() for name, x in make_tensors(shape, 1, 18, 1, 4, 3).items()}
    kept = {name: x.detach().clone() for name, x in tensors.items()}
    S = state(1, 1, 4, 3).float().requires_grad_()
    sources = [*tensors.values(), S]
    o, _ = module._scan(tensors, S, torch.float32)
    first = torch.autograd.grad(o.sum(), sources, retain_graph=True)
    again = torch.autograd.grad(o, sources, torch.ones_like(o))
    checkpoint = torch.utils.checkpoint.checkpoint
    o, _ = checkpoint(module._scan, tensors, S, torch.float32, use_reentrant=False)
    saved = torch.autograd.grad(o.sum(), sources)
    for a, b, c in zip(first, again, saved, strict=True):
        assert torch.equal(a, b) and torch.equal(a, c)
    assert all(torch.equal(kept[name], x) for name, x in tensors.items())


def test_refusals() -> None:
    op = stateir.compile(stateir.load("delta"), backend="triton")
    tensors = stateir_samples(stateir.load("delta"), T=3)
    with pytest.raises(ValueError, match="float64"):
        op(**tensors)
    rule = stateir.load("delta_product", n=9)
    assert "at most 8" in (stateir.compile(rule).backends["triton"] or "")
    with pytest.raises(ValueError, match="at most 8"):
        stateir.compile(rule, backend="triton")
