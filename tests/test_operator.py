"""Calling a compiled rule: what it accepts, what it says about what it does not, and what it returns."""

from __future__ import annotations

import copy
import pickle
import traceback
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import stateir
from stateir.codegen.operator import BackendError, Operator
from stateir.codegen.samples import sample_arguments

B, T, H, K, V = 2, 13, 4, 6, 5
BACKENDS = ["step", "chunked"]


def gdn2(backend: str = "chunked", **sizes: int) -> tuple[Operator, dict[str, Tensor]]:
    rule = stateir.load("gdn2")
    return stateir.compile(rule, backend), sample_arguments(rule, **{"B": B, "T": T, "H": H, "K": K, "V": V, **sizes})


def refused(op: Operator, arguments: dict[str, Any], *parts: str, error: type[Exception] = ValueError) -> None:
    """The call fails with every part in its message, before anything is computed."""
    with pytest.raises(error) as caught:
        op(**arguments)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


def test_always_a_pair() -> None:
    op, x = gdn2()
    o, state = op(**x)
    assert o.shape == (B, T, H, V) and state is None
    _, state = op(**x, return_state=True)
    assert isinstance(state, Tensor) and state.shape == (B, H, K, V)


def test_h19_short_sequences_do_not_warn_and_other_layouts_are_refused() -> None:
    """A correct call with T < H is silent; head-first tensors are refused by name."""
    op, x = gdn2(T=13, H=32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        o, _ = op(**x)
    reference, _ = stateir.compile(op.rule, "step")(**x)
    torch.testing.assert_close(o, reference, rtol=1e-12, atol=1e-12)
    refused(
        op, x | {"k": x["k"].transpose(1, 2)}, "'k'", "T = 13 as in 'q'", "looks like [B, H, T, D]: transpose(1, 2)"
    )
    kda = stateir.load("gated_delta")
    y = sample_arguments(kda, B=B, T=13, H=32, K=K, V=V)
    refused(
        stateir.compile(kda), y | {"g": y["g"].transpose(1, 2)}, "'g'", "[B, T, H]", "like [B, H, T]: transpose(1, 2)"
    )
    refused(stateir.compile(kda), {n: t for n, t in y.items() if n != "beta"}, "missing argument 'beta'")
    refused(op, x | {"v": x["v"][:, :12]}, "'v'", "T = 13", "got [2, 12, 32, 5]")
    with pytest.raises(ValueError, match=r"got \[2, 12, 32, 5\]$"):
        op(**(x | {"v": x["v"][:, :12]}))


def test_missing_argument() -> None:
    op, x = gdn2()
    del x["w"]
    refused(op, x, "gdn2: missing argument 'w'", "[B, T, H, V]")


def test_surplus_argument() -> None:
    op, x = gdn2()
    refused(op, x | {"beta": x["q"]}, "unexpected argument 'beta'", "q, k, v, g, b, w")


def test_positional_arguments_are_refused() -> None:
    op, x = gdn2()
    with pytest.raises(TypeError):
        op(*x.values())  # type: ignore[misc]


def test_not_a_tensor() -> None:
    op, x = gdn2()
    refused(op, x | {"g": 0.5}, "'g'", "expected a tensor, got float", error=TypeError)


def test_not_floating() -> None:
    op, x = gdn2()
    refused(op, x | {"g": x["g"].long()}, "'g'", "float32", "got int64", error=TypeError)


def test_dimensions() -> None:
    op, x = gdn2()
    refused(op, x | {"g": x["g"][..., 0]}, "'g'", "expected [B, T, H, K]", "got [2, 13, 4]")


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("k", (B + 1, T, H, K), "B = 2 as in 'q'"),
        ("k", (B, T + 1, H, K), "T = 13 as in 'q'"),
        ("q", (B, T + 1, H, K), "T = 13 as in 'k'"),
        ("k", (B, T, H, K + 1), "K = 6 as in 'q'"),
        ("w", (B, T, H, V + 1), "V = 5 as in 'v'"),
        ("b", (B, T, 3, K), "divides H = 4"),
    ],
)
def test_sizes_that_do_not_fit(name: str, shape: tuple[int, ...], expected: str) -> None:
    op, x = gdn2()
    refused(op, x | {name: torch.rand(shape)}, f"'{name}'", expected, f"got {list(shape)}")


@pytest.mark.parametrize("sizes", [{"K": 257}, {"V": 257}, {"K": 0}, {"V": 0}])
def test_dims_that_no_backend_has(sizes: dict[str, int]) -> None:
    op, x = gdn2(**sizes)
    ((dim, size),) = sizes.items()
    refused(op, x, f"{dim} = {size}", "expected 1 to 256")


def test_array_length() -> None:
    rule = stateir.load("delta_product", n=3)
    x = sample_arguments(rule, K=K, V=V)
    refused(stateir.compile(rule), x | {"beta": x["beta"][..., :2]}, "'beta'", "[B, T, H, 3]", "got [2, 29, 2, 2]")


def test_mixed_devices() -> None:
    op, x = gdn2()
    refused(op, x | {"v": x["v"].to("meta")}, "'v'", "expected device cpu, got meta")


def test_initial_state_shape() -> None:
    op, x = gdn2()
    refused(op, x | {"initial_state": torch.zeros(B, H, V, K)}, "'initial_state'", "[2, 4, 6, 5]", "[2, 4, 5, 6]")
    refused(op, x | {"initial_state": {"S": torch.zeros(B, H, K, V)}}, "'initial_state'", "got dict", error=TypeError)


def test_initial_state_of_several_parts() -> None:
    rule = stateir.load("mlstm")
    op, x = stateir.compile(rule), sample_arguments(rule, B=B, T=T, H=H, K=K, V=V)
    _, state = op(**x, return_state=True)
    assert isinstance(state, dict)
    refused(op, x | {"initial_state": state["S"]}, "expected a dict with S, m, z", "got Tensor", error=TypeError)
    refused(op, x | {"initial_state": {k: v for k, v in state.items() if k != "z"}}, "missing 'z'")
    refused(op, x | {"initial_state": state | {"n": state["z"]}}, "unexpected 'n'")
    refused(op, x | {"initial_state": state | {"z": state["m"]}}, "initial_state['z']", "[2, 4, 6]", "got [2, 4]")


@pytest.mark.parametrize(
    ("offsets", "part"),
    [
        (torch.tensor([0, 5, 12]), "rise from 0 to T = 13"),
        (torch.tensor([1, 5, 13]), "rise from 0 to T = 13"),
        (torch.tensor([0, 7, 5, 13]), "got [0, 7, 5, 13]"),
        (torch.tensor([[0, 13]]), "[N + 1]"),
        (torch.tensor([], dtype=torch.int64), "[N + 1]"),
        (torch.tensor([0]), "rise from 0 to T = 13"),
    ],
)
def test_offsets_that_do_not_pack(offsets: Tensor, part: str) -> None:
    op, x = gdn2(B=1)
    refused(op, x | {"cu_seqlens": offsets}, "'cu_seqlens'", part)


def test_offsets_of_a_batch_or_of_another_type() -> None:
    op, x = gdn2()
    refused(op, x | {"cu_seqlens": torch.tensor([0, 13])}, "'cu_seqlens'", "B = 1, got B = 2")
    refused(op, x | {"cu_seqlens": torch.tensor([0.0, 13.0])}, "int32 or int64", "float32", error=TypeError)


def test_unknown_and_absent_backends() -> None:
    with pytest.raises(BackendError, match=r"no backend 'cuda'; expected auto, step, chunked, triton"):
        stateir.compile(stateir.load("gdn2"), "cuda")
    with pytest.raises(
        BackendError, match=r"titans_linear has no chunked backend: .*matrix states \(S, M\); it has step"
    ):
        stateir.compile(stateir.load("titans_linear"), "chunked")
    op = stateir.compile(stateir.load("titans_linear"))
    assert op.backends["step"] is None and op.backends["chunked"] is not None
    with pytest.raises(BackendError, match="no chunked backend"):
        op.source("chunked")


def test_rules_that_cannot_be_sized() -> None:
    rule = stateir.parse("rule r\ninput q: key\nparam u: key\nupdate S += outer(u, 0 * (q @ S))\nread o = q @ S\n")
    with pytest.raises(BackendError, match="value axis"):
        stateir.compile(rule)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("t", [0, 1, 2])
def test_short_sequences(backend: str, t: int) -> None:
    op, x = gdn2(backend, T=t)
    S = torch.randn(B, H, K, V, dtype=torch.float64)
    o, state = op(**x, initial_state=S, return_state=True)
    assert o.shape == (B, t, H, V) and isinstance(state, Tensor)
    assert t > 0 or torch.equal(state, S)


@pytest.mark.parametrize("backend", BACKENDS)
def test_initial_state_has_a_gradient_and_is_not_changed(backend: str) -> None:
    op, x = gdn2(backend)
    S = torch.randn(B, H, K, V, dtype=torch.float64, requires_grad=True)
    before = S.detach().clone()
    o, state = op(**x, initial_state=S, return_state=True)
    assert isinstance(state, Tensor)
    (o.sum() + state.sum()).backward()
    assert S.grad is not None and S.grad.abs().min() > 0
    assert torch.equal(S.detach(), before)


@pytest.mark.parametrize("backend", BACKENDS)
def test_fewer_heads(backend: str) -> None:
    """An input with H / 2 heads is the same as each of its heads twice; its gradient is the sum."""
    op, x = gdn2(backend)
    few = x["k"][:, :, ::2].clone().requires_grad_()
    many = x["k"][:, :, ::2].repeat_interleave(2, dim=2).clone().requires_grad_()
    o_few, _ = op(**x | {"k": few})
    o_many, _ = op(**x | {"k": many})
    assert torch.equal(o_few, o_many)
    o_few.square().sum().backward()
    o_many.square().sum().backward()
    assert few.grad is not None and many.grad is not None
    torch.testing.assert_close(few.grad, many.grad.unflatten(2, (-1, 2)).sum(3), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    op, x = gdn2()
    x = {name: t.to(dtype) for name, t in x.items()}
    o, state = op(**x, return_state=True)
    assert o.dtype == dtype and isinstance(state, Tensor)
    assert state.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    exact, _ = op(**{name: t.double() for name, t in x.items()})
    limit = {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4, torch.float64: 0}[dtype]
    assert ((o.double() - exact).square().mean() / exact.square().mean()).sqrt() <= limit


def test_output_dtype_is_that_of_the_value_and_of_autocast() -> None:
    op, x = gdn2()
    x = {name: t.float() for name, t in x.items()}
    assert op(**x | {"v": x["v"].bfloat16()})[0].dtype == torch.bfloat16
    plain, _ = op(**x)
    with torch.autocast("cpu", torch.bfloat16):
        o, _ = op(**x)
    # Nothing but the output is rounded.
    assert torch.equal(o, plain.bfloat16())


@pytest.mark.parametrize("backend", BACKENDS)
def test_packed_sequences(backend: str) -> None:
    op, x = gdn2(backend, B=1, T=23)
    offsets = [0, 0, 5, 5, 16, 23]
    S = torch.randn(5, H, K, V, dtype=torch.float64)
    for dtype in (torch.int32, torch.int64):
        o, state = op(**x, initial_state=S, return_state=True, cu_seqlens=torch.tensor(offsets, dtype=dtype))
        assert isinstance(state, Tensor) and state.shape == S.shape
        for n in range(5):
            first, last = offsets[n], offsets[n + 1]
            if first == last:
                assert torch.equal(state[n], S[n])
                continue
            own = {name: t[:, first:last] for name, t in x.items()}
            expected, end = op(**own, initial_state=S[n : n + 1], return_state=True)
            assert isinstance(end, Tensor)
            torch.testing.assert_close(o[:, first:last], expected, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(state[n : n + 1], end, rtol=1e-12, atol=1e-12)


def test_packed_sequences_of_a_rule_that_looks_back() -> None:
    """No token of one sequence is seen by the next."""
    rule = stateir.load("mamba3")
    op, x = stateir.compile(rule), sample_arguments(rule, B=1, T=9, H=H, K=K, V=V)
    o, state = op(**x, return_state=True, cu_seqlens=torch.tensor([0, 4, 9]))
    second = {i.name: x[i.name][:, 4:] for i in rule.inputs} | {p.name: x[p.name] for p in rule.params}
    expected, _ = op(**second)
    torch.testing.assert_close(o[:, 4:], expected, rtol=1e-12, atol=1e-12)
    assert isinstance(state, dict) and state["prev.x"].shape == (2, 1, H, V)


@pytest.mark.parametrize("backend", BACKENDS)
def test_decoding_continues_a_sequence(backend: str) -> None:
    op, x = gdn2(backend)
    whole, _ = op(**x)
    _, state = op(**{name: t[:, :9] for name, t in x.items()}, return_state=True)
    for t in range(9, T):
        o, state = op.step(**{name: tensor[:, t] for name, tensor in x.items()}, state=state)
        torch.testing.assert_close(o, whole[:, t], rtol=1e-12, atol=1e-12)


def test_step_checks_its_arguments() -> None:
    op, x = gdn2()
    token = {name: t[:, 0] for name, t in x.items()}
    with pytest.raises(ValueError, match=r"'g': expected \[B, H, K\], got \[2, 13, 4, 6\]"):
        op.step(**token | {"g": x["g"]})
    with pytest.raises(ValueError, match=r"'state': expected \[2, 4, 6, 5\]"):
        op.step(**token, state=torch.zeros(1))
    o, state = op.step(**token)
    assert o.shape == (B, H, V) and isinstance(state, Tensor)


def test_fixed_param_may_be_left_out() -> None:
    rule = stateir.load("retention")
    op, x = stateir.compile(rule), sample_arguments(rule, H=H, K=K, V=V)
    gamma = 1 - 2.0 ** (-5 - torch.arange(H, dtype=torch.float64))
    torch.testing.assert_close(x["gamma"], gamma, rtol=0, atol=0)
    given, _ = op(**x)
    del x["gamma"]
    assert torch.equal(op(**x)[0], given)


@pytest.mark.parametrize("backend", BACKENDS)
def test_param_gradients(backend: str) -> None:
    rule = stateir.load("qed")
    op, x = stateir.compile(rule, backend), sample_arguments(rule, B=B, T=T, H=H, K=K, V=V)
    x["lam"].requires_grad_()
    op(**x)[0].square().sum().backward()
    assert x["lam"].grad is not None and x["lam"].grad.shape == (H,)


def test_chunk_size_changes_nothing_but_rounding() -> None:
    rule = stateir.load("gdn2")
    x = sample_arguments(rule, T=37, K=K, V=V)
    outputs = [stateir.compile(rule, "chunked", chunk_size=c)(**x)[0] for c in (1, 4, 16, 37, 64)]
    for o in outputs[1:]:
        torch.testing.assert_close(o, outputs[0], rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="chunk_size = 0"):
        stateir.compile(rule, "chunked", chunk_size=0)


def test_tracebacks_show_generated_lines() -> None:
    op, x = gdn2("step")
    token = [x[i.name][:, 0] for i in op.rule.inputs]
    with pytest.raises(RuntimeError) as caught:
        op._reference.step(torch.zeros(B, H, K + 1, V), *token)
    assert "S = torch.exp(g)[..., None] * S" in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
def test_copies_and_pickles_are_the_same_operator(backend: str) -> None:
    rule = stateir.load("gdn2")
    op = stateir.compile(rule, backend, chunk_size=4)
    arguments = sample_arguments(rule, B=B, T=T, H=H, K=K, V=V)
    expected, _ = op(**arguments)
    for twin in (copy.copy(op), copy.deepcopy(op), pickle.loads(pickle.dumps(op))):
        assert (twin.rule, twin.backend, twin.chunk_size) == (op.rule, op.backend, op.chunk_size)
        assert torch.equal(twin(**arguments)[0], expected)


@pytest.mark.parametrize("kind", ["input", "param"])
@pytest.mark.parametrize("name", ["self", "initial_state", "return_state", "cu_seqlens", "inplace", "slots"])
def test_names_of_the_call_itself_are_refused(kind: str, name: str) -> None:
    rule = stateir.parse(
        f"rule r\ninput k: key, v: value\n{kind} {name}: key\nupdate S += outer(k, v)\nread o = {name} @ S\n"
    )
    with pytest.raises(BackendError, match=f"{kind} can be called '{name}'"):
        stateir.compile(rule)


@pytest.mark.parametrize(("rule", "options", "message"), [
    ("gdn2", {}, "rule: expected a Rule, got str"),
    (None, {}, "rule: expected a Rule, got NoneType"),
    (stateir.load("delta"), {"chunk_size": "64"}, "chunk_size: expected a whole number, got str"),
    (stateir.load("delta"), {"chunk_size": 16.0}, "chunk_size: expected a whole number, got float"),
])  # fmt: skip
def test_compile_checks_its_own_arguments(rule: object, options: dict[str, object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        stateir.compile(rule, **options)  # type: ignore[arg-type]
