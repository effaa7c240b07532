"""Expressions as PyTorch text: that it reads well, and that it stays accurate where the naive text does not."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import stateir
from stateir.codegen.expr import HELPERS, Scope, python_names, scope_of, torch_text
from stateir.codegen.samples import sample_arguments
from stateir.ir import Axis, Expr, Rule

DECLARED = (
    "rule r\n"
    "input q: key, k: key, v: value, w: value, c: scalar, d: scalar, x: key in (0, inf), t: scalar in (0, inf)\n"
    "input n: scalar in (-inf, 0), a: pair, kk[2]: key, cc[2]: scalar\n"
    "param u: key, p: scalar\n"
)
REST = "update S += outer(k, v)\nread o = q @ S\n"


def let(text: str) -> tuple[Rule, Expr, Scope]:
    rule = stateir.parse(f"{DECLARED}let y = {text}\n{REST}")
    return rule, rule.lets["y"], scope_of(rule)


def written(text: str) -> str:
    _, e, scope = let(text)
    return torch_text(e, scope)


def value(text: str, dtype: torch.dtype = torch.float64, **given: float) -> Tensor:
    """The value of an expression, computed by its text, for a batch of one token; vectors are filled."""
    rule, e, scope = let(text)
    dims: dict[Axis, list[int]] = {Axis.SCALAR: [], Axis.KEY: [4], Axis.VALUE: [3], Axis.PAIR: [2]}
    names: dict[str, object] = {"math": math, "torch": torch, "F": F, "Tensor": Tensor, "K": 4, "V": 3}
    names["tiny"] = torch.finfo(dtype).tiny
    for i in rule.inputs:
        names[i.name] = torch.full((1, *dims[i.axis]), given.get(i.name, 0.0), dtype=dtype)
    text = torch_text(e, scope)
    for helper in scope.used & HELPERS.keys():
        exec(HELPERS[helper], names)
    result = eval(text, names)
    assert isinstance(result, Tensor)
    return result


@pytest.mark.parametrize(
    ("rule_text", "torch_text"),
    [
        ("c * k", "c[..., None] * k"),
        ("c * d * k", "(c * d)[..., None] * k"),
        ("k * q + u", "k * q + u"),
        ("k - (q - u)", "k - (q - u)"),
        ("k - (q + u)", "k - (q + u)"),
        ("(k - q) - u", "k - q - u"),
        ("k / (1 + t)", "k / (1 + t)[..., None]"),
        ("k @ q", "(k * q).sum(-1)"),
        ("(k + u) @ q", "((k + u) * q).sum(-1)"),
        ("(k @ q) * k", "(k * q).sum(-1)[..., None] * k"),
        ("kk[1] + cc[0] * k", "kk[..., 1, :] + cc[..., 0][..., None] * k"),
        ("k^2", "k ** 2"),
        ("-k^2", "-k ** 2"),
        ("(-k)^2", "(-k) ** 2"),
        ("k * (q * u)", "k * (q * u)"),
        ("2 * c", "2 * c"),
        ("c / sqrt(dim(key))", "c / math.sqrt(K)"),
        ("max(c, 0)", "torch.clamp(c, min=0)"),
        ("min(k, c)", "torch.minimum(k, c[..., None])"),
        ("rotate(k, -a)", "rotate(k, -a)"),
        ("rotate(k, c)", "rotate(k, c[..., None])"),
        ("unit(k)", "unit(k)"),
        ("1 - exp(c)", "-torch.expm1(c)"),
        ("exp(c) - 1", "torch.expm1(c)"),
        ("1 - sigmoid(c)", "torch.sigmoid(-c)"),
        ("log(sigmoid(c))", "F.logsigmoid(c)"),
        ("log(exp(c))", "c"),
        ("c / t", "c / torch.clamp(t, min=tiny)"),
        ("c / n", "c / torch.clamp(n, max=-tiny)"),
        ("log(t)", "torch.log(torch.clamp(t, min=tiny))"),
        ("t^c", "torch.exp(c * torch.log(torch.clamp(t, min=tiny)))"),
        ("2^c", "2 ** c"),
    ],
)
def test_text(rule_text: str, torch_text: str) -> None:
    assert written(rule_text) == torch_text


def test_small_differences_keep_their_digits() -> None:
    assert value("1 - exp(c)", torch.float32, c=-1e-6).item() == pytest.approx(1e-6, rel=1e-6)
    assert value("1 - sigmoid(c)", torch.float32, c=30.0).item() == pytest.approx(math.exp(-30), rel=1e-6)


@pytest.mark.parametrize("c", [-800.0, -100.0, -37.5, -36.5, -5.0, 0.0, 5.0, 39.0, 41.0, 900.0])
def test_logs_of_gates_are_finite_and_exact(c: float) -> None:
    softplus = c if c > 300 else math.log1p(math.exp(c))
    expected = c if c < -40 else math.log(softplus)
    assert value("log(softplus(c))", c=c).item() == pytest.approx(expected, rel=1e-15, abs=1e-15)
    assert value("log(sigmoid(c))", c=c).item() == pytest.approx(min(c, 0) - math.log1p(math.exp(-abs(c))), rel=1e-15)
    assert value("softplus(c)", c=c).item() == pytest.approx(softplus, rel=1e-15)


@pytest.mark.parametrize("c", [-800.0, -37.0, 0.0, 50.0])
def test_gradient_of_log_softplus(c: float) -> None:
    x = torch.tensor([c], dtype=torch.float64, requires_grad=True)
    names: dict[str, object] = {"torch": torch, "F": F, "Tensor": Tensor}
    exec(HELPERS["log_softplus"], names)
    names["log_softplus"](x).backward()  # type: ignore[operator]
    softplus = max(c, 0) + math.log1p(math.exp(-abs(c)))
    expected = 1.0 if c < -40 else 1 / (1 + math.exp(-c)) / softplus
    assert x.grad is not None
    assert x.grad.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("text", ["c / t", "log(t)", "rsqrt(t)", "t^c", "c / n"])
def test_underflow_at_an_open_bound_makes_no_nan(text: str) -> None:
    assert torch.isfinite(value(text, torch.float32, c=1.0, t=0.0, n=-0.0)).all()


@pytest.mark.parametrize("backend", ["step", "chunked"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradient_of_a_square_root_is_finite_at_zero(backend: str, dtype: torch.dtype) -> None:
    rule = stateir.parse(f"{DECLARED}let r = sqrt(k @ k)\nupdate S += outer(r * q, v)\nread o = q @ S\n")
    tensors = {n: x.to(dtype) for n, x in sample_arguments(rule, B=1, T=5, H=1, K=4, V=3, seed=1).items()}
    tensors["k"][:, 2] = 0
    k = tensors["k"].requires_grad_()
    o, _ = stateir.compile(rule, backend)(**tensors)
    o.sum().backward()
    assert torch.isfinite(o).all() and k.grad is not None
    assert torch.isfinite(k.grad).all() and (k.grad[:, 2] == 0).all() and (k.grad[:, 1] != 0).all()


@pytest.mark.parametrize("backend", ["step", "chunked"])
def test_a_quotient_of_gates_that_both_underflow_is_no_nan(backend: str) -> None:
    text = "rule r\ninput q: key, k: key, v: value, a: scalar in [-200, 0], b: scalar in [-200, 0]\n"
    rule = stateir.parse(f"{text}let c = exp(a) / exp(b)\nupdate S += outer(min(c, 1) * k, v)\nread o = q @ S\n")
    tensors = {n: x.float() for n, x in sample_arguments(rule, B=1, T=5, H=1, K=4, V=3, seed=1).items()}
    tensors |= {n: torch.full((1, 5, 1), -150.0) for n in "ab"}
    assert torch.isfinite(stateir.compile(rule, backend)(**tensors)[0]).all()


def test_unit_of_zero_is_zero_with_a_finite_gradient() -> None:
    names: dict[str, object] = {"torch": torch, "Tensor": Tensor}
    exec(HELPERS["unit"], names)
    x = torch.zeros(4, requires_grad=True)
    names["unit"](x).sum().backward()  # type: ignore[operator]
    # The derivative at zero is 1 / sqrt(1e-6).
    torch.testing.assert_close(x.grad, torch.full((4,), 1000.0))


def test_rotation_turns_pairs() -> None:
    names: dict[str, object] = {"torch": torch, "Tensor": Tensor}
    exec(HELPERS["rotate"], names)
    x, a = torch.tensor([1.0, 0.0, 0.0, 2.0]), torch.tensor([math.pi / 2, math.pi])
    turned = names["rotate"](x, a)  # type: ignore[operator]
    torch.testing.assert_close(turned, torch.tensor([0.0, 1.0, 0.0, -2.0]), atol=1e-6, rtol=0)


def test_names_that_python_or_the_text_needs() -> None:
    rule = stateir.parse(
        "rule r\ninput lambda: key, torch: key, K: value, range: scalar, x: scalar, t: scalar\n"
        "let T = range * x * t / sqrt(dim(key))\nupdate S += outer(T * lambda, K)\nread o = torch @ S\n"
    )
    names = python_names(rule)
    assert names["lambda"] == "lambda_" and names["torch"] == "torch_" and names["range"] == "range_"
    assert names["K"] == "K" and names["x"] == "x"
    shapes: dict[str, tuple[int, ...]] = {"lambda": (4,), "torch": (4,), "K": (3,), "range": (), "x": (), "t": ()}
    tensors = {name: torch.rand(1, 5, 2, *shape, dtype=torch.float64) for name, shape in shapes.items()}
    o, _ = stateir.compile(rule, "step")(**tensors)
    T = tensors["range"] * tensors["x"] * tensors["t"] / 2
    S = torch.einsum("bth,bthk,bthv->bthkv", T, tensors["lambda"], tensors["K"]).cumsum(1)
    torch.testing.assert_close(o, torch.einsum("bthk,bthkv->bthv", tensors["torch"], S))
