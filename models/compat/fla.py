"""flash-linear-attention's operators by name and signature, computed by stateir's rules.

    from stateir.models.compat.fla import chunk_gated_delta_rule

Layouts are that library's: q, k [B, T, H, K], v [B, T, HV, V], gates [B, T, HV, ...]; states float32 [N, HV, K, V].
H may be a divisor of HV. The `chunk_` and the `fused_recurrent_` form of a rule are one operator; the latter decodes
where T = 1 and no gradient is needed. Arguments that only advise the other library's kernels have no effect
(`cu_seqlens_cpu`, `chunk_indices`, `safe_gate`, `disable_recompute`, `chunk_size`). What is not covered is a
ValueError that says so. docs/howto/compat.md has the table.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from .calls import log_decay, operator, refuse, run, strength, unit, wide

Result: TypeAlias = tuple[Tensor, Tensor | None]

_PARALLEL = "context parallelism is another library's"
_REVERSE = "rules run forward in time"
_VALUES = "a decay along the value axis has no chunk form"
_NORMALISED = 1e-10  # keeps the normaliser of an empty state from dividing 0 by 0


def chunk_linear_attn(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None,
    initial_state: Tensor | tuple[Tensor, Tensor] | None = None, output_final_state: bool = False,
    normalize: bool = True, cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | tuple[Tensor, Tensor] | None]:  # fmt: skip
    """S += k vᵀ. `normalize` divides the read by q·z; the state is then (S, z), z [N, 1, H, K] the sum of keys."""
    op = operator("additive")
    if not normalize:
        if isinstance(initial_state, tuple):
            raise ValueError("chunk_linear_attn: initial_state: expected a tensor without normalize, got a tuple")
        return run(
            op, {"q": q, "k": k, "v": v}, read="q", scale=scale, initial_state=initial_state,
            output_final_state=output_final_state, cu_seqlens=cu_seqlens,
        )  # fmt: skip
    before = None
    if isinstance(initial_state, tuple):
        before = torch.cat([wide(initial_state[0]), wide(initial_state[1]).squeeze(1).unsqueeze(-1)], -1)
    elif initial_state is not None:
        before = torch.nn.functional.pad(wide(initial_state), (0, 1))
    # The normaliser is one more value channel, whose value is always 1.
    values = wide(v)
    wider = torch.cat([values, values.new_ones(*v.shape[:-1], 1)], -1)
    o, after = run(
        op, {"q": q, "k": k, "v": wider}, read="q", scale=scale, initial_state=before,
        output_final_state=output_final_state, cu_seqlens=cu_seqlens,
    )  # fmt: skip
    o = (o[..., :-1] / (o[..., -1:] + _NORMALISED)).to(v.dtype)
    return o, None if after is None else (after[..., :-1].contiguous(), after[..., -1].unsqueeze(1).contiguous())


def fused_recurrent_linear_attn(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None,
    initial_state: Tensor | tuple[Tensor, Tensor] | None = None, output_final_state: bool = False,
    reverse: bool = False, normalize: bool = False, cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | tuple[Tensor, Tensor] | None]:  # fmt: skip
    """As `chunk_linear_attn`, but without `normalize` where nothing is said."""
    refuse("fused_recurrent_linear_attn", _REVERSE, reverse=reverse)
    return chunk_linear_attn(q, k, v, scale, initial_state, output_final_state, normalize, cu_seqlens)


def chunk_retention(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, initial_state: Tensor | None = None,
    output_final_state: bool = False, cu_seqlens: Tensor | None = None,
) -> Result:  # fmt: skip
    """S = γ S + k vᵀ, γ = 1 − 2^(−5 − head)."""
    return run(
        operator("retention"), {"q": q, "k": k, "v": v}, read="q", scale=scale, initial_state=initial_state,
        output_final_state=output_final_state, cu_seqlens=cu_seqlens,
    )  # fmt: skip


def fused_recurrent_retention(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, initial_state: Tensor | None = None,
    output_final_state: bool = False, reverse: bool = False, state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Result:  # fmt: skip
    """As `chunk_retention`."""
    refuse("fused_recurrent_retention", _REVERSE, reverse=reverse)
    return run(
        operator("retention"), {"q": q, "k": k, "v": v}, read="q", scale=scale, initial_state=initial_state,
        output_final_state=output_final_state, cu_seqlens=cu_seqlens, state_v_first=state_v_first,
    )  # fmt: skip


def chunk_simple_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, g_gamma: Tensor | None = None,
    scale: float | None = None, initial_state: Tensor | None = None, output_final_state: bool = False,
    state_v_first: bool = False, cu_seqlens: Tensor | None = None, cu_seqlens_cpu: Tensor | None = None,
) -> Result:  # fmt: skip
    """S = e^g S + k vᵀ; g [B, T, H], or g_gamma [H] for all tokens; without either nothing decays."""
    if g is not None and g_gamma is not None:
        raise ValueError("chunk_simple_gla: give g or g_gamma, not both")
    tensors = {"q": q, "k": k, "v": v}
    if g_gamma is not None:
        g = g_gamma.expand(*v.shape[:2], -1)
    if g is not None:
        tensors["g"] = g
    return run(
        operator("additive" if g is None else "simple_gla"), tensors, read="q", scale=scale,
        initial_state=initial_state, output_final_state=output_final_state, cu_seqlens=cu_seqlens,
        state_v_first=state_v_first,
    )  # fmt: skip


def fused_recurrent_simple_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, g_gamma: Tensor | None = None,
    scale: float | None = None, initial_state: Tensor | None = None, output_final_state: bool = False,
    reverse: bool = False, state_v_first: bool = False, cu_seqlens: Tensor | None = None,
) -> Result:  # fmt: skip
    """As `chunk_simple_gla`."""
    refuse("fused_recurrent_simple_gla", _REVERSE, reverse=reverse)
    return chunk_simple_gla(q, k, v, g, g_gamma, scale, initial_state, output_final_state, state_v_first, cu_seqlens)


def chunk_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, scale: float | None = None, initial_state: Tensor | None = None,
    output_final_state: bool = False, state_v_first: bool = False, cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
) -> Result:  # fmt: skip
    """S = e^g ⊙ S + k vᵀ; g [B, T, H, K]."""
    return run(
        operator("gla"), {"q": q, "k": k, "v": v, "g": g}, read="q", scale=scale, initial_state=initial_state,
        output_final_state=output_final_state, cu_seqlens=cu_seqlens, state_v_first=state_v_first,
    )  # fmt: skip


def fused_recurrent_gla(
    q: Tensor, k: Tensor, v: Tensor, gk: Tensor | None = None, gv: Tensor | None = None, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False, reverse: bool = False,
    state_v_first: bool = False, cu_seqlens: Tensor | None = None,
) -> Result:  # fmt: skip
    """As `chunk_gla` with g = gk; without it nothing decays."""
    refuse("fused_recurrent_gla", _REVERSE, reverse=reverse)
    refuse("fused_recurrent_gla", _VALUES, gv=gv)
    if gk is None:
        return chunk_simple_gla(
            q, k, v, None, None, scale, initial_state, output_final_state, state_v_first, cu_seqlens
        )
    return chunk_gla(q, k, v, gk, scale, initial_state, output_final_state, state_v_first, cu_seqlens)


def chunk_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, scale: float | None = None, initial_state: Tensor | None = None,
    output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
) -> Result:  # fmt: skip
    """S += β k (v − k·S)ᵀ; beta [B, T, H]."""
    tensors = {"q": unit(q, use_qk_l2norm_in_kernel), "k": unit(k, use_qk_l2norm_in_kernel), "v": v, "beta": beta}
    return run(
        operator("delta"), tensors, read="q", scale=scale, initial_state=initial_state,
        output_final_state=output_final_state, cu_seqlens=cu_seqlens,
    )  # fmt: skip


def fused_recurrent_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None = None, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Result:  # fmt: skip
    """As `chunk_delta_rule`; beta is 1 where none is given."""
    beta = v.new_ones(v.shape[:3]) if beta is None else beta
    return chunk_delta_rule(
        q, k, v, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, cu_seqlens
    )  # fmt: skip


def chunk_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False, allow_neg_eigval: bool = False, state_v_first: bool = False,
    cu_seqlens: Tensor | None = None, cu_seqlens_cpu: Tensor | None = None, chunk_indices: Tensor | None = None,
    cp_context: object = None, *, use_gate_in_kernel: bool = False, A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
) -> Result:  # fmt: skip
    """S = e^g S, then S += β k (v − k·S)ᵀ; g, beta [B, T, HV]."""
    refuse("chunk_gated_delta_rule", _PARALLEL, cp_context=cp_context)
    tensors = {
        "q": unit(q, use_qk_l2norm_in_kernel), "k": unit(k, use_qk_l2norm_in_kernel), "v": v,
        "g": log_decay("chunk_gated_delta_rule", g, use_gate_in_kernel, A_log, dt_bias),
        "beta": strength(beta, use_beta_sigmoid_in_kernel, allow_neg_eigval),
    }  # fmt: skip
    return run(
        operator("gated_delta"), tensors, read="q", scale=scale, initial_state=initial_state,
        output_final_state=output_final_state, cu_seqlens=cu_seqlens, state_v_first=state_v_first,
    )  # fmt: skip


def fused_recurrent_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, gk: Tensor | None = None, gv: Tensor | None = None,
    beta: Tensor | None = None, scale: float | None = None, initial_state: Tensor | None = None,
    output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None, dt_bias: Tensor | None = None, use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False, state_v_first: bool = False, cu_seqlens: Tensor | None = None,
) -> Result:  # fmt: skip
    """As `chunk_gated_delta_rule`. Without beta it is 1, without g 0; with gk [B, T, HV, K] for g it is KDA."""
    name = "fused_recurrent_gated_delta_rule"
    refuse(name, _VALUES, gv=gv)
    if g is not None and gk is not None:
        raise ValueError(f"{name}: give g or gk, not both; their sum is a gk")
    beta = v.new_ones(v.shape[:3]) if beta is None else strength(beta, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    if gk is not None:
        refuse(name, "it is for g", use_gate_in_kernel=use_gate_in_kernel)
        return chunk_kda(
            q, k, v, gk, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel,
            state_v_first=state_v_first, cu_seqlens=cu_seqlens,
        )  # fmt: skip
    return chunk_gated_delta_rule(
        q, k, v, v.new_zeros(v.shape[:3]) if g is None else g, beta, scale, initial_state, output_final_state,
        use_qk_l2norm_in_kernel, state_v_first=state_v_first, cu_seqlens=cu_seqlens,
        use_gate_in_kernel=use_gate_in_kernel, A_log=A_log, dt_bias=dt_bias,
    )  # fmt: skip


def chunk_kda(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False, use_beta_sigmoid_in_kernel: bool = False, allow_neg_eigval: bool = False,
    safe_gate: bool = False, lower_bound: float | None = None, disable_recompute: bool = False,
    return_intermediate_states: bool = False, state_v_first: bool = False, cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None, cp_context: object = None, use_graph: bool = False,
    max_num_seqs: int | None = None, *, A_log: Tensor | None = None, dt_bias: Tensor | None = None,
) -> Result:  # fmt: skip
    """S = e^g ⊙ S, then S += β k (v − k·S)ᵀ; g [B, T, HV, K], beta [B, T, HV]."""
    refuse("chunk_kda", _PARALLEL, cp_context=cp_context)
    refuse("chunk_kda", "only the last state is given", return_intermediate_states=return_intermediate_states)
    refuse("chunk_kda", "capture the call yourself", use_graph=use_graph, max_num_seqs=max_num_seqs)
    tensors = {
        "q": unit(q, use_qk_l2norm_in_kernel), "k": unit(k, use_qk_l2norm_in_kernel), "v": v,
        "g": log_decay("chunk_kda", g, use_gate_in_kernel, A_log, dt_bias, lower_bound),
        "beta": strength(beta, use_beta_sigmoid_in_kernel, allow_neg_eigval),
    }  # fmt: skip
    return run(
        operator("kda"), tensors, read="q", scale=scale, initial_state=initial_state,
        output_final_state=output_final_state, cu_seqlens=cu_seqlens, state_v_first=state_v_first,
    )  # fmt: skip


def fused_recurrent_kda(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor | None = None,
    dt_bias: Tensor | None = None, scale: float | None = None, initial_state: Tensor | None = None,
    output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False, allow_neg_eigval: bool = False, lower_bound: float | None = None,
    state_v_first: bool = False, cu_seqlens: Tensor | None = None,
) -> Result:  # fmt: skip
    """As `chunk_kda`."""
    return chunk_kda(
        q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel,
        use_beta_sigmoid_in_kernel, allow_neg_eigval, lower_bound=lower_bound, state_v_first=state_v_first,
        cu_seqlens=cu_seqlens, A_log=A_log, dt_bias=dt_bias,
    )  # fmt: skip


def chunk_gdn2(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, w: Tensor, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False, cu_seqlens: Tensor | None = None, cu_seqlens_cpu: Tensor | None = None,
    safe_gate: bool = False, lower_bound: float | None = None, disable_recompute: bool = False,
    return_intermediate_states: bool = False, state_v_first: bool = False, cp_context: object = None, *,
    A_log: Tensor | None = None, dt_bias: Tensor | None = None,
) -> Result:  # fmt: skip
    """S = e^g ⊙ S, then S += k (w ⊙ v − (b ⊙ k)·S)ᵀ; g, b [B, T, HV, K], w [B, T, HV, V]."""
    refuse("chunk_gdn2", _PARALLEL, cp_context=cp_context)
    refuse("chunk_gdn2", "only the last state is given", return_intermediate_states=return_intermediate_states)
    tensors = {
        "q": unit(q, use_qk_l2norm_in_kernel), "k": unit(k, use_qk_l2norm_in_kernel), "v": v, "b": b, "w": w,
        "g": log_decay("chunk_gdn2", g, use_gate_in_kernel, A_log, dt_bias, lower_bound),
    }  # fmt: skip
    return run(
        operator("gdn2"), tensors, read="q", scale=scale, initial_state=initial_state,
        output_final_state=output_final_state, cu_seqlens=cu_seqlens, state_v_first=state_v_first,
    )  # fmt: skip


def fused_recurrent_gdn2(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, w: Tensor, A_log: Tensor | None = None,
    dt_bias: Tensor | None = None, scale: float | None = None, initial_state: Tensor | None = None,
    output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, use_gate_in_kernel: bool = False,
    lower_bound: float | None = None, state_v_first: bool = False, cu_seqlens: Tensor | None = None,
) -> Result:  # fmt: skip
    """As `chunk_gdn2`."""
    return chunk_gdn2(
        q, k, v, g, b, w, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel,
        cu_seqlens, lower_bound=lower_bound, state_v_first=state_v_first, A_log=A_log, dt_bias=dt_bias,
    )  # fmt: skip


def chunk_gated_delta_product(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor, num_householder: int, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None, cu_seqlens_cpu: Tensor | None = None, cp_context: object = None,
) -> Result:  # fmt: skip
    """One decay and n = `num_householder` delta steps a token: q and g have T tokens, k, v and beta n T of them."""
    name = "chunk_gated_delta_product"
    refuse(name, _PARALLEL, cp_context=cp_context)
    B, T, H, _ = q.shape
    for what, x in {"k": k, "v": v, "beta": beta}.items():
        if x.shape[1] != num_householder * T:
            raise ValueError(f"{name}: {what}: expected {num_householder} * {T} tokens, got {x.shape[1]}")

    def steps(x: Tensor) -> Tensor:
        split: Tensor = x.unflatten(1, (T, num_householder))
        return split.transpose(2, 3)

    tensors = {
        "q": unit(q, use_qk_l2norm_in_kernel), "k": steps(unit(k, use_qk_l2norm_in_kernel)), "v": steps(v),
        "beta": steps(beta), "g": q.new_zeros(B, T, H) if g is None else g,
    }  # fmt: skip
    return run(
        operator("delta_product", n=num_householder), tensors, read="q", scale=scale, initial_state=initial_state,
        output_final_state=output_final_state, cu_seqlens=cu_seqlens,
    )  # fmt: skip


def chunk_rwkv7(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, scale: float = 1.0,
    initial_state: Tensor | None = None, output_final_state: bool = False, cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None, safe_gate: bool = False, chunk_size: int | None = None,
    disable_recompute: bool = False, cp_context: object = None, lower_bound: float | None = None,
) -> Result:  # fmt: skip
    """S = e^w ⊙ S + b (a·S)ᵀ + k vᵀ, where a reads the state before the token; every vector is [B, T, H, K or V]."""
    refuse("chunk_rwkv7", _PARALLEL, cp_context=cp_context)
    return run(
        operator("dplr"), {"q": r, "g": w, "k": k, "v": v, "a": a, "b": b}, read="q", scale=scale,
        initial_state=initial_state, output_final_state=output_final_state, cu_seqlens=cu_seqlens,
    )  # fmt: skip


def fused_recurrent_rwkv7(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = True, cu_seqlens: Tensor | None = None,
) -> Result:  # fmt: skip
    """As `chunk_rwkv7`, but with 1 / sqrt(K) and the last state where nothing is said."""
    scale = r.shape[-1] ** -0.5 if scale is None else scale
    return chunk_rwkv7(r, w, k, v, a, b, scale, initial_state, output_final_state, cu_seqlens)


chunk_gdn = chunk_gated_delta_rule
fused_recurrent_gdn = fused_recurrent_gated_delta_rule
