"""A rule's kernels as one file in a project without stateir: python examples/vendored_kernel.py [FILE]

Writes the file, runs its own test in a new process, then calls it as a module of its own, with gradients and a decoded
token. Without a GPU, Triton's interpreter runs the kernels: slow, and for small sizes.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported


def emit(file: Path, rule: str = "gated_delta") -> None:
    """The one step that needs stateir; the rest of this program does not."""
    command = [sys.executable, "-m", "stateir", "emit", rule, "--target", "triton", "-o", str(file)]
    print(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


def imported(file: Path) -> ModuleType:
    """The file as a module; in a project of yours this is an ordinary import."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(file: Path) -> None:
    """Emit, test, call."""
    emit(file)
    print(subprocess.run([sys.executable, str(file)], check=True, capture_output=True, text=True).stdout.strip())

    kernels = imported(file)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    B, T, H, K, V = 1, 20, 2, 8, 6
    q, k = (torch.nn.functional.normalize(torch.randn(B, T, H, K, device=device), dim=-1) for _ in range(2))
    v = torch.randn(B, T, H, V, device=device, requires_grad=True)
    g, beta = -torch.rand(B, T, H, device=device), torch.rand(B, T, H, device=device)
    o, state = kernels.run(q, k, v, g, beta)  # in the order of the rule's declarations
    o.square().mean().backward()
    assert v.grad is not None
    print(f"a sequence: {list(o.shape)}, gradient of v {list(v.grad.shape)}")
    with torch.no_grad():
        o, state = kernels.step(state, *(x[:, -1] for x in (q, k, v, g, beta)))
    print(f"a token: {list(o.shape)}, state {list(state.shape)}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder) / "gated_delta_kernels.py")
