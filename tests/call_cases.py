"""Calls that public bug reports tell of, for every backend: used on the CPU and, with kernels, on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import stateir
from stateir.codegen.arguments import State
from stateir.codegen.operator import Operator
from stateir.codegen.samples import sample_arguments
from stateir.codegen.verify import rms_ratio


def parts(state: State | None) -> dict[str, Tensor]:
    assert state is not None
    return state if isinstance(state, dict) else {"S": state}


def drawn(op: Operator, device: str, dtype: torch.dtype = torch.float32, **sizes: int) -> dict[str, Any]:
    """Random arguments as leaves."""
    x = sample_arguments(op.rule, **{"B": 2, "T": 65, "H": 2, "K": 32, "V": 48, **sizes}, dtype=dtype)
    fixed = {p.name for p in op.rule.params if p.fixed}
    return {n: t.to(device).requires_grad_(n not in fixed) for n, t in x.items()}


def drawn_state(op: Operator, device: str, N: int = 2, H: int = 2, K: int = 32, V: int = 48) -> Any:
    """What the rule carries after a few other tokens."""
    x = sample_arguments(op.rule, B=N, T=4, H=H, K=K, V=V, seed=7, dtype=torch.float32)
    _, state = stateir.compile(op.rule, "step")(**x, return_state=True)
    moved = {n: t.detach().to(device).requires_grad_() for n, t in parts(state).items()}
    return moved if op.carries_dict else moved["S"]


def gradients(results: list[Tensor], leaves: list[Tensor], upstream: list[Tensor], **options: Any) -> list[Tensor]:
    there = [(r, u) for r, u in zip(results, upstream, strict=True) if r.requires_grad]
    found = torch.autograd.grad(
        [r for r, _ in there], leaves, [u for _, u in there], allow_unused=True, materialize_grads=True, **options
    )
    return list(found)


def equal(a: list[Tensor], b: list[Tensor]) -> None:
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert x.dtype == y.dtype and torch.equal(x, y)


def tails_of_buffers(op: Operator, device: str, K: int, V: int, T: int, limit: float) -> None:
    """H03: arguments that are the front of larger buffers; what stands behind them changes no bit."""
    plain = drawn(op, device, T=T, K=K, V=V, H=3)
    found: list[list[Tensor]] = []
    for fill in (0.0, 1e4, torch.nan):
        leaves = {}
        for n, t in plain.items():
            buffer = torch.full((t.numel() + 4096,), fill, device=device)
            buffer[: t.numel()] = t.detach().flatten()
            leaves[n] = buffer[: t.numel()].view(t.shape).requires_grad_(t.requires_grad)
        wanted = [t for t in leaves.values() if t.requires_grad]
        o, state = op(**leaves, return_state=True)
        results = [o, *parts(state).values()]
        found.append([*results, *gradients(results, wanted, [torch.ones_like(r) for r in results])])
    equal(found[0], found[1])
    equal(found[0], found[2])
    exact, _ = stateir.compile(op.rule, "step")(**{n: t.detach().double().cpu() for n, t in plain.items()})
    assert rms_ratio(found[0][0].detach().cpu(), exact) <= limit


def one_token_without_a_state(op: Operator, device: str) -> None:
    """H03: for a gated delta rule o = beta (q . k) v and S = beta k v whatever the decay."""
    x = {n: t.detach() for n, t in drawn(op, device, T=1).items()}
    for g in (0.0, -0.5, -1e4):
        o, S = op(**x | {"g": torch.full_like(x["g"], g)}, return_state=True)
        written = x["beta"][..., None] * x["v"]
        scale = x["q"].shape[-1] ** -0.5
        want = scale * (x["q"] * x["k"]).sum(-1, keepdim=True) * written
        torch.testing.assert_close(o, want, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(S, x["k"][:, 0, ..., None] * written[:, 0, :, None], rtol=1e-5, atol=1e-6)


def packed_with_empty_sequences(op: Operator, device: str, limit: float) -> None:
    """H05: empty sequences keep their state and pass its gradient on; offsets of both types give the same bits."""
    offsets = [0, 0, 5, 5, 70, 70]
    x = drawn(op, device, B=1, T=70)
    inputs = {i.name for i in op.rule.inputs}
    S = drawn_state(op, device, N=5)
    up = torch.Generator().manual_seed(3)
    found = []
    for dtype in (torch.int32, torch.int64):
        cu = torch.tensor(offsets, dtype=dtype, device=device)
        o, after = op(**x, initial_state=S, return_state=True, cu_seqlens=cu)
        dS = torch.randn(S.shape, generator=up.manual_seed(3)).to(device)
        found.append([o, after, *gradients([o, after], [*x.values(), S], [torch.ones_like(o), dS])])
    equal(*found)
    o, after, *_, dS0 = found[0]
    assert isinstance(after, Tensor)
    for n in (0, 2, 4):
        assert torch.equal(after[n], S[n]) and torch.equal(dS0[n], dS[n])
    for n, (a, b) in ((1, (0, 5)), (3, (5, 70))):
        part = {k: t[:, a:b] if k in inputs else t for k, t in x.items()}
        alone, end = op(**part, initial_state=S[n : n + 1], return_state=True)
        assert isinstance(end, Tensor)
        assert rms_ratio(o[:, a:b], alone) <= limit and rms_ratio(after[n : n + 1], end) <= limit
    _, after = op(**x, return_state=True, cu_seqlens=torch.tensor(offsets, device=device))
    assert isinstance(after, Tensor) and not after[[0, 2, 4]].any()
    nothing = {k: t[:, :0] if k in inputs else t for k, t in x.items()}
    o, after = op(**nothing, return_state=True, cu_seqlens=torch.tensor([0, 0, 0], device=device))
    assert o.shape == (1, 0, 2, 48) and isinstance(after, Tensor) and not after.any()


def strides(op: Operator, device: str) -> None:
    """H06: upstream gradients and inputs of any stride have the bits of contiguous ones, and none is written to."""
    x, S = drawn(op, device, T=100), drawn_state(op, device)
    leaves = [t for t in [*x.values(), *parts(S).values()] if t.requires_grad]
    o, after = op(**x, initial_state=S, return_state=True)
    results = [o, *parts(after).values()]
    kept = [t.detach().clone() for t in leaves]

    def back(up: Tensor) -> list[Tensor]:
        before = up.clone()
        every = [up, *(torch.ones_like(t) for t in results[1:])]
        found = gradients(results, leaves, every, retain_graph=True)
        assert torch.equal(up, before)
        return found

    equal(back(torch.ones((), device=device).expand(o.shape)), back(torch.ones_like(o)))
    torch.manual_seed(0)
    wide = torch.randn(*o.shape[:3], 2 * o.shape[3], device=device)[..., ::2]
    turned = torch.randn(o.shape[0], o.shape[2], o.shape[1], o.shape[3], device=device).transpose(1, 2)
    for up in (wide, turned):
        assert not up.is_contiguous()
        equal(back(up), back(up.contiguous()))
    inputs = {i.name: x[i.name].detach()[:, :, :1] for i in op.rule.inputs}
    params = {p.name: x[p.name].detach() for p in op.rule.params}
    expanded = {n: t.expand(t.shape[0], t.shape[1], 2, *t.shape[3:]) for n, t in inputs.items()}
    sliced = {n: torch.stack((t, t), -1)[..., 0] for n, t in expanded.items()}
    turned_in = {n: t.transpose(1, 2).contiguous().transpose(1, 2) for n, t in expanded.items()}
    want, _ = op(**{n: t.contiguous() for n, t in expanded.items()}, **params)
    for given in (expanded, sliced, turned_in):
        equal([op(**given, **params)[0]], [want])
    equal([t.detach() for t in leaves], kept)


def mixed_dtypes(op: Operator, device: str) -> None:
    """H10: autocast sets the output's dtype alone; a gradient has its input's dtype, the state is float32."""
    x = {n: t.detach() for n, t in drawn(op, device, B=1, K=32, V=32).items()}
    S = drawn_state(op, device, N=1, K=32, V=32)
    for narrow in (("v",), ("k", "v")):
        given = {n: (t.bfloat16() if n in narrow else t).requires_grad_() for n, t in x.items()}
        with torch.autocast(device, torch.bfloat16):
            o, after = op(**given, initial_state=S, return_state=True)
        assert o.dtype == torch.bfloat16 and isinstance(after, Tensor) and after.dtype == torch.float32
        found = gradients([o, after], [*given.values(), S], [torch.ones_like(o), torch.ones_like(after)])
        for g, t in zip(found, [*given.values(), S], strict=True):
            assert g.dtype == t.dtype and torch.isfinite(g).all()
        exact, _ = stateir.compile(op.rule, "step")(
            **{n: t.detach().cpu().double() for n, t in given.items()}, initial_state=S.detach().cpu().double()
        )
        assert rms_ratio(o.detach().cpu(), exact) <= 1e-2


def carried_states(op: Operator, device: str) -> None:
    """Given or absent, with a gradient or without, in bfloat16: returned in float32, never written to."""
    x = drawn(op, device)
    for state in (None, drawn_state(op, device)):
        for narrow in (False, True) if state is not None else (False,):
            before = {n: (t.detach().bfloat16() if narrow else t.detach().clone()) for n, t in parts(state).items()} \
                if state is not None else {}  # fmt: skip
            kept = {n: t.clone() for n, t in before.items()}
            for wanted in (False, True):
                for t in before.values():
                    t.requires_grad_(wanted)
                given = None if state is None else before if op.carries_dict else before["S"]
                o, after = op(**x, initial_state=given, return_state=True)
                results = [o, *parts(after).values()]
                assert all(t.dtype == torch.float32 for t in results)
                leaves = [t for t in [*x.values(), *before.values()] if t.requires_grad]
                found = gradients(results, leaves, [torch.ones_like(r) for r in results])
                assert all(g.dtype == t.dtype and g.shape == t.shape for g, t in zip(found, leaves, strict=True))
            equal([t.detach() for t in before.values()], list(kept.values()))


def backward_twice(op: Operator, device: str) -> None:
    """H16: nothing saved is written to, and a third backward is PyTorch's usual error."""
    x, S = drawn(op, device, K=32, V=32, B=1), drawn_state(op, device, N=1, K=32, V=32)
    leaves = [*x.values(), S]
    o, _ = op(**x, initial_state=S)
    do = torch.randn_like(o)
    kept = [t.detach().clone() for t in (*leaves, o, do)]
    first = gradients([o], leaves, [do], retain_graph=True)
    equal(gradients([o], leaves, [do]), first)
    equal([t.detach() for t in (*leaves, o, do)], kept)
    try:
        gradients([o], leaves, [do])
    except RuntimeError as error:
        assert "a second time" in str(error)
    else:
        raise AssertionError("a third backward passed")


def without_gradients(op: Operator, device: str) -> None:
    """H17: no_grad and inference_mode give what a call with gradients gives, in the same structure."""
    x = {n: t.detach() for n, t in drawn(op, device, T=1, H=8, K=64, V=64).items()}
    S = drawn_state(op, device, H=8, K=64, V=64).detach()
    kept = S.clone()
    want, want_after = op(**{n: t.requires_grad_() for n, t in x.items()}, initial_state=S, return_state=True)
    inputs = {i.name for i in op.rule.inputs}
    token = {n: t.detach()[:, 0] if n in inputs else t.detach() for n, t in x.items()}
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            for asked in (True, False):
                o, after = op(**x, initial_state=S, return_state=asked)
                assert torch.equal(o, want) and torch.equal(S, kept)
                if asked:
                    assert torch.equal(after, want_after) and after.data_ptr() != S.data_ptr()
                else:
                    assert after is None
            o, after = op.step(**token, state=S)
            torch.testing.assert_close(o, want[:, 0], rtol=1e-4, atol=1e-5)
            assert torch.equal(S, kept) and after.data_ptr() != S.data_ptr()


def same_bits(op: Operator, device: str, repeats: int = 50, dtype: torch.dtype = torch.float32, **sizes: int) -> None:
    """H15: the same call gives the same bits, forward and backward, every time."""
    x = drawn(op, device, dtype, **sizes)
    leaves = [t for t in x.values() if t.requires_grad]
    first: list[Tensor] = []
    for _ in range(repeats):
        o, state = op(**x, return_state=True)
        results = [o, *parts(state).values()]
        found = [*results, *gradients(results, leaves, [torch.ones_like(r) for r in results])]
        first = first or found
        equal(found, first)
