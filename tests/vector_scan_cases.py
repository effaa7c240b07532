"""Inputs of the scans of vector states, and their errors against the PyTorch helpers in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from stateir.codegen.generated import load_source
from stateir.codegen.text import module
from stateir.codegen.triton_module import triton_module
from stateir.codegen.triton_vector_scans import TRITON
from stateir.codegen.vector_scans import TORCH, Kind

Scan = Callable[[Tensor, Tensor, Tensor, int], Tensor]

# The kind of scan, and what is special: "scalar" a state of one number, "narrow" one factor for all channels,
# "constant" factors that are one number for every token, "ends" factors of exactly 0 and 1 or of minus infinity,
# "equal" candidates of a maximum that are often the same.
CASES = [
    "affine", "affine scalar", "affine narrow", "affine constant", "affine ends", "max-plus", "max-plus scalar",
    "max-plus narrow", "max-plus ends", "max-plus equal", "angle", "angle scalar",
]  # fmt: skip


def kind_of(case: str) -> Kind:
    return case.split()[0]  # type: ignore[return-value]


def inputs_of(case: str, B: int, T: int, H: int, D: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """a, b and the start, in float32; values that rounding would turn from unequal to equal are left out."""
    kind, special = kind_of(case), case.split()[-1]
    generator = torch.Generator().manual_seed(seed)
    own = () if special == "scalar" else (D,)
    normal = torch.randn(B, T, H, *own, generator=generator)
    a = torch.rand(B, T, H, *own, generator=generator)
    b, start = torch.randn(B, T, H, *own, generator=generator), torch.randn(B, H, *own, generator=generator)
    if kind == "max-plus":
        a = -a
    if special == "ends":
        low = 0.0 if kind == "affine" else -math.inf
        a = torch.where(normal > 1, low, torch.where(normal < -1, 1.0 + low if kind == "affine" else 0.0, a))
    if special == "narrow":
        a = a[..., :1]
    if special == "constant":
        a = a[:1, :1].expand_as(a)
    if special == "equal":
        a, b, start = (torch.round(2 * x) for x in (a, b, start))
    return a, b, start


@cache
def helpers(backend: str) -> ModuleType:
    scans = TRITON if backend == "triton" else TORCH
    parts = list(dict.fromkeys(x for scan in scans.values() for x in scan.definitions))
    return load_source((triton_module if backend == "triton" else module)("", parts), f"{backend} vector scans")


def scan_of(case: str, backend: str = "triton") -> Scan:
    scan: Scan = getattr(helpers(backend), TORCH[kind_of(case)].name)
    return scan


def errors_of_scan(case: str, B: int, T: int, H: int, D: int, device: str = "cpu", chunk: int = 16) -> dict[str, float]:
    """Largest errors of the kernels, relative to the largest value, of the states and of each gradient by itself."""
    given = inputs_of(case, B, T, H, D)

    def run(backend: str, dtype: torch.dtype, place: str) -> list[Tensor]:
        leaves = [x.to(place, dtype).requires_grad_() for x in given]
        out = scan_of(case, backend)(*leaves, chunk)
        if kind_of(case) == "angle":  # 0 and 2 pi are one angle
            out = torch.stack((out.cos(), out.sin()), -1)
        weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        grads = torch.autograd.grad((out * weights.to(place, dtype)).sum(), leaves, allow_unused=True)
        return [torch.zeros(1) if x is None else x.detach().cpu().double() for x in (out, *grads)]

    want, have = run("torch", torch.float64, "cpu"), run("triton", torch.float32, device)
    errors = {}
    for name, x, y in zip(("states", "da", "db", "dstart"), want, have, strict=True):
        assert x.shape == y.shape, name
        difference = torch.where(x == y, 0.0, (x - y).abs())  # infinities that agree
        errors[name] = float(difference.max()) / max(1.0, float(x[x.isfinite()].abs().max()))
    return errors


def tolerance(case: str, chunk: int) -> float:
    """A few roundings of float32, 6e-8 each; an angle is a sum over a chunk before it is taken modulo a turn."""
    return 6e-8 * (32 if kind_of(case) != "angle" else 4 * chunk)
