"""The compatibility functions against loops over the tokens, written from the recurrences in float64."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from stateir.models.compat import fla

PAGE = Path(__file__).resolve().parent.parent / "docs" / "howto" / "compat.md"
B, T, H, K, V = 2, 11, 4, 5, 3
Step = Callable[[Tensor, int], Tensor]


def draw(seed: int = 0, tokens: int = T, batch: int = B, heads: int = H) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(batch, tokens, *shape, generator=g, dtype=torch.float64)

    unit = torch.nn.functional.normalize
    x = {"q": normal(heads, K), "k": unit(normal(heads, K), dim=-1), "v": normal(heads, V)}
    x |= {"g": -normal(heads).exp(), "gk": -normal(heads, K).exp(), "beta": normal(heads).sigmoid()}
    return x | {"b": normal(heads, K).sigmoid(), "w": normal(heads, V).sigmoid(), "a": normal(heads, K) / 3}


def loop(q: Tensor, step: Step, scale: float, S: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """o [B, T, H, V] and S [B, H, K, V] of S = step(S, t), o = scale qᵀS."""
    S = torch.zeros(*q.shape[:1], q.shape[2], K, V, dtype=torch.float64) if S is None else S
    out = []
    for t in range(q.shape[1]):
        S = step(S, t)
        out.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], S))
    return torch.stack(out, 1), S


def outer(k: Tensor, v: Tensor) -> Tensor:
    return k[..., None] * v[..., None, :]


def read(k: Tensor, S: Tensor) -> Tensor:
    return torch.einsum("bhk,bhkv->bhv", k, S)


def decayed(S: Tensor, g: Tensor) -> Tensor:
    return g.exp().reshape(*g.shape, *[1] * (4 - g.dim())) * S


def steps(x: dict[str, Tensor]) -> dict[str, Step]:
    """The recurrences by the name of the function."""
    k, v, g, gk, beta, b, w, a = (x[n] for n in ("k", "v", "g", "gk", "beta", "b", "w", "a"))
    gamma = (1 - 2.0 ** (-5 - torch.arange(k.shape[2], dtype=torch.float64)))[:, None, None]

    def gdn2(S: Tensor, t: int) -> Tensor:
        S = decayed(S, gk[:, t])
        return S + outer(k[:, t], w[:, t] * v[:, t] - read(b[:, t] * k[:, t], S))

    def delta(S: Tensor, t: int) -> Tensor:
        return S + outer(beta[:, t, :, None] * k[:, t], v[:, t] - read(k[:, t], S))

    return {
        "linear_attn": lambda S, t: S + outer(k[:, t], v[:, t]),
        "retention": lambda S, t: gamma * S + outer(k[:, t], v[:, t]),
        "simple_gla": lambda S, t: decayed(S, g[:, t]) + outer(k[:, t], v[:, t]),
        "gla": lambda S, t: decayed(S, gk[:, t]) + outer(k[:, t], v[:, t]),
        "delta_rule": delta,
        "gated_delta_rule": lambda S, t: delta(decayed(S, g[:, t]), t),
        "kda": lambda S, t: delta(decayed(S, gk[:, t]), t),
        "gdn2": gdn2,
        "rwkv7": lambda S, t: decayed(S, gk[:, t]) + outer(b[:, t], read(a[:, t], S)) + outer(k[:, t], v[:, t]),
    }


def call(name: str, x: dict[str, Tensor], form: str = "chunk", **options: object) -> tuple[Tensor, Tensor]:
    key = {"gla": "gk" if form != "chunk" else "g"}.get(name)
    given = {"q": x["q"], "k": x["k"], "v": x["v"]}
    if name == "linear_attn":
        options["normalize"] = False
    if name in ("simple_gla", "gated_delta_rule"):
        given["g"] = x["g"]
    if name in ("gla", "kda", "gdn2"):
        given[key or "g"] = x["gk"]
    if name in ("delta_rule", "gated_delta_rule", "kda"):
        given["beta"] = x["beta"]
    if name == "gdn2":
        given |= {"b": x["b"], "w": x["w"]}
    if name == "rwkv7":
        given = {"r": x["q"], "w": x["gk"], "k": x["k"], "v": x["v"], "a": x["a"], "b": x["b"]}
    return getattr(fla, f"{form}_{name}")(**given, output_final_state=True, **options)


NAMES = sorted(steps(draw()))


@pytest.mark.parametrize("form", ["chunk", "fused_recurrent"])
@pytest.mark.parametrize("name", NAMES)
def test_against_the_recurrence(name: str, form: str) -> None:
    x = draw()
    S0 = torch.randn(B, H, K, V, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    want, want_state = loop(x["q"], steps(x)[name], 0.3, S0)
    o, state = call(name, x, form, scale=0.3, initial_state=S0)
    torch.testing.assert_close(o, want, atol=1e-11, rtol=1e-11)
    torch.testing.assert_close(state, want_state, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("name", NAMES)
def test_the_default_scale_and_a_decoded_token(name: str) -> None:
    x = draw(1)
    scale = 1.0 if name == "rwkv7" else K**-0.5
    want, want_state = loop(x["q"], steps(x)[name], scale)
    o, _ = call(name, x)
    torch.testing.assert_close(o, want, atol=1e-11, rtol=1e-11)
    before = call(name, {n: t[:, :-1] for n, t in x.items()})[1]
    last, state = call(name, {n: t[:, -1:] for n, t in x.items()}, "fused_recurrent", scale=scale, initial_state=before)
    torch.testing.assert_close(last, want[:, -1:], atol=1e-11, rtol=1e-11)
    torch.testing.assert_close(state, want_state, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("name", NAMES)
def test_packed_sequences_and_gradients(name: str) -> None:
    x = draw(2, batch=1)
    offsets = torch.tensor([0, 4, 4, T])
    leaves = {n: t.clone().requires_grad_() for n, t in x.items()}
    o, state = call(name, leaves, cu_seqlens=offsets)
    parts = [call(name, {n: t[:, i:j] for n, t in x.items()}) for i, j in ((0, 4), (4, T))]
    torch.testing.assert_close(o, torch.cat([p[0] for p in parts], 1), atol=1e-11, rtol=1e-11)
    torch.testing.assert_close(state[[0, 2]], torch.cat([p[1] for p in parts]), atol=1e-11, rtol=1e-11)
    assert state[1].abs().max() == 0
    exact = {n: t.clone().requires_grad_() for n, t in x.items()}
    scale = 1.0 if name == "rwkv7" else K**-0.5
    whole = [
        loop(exact["q"][:, i:j], steps({n: t[:, i:j] for n, t in exact.items()})[name], scale)[0]
        for i, j in ((0, 4), (4, T))
    ]
    want = torch.autograd.grad(torch.cat(whole, 1).sin().sum(), list(exact.values()), allow_unused=True)
    got = torch.autograd.grad(o.sin().sum(), list(leaves.values()), allow_unused=True)
    for n, one, other in zip(x, got, want, strict=True):
        assert (one is None) == (other is None), n
        if one is not None:
            torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10, msg=n)


def test_more_value_heads_than_key_heads() -> None:
    x, few = draw(3), draw(4, heads=2)
    o, _ = fla.chunk_gated_delta_rule(few["q"], few["k"], x["v"], x["g"], x["beta"])
    q, k = (few[n].repeat_interleave(2, 2) for n in ("q", "k"))
    want, _ = loop(q, steps(x | {"k": k})["gated_delta_rule"], K**-0.5)
    torch.testing.assert_close(o, want, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("gated", [True, False])
def test_products_of_householders(gated: bool) -> None:
    n, x = 3, draw(5, tokens=3 * T)
    few = draw(6)
    o, state = fla.chunk_gated_delta_product(
        few["q"], x["k"], x["v"], few["g"] if gated else None, x["beta"], n, output_final_state=True
    )
    delta = steps(x)["delta_rule"]

    def step(S: Tensor, t: int) -> Tensor:
        S = decayed(S, few["g"][:, t]) if gated else S
        for i in range(n):
            S = delta(S, n * t + i)
        return S

    want, want_state = loop(few["q"], step, K**-0.5)
    torch.testing.assert_close(o, want, atol=1e-11, rtol=1e-11)
    torch.testing.assert_close(state, want_state, atol=1e-11, rtol=1e-11)
    with pytest.raises(ValueError, match=rf"k: expected {n} \* {T} tokens, got {T}"):
        fla.chunk_gated_delta_product(few["q"], few["k"], x["v"], None, x["beta"], n)


def test_the_normalised_form_and_its_state() -> None:
    x = {n: t.abs() for n, t in draw(7).items() if n in "qkv"}
    o, state = fla.chunk_linear_attn(**x, output_final_state=True)
    scores = torch.einsum("bthk,bshk->bhts", x["q"], x["k"]).tril()
    want = torch.einsum("bhts,bshv->bthv", scores / scores.sum(-1, keepdim=True), x["v"])
    torch.testing.assert_close(o, want, atol=1e-8, rtol=1e-8)
    assert isinstance(state, tuple) and state[1].shape == (B, 1, H, K)
    first = fla.chunk_linear_attn(**{n: t[:, :6] for n, t in x.items()}, output_final_state=True)
    second = fla.chunk_linear_attn(**{n: t[:, 6:] for n, t in x.items()}, initial_state=first[1])
    torch.testing.assert_close(second[0], want[:, 6:], atol=1e-8, rtol=1e-8)


def test_what_is_computed_before_the_rule() -> None:
    x = draw(8)
    A_log, dt_bias = torch.randn(H, dtype=torch.float64), torch.randn(H, K, dtype=torch.float64)
    raw = torch.randn(B, T, H, K, dtype=torch.float64)
    g = -A_log.exp()[:, None] * torch.nn.functional.softplus(raw + dt_bias)
    o, state = fla.chunk_kda(
        3 * x["q"], 2 * x["k"], x["v"], raw, x["beta"].logit(), use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True,
        use_beta_sigmoid_in_kernel=True, allow_neg_eigval=True, output_final_state=True, state_v_first=True,
        A_log=A_log, dt_bias=dt_bias.flatten(),
    )  # fmt: skip
    q = x["q"] * torch.rsqrt(x["q"].square().sum(-1, keepdim=True) + 1e-6 / 9)
    k = x["k"] * torch.rsqrt(x["k"].square().sum(-1, keepdim=True) + 1e-6 / 4)
    want, want_state = loop(q, steps(x | {"gk": g, "beta": 2 * x["beta"], "k": k})["kda"], K**-0.5)
    torch.testing.assert_close(o, want, atol=1e-10, rtol=1e-10)
    assert state is not None
    torch.testing.assert_close(state, want_state.mT, atol=1e-10, rtol=1e-10)
    bounded, _ = fla.chunk_gdn2(
        x["q"], x["k"], x["v"], raw, x["b"], x["w"], use_gate_in_kernel=True, A_log=A_log, lower_bound=-5.0
    )
    g = -5 * (A_log.exp()[:, None] * raw).sigmoid()
    torch.testing.assert_close(bounded, loop(x["q"], steps(x | {"gk": g})["gdn2"], K**-0.5)[0], atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        ("chunk_kda", {"cp_context": object()}, "cp_context is not covered: context parallelism"),
        ("chunk_kda", {"return_intermediate_states": True}, "only the last state is given; got True"),
        ("chunk_gdn2", {"A_log": torch.zeros(H)}, "A_log needs use_gate_in_kernel=True"),
        ("chunk_gated_delta_rule", {"use_gate_in_kernel": True}, "needs A_log, a tensor"),
        ("fused_recurrent_gated_delta_rule", {"gv": torch.zeros(1)}, "gv is not covered: a decay along the value"),
        ("fused_recurrent_gated_delta_rule", {"gk": torch.zeros(1)}, "give g or gk, not both"),
        ("fused_recurrent_simple_gla", {"reverse": True}, "reverse is not covered"),
        ("chunk_simple_gla", {"g_gamma": torch.zeros(H)}, "give g or g_gamma, not both"),
    ],
)
def test_what_is_not_covered_is_refused(function: str, options: dict[str, object], said: str) -> None:
    x = draw()
    given = {"q": x["q"], "k": x["k"], "v": x["v"], "g": x["gk"] if function in ("chunk_kda", "chunk_gdn2") else x["g"]}
    if "gla" not in function:
        given |= {"b": x["b"], "w": x["w"]} if function == "chunk_gdn2" else {"beta": x["beta"]}
    with pytest.raises(ValueError, match=re.escape(said)):
        getattr(fla, function)(**given, **options)
    with pytest.raises(TypeError, match="head_first"):
        getattr(fla, function)(**given, head_first=True)


def test_every_function_stands_in_the_table() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    table = "\n".join(line.split("|")[1] for line in lines if line.startswith("|"))
    functions = {n for n, f in inspect.getmembers(fla, inspect.isfunction) if n.startswith(("chunk", "fused"))}
    assert functions and functions == set(re.findall(r"`((?:chunk|fused_recurrent)_\w+)`", table))
