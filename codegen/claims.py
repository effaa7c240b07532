"""Do arguments keep what a rule's declarations promise? Nothing is clamped in a call, so this is asked apart."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stateir.affine import normal_form
from stateir.intervals import text
from stateir.ir import Input, Interval, Param, Ref, Rule

from .text import arguments_of


def check_claims(rule: Rule, **tensors: Tensor) -> None:
    """Checks the ranges and the norms that `rule` declares of its inputs and params, for those that are given.

    A value may lie on an open end of a range, which rounding reaches, and a unit vector may be zero. An infinite value
    is in no range, but an input that is itself a log decay may be -inf: the token then starts from an empty state.

    Raises ValueError, naming the argument, its claim, and the first value that breaks it with its place.
    """
    declared = {d.name: d for d in arguments_of(rule)}
    for name, x in tensors.items():
        if name not in declared:
            raise ValueError(f"{rule.name}: unexpected argument {name!r}; the arguments are {', '.join(declared)}")
        d = declared[name]
        _check_range(rule, d, x.detach())
        if d.unit:
            _check_norm(rule, d, x.detach())


def _check_range(rule: Rule, d: Input | Param, x: Tensor) -> None:
    lo, hi = (-math.inf, math.inf) if d.range is None else (d.range.lo, d.range.hi)
    inside = torch.isfinite(x) & (x >= lo) & (x <= hi)
    if _is_log_decay(rule, d.name):
        inside |= x == -math.inf
    if not inside.all():
        place = torch.nonzero(~inside)[0].tolist()
        claim = text(d.range or Interval(lo, hi, True, True))
        raise ValueError(
            f"{rule.name}: argument {d.name!r}: declared in {claim}, but {int((~inside).sum())} of {x.numel()} values "
            f"are not: {x[tuple(place)].item():g} at {place}"
        )


def _check_norm(rule: Rule, d: Input | Param, x: Tensor) -> None:
    # Rounding a vector of norm 1 to its dtype changes the norm by its eps at most, a sum of squares in it by a few.
    limit = 8 * torch.finfo(x.dtype).eps
    norms = x.to(torch.promote_types(x.dtype, torch.float32)).norm(dim=-1)
    inside = ((norms - 1).abs() <= limit) | (norms == 0)
    if not inside.all():
        place = torch.nonzero(~inside)[0].tolist()
        raise ValueError(
            f"{rule.name}: argument {d.name!r}: declared unit, but {int((~inside).sum())} of {norms.numel()} vectors "
            f"have another norm: {norms[tuple(place)].item():g} at {place}"
        )


def _is_log_decay(rule: Rule, name: str) -> bool:
    form = normal_form(rule)
    return form is not None and any(isinstance(g, Ref) and g.name == name for g in form.decays)
