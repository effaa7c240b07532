"""The compiled kernels against the float64 step loop: every output and each gradient by itself, buffers full of NaN."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from kernel_cases import (
    Shape,
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
import stateir.recurrences
from stateir.codegen.random_rules import RandomDraw, random_rule

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

DTYPES = (torch.bfloat16, torch.float32, torch.float16)
MATRIX = matrix_of_shapes()
FEW = [
    make_shape("key", 1, 0, "post", "below"),
    make_shape("key", 1, 1, "pre", "above"),
    make_shape("key", 2, 0, "mixed", "between"),
    make_shape("scalar", 1, 0, "post", "below"),
    make_shape("scalar", 2, 1, "mixed", "below"),
    make_shape("none", 1, 0, "post", "below"),
    make_shape("key", 0, 1, "post", "below"),
]
DIMS = [(16, 80), (48, 16), (60, 100), (100, 48), (128, 192), (192, 60), (256, 256), (1, 256), (256, 1)]


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Every uninitialised tensor is full of NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def check(record, shape, dtype, B=2, T=70, H=2, K=48, V=80, change=None, factor=1.0, **options) -> None:  # type: ignore[no-untyped-def]
    tensors = make_tensors(shape, B, T, H, K, V, **options)
    if change:
        change(tensors)
    S = 0.3 * torch.randn(B, H, K, V, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    errors = errors_of(shape, tensors, S, dtype, "cuda")
    record("errors", {name: float(f"{e:.3g}") for name, e in errors.items()})
    assert not failures(errors, dtype, factor)


@pytest.mark.parametrize("shape", MATRIX, ids=name_of)
def test_matrix_bfloat16(shape: Shape, record_property) -> None:  # type: ignore[no-untyped-def]
    check(record_property, shape, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("shape", MATRIX[::4], ids=name_of)
def test_matrix_other_dtypes(shape: Shape, dtype: torch.dtype, record_property) -> None:  # type: ignore[no-untyped-def]
    check(record_property, shape, dtype)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("shape", FEW, ids=name_of)
def test_dimensions(shape: Shape, dims: tuple[int, int], dtype: torch.dtype, record_property) -> None:  # type: ignore[no-untyped-def]
    check(record_property, shape, dtype, K=dims[0], V=dims[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", FEW, ids=name_of)
def test_lengths(shape: Shape, dtype: torch.dtype, record_property) -> None:  # type: ignore[no-untyped-def]
    for T in (1, 7, 15, 16, 33, 63, 65, 130):
        check(record_property, shape, dtype, T=T)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("gate", [(1e-3, 0.0), (40.0, 0.0), (40.0, 39.0), (1e4, 0.0)], ids=str)
@pytest.mark.parametrize("shape", [x for x in FEW if x.decay != "none"], ids=name_of)
def test_gates(shape: Shape, gate: tuple[float, float], dtype: torch.dtype, record_property) -> None:  # type: ignore[no-untyped-def]
    check(record_property, shape, dtype, gate=gate[0], lowest=gate[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [FEW[0], FEW[3], FEW[5]], ids=name_of)
def test_repeated_keys(shape: Shape, dtype: torch.dtype, record_property) -> None:  # type: ignore[no-untyped-def]
    """Keys that nearly repeat, erased in full: the inverse of the chunk is at its worst."""

    def repeat(t: dict[str, torch.Tensor]) -> None:
        k = t["p0"][:, :1] + 0.01 * t["p0"]
        t["p0"] = t["e0"] = k / k.norm(dim=-1, keepdim=True)

    check(record_property, shape, dtype, change=repeat, factor=2.0, gate=1e-3)


LIBRARY = sorted(p.stem for p in Path(stateir.recurrences.__path__[0]).glob("*.rule"))


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("name", LIBRARY)
def test_library(name: str, dtype: torch.dtype, record_property) -> None:  # type: ignore[no-untyped-def]
    rule = stateir.load(name)
    if reason := stateir.compile(rule).backends["triton"]:
        pytest.skip(reason)
    errors = rule_errors(rule, dtype, "cuda", K=48, V=80, ends=0.0)
    record_property("errors", {name: float(f"{e:.3g}") for name, e in errors.items()})
    params = {f"d{p.name}" for p in rule.params}  # sums over all tokens, which cancel
    assert not failures({name: e for name, e in errors.items() if name not in params}, dtype)
    assert not failures({name: e for name, e in errors.items() if name in params}, dtype, 5.0)


@pytest.mark.parametrize("seed", range(40))
def test_random_rules(seed: int, record_property) -> None:  # type: ignore[no-untyped-def]
    rule = stateir.parse(random_rule(RandomDraw(seed)))
    if reason := stateir.compile(rule).backends["triton"]:
        pytest.skip(reason)
    errors = rule_errors(rule, torch.float32, "cuda", K=20, V=12, seed=seed, resets=seed % 2 == 0, ends=0.0)
    record_property("errors", {name: float(f"{e:.3g}") for name, e in errors.items()})
    # The gradient of a decay 1 - beta is that of its log, divided by it: near 0 it is this much less exact.
    assert not failures(errors, torch.float32, 10.0), rule.text


def test_equal_bits() -> None:
    """The same call gives the same bits, a second backward the first's, an expanded gradient those of a full one."""
    shape = FEW[1]
    tensors = {name: x.cuda().bfloat16().requires_grad_() for name, x in make_tensors(shape, 2, 100, 3, 64, 48).items()}
    S = torch.zeros(2, 3, 64, 48, device="cuda", requires_grad=True)
    sources = [*tensors.values(), S]
    first = None
    for _ in range(10):
        o, final = scan_module(shape)._scan(tensors, S, torch.bfloat16)
        found = [o, final, *torch.autograd.grad(o.sum(), sources, retain_graph=True)]
        found_again = [o, final, *torch.autograd.grad(o, sources, torch.ones_like(o))]
        first = first or found
        assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(first, found, found_again, strict=True))


def test_many_heads() -> None:
    """More sequences and heads than a second grid axis could hold."""
    shape = FEW[0]
    tensors = {n: x.cuda().bfloat16().requires_grad_() for n, x in make_tensors(shape, 10923, 8, 6, 16, 16).items()}
    S = torch.zeros(10923, 6, 16, 16, device="cuda")
    o, final = scan_module(shape)._scan(tensors, S, torch.bfloat16)
    grads = torch.autograd.grad(o.sum(), list(tensors.values()))
    last = {n: x[-1:] for n, x in tensors.items()}
    o_last, final_last = scan_module(shape)._scan(last, S[-1:], torch.bfloat16)
    alone = torch.autograd.grad(o_last.sum(), list(last.values()))
    assert torch.equal(o[-1:], o_last) and torch.equal(final[-1:], final_last)
    assert all(torch.equal(a[-1:], b) for a, b in zip(grads, alone, strict=True))


@pytest.mark.parametrize("shape", MATRIX[::8], ids=name_of)
def test_decode(shape: Shape) -> None:
    tensors = make_tensors(shape, 2, 1, 3, 48, 80)
    S = torch.randn(2, 3, 48, 80, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        given = {name: x.float().cuda() for name, x in tensors.items()}
        reads, after = scan_module(shape)._token(given, S.float().cuda())
    want, want_after = step_loop(shape, tensors, S)
    torch.testing.assert_close(reads.cpu().double(), want, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(after.cpu().double(), want_after, atol=1e-5, rtol=1e-5)
