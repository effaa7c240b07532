"""Prologues as kernels, in Triton's interpreter: against the PyTorch prologue, and their functions against float64."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from kernel_cases import failures, rule_errors
from torch import Tensor

import stateir
from stateir.affine import normal_form
from stateir.codegen import triton_config, triton_module
from stateir.codegen.generated import load_source
from stateir.codegen.samples import sample_arguments
from stateir.codegen.text import module
from stateir.codegen.triton_expr import FUNCTIONS
from stateir.core import core
from stateir.ir import Rule
from stateir.library import names
from stateir.plan import unfused

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")

FAST = {"many", "gdn2", "retention", "rwkv7"}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Chunks of 16 tokens, and every uninitialised tensor full of NaN."""
    monkeypatch.setattr(triton_config, "chunk_size", lambda tiles: 16)
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def of(rule: Rule, fused: bool, elements: int = 512) -> ModuleType:
    """A rule's module; its prologue has few rows a program, so that even short sequences take several."""
    form = normal_form(rule)
    assert form is not None
    found = load_source(triton_module.triton_source(rule, core(form), fused=fused), f"{rule.name}.{fused}.{elements}")
    found.ELEMENTS = elements  # type: ignore[attr-defined]
    return found


def is_fused(rule: Rule) -> bool:
    form = normal_form(rule)
    return form is not None and unfused(rule, core(form)) is None


def results(made: ModuleType, arguments: dict[str, Tensor]) -> dict[str, Tensor]:
    given = {name: x.detach().requires_grad_() for name, x in arguments.items()}
    o, final = made.run(*given.values())
    do, dS = (torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype) for x in (o, final))
    grads = torch.autograd.grad((o * do).sum() + (final * dS).sum(), list(given.values()), allow_unused=True)
    found = {"o": o.detach(), "S": final.detach()} | {f"d{name}": x for name, x in zip(given, grads, strict=True)}
    return {name: torch.zeros(()) if x is None else x for name, x in found.items()}


RULES = [n for n in names() if is_fused(stateir.load(n))]


# Sums over what is not 0 past the last channel or not finite past the last token, params under functions, a factor, a
# rest, an array.
MANY = """rule many
input  q: key, k: key, v[2]: value, c: scalar, t: scalar in (0, inf), r: scalar in [1, 2]
param  u: key, s: scalar, D: value
let    n = exp(k) @ exp(u * q)
let    d = unit(k) / (1 + softplus(c)) + tanh(s / r) * max(q, u)
let    z = (sigmoid(v[1]) @ exp(D)) / 36
update S  = sigmoid(c + s) * S
update S += outer(d, abs(v[0]) * D - 0.01 * d @ S) + outer(log(1 + n) / 20 * k, min(v[1], v[0]))
read   o  = z * (k @ S) + sqrt(t) * D * (q @ S) + (1 - exp(-t)) * v[1]
"""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FAST else pytest.mark.slow) for n in ["many", *RULES]]
)
def test_fused_is_unfused(name: str) -> None:
    """Output, state and each gradient, with values at the ends of ranges; sizes that fill no tile."""
    rule = stateir.parse(MANY) if name == "many" else stateir.load(name)
    arguments = sample_arguments(rule, B=2, T=9, H=2, K=20, V=36, ends=0.2, dtype=torch.float32)
    have, want = results(of(rule, True), arguments), results(of(rule, False), arguments)
    for key, x in want.items():
        torch.testing.assert_close(have[key], x.broadcast_to(have[key].shape), rtol=2e-5, atol=2e-6, msg=key)
        assert have[key].dtype == x.dtype


EDGES = {
    "nothing read": "input k: key, v: value, w: value\nupdate S += outer(k, v)\nread o = v * w\n",
    "a rest alone": "input k: key, v: value\nupdate S += outer(k, v)\nread o = k @ S + v\n",
    "names that the text has too": """
input  q: key, do: value, row: scalar, T: scalar in (0, 1), tile: key, e: key unit
param  ctx: scalar, epilogue: key unit
update S += outer(row * epilogue + tile, do - T * (e @ S))
read   g  = 0.5 * (q @ S) * ctx
""",
    "directions that are params": """
input  v: value, g: scalar in (-inf, 0]
param  p: key
update S = exp(g) * S + outer(p, v)
read   o = p @ S / dim(key)
""",
    "an element that nothing uses": """
input  k: key, v[2]: value, q[2]: key
update S += outer(k, v[0])
read   o = q[1] @ S + k @ S
""",
}


@pytest.mark.parametrize("name", EDGES)
def test_edges(name: str) -> None:
    rule = stateir.parse(f"rule edge\n{EDGES[name]}")
    assert not failures(rule_errors(rule, torch.float32, T=7, H=2, K=6, V=5), torch.float32)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) for n in RULES])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_library(name: str, dtype: torch.dtype) -> None:
    """Against the float64 step reference, with resets."""
    errors = rule_errors(stateir.load(name), dtype, T=21, H=2, K=20, V=36, ends=0.1, resets=dtype == torch.float32)
    assert not failures(errors, dtype)


def test_what_is_an_input_is_not_copied() -> None:
    rule = stateir.load("additive")
    made = of(rule, True)
    assert not hasattr(made, "prologue") and not hasattr(made, "prologue_grad") and not hasattr(made, "epilogue")
    q, k, v = sample_arguments(rule, B=1, T=5, H=2, K=6, V=5, dtype=torch.float32).values()
    assert [x.data_ptr() for x in made._prologue(q, k, v, torch.float32)] == [x.data_ptr() for x in (k, v, q)]
    made = of(stateir.load("gdn2"), True)
    assert hasattr(made, "prologue") and "q_in" not in made.prologue.arg_names


def test_inputs_as_they_come() -> None:
    """Any dtype and layout; the output has the value input's dtype, each gradient that of its input."""
    rule = stateir.load("gdn2")
    exact = sample_arguments(rule, B=2, T=9, H=2, K=6, V=5, ends=0)
    kinds = {"q": torch.float16, "g": torch.float32, "b": torch.float64, "v": torch.float16}
    rounded = {n: x.to(kinds.get(n, torch.float32)).float() for n, x in exact.items()}
    mixed = {n: x.to(kinds[n] if kinds.get(n) == torch.float16 else torch.float32) for n, x in rounded.items()}
    mixed = {n: x.transpose(1, 2).contiguous().transpose(1, 2) for n, x in mixed.items()}
    assert not mixed["k"].is_contiguous()
    made = of(rule, True)
    have, want = results(made, mixed), results(made, rounded)
    assert have["o"].dtype == torch.float16
    for n, x in mixed.items():
        assert have[f"d{n}"].dtype == x.dtype
    torch.testing.assert_close(have["o"].float(), want["o"], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(have["S"], want["S"], rtol=1e-5, atol=1e-6)


def test_parameters_without_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of gradients runs only where one of them is wanted."""
    rule = stateir.load("retention")
    made = of(rule, True)
    q, k, v, gamma = sample_arguments(rule, B=1, T=5, H=2, K=6, V=5, dtype=torch.float32).values()
    launched = []
    kernel = made.prologue_grad
    monkeypatch.setattr(
        made, "prologue_grad", type("", (), {"__getitem__": lambda _, grid: launched.append(grid) or kernel[grid]})()
    )
    for wanted, expected in ((False, 0), (True, 1)):
        gamma = gamma.detach().requires_grad_(wanted)
        o, _ = made.run(q.requires_grad_(), k, v, gamma)
        o.sum().backward()
        assert len(launched) == expected


APPLY = """
@triton.jit
def apply(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, {}(tl.load(x + i)))
"""

ENDS = [0.0, 1e-30, 1e-10, 1e-7, 1e-4, 0.01, 0.3, 0.4999, 0.5, 0.51, 1.0, 3.0, 10.0, 16.9, 17.1, 20.0, 40.0, 80.0, 1e4]


@pytest.mark.parametrize(
    ("name", "exact"),
    [
        ("_expm1", torch.expm1),
        ("_tanh", torch.tanh),
        ("_softplus", lambda x: torch.logaddexp(x, torch.zeros_like(x))),
        ("_log_softplus", lambda x: torch.where(x < -37, x, torch.log(torch.logaddexp(x, torch.zeros_like(x))))),
        ("_sign", torch.sign),
    ],
)
def test_functions_keep_their_digits(name: str, exact) -> None:  # type: ignore[no-untyped-def]
    """To a few units in the last place of float32, from -1e4 to 1e4; what overflows does so as it should."""
    source = module("", ["import triton", "import triton.language as tl", *FUNCTIONS.values(), APPLY.format(name)])
    x = torch.tensor([*ENDS, *(-x for x in ENDS)])
    x = torch.cat([x, torch.linspace(-2, 2, 64 - len(x))])
    y = torch.empty_like(x)
    load_source(source, name).apply[(1,)](x, y, len(x))
    torch.testing.assert_close(y.double(), exact(x.double()).float().double(), rtol=1e-6, atol=1e-38)
