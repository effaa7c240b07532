"""One token at a time: states written in place, and states of many sequences of which a token has some."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

import stateir
from stateir.codegen.arguments import State
from stateir.codegen.operator import Operator
from stateir.codegen.samples import sample_arguments

H, K, V = 2, 6, 5
CASES = [(name, backend) for name in ("gdn2", "mlstm", "mamba3") for backend in ("step", "chunked", "triton")]


def setting(name: str, backend: str, B: int = 2) -> tuple[Operator, dict[str, Tensor], Any]:
    """An operator, a token of B sequences, and the states of 5 sequences."""
    if backend == "triton" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs Triton's interpreter")
    rule = stateir.load(name)
    op = stateir.compile(rule, backend)
    inputs = {i.name for i in rule.inputs}
    x = sample_arguments(rule, B=B, T=1, H=H, K=K, V=V, dtype=torch.float32)
    before = sample_arguments(rule, B=5, T=3, H=H, K=K, V=V, seed=1, dtype=torch.float32)
    _, states = stateir.compile(rule, "step")(**before, return_state=True)
    return op, {n: t[:, 0] if n in inputs else t for n, t in x.items()}, states


def each(state: State) -> dict[str, Tensor]:
    return state if isinstance(state, dict) else {"S": state}


def mapped(f: Any, state: State) -> Any:
    return {n: f(t) for n, t in state.items()} if isinstance(state, dict) else f(state)


@pytest.mark.parametrize(("name", "backend"), CASES)
def test_in_place(name: str, backend: str) -> None:
    op, x, states = setting(name, backend)
    state = mapped(lambda t: t[:2].clone(), states)
    with torch.no_grad():
        want, after = op.step(**x, state=state)
        o, written = op.step(**x, state=state, inplace=True)
    assert torch.equal(o, want)
    for n, t in each(after).items():
        assert each(written)[n] is each(state)[n] and torch.equal(each(state)[n], t)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("name", "backend"), CASES)
def test_slots(name: str, backend: str, dtype: torch.dtype) -> None:
    """Only the rows of the token's sequences change; without `inplace` the given states do not."""
    op, x, states = setting(name, backend)
    kept = mapped(Tensor.clone, states)
    rows = [4, 1]
    with torch.no_grad():
        want, after = op.step(**x, state=mapped(lambda t: t[rows], states))
        for inplace in (False, True):
            o, every = op.step(**x, state=states, slots=torch.tensor(rows, dtype=dtype), inplace=inplace)
            assert torch.equal(o, want)
            for n, t in each(every).items():
                assert torch.equal(t[rows], each(after)[n])
                assert torch.equal(t[[0, 2, 3]], each(kept)[n][[0, 2, 3]])
                assert torch.equal(each(states)[n], t if inplace else each(kept)[n])
                assert (t is each(states)[n]) == inplace


def test_a_narrow_state_keeps_its_dtype() -> None:
    op, x, states = setting("gdn2", "chunked")
    pool = states.bfloat16()
    with torch.no_grad():
        _, after = op.step(**x, state=pool[:2])
        _, every = op.step(**x, state=pool, slots=torch.tensor([0, 1]), inplace=True)
    assert isinstance(after, Tensor) and after.dtype == torch.float32
    assert every is pool and torch.equal(pool[:2], after.bfloat16())


def test_slots_have_gradients() -> None:
    op, x, states = setting("gdn2", "chunked")
    pool = states.clone().requires_grad_()
    o, every = op.step(**x, state=pool, slots=torch.tensor([3, 0]))
    assert isinstance(every, Tensor)
    (g,) = torch.autograd.grad(o.sum() + every.sum(), [pool])
    assert (g[[1, 2, 4]] == 1).all() and not (g[[0, 3]] == 1).any()


def test_compiled() -> None:
    op, x, states = setting("gdn2", "chunked")
    step = torch.compile(op.step, fullgraph=True, backend="aot_eager")
    slots, twin = torch.tensor([3, 0]), states.clone()
    with torch.no_grad():
        want, _ = op.step(**x, state=twin, slots=slots, inplace=True)
        o, _ = step(**x, state=states, slots=slots, inplace=True)
    assert torch.equal(o, want) and torch.equal(states, twin)


def test_refusals() -> None:
    op, x, states = setting("gdn2", "chunked")
    with pytest.raises(ValueError, match="argument 'state': inplace and slots need one"):
        op.step(**x, inplace=True)
    with pytest.raises(ValueError, match="argument 'inplace': has no gradient"):
        op.step(**x | {"q": x["q"].requires_grad_()}, state=states[:2], inplace=True)
    for slots, message in (([0, 0], "different numbers from 0 to 4"), ([0, 5], "0 to 4"), ([[0, 1]], "expected .B.")):
        with pytest.raises(ValueError, match=f"argument 'slots': .*{message}"):
            op.step(**x, state=states, slots=torch.tensor(slots))
    with pytest.raises(TypeError, match=r"int32 or int64 tensor, got torch.float32"):
        op.step(**x, state=states, slots=torch.zeros(2))
    with pytest.raises(ValueError, match=r"argument 'state': expected \[2, 2, 6, 5\], got \[1, 2, 6, 5\]"):
        op.step(**x, state=states, slots=torch.tensor([1]))
