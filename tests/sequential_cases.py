"""Rules with sequential states, and the errors of their kernels against the float64 step reference."""

from __future__ import annotations

import torch
from torch import Tensor

import stateir
from stateir.codegen.samples import sample_arguments
from stateir.ir import Rule

HEAD = """rule x
input q: key unit, k: key unit, v: value, i: scalar, b: key in [0, 1], c: scalar in [0, 1], th: pair
param u: key in [0, 1]
"""
CASES = {
    "elementwise": "state z: key = 0.3\nupdate z = tanh(z + k)\nupdate S += outer(z, v)\nread o = q @ S\n",
    "contraction": "state z: key\nupdate z = k * (z @ q) / 2 + exp(min(z * b, 1)) / 4 + u\nupdate S += outer(z, v)\n"
    "read o = q @ S\n",
    "scalar, two lines": "state z: scalar in [0, 1] = 0.5\nupdate z = z * z / 2 + c / 2\nupdate z = sqrt(z * c)\n"
    "update S += z * outer(k, v)\nread o = q @ S\n",
    "lets between": "state z: key\nlet old = z @ k\nupdate z = z / (1 + z @ z) + k + i\nlet w = tanh(z)\n"
    "update z = w - old * z\nupdate S += outer(w, v)\nread o = q @ S\n",
    "key and value": "state z: key\nstate y: value\nupdate z = z / 2 + tanh(y @ v) * k\n"
    "update y = y / 2 - (z @ q) * v + prev(v)\nupdate S += outer(z, y)\nread o = q @ S\n",
    "pair": "state a: pair\nupdate a = tanh(2 * a + th)\nupdate S += outer(rotate(k, a), v)\nread o = q @ S\n",
    "nothing but itself": "state z: key = 0.5\nupdate z = sigmoid(z - z * z)\nupdate S += outer(z * k, v)\n"
    "read o = q @ S\n",
    "kink": "state z: key\nupdate z = min(z / 2 + k, b)\nupdate S += outer(z, v)\nread o = q @ S\n",
    "names of its own": "state x0: key\nstate tl: scalar\nupdate x0 = tanh(x0 + tl * k)\n"
    "update tl = tl / 2 + x0 @ q\nupdate S += outer(x0, v)\nread o = q @ S + tl * v\n",
}  # fmt: skip


def rule_of(case: str) -> Rule:
    return stateir.parse(HEAD + CASES[case])


def errors_of(
    rule: Rule, T: int, B: int = 2, H: int = 2, K: int = 6, V: int = 5, device: str = "cpu"
) -> dict[str, float]:
    """Largest errors, relative to the largest value, of the output, the states and each gradient by itself."""
    arguments = sample_arguments(rule, B=B, T=T, H=H, K=K, V=V, ends=0.0)
    generator = torch.Generator().manual_seed(1)
    _, zero = stateir.compile(rule, "step")(
        **{n: x if n == "u" else x[:, :0] for n, x in arguments.items()}, return_state=True
    )
    assert isinstance(zero, dict)
    start = {n: 0.5 * torch.rand(x.shape, generator=generator, dtype=torch.float64) for n, x in zero.items()}

    def run(backend: str, dtype: torch.dtype, place: str) -> dict[str, Tensor]:
        leaves = {n: x.to(place, dtype).requires_grad_() for n, x in arguments.items()}
        before = {n: x.to(place, dtype).requires_grad_() for n, x in start.items()}
        o, after = stateir.compile(rule, backend)(**leaves, initial_state=before, return_state=True)
        assert isinstance(after, dict)
        found = {"o": o} | {f"state {n}": x for n, x in after.items()}
        loss = sum((x.square().sum() for x in found.values()), torch.zeros((), dtype=dtype, device=place))
        sources = leaves | {f"initial {n}": x for n, x in before.items()}
        grads = torch.autograd.grad(loss, list(sources.values()), allow_unused=True, materialize_grads=True)
        found |= {f"gradient of {n}": d for n, d in zip(sources, grads, strict=True)}
        return {n: x.detach().cpu().double() for n, x in found.items()}

    want, have = run("step", torch.float64, "cpu"), run("triton", torch.float32, device)
    return {n: float((have[n] - x).abs().max()) / max(float(x.abs().max()), 1e-2) for n, x in want.items()}
