"""Shapes of core forms that between them use every part of the kernels, with a step loop over the core to compare to.

The loop is the definition of `stateir.normal.CoreRow` and `CoreRead`, token by token, and shares nothing with the
kernels.
"""

from __future__ import annotations

import itertools
import random
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

import stateir
from stateir.codegen.carried import carries_s_alone
from stateir.codegen.generated import load_source
from stateir.codegen.samples import sample_arguments
from stateir.codegen.shape import Coupling, ReadShape, RowShape, Shape
from stateir.codegen.triton_module import scan_parts, triton_module
from stateir.ir import Rule

Tensors = dict[str, Tensor]
LEVELS = ("post", "pre", "mixed")


def make_shape(decay: str, erasing: int, writing: int, level: str, read: str, seed: int = 0) -> Shape:
    """A shape with that many rows of each kind, in a random order.

    level: at which level erases (and a second read) stand; "mixed": some of each. read: "above" sees none of the rows,
    "below" all, "between" the first half.
    """
    draw = random.Random(f"{decay} {erasing} {writing} {level} {read} {seed}")
    kinds = [True] * erasing + [False] * writing
    draw.shuffle(kinds)
    rows: list[RowShape] = []
    for j, erases in enumerate(kinds):
        post = decay == "none" or level == "post" or (level == "mixed" and draw.random() < 0.5)
        visible = [i for i in range(j) if draw.random() < 0.7] if erases else []
        same = draw.choice([j, *(rows[i].p_same for i in range(j))])
        has_y = not erases or draw.random() < 0.8
        rows.append(RowShape(erases, has_y, post, tuple(Coupling(i, not post) for i in visible), same))
    seen = {"above": 0, "below": len(rows), "between": len(rows) // 2}[read]
    post = decay == "none" or read == "below"
    reads = [ReadShape("none", post, tuple(Coupling(i, not post) for i in range(seen)))]
    if level == "mixed":
        reads.append(ReadShape("scalar", True, ()))
    return Shape(decay, tuple(rows), tuple(reads), False)  # type: ignore[arg-type]


def matrix_of_shapes() -> list[Shape]:
    """Decay x erasing rows x pure writes x levels x place of the read; without a decay there is one level."""
    shapes = [
        make_shape(decay, erasing, writing, level, read)
        for decay, (erasing, writing) in itertools.product(
            ("none", "scalar", "key"), ((0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 2))
        )
        for level in (("post",) if decay == "none" else LEVELS)
        for read in ("above", "below", "between")
    ]
    return list(dict.fromkeys(shapes))


def name_of(shape: Shape) -> str:
    kinds = "".join("e" if row.erases else "w" for row in shape.rows)
    levels = "".join("+" if row.post else "-" for row in shape.rows)
    reads = ",".join(f"{'+' if r.post else '-'}{len(r.couplings)}" for r in shape.reads)
    return f"{shape.decay}-{kinds}{levels}-{reads}"


def make_tensors(
    shape: Shape, B: int, T: int, H: int, K: int, V: int, seed: int = 0, gate: float = 1.0, lowest: float = 0.0
) -> Tensors:
    """Random tensors of a shape in float64 with gates in [-gate, -lowest].

    Erases are scaled so that the state stays bounded; where K is small, unlike directions are not nearly orthogonal.
    """
    generator = torch.Generator().manual_seed(seed)
    count = max(1, len(shape.erasing))
    tensors: Tensors = {}
    for name, axis in shape.tensors():
        dims = {"scalar": (), "key": (K,), "value": (V,)}[axis]
        x = torch.randn(B, T, H, *dims, generator=generator, dtype=torch.float64)
        if name == "g":
            x = -lowest - (gate - lowest) * torch.rand(B, T, H, *dims, generator=generator, dtype=torch.float64)
        elif axis == "key":
            x = x / x.norm(dim=-1, keepdim=True) * (count**-0.5 if name[0] in "pe" else 1)
            x = x * (0.25 if K < 16 and name[0] == "e" else 1)
        elif name[0] in "cm":
            x = 0.5 * torch.tanh(x)
        tensors[name] = x
    return tensors


def step_loop(shape: Shape, t: Tensors, S: Tensor) -> tuple[Tensor, Tensor]:
    """The reads [B, T, H, reads, V] and the last state."""
    outputs = []
    for n in range(next(iter(t.values())).shape[1]):
        x = {name: value[:, n] for name, value in t.items()}
        p = [x[f"p{row.p_same}"] for row in shape.rows]
        decay = torch.exp(x["g"]) if "g" in x else torch.ones((), dtype=S.dtype)
        if shape.decay == "scalar":
            decay = decay[..., None]
        decayed = S * (decay[..., None] if shape.decay != "none" else 1)
        u: list[Tensor] = []
        for j, row in enumerate(shape.rows):
            value = x[f"y{j}"] if row.has_y else torch.zeros_like(S[..., 0, :])
            if row.erases:
                value = value - _read(x[f"e{j}"], decayed if row.post else S)
                for c in row.couplings:
                    value = value - _coupling(x, f"c{j}_{c.row}", x[f"e{j}"], p[c.row], c) * u[c.row]
            u.append(value)
        reads = []
        for r, read in enumerate(shape.reads):
            out = _read(x[f"q{r}"], decayed if read.post else S)
            for c in read.couplings:
                out = out + _coupling(x, f"m{r}_{c.row}", x[f"q{r}"], p[c.row], c) * u[c.row]
            reads.append(out)
        S = decayed + sum(a[..., :, None] * b[..., None, :] for a, b in zip(p, u, strict=True))
        outputs.append(torch.stack(reads, 2))
    return torch.stack(outputs, 1), S


def _read(covector: Tensor, state: Tensor) -> Tensor:
    return (covector[..., :, None] * state).sum(-2)


def _coupling(x: Tensors, name: str, covector: Tensor, p: Tensor, c: Coupling) -> Tensor:
    value = x[name] if c.explicit else (covector * p).sum(-1)
    return value[..., None]


@cache
def scan_module(shape: Shape) -> ModuleType:
    """The kernels of a shape alone; its inputs are the prologue's tensors."""
    return load_source(triton_module("", scan_parts(shape)), "kernels")


def rms(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())


def errors_of(
    shape: Shape, tensors: Tensors, S: Tensor, dtype: torch.dtype, device: str = "cpu", seed: int = 1
) -> dict[str, float]:
    """Errors of kernels on inputs of `dtype`, relative to rms, of the reads, the state and each gradient by itself.

    Upstream gradients are normal numbers, so an rms below 1e-2 is mostly what cancels or underflows: the error is then
    relative to 1e-2. The loop runs in float64 on the inputs as rounded to `dtype` (log decays, couplings and the state
    are float32 in the kernels).
    """
    kept = {"g": torch.float32}
    given = {name: x.to(kept.get(name, torch.float32 if name[0] in "cm" else dtype)) for name, x in tensors.items()}
    generator = torch.Generator().manual_seed(seed)
    exact = {name: x.double().requires_grad_() for name, x in given.items()}
    S_exact = S.float().double().requires_grad_()
    o_exact, final_exact = step_loop(shape, exact, S_exact)
    do = torch.randn(o_exact.shape, generator=generator, dtype=torch.float64)
    dS = torch.randn(final_exact.shape, generator=generator, dtype=torch.float64)
    sources = [*exact.values(), S_exact]
    wanted = torch.autograd.grad((o_exact * do).sum() + (final_exact * dS).sum(), sources, allow_unused=True)

    fast = {name: x.to(device).float().requires_grad_() for name, x in given.items()}
    S_fast = S.to(device).float().requires_grad_()
    o, final = scan_module(shape)._scan(fast, S_fast, dtype)
    loss = (o * do.to(device).float()).sum() + (final * dS.to(device).float()).sum()
    got = torch.autograd.grad(loss, [*fast.values(), S_fast], allow_unused=True)

    names = ["o", "S", *(f"d{name}" for name in fast), "dS"]
    pairs = zip([o_exact, final_exact, *wanted], [o, final, *got], strict=True)
    errors = {}
    for name, (want, have) in zip(names, pairs, strict=True):
        if want is None or have is None:
            assert have is None or not have.any(), f"{name} has a gradient"
            assert want is None or not want.any(), f"{name} has no gradient"
            continue
        errors[name] = rms(have.detach().cpu().double() - want.detach()) / max(rms(want.detach()), 1e-2)
    return errors


# Relative to rms: outputs, gradients (and the last state, which is rounded at every chunk), the log decay's gradient.
LIMITS = {
    torch.float32: (1e-5, 1e-4, 1e-4),
    torch.float16: (2e-3, 5e-3, 5e-3),
    torch.bfloat16: (5e-3, 1e-2, 1.5e-2),
}


def failures(errors: dict[str, float], dtype: torch.dtype, factor: float = 1.0) -> dict[str, str]:
    """The errors above their limits (`factor` times those of LIMITS); NaN is above any limit."""
    limits = {name: LIMITS[dtype][0 if name == "o" else 2 if name == "dg" else 1] for name in errors}
    return {
        name: f"{e:.1e} > {limits[name] * factor:.1e}" for name, e in errors.items() if not e <= limits[name] * factor
    }


def rule_errors(
    rule: Rule, dtype: torch.dtype, device: str = "cpu", *, T: int = 70, H: int = 2, K: int = 20, V: int = 12,
    seed: int = 0, resets: bool = False, ends: float = 0.1,
) -> dict[str, float]:  # fmt: skip
    """Errors of the operator's kernels against the float64 step reference: output, state, each gradient by itself."""
    rounded = sample_arguments(rule, B=1, T=T, H=H, K=K, V=V, seed=seed, resets=resets, ends=ends)
    rounded = {name: x.to(dtype) for name, x in rounded.items()}
    generator = torch.Generator().manual_seed(seed)
    S = 0.3 * torch.randn(1, H, K, V, generator=generator, dtype=torch.float64).float()
    do = torch.randn(1, T, H, V, generator=generator, dtype=torch.float64).to(dtype).double()
    dS = torch.randn(1, H, K, V, generator=generator, dtype=torch.float64)

    def run(backend: str, kind: torch.dtype, place: str) -> dict[str, Tensor]:
        tensors = {name: x.to(place, kind).requires_grad_() for name, x in rounded.items()}
        start = S.to(place, torch.float64 if kind is torch.float64 else torch.float32).requires_grad_()
        op = stateir.compile(rule, backend=backend)
        plain = carries_s_alone(rule)
        o, final = op(**tensors, initial_state=start if plain else None, return_state=True)
        last = final if plain else final["S"]
        loss = (o.double() * do.to(place)).sum() + (last.double() * dS.to(place)).sum()
        sources = {f"d{name}": x for name, x in tensors.items()} | ({"dS": start} if plain else {})
        grads = torch.autograd.grad(loss, list(sources.values()), allow_unused=True)
        found = {"o": o, "S": last} | dict(zip(sources, grads, strict=True))
        return {name: x.detach().cpu().double() for name, x in found.items() if x is not None}

    want, have = run("step", torch.float64, "cpu"), run("triton", dtype, device)
    assert want.keys() == have.keys()
    return {name: rms(have[name] - want[name]) / max(rms(want[name]), 1e-2) for name in want}
