"""A compiled rule inside PyTorch: torch.compile, operator checks, torch.func, copies and threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import stateir
from stateir.codegen.arguments import State
from stateir.codegen.operator import Operator
from stateir.codegen.samples import sample_arguments
from stateir.codegen.torch_ops import operator_name, registered

K, V = 6, 5
BACKENDS = ["step", "chunked", "triton"]
# Of each kind of state: S alone, vector states, look-back, a param that depends on the head; two matrix states.
RULES = ["gdn2", "mlstm", "mamba3", "retention"]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield


def operator(name: str, backend: str) -> Operator:
    if backend == "triton" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs Triton's interpreter")
    return stateir.compile(stateir.load(name), backend)


def sample(op: Operator, T: int, grad: bool = True, **sizes: int) -> dict[str, Any]:
    x = sample_arguments(op.rule, **{"B": 1, "T": T, "H": 2, "K": K, "V": V, **sizes}, dtype=torch.float32)
    fixed = {p.name for p in op.rule.params if p.fixed}
    return {name: t.requires_grad_(grad and name not in fixed) for name, t in x.items()}


def parts(state: State | None) -> list[Tensor]:
    assert state is not None
    return list(state.values()) if isinstance(state, dict) else [state]


def results(call: Any, x: dict[str, Any], **options: Any) -> list[Tensor]:
    """The output, the state after, and the gradients of both."""
    o, state = call(**x, return_state=True, **options)
    found = [o, *parts(state)]
    leaves = [t for t in x.values() if t.requires_grad]
    loss = sum((t.square().sum() for t in found if t.requires_grad), start=torch.zeros(()))
    return [*found, *torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)]


def same(a: list[Tensor], b: list[Tensor]) -> None:
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype and torch.equal(x, y)


def each(*fast: tuple[str, str]) -> Any:
    """Every rule on every backend, some of them in the fast suite."""
    pairs = [pytest.param(n, b, marks=[] if (n, b) in fast else pytest.mark.slow) for b in BACKENDS for n in RULES]
    return pytest.mark.parametrize(("name", "backend"), pairs)


@each(("gdn2", "chunked"), ("mlstm", "chunked"), ("retention", "triton"))
def test_compiled_in_one_graph_has_the_same_bits(name: str, backend: str) -> None:
    op = operator(name, backend)
    compiled = torch.compile(op, fullgraph=True, dynamic=True, backend="aot_eager")
    lengths = {"step": (7, 8), "chunked": (70, 71, 140), "triton": (17, 18)}[backend]
    for T in lengths:
        x = sample(op, T, H=1 if backend == "triton" else 2)
        same(results(compiled, x), results(op, x))


def test_lengths_do_not_compile_anew() -> None:
    op = operator("gdn2", "chunked")
    graphs = []

    def counted(graph: torch.fx.GraphModule, example: list[Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(op, fullgraph=True, dynamic=True, backend=counted)
    with torch.no_grad():
        for T in (20, 21, 64, 65, 300):
            compiled(**sample(op, T, grad=False))
    assert len(graphs) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gdn2", "mlstm"])
def test_compiled_by_inductor_has_the_same_bits(name: str) -> None:
    op = operator(name, "chunked")
    compiled = torch.compile(op, fullgraph=True, dynamic=True)
    for T in (100, 101):
        x = sample(op, T)
        same(results(compiled, x), results(op, x))


@each(("mlstm", "chunked"))
def test_compiled_with_states_packed_and_token_by_token(name: str, backend: str) -> None:
    op = operator(name, backend)
    x = sample(op, 7)
    compiled = torch.compile(op, fullgraph=True, dynamic=True, backend="aot_eager")
    cu = torch.tensor([0, 3, 3, 7])
    same(results(compiled, x, cu_seqlens=cu), results(op, x, cu_seqlens=cu))
    _, state = op(**sample(op, 5, grad=False), return_state=True)
    same(results(compiled, x, initial_state=state), results(op, x, initial_state=state))
    token = {i.name: x[i.name][:, 0] for i in op.rule.inputs} | {p.name: x[p.name] for p in op.rule.params}
    step = torch.compile(op.step, fullgraph=True, dynamic=True, backend="aot_eager")
    (o, after), (want, want_after) = step(**token, state=state), op.step(**token, state=state)
    # PyTorch's own operations on a token: a compiled division or product may round its last bit otherwise.
    for x, y in zip([o, *parts(after)], [want, *parts(want_after)], strict=True):
        torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-6)


def test_compiled_under_autocast() -> None:
    op = operator("gdn2", "chunked")
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager")
    x = sample(op, 10)
    with torch.autocast("cpu", torch.bfloat16):
        o, want = compiled(**x)[0], op(**x)[0]
    assert o.dtype == torch.bfloat16 and torch.equal(o, want)


def test_compiled_call_says_what_is_wrong() -> None:
    op = operator("gdn2", "chunked")
    compiled = torch.compile(op, fullgraph=True, backend="eager")
    x = sample(op, 10)
    with pytest.raises(Exception, match="'v': expected \\[B, T, H, V\\] with T = 10"):
        compiled(**x | {"v": x["v"][:, :9]})
    with pytest.raises(Exception, match="missing argument 'w'"):
        compiled(**{n: t for n, t in x.items() if n != "w"})


def operator_arguments(op: Operator, T: int, strided: bool = False, **given: Any) -> tuple[Any, ...]:
    x = sample(op, T)
    if strided:  # heads before time in memory
        x = {n: t.detach().transpose(1, 2).contiguous().transpose(1, 2) if t.ndim > 2 else t for n, t in x.items()}
        x = {n: t.requires_grad_() for n, t in x.items()}
    state = given.get("state", {})
    return ",".join(x), [*x.values()], ",".join(state), [*state.values()], given.get("cu"), False, torch.float32


@each(("mamba3", "chunked"), ("retention", "chunked"))
def test_h11_operators_are_clean(name: str, backend: str) -> None:
    """https://github.com/PrimeIntellect-ai/prime-rl/pull/3567: a fake has the strides of the real result."""
    op = operator(name, backend)
    forward = getattr(torch.ops.stateir, registered(op)).default
    backward = getattr(torch.ops.stateir, f"{registered(op)}_backward").default
    for strided in (True,) if backend == "triton" else (False, True):
        arguments = operator_arguments(op, 3 if backend == "triton" else 17, strided=strided)
        torch.library.opcheck(forward, arguments)
        plain = [x.detach() for x in arguments[1]]
        outputs = forward(*arguments[:1], plain, *arguments[2:])
        needs, given = [True] * len(plain), [True] * len(outputs)
        grads = [torch.ones_like(x) for x in outputs]
        checks = ("test_schema", "test_faketensor")
        torch.library.opcheck(backward, (arguments[0], plain, *arguments[2:], needs, given, grads), test_utils=checks)


@pytest.mark.parametrize("T", [0, pytest.param(1, marks=pytest.mark.slow), 70])
def test_h11_operators_with_a_state_and_offsets(T: int) -> None:
    op = operator("mlstm", "chunked")
    forward = getattr(torch.ops.stateir, registered(op)).default
    N = 1 if T == 0 else 3
    _, state = op(**sample(op, 5, grad=False, B=N), return_state=True)
    cu = torch.tensor([0, 0] if T == 0 else [0, 1, 1, T])
    torch.library.opcheck(forward, operator_arguments(op, T, state=state, cu=cu))
    _, state = op(**sample(op, 5, grad=False), return_state=True)
    torch.library.opcheck(forward, operator_arguments(op, T, state=state))


@each(("mamba3", "chunked"), ("retention", "chunked"), ("mlstm", "step"))
def test_vmap_and_grad(name: str, backend: str) -> None:
    """Several calls at once, with arguments of each call and of all, equal those calls one after the other."""
    op, T = operator(name, backend), 3 if backend == "triton" else 9
    calls = [sample(op, T, grad=False) for _ in range(2)]
    names = [n for n in calls[0] if n not in {p.name for p in op.rule.params if p.fixed}]
    for n in names:
        calls[1][n] = calls[1][n] * 0.5
    shared = names[1]
    calls[1][shared] = calls[0][shared]

    def loss(*tensors: Tensor) -> Tensor:
        o, state = op(**dict(zip(names, tensors, strict=True)), return_state=True)  # type: ignore[arg-type]
        return o.square().sum() + sum(x.square().sum() for x in parts(state))

    both = [calls[0][n] if n == shared else torch.stack([c[n] for c in calls]) for n in names]
    dims = tuple(None if n == shared else 0 for n in names)
    one = [torch.func.grad(loss, argnums=tuple(range(len(names))))(*(c[n] for n in names)) for c in calls]
    every = torch.func.vmap(torch.func.grad(loss, argnums=tuple(range(len(names)))), in_dims=dims)(*both)
    values = torch.func.vmap(loss, in_dims=dims)(*both)
    for n, found in enumerate(every):
        torch.testing.assert_close(found, torch.stack([g[n] for g in one]), rtol=1e-4, atol=1e-5)
    want = torch.stack([loss(*(c[n] for n in names)) for c in calls])
    torch.testing.assert_close(values, want, rtol=1e-5, atol=1e-5)


def test_second_derivatives() -> None:
    """Step by step there are some; chunks, kernels and compiled calls say that they have none."""
    for backend in ("step", "chunked"):
        op = operator("gdn2", backend)
        x = {n: t.detach().double().requires_grad_() for n, t in sample(op, 3, K=2, V=1, H=1).items()}

        def call(*t: Tensor, op: Operator = op, names: tuple[str, ...] = tuple(x)) -> Tensor:
            return op(**dict(zip(names, t, strict=True)))[0]  # type: ignore[arg-type]

        try:
            assert torch.autograd.gradgradcheck(call, tuple(x.values()), fast_mode=True)
        except RuntimeError as error:
            assert backend == "chunked" and "differentiate twice" in str(error)
        else:
            assert backend == "step"
    op = operator("gdn2", "triton")
    x = sample(op, 5)
    o, _ = op(**x)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        torch.autograd.grad(o.square().sum(), [x["k"]], create_graph=True)
    x = sample(op, 5)
    call = getattr(torch.ops.stateir, registered(op)).default
    (o, _) = call(",".join(x), [*x.values()], "", [], None, False, torch.float32)
    (g,) = torch.autograd.grad(o.square().sum(), [x["k"]], create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        g.sum().backward()


def test_one_operator_for_equal_rules() -> None:
    first, again = operator("gdn2", "chunked"), operator("gdn2", "chunked")
    assert operator_name(first) == operator_name(again)
    other = stateir.load("delta_product", n=3), stateir.load("delta_product", n=4)
    assert len({operator_name(stateir.compile(rule)) for rule in other}) == 2
    assert operator_name(stateir.compile(first.rule, "chunked", chunk_size=8)) != operator_name(first)
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: registered(stateir.compile(first.rule, "chunked", chunk_size=8)), range(16)))
    assert len(found) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_threads(backend: str) -> None:
    """One operator in many threads, each with its own tensors, as DataParallel does."""
    if backend == "triton" and os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("Triton's interpreter is not made for threads")
    op = operator("qed", backend)
    x = sample(op, 20)

    def work(scale: float) -> list[Tensor]:
        own = {n: (t.detach() * scale).requires_grad_() for n, t in x.items()}
        return results(op, own)

    scales = [1.0, 0.5, 0.25, 0.125]
    want = [work(s) for s in scales]
    fresh = stateir.compile(op.rule, backend)
    op = fresh
    with ThreadPoolExecutor(4) as pool:
        for found, expected in zip(pool.map(work, scales), want, strict=True):
            same(found, expected)
