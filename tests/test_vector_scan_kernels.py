"""The Triton kernels of vector states, in Triton's interpreter against the PyTorch helpers in float64, and compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from vector_scan_cases import CASES, errors_of_scan, inputs_of, scan_of, tolerance

interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")


@interpreted
@pytest.mark.parametrize("T", [1, 37])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case: str, T: int) -> None:
    errors = errors_of_scan(case, B=1, T=T, H=2, D=3)
    assert max(errors.values()) < tolerance(case, 16), errors


@interpreted
@pytest.mark.parametrize("case", ["affine", "max-plus", "angle"])
def test_a_split_at_a_chunk_has_the_same_bits(case: str) -> None:
    a, b, start = inputs_of(case, 1, 21, 2, 3)
    scan = scan_of(case)
    whole = scan(a, b, start, 16)
    first = scan(a[:, :16], b[:, :16], start, 16)
    second = scan(a[:, 16:], b[:, 16:], first[:, -1], 16)
    assert torch.equal(torch.cat((first, second[:, 1:]), 1), whole)


COMPILE = """
import sys
sys.path.insert(0, sys.argv[1])
import triton
from triton.backends.compiler import GPUTarget
from vector_scan_cases import helpers

kernels = helpers("triton")
for kernel in (kernels.vector_scan, kernels.reverse_vector_scan):
    names = kernel.arg_names
    sizes = [x for x in names if x in ("T", "N", "D") or x[1:] in ("_b", "_t", "_h", "_d")]
    signature = {x: "constexpr" if x in ("KIND", "C", "BN") else "i32" if x in sizes else "*fp32" for x in names}
    for kind in ("affine", "max-plus", "angle"):
        for BN in (1, 32):
            values = {"KIND": kind, "C": 32, "BN": BN}
            source = triton.compiler.ASTSource(kernel, signature, values)
            compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
            print(kernel.fn.__name__, kind, BN, len(compiled.asm["cubin"]), compiled.metadata.shared)
"""


@pytest.mark.slow
def test_the_kernels_compile_for_a_gpu() -> None:
    """Forward and reverse, each kind of scan, one column and a full block; no GPU is needed for that."""
    folder = str(Path(__file__).parent)
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE, folder]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 12
