"""The generated Triton modules of three rules, as text and as programs. `pytest --update-golden` writes them anew."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest
import torch

import stateir
from stateir.codegen.samples import sample_arguments

GOLDEN = Path(__file__).parent / "golden"
RULES = ("additive", "gdn2", "rwkv7")  # no decay; one merged row; an undecayed erase with a pure write and a bonus


@pytest.mark.parametrize("name", RULES)
def test_text(name: str, request: pytest.FixtureRequest) -> None:
    """The text is what it was; a change of it is to be read before it is accepted."""
    text = stateir.compile(stateir.load(name)).source("triton")
    path = GOLDEN / f"{name}.py"
    if request.config.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
    assert max(map(len, text.split("\n"))) <= 120


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
@pytest.mark.parametrize("name", RULES)
def test_execution(name: str) -> None:
    """The file alone agrees with the float64 step reference, in its gradients and its decode too."""
    spec = importlib.util.spec_from_file_location(f"golden_{name}", GOLDEN / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    rule = stateir.load(name)
    exact = {n: x.requires_grad_() for n, x in sample_arguments(rule, B=1, T=19, H=2, K=6, V=5).items()}
    tensors = {n: x.detach().float().requires_grad_() for n, x in exact.items()}
    o, state = module.run(*tensors.values())
    want, want_state = stateir.compile(rule, backend="step")(**exact, return_state=True)
    assert want_state is not None
    torch.testing.assert_close(o.double(), want, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(state.double(), want_state, atol=1e-5, rtol=1e-4)
    grads = torch.autograd.grad(o.sum() + state.sum(), list(tensors.values()))
    want_grads = torch.autograd.grad(want.sum() + want_state.sum(), list(exact.values()))
    for grad, want_grad in zip(grads, want_grads, strict=True):
        torch.testing.assert_close(grad.double(), want_grad, atol=1e-4, rtol=1e-3)

    params = {p.name for p in rule.params}
    with torch.no_grad():
        S = module.start(1, 2, 6, 5)
        for t in range(19):
            last, S = module.step(S, *(x if n in params else x[:, t] for n, x in tensors.items()))
    torch.testing.assert_close(last.double(), want[:, -1], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(S.double(), want_state, atol=1e-5, rtol=1e-4)
