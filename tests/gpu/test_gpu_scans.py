"""The compiled kernels of vector states against the PyTorch helpers in float64, and the time that they take."""

from __future__ import annotations

import pytest
import torch
from vector_scan_cases import CASES, errors_of_scan, inputs_of, scan_of, tolerance

import stateir
from stateir.codegen.verify_device import verify_on

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (2, 37, 3, 5), (3, 200, 2, 64), (1, 70, 16, 128)], ids=str)
@pytest.mark.parametrize("chunk", [16, 32, 64])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case: str, chunk: int, sizes: tuple[int, int, int, int], record_property) -> None:  # type: ignore[no-untyped-def]
    B, T, H, D = sizes
    errors = errors_of_scan(case, B, T, H, D, "cuda", chunk)
    record_property("errors", {name: float(f"{e:.3g}") for name, e in errors.items()})
    assert max(errors.values()) < 4 * tolerance(case, chunk), errors


@pytest.mark.parametrize("case", ["affine", "max-plus", "angle"])
def test_equal_bits(case: str) -> None:
    """The same call gives the same bits, and so does a run split where a chunk ends."""
    a, b, start = (x.cuda() for x in inputs_of(case, 2, 300, 4, 64))
    scan = scan_of(case)
    whole = scan(a, b, start, 32)
    assert torch.equal(scan(a, b, start, 32), whole)
    first = scan(a[:, :96], b[:, :96], start, 32)
    second = scan(a[:, 96:], b[:, 96:], first[:, -1], 32)
    assert torch.equal(torch.cat((first, second[:, 1:]), 1), whole)


@pytest.mark.parametrize("name", ["linear_attention", "mamba3", "mlstm", "precond_gated_delta"])
def test_rules_with_vector_states(name: str, record_property) -> None:  # type: ignore[no-untyped-def]
    checks = verify_on(stateir.load(name), "cuda")
    record_property("errors", {c.name: float(f"{c.error:.3g}") for c in checks})
    assert all(c.passed for c in checks), [c for c in checks if not c.passed]


def milliseconds(scan, inputs: list[torch.Tensor], backward: bool) -> float:  # type: ignore[no-untyped-def]
    leaves = [x.requires_grad_(backward) for x in inputs]
    times = []
    for _ in range(13):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        out = scan(*leaves, 32)
        if backward:
            out.sum().backward()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times[3:])[5]


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "with backward"])
@pytest.mark.parametrize("case", ["affine", "affine scalar", "max-plus scalar", "angle"])
def test_kernels_are_faster_than_torch(case: str, backward: bool, record_property) -> None:  # type: ignore[no-untyped-def]
    """B = 4, T = 4096, H = 16, D = 128 (one number for a scalar state)."""
    inputs = [x.cuda() for x in inputs_of(case, 4, 4096, 16, 128)]
    kernels, torch_ops = (milliseconds(scan_of(case, x), inputs, backward) for x in ("triton", "torch"))
    record_property("milliseconds", {"kernels": round(kernels, 4), "torch": round(torch_ops, 4)})
    assert kernels < torch_ops
