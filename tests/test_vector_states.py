"""States beside S, look-back, rotation: chunked equals step with gradients, and a split run is a whole run."""

from __future__ import annotations

import pytest
import torch

import stateir
from stateir.codegen.carried import comparable
from stateir.codegen.samples import sample_arguments

HEAD = "rule x\ninput q: key, k: key, v: value, f: scalar in (-inf, 0], i: scalar, b: key in [0, 1], th: pair\n"
LINES = {
    "affine key": "state z: key = 0.5\nupdate z = exp(f) * z + b * k\nupdate S += outer(z, v)\nread o = q @ S\n",
    "affine value": "state y: value\nupdate y = y / 2 + v\nupdate S += outer(k, y)\nread o = q @ S + y\n",
    "running maximum": "state m: scalar = -2\nlet d = f + m - i\nupdate m = max(f + m, i)\n"
    "update S = exp(min(d, 0)) * S + exp(min(-d, 0)) * outer(k, v)\nread o = q @ S + exp(min(m, 0)) * v\n",
    "sequential": "state z: key\nlet old = z\nupdate z = tanh(z + k)\nupdate z = z - old / 2\n"
    "update S += outer(old, v - z @ S)\nread o = q @ S\n",
    "many updates": "state z: scalar\nlet a = tanh(z)\nupdate z = i * z / 9 + z / 2 - a for n in 1..16\nlet h = z * a\n"
    "update z = h + z / 2\nlet r = z + h\nupdate S += outer(k, v)\nread o = q @ S + r * v\n",
    "scalar added to a vector": "state z: key\nupdate z = z / 2 + i\nupdate z = z + f\nlet h = z\nupdate z = z - i\n"
    "update S += outer(h, v)\nread o = z @ S\n",
    "scalar maximum of a vector": "state z: key\nupdate z = max(z, i)\nupdate S += outer(z, v)\nread o = q @ S\n",
    "scalar in place of a vector": "state z: key = 2\nupdate z = tanh(i) + z * 0\nupdate S += outer(z, v)\n"
    "read o = q @ S\n",
    "scalar minimum, one by one": "state z: key\nupdate z = min(z, i)\nupdate S += outer(z, v)\nread o = q @ S\n",
    "overwritten by a number": "state z: scalar = 2\nlet old = z\nupdate z = 3\nlet h = z\nupdate z = dim(key)\n"
    "update S += z * outer(k, v)\nread o = (old * h * q) @ S\n",
    "overwritten from infinity": "state m: scalar = -inf\nlet d = exp(m)\nupdate m = i\nupdate S += outer(d * k, v)\n"
    "read o = q @ S\n",
    "number among two together": "state z: scalar\nstate y: scalar\nupdate z = z / 2 + y\nupdate y = 3\n"
    "update y = y - z * f / 9\nupdate S += z * outer(k, v)\nread o = q @ S + y * v\n",
    "two together": "state z: key\nstate y: key\nupdate z = z / 2 + tanh(y) + k\nupdate y = y / 2 - z / 4\n"
    "update S += outer(y, v)\nread o = z @ S\n",
    "middle version": "state z: key\nupdate z = z / 2 + k\nlet h = z\nupdate z = b * z\nupdate S += outer(h, v)\n"
    "read o = z @ S\n",
    "accumulator": "state c: scalar\nupdate c += 1\nupdate S += outer(k / c, v)\nread o = q @ S\n",
    "matrix let": "state z: key\nlet M = outer(k, v)\nlet n = prev(k) @ (M + i * M)\nlet p = tanh(M @ v)\n"
    "update z = z / 2 + M @ n\nupdate S = exp(f) * S + M - outer(b * k, n) + outer(p, v)\nread o = z @ S + q @ M\n",
    "look-back": "update S = exp(f) * S + outer(prev(k), prev(v, 3))\nread o = prev(q, 2) @ S + prev(i) * v\n",
    "rotation": "state a: pair\nlet p = rotate(prev(k), -a)\nupdate a += th\n"
    "update S += outer(rotate(k, -a), v) + outer(p, v)\nread o = rotate(q, -a) @ S\n",
}
CHUNK, B, H, K, V = 8, 2, 2, 6, 5


def rule_of(name: str):
    text = HEAD + LINES[name]
    if name == "accumulator":
        text = text.replace("state c: scalar", "state c: scalar in (0, inf) = 1")
    return stateir.parse(text)


def run(rule, backend, arguments, state=None):
    op = stateir.compile(rule, backend, chunk_size=CHUNK if backend == "chunked" else None)
    return op(**arguments, initial_state=state, return_state=True)


def pieces(arguments, a, b):
    return {n: x[:, a:b] for n, x in arguments.items()}


def flat(o, state):
    return {"o": o, **state} if isinstance(state, dict) else {"o": o, "S": state}


@pytest.mark.parametrize("T", [0, 1, 2, 19])
@pytest.mark.parametrize("name", LINES)
def test_chunked_equals_step_with_gradients(name, T):
    rule = rule_of(name)
    arguments = {n: x.requires_grad_() for n, x in sample_arguments(rule, B=B, T=T, H=H, K=K, V=V, seed=1).items()}
    _, start = run(rule, "step", sample_arguments(rule, B=B, T=5, H=H, K=K, V=V, seed=2))
    grads = []
    results = []
    for backend in ("step", "chunked"):
        state = {n: x.clone().requires_grad_() for n, x in flat(None, start).items() if n != "o"}
        given = state if isinstance(start, dict) else state["S"]
        o, end = run(rule, backend, arguments, given)
        found = {"o": o, **comparable(rule, end if isinstance(end, dict) else {"S": end})}
        torch.manual_seed(0)
        loss = sum((x * torch.randn(x.shape, dtype=x.dtype)).sum() for x in found.values())
        leaves = [*arguments.values(), *state.values()]
        grads.append(torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True))
        results.append(found)
    for key, expected in results[0].items():
        assert torch.allclose(results[1][key], expected, rtol=1e-10, atol=1e-12), key
    for key, a, b in zip([*arguments, *state], *grads, strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-11), f"gradient of {key}"


@pytest.mark.parametrize(("backend", "at"), [("step", 5), ("chunked", CHUNK), ("chunked", 2 * CHUNK)])
@pytest.mark.parametrize("name", LINES)
def test_a_split_run_is_the_whole_run_bit_for_bit(name, backend, at):
    rule = rule_of(name)
    arguments = sample_arguments(rule, B=B, T=21, H=H, K=K, V=V, seed=3)
    whole, last = run(rule, backend, arguments)
    first, state = run(rule, backend, pieces(arguments, 0, at))
    second, end = run(rule, backend, pieces(arguments, at, 21), state)
    assert torch.equal(torch.cat((first, second), 1), whole)
    for key, x in flat(None, last).items():
        if key != "o":
            assert torch.equal(flat(None, end)[key], x), key


@pytest.mark.parametrize("name", LINES)
def test_decoding_equals_the_whole_run(name):
    rule = rule_of(name)
    arguments = sample_arguments(rule, B=B, T=11, H=H, K=K, V=V, seed=4)
    op = stateir.compile(rule, "chunked", chunk_size=4)
    whole, _ = op(**arguments)
    _, state = op(**pieces(arguments, 0, 6), return_state=True)
    for t in range(6, 11):
        o, state = op.step(**{n: x[:, t] for n, x in arguments.items()}, state=state)
        assert torch.allclose(o, whole[:, t], rtol=1e-10, atol=1e-12)


def test_a_running_angle_keeps_its_digits():
    """After 20,000 turns of about a radian, single precision still knows the angle."""
    rule = rule_of("rotation")
    arguments = sample_arguments(rule, B=1, T=20_000, H=1, K=K, V=V, seed=5)
    arguments["th"] = torch.full_like(arguments["th"], 1.0)
    _, exact = stateir.compile(rule, "chunked")(**arguments, return_state=True)
    _, single = stateir.compile(rule, "chunked")(**{n: x.float() for n, x in arguments.items()}, return_state=True)
    exact, single = (comparable(rule, s)["a"].double() for s in (exact, single))
    assert (exact - single).abs().max() < 2e-3


@pytest.mark.parametrize("T", [1, 12, 21])
@pytest.mark.parametrize(("axis", "line"), [
    ("scalar", "max(x + f, i)"), ("scalar", "max(x - i, f)"), ("key", "max(x + f, b)"), ("key", "max(x, b) + i"),
    ("key", "max(b, x + a)"),
])  # fmt: skip
def test_equal_candidates_of_a_maximum_share_the_gradient_as_a_step_does(axis, line, T):
    """Whole numbers, so that most tokens have two that are equal, and the state before them too."""
    text = "rule x\ninput q: key, k: key, v: value, f: scalar, i: scalar, b: key, a: key\n"
    text += f"state x: {axis}\nupdate x = {line}\nupdate S += outer({'x * k' if axis == 'scalar' else 'x'}, v)\n"
    rule = stateir.parse(text + "read o = q @ S\n")
    arguments = sample_arguments(rule, B=B, T=T, H=H, K=K, V=V, seed=6)
    generator = torch.Generator().manual_seed(7)
    for name in ("f", "i", "b", "a"):
        arguments[name] = torch.randint(-1, 2, arguments[name].shape, generator=generator).double()
    grads = []
    for backend in ("step", "chunked"):
        leaves = {n: x.clone().requires_grad_() for n, x in arguments.items()}
        start = stateir.compile(rule)(**pieces(arguments, 0, 0), return_state=True)[1]
        start = {n: torch.zeros_like(x).requires_grad_() for n, x in start.items()}
        o, end = run(rule, backend, leaves, start)
        loss = (o * torch.arange(o.numel()).view(o.shape)).sum() + end["x"].sum()
        grads.append(
            torch.autograd.grad(loss, [*leaves.values(), *start.values()], materialize_grads=True, allow_unused=True)
        )
    for name, a, b in zip([*arguments, *start], *grads, strict=True):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-12), name
