"""Parity without training: a delta step with beta = 2 on a unit key reflects the state.

I - 2 k k^T turns k into -k. So one binding, written at the start, changes its sign at every one and stays at every
zero, and the sign of the read is the parity. With beta in [0, 1] the state along k moves monotonically while one input
repeats, so any threshold on the read is crossed at most once, where the parity of 1 1 1 ... changes at each bit.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stateir.codegen.operator import Operator
from stateir.ir import Axis, Interval

from .config import require


def reflected_parity(op: Operator, bits: Tensor) -> Tensor:
    """The parity of bits [B, T] (0 or 1) up to each position: where `reflected_reads` is negative."""
    return (reflected_reads(op, bits) < 0).long()


def reflected_reads(op: Operator, bits: Tensor) -> Tensor:
    """The reads [B, T] of `op`, the delta rule with beta in [0, 2]: 1 where the parity of bits [B, T] is even, else -1.

    The weights are fixed: q and k are one unit vector, v = 0, beta = 2 * bit, and the state starts as k v^T with v = 1.

    Raises:
        ValueError: if the rule declares no scalar input "beta" that reaches 2, or bits are not [B, T].
    """
    beta = next((i for i in op.rule.inputs if i.name == "beta" and i.axis is Axis.SCALAR), None)
    top = None if beta is None else (beta.range or Interval(0, 0)).hi
    require(top is not None and top >= 2, f"{op.rule.name} must have a scalar input beta that reaches 2, got {top}")
    require(bits.dim() == 2, f"bits must be [B, T], got {list(bits.shape)}")
    B, T = bits.shape
    key = torch.tensor([0.6, 0.8], dtype=torch.float64)
    state = key[:, None].expand(B, 1, 2, 1)
    direction = key.expand(B, T, 1, 2)
    zero = torch.zeros(B, T, 1, 1, dtype=torch.float64)
    o, _ = op(q=direction, k=direction, v=zero, beta=2.0 * bits.double()[:, :, None], initial_state=state)
    # The rule's read is scaled by 1/sqrt(K).
    return o[:, :, 0, 0] * math.sqrt(2)
