"""https://github.com/fla-org/flash-linear-attention/issues/1080: compiled kernels count memory in 64 bits.

The kernels are compiled as far as TTIR for an H100 or H200, without one; see offsets.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stateir.library import names

SEQUENTIAL = """rule sequential
input q: key, k: key unit, v: value, a: scalar in [0, 1]
state z: key
update z = min(z * a, k + 1)
update S = a * S + outer(k, v)
read o = (q * z) @ S
"""


def report(mistake: str, *rules: str) -> dict[str, Any]:
    """What offsets.py finds, outside of Triton's interpreter."""
    env = {n: v for n, v in os.environ.items() if n != "TRITON_INTERPRET"}
    command = [sys.executable, str(Path(__file__).parent / "offsets.py"), mistake, *rules]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check(found: dict[str, Any]) -> None:
    for rule, kernels in found.items():
        assert kernels.keys() >= {"scan", "reverse_scan", "local_grad", "decode"}
        for kernel, said in kernels.items():
            assert said["wrapping"] == [] and said["wide"] > 0, (rule, kernel, said)


def test_h07_no_offset_wraps(tmp_path: Path) -> None:
    """All kernels of a rule, of vector states and of states that are scanned token by token."""
    file = tmp_path / "sequential.rule"
    file.write_text(SEQUENTIAL)
    found = report("none", "gdn2", "mlstm", str(file))
    check(found)
    assert {"prologue", "prologue_grad", "intra", "keys", "values", "couplings_grad"} <= found["gdn2"].keys()
    assert {"vector_scan", "reverse_vector_scan"} <= found["mlstm"].keys()
    assert any("sequential" in kernel for kernel in found[str(file)])


def test_h07_a_32_bit_offset_is_found() -> None:
    kernels = report("offsets in 32 bits", "gdn2")["gdn2"]
    assert all(kernels[kernel]["wrapping"] for kernel in ("prologue", "scan", "local_grad", "decode"))


@pytest.mark.slow
def test_h07_no_offset_of_the_library_wraps() -> None:
    found = report("none", *(n for n in names() if n != "titans_linear"))  # which has no kernels
    assert len(found) > 25
    check(found)
