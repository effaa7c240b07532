"""The start values of params, as tensors."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from stateir.ir import Axis, Param

from .expr import Scope, torch_text


def start_value(
    param: Param, H: int, K: int, V: int, *, dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None, first_head: int = 0,
) -> Tensor:  # fmt: skip
    """The start value of a param that declares one: [H], [H, D], or [H, n, ...] for an array.

    `first_head` is the global index of the first of the H heads. Raises ValueError where none is declared.
    """
    if param.start is None:
        raise ValueError(f"the param {param.name!r} declares no start value")
    head = torch.arange(first_head, first_head + H, dtype=torch.float64)
    scope = {"math": math, "torch": torch, "F": F, "head": head, "K": K, "V": V}
    value = torch.as_tensor(eval(torch_text(param.start, Scope({})), scope), dtype=torch.float64)
    dims = {Axis.SCALAR: [], Axis.KEY: [K], Axis.VALUE: [V], Axis.PAIR: [K // 2]}[param.axis]
    inner = [*([] if param.size is None else [param.size]), *dims]
    full = value.expand(H).reshape(H, *[1] * len(inner)).expand(H, *inner)
    return full.to(dtype=dtype, device=device, copy=True)
