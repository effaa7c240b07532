"""Sequential scans as kernels, in Triton's interpreter: the output, the states and each gradient by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sequential_cases import CASES, HEAD, errors_of, rule_of

import stateir
from stateir.codegen import triton_config

LIMIT = 1e-5  # of float32 over a few tokens, relative to the largest value


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_config, "chunk_size", lambda tiles: 16)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
@pytest.mark.parametrize("case", CASES)
def test_kernels_equal_the_step(case: str) -> None:
    rule = rule_of(case)
    assert "_sequential" in stateir.compile(rule, "triton").source("triton")
    errors = errors_of(rule, T=5)
    assert max(errors.values()) < LIMIT, errors


def test_a_rotation_stays_in_pytorch() -> None:
    """Tiles have no text for it; the prologue runs the lines token by token."""
    rule = stateir.parse(
        f"{HEAD}state z: key\nupdate z = rotate(z, th) / 2 + k\nupdate S += outer(z, v)\nread o = q @ S\n"
    )
    text = stateir.compile(rule, "triton").source("triton")
    assert "_sequential" not in text and "for t in range(T):" in text


COMPILE = """
import sys
sys.path.insert(0, sys.argv[1])
import triton
from triton.backends.compiler import GPUTarget
from sequential_cases import CASES, rule_of
from stateir.codegen import backends

for case in CASES:
    module = backends.functions(rule_of(case), "triton", None)
    for name, kernel in vars(module).items():
        if name.endswith("_kernel"):
            names = kernel.arg_names
            sizes = {"K": 48, "KP": 64, "V": 80, "VP": 128}
            signature = {x: "constexpr" if x in sizes else "i32" if x in ("T", "H") else "*fp32" for x in names}
            values = {x: size for x, size in sizes.items() if x in names}
            source = triton.compiler.ASTSource(kernel, signature, values)
            compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1})
            print(name, len(compiled.asm["cubin"]))
"""


@pytest.mark.slow
def test_the_kernels_compile_for_a_gpu() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE, str(Path(__file__).parent)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2 * len(CASES)
