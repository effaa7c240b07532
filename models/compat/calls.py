"""What the functions of `fla.py` share: operators, scale, layouts, gates, and refusing what is not covered."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

import stateir
from stateir.codegen.operator import Operator

# With one number as the log decay of a token there is no rule in the library but those that fix it or derive it.
SIMPLE_GLA = """\
rule simple_gla "Linear attention with a scalar decay"
input  q: key, k: key, v: value, g: scalar in (-inf, 0]
update S = exp(g) * S + outer(k, v)
read   o = q @ S / sqrt(dim(key))
"""


@functools.cache
def operator(name: str, **constants: int) -> Operator:
    """The operator of a rule, compiled once."""
    rule = stateir.parse(SIMPLE_GLA) if name == "simple_gla" else stateir.load(name, **constants)
    return stateir.compile(rule)


def run(
    op: Operator, tensors: Mapping[str, Tensor], *, read: str, scale: float | None, initial_state: Tensor | None,
    output_final_state: bool, cu_seqlens: Tensor | None, state_v_first: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """A call with `scale` in place of 1 / sqrt(K), which every rule here has in its read. `read` names the query.

    The state is float32, [N, H, K, V], or [N, H, V, K] with `state_v_first`. A single token that needs no gradient is
    decoded.
    """
    given = dict(tensors)
    if scale is not None and not math.isclose(factor := scale * math.sqrt(given[read].shape[-1]), 1.0, rel_tol=1e-12):
        given[read] = given[read] * factor
    if state_v_first and initial_state is not None:
        initial_state = initial_state.mT.contiguous()
    inputs = {i.name for i in op.rule.inputs}
    every = [*given.values(), *([] if initial_state is None else [initial_state])]
    learning = torch.is_grad_enabled() and any(x.requires_grad for x in every)
    state: Tensor | dict[str, Tensor] | None
    if cu_seqlens is None and given[read].shape[1] == 1 and not learning:
        token = {name: x[:, 0] if name in inputs else x for name, x in given.items()}
        o, state = op.step(state=initial_state, inplace=False, slots=None, **token)
        o = o[:, None]
    else:
        o, state = op(initial_state=initial_state, return_state=output_final_state, cu_seqlens=cu_seqlens, **given)
    if not output_final_state:
        return o, None
    assert isinstance(state, Tensor)  # the rules of this module carry S alone
    return o, state.mT.contiguous() if state_v_first else state


def refuse(function: str, why: str, **options: object) -> None:
    """ValueError for the first option that is neither None nor False."""
    for name, value in options.items():
        if value is not None and value is not False:
            raise ValueError(f"{function}: {name} is not covered: {why}; got {_short(value)}")


def wide(x: Tensor) -> Tensor:
    """x in float32, or float64 if it is."""
    return x if x.dtype == torch.float64 else x.float()


def unit(x: Tensor, wanted: bool) -> Tensor:
    """x / |x|, in x's dtype, if wanted."""
    if not wanted:
        return x
    y = wide(x)
    return (y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6)).to(x.dtype)


def strength(beta: Tensor, sigmoid: bool, negative: bool) -> Tensor:
    """beta as it is, or (twice) the sigmoid of its logits."""
    return (2 if negative else 1) * torch.sigmoid(wide(beta)) if sigmoid else beta


def log_decay(
    function: str, g: Tensor, used: bool, A_log: Tensor | None, dt_bias: Tensor | None, lower_bound: float | None = None
) -> Tensor:
    """g as it is, or of raw gates [B, T, H] or [B, T, H, K] the log decay -exp(A_log) softplus(g + dt_bias).

    With `lower_bound` it is lower_bound * sigmoid(exp(A_log) (g + dt_bias)). A_log: [H]. dt_bias: [H] or [H K].
    """
    if not used:
        for name, value in {"A_log": A_log, "dt_bias": dt_bias, "lower_bound": lower_bound}.items():
            if value is not None:
                raise ValueError(f"{function}: {name} needs use_gate_in_kernel=True; g is else the log decay itself")
        return g
    if A_log is None:
        raise ValueError(f"{function}: use_gate_in_kernel=True needs A_log, a tensor [H]; got None")
    heads = g.shape[2:]
    raw = wide(g) if dt_bias is None else wide(g) + wide(dt_bias).reshape(heads)
    rate = wide(A_log).exp().reshape(heads[0], *[1] * (len(heads) - 1))
    return -rate * F.softplus(raw) if lower_bound is None else lower_bound * torch.sigmoid(rate * raw)


def _short(value: object) -> str:
    return f"a {type(value).__name__}" if isinstance(value, Tensor) else repr(value)
