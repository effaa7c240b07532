"""Sequential scans as compiled kernels, against the float64 step reference on the CPU."""

from __future__ import annotations

import pytest
import torch
from sequential_cases import CASES, errors_of, rule_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("sizes", [(1, 1, 1, 2, 1), (70, 2, 3, 48, 80), (33, 2, 2, 128, 64)], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_kernels_equal_the_step(case: str, sizes: tuple[int, ...], record_property) -> None:  # type: ignore[no-untyped-def]
    T, B, H, K, V = sizes
    errors = errors_of(rule_of(case), T, B, H, K, V, "cuda")
    record_property("errors", {name: float(f"{e:.3g}") for name, e in errors.items()})
    assert max(errors.values()) < 1e-4, errors
