"""The battery of a device: the backend that a call takes there, in the dtypes that people use, against float64.

The reference is the rule's step form in float64 on the CPU, from the arguments as rounded to the dtype. Memory that a
kernel does not write is NaN while this runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from stateir.ir import Axis, Rule

from .operator import Operator, compile
from .verify import Call, Check, make_call, results

# Limits of the rms error relative to float64: output and states, gradients, gradients of log decays, and of params and
# scalar initial states, which are sums over all tokens that may cancel. float16 and float32 are computed in float32.
LIMITS = {
    torch.bfloat16: (5e-3, 1e-2, 1.5e-2, 5e-2),
    torch.float32: (1e-5, 1e-4, 1e-4, 5e-4),
    torch.float16: (2e-3, 5e-3, 5e-3, 5e-2),
}
# Products of keys that nearly repeat, at full strength, are what an inverse amplifies: outputs may be twice as far.
REPEATED = 2.0
# A result whose rms is below this is mostly what cancels or underflows; its error is taken relative to this.
FLOOR = 1e-2

K, V = 48, 80


def check_device(device: str) -> None:
    """ValueError if PyTorch has no such device here."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"{device}: {str(error).splitlines()[0]}") from error


def verify_on(rule: Rule, device: str, seed: int = 0) -> list[Check]:
    """Outputs, states and each gradient by itself: ordinary arguments, ends of the ranges, keys that nearly repeat."""
    op, reference = compile(rule), compile(rule, "step")
    checks = []
    with poisoned():
        for case, call, factor in _cases(reference, seed):
            exact = results(reference, call)
            for dtype in LIMITS:
                checks += list(_compare(op, reference, call, exact, dtype, device, case, factor))
    return checks


def _cases(reference: Operator, seed: int) -> Iterator[tuple[str, Call, float]]:
    yield "ordinary", make_call(reference, 150, seed, K=K, V=V), 1.0
    yield "ends of ranges", make_call(reference, 70, seed, ends=1.0, resets=True, K=K, V=V), 1.0
    call = make_call(reference, 70, seed, K=K, V=V)
    arguments = dict(call.arguments)
    for x in reference.rule.inputs:
        if x.unit and x.axis is Axis.KEY:
            mean = arguments[x.name].sum(1, keepdim=True)  # some keys are zero, the first one too
            near = mean / mean.norm(dim=-1, keepdim=True) + 0.05 * arguments[x.name]
            arguments[x.name] = near / near.norm(dim=-1, keepdim=True)
    yield "keys nearly repeat", replace(call, arguments=arguments), REPEATED


def _compare(
    op: Operator, reference: Operator, call: Call, exact: dict[str, Tensor], dtype: torch.dtype, device: str, case: str,
    factor: float,
) -> Iterator[Check]:  # fmt: skip
    wide, there = rounded(call, dtype, device)
    yield from compare(op.rule, results(op, there), results(reference, wide), exact, dtype, case, factor)


def rounded(call: Call, dtype: torch.dtype, device: str) -> tuple[Call, Call]:
    """A call with its arguments rounded to a dtype: in float64 on the CPU, and in that dtype on a device."""
    arguments, state = _moved(call.arguments, "cpu", dtype), _moved(call.state, "cpu", torch.float32)
    wide = replace(call, arguments=_moved(arguments, "cpu", torch.float64), state=_moved(state, "cpu", torch.float64))
    there = replace(call, arguments=_moved(arguments, device, dtype), state=_moved(state, device, torch.float32))
    return wide, there


def compare(
    rule: Rule, found: dict[str, Tensor], expected: dict[str, Tensor], exact: dict[str, Tensor], dtype: torch.dtype,
    case: str, factor: float = 1.0,
) -> Iterator[Check]:  # fmt: skip
    """Each result beside that of the same rounded arguments in float64; `exact` is of the arguments unrounded."""
    decays = {f"gradient of {x.name}" for x in rule.inputs if x.range and x.range.lo == -math.inf and x.range.hi == 0}
    # One number (a head's parameter, or the scalar state that a sequence starts from) that all tokens pull at.
    sums = {f"gradient of {p.name}" for p in rule.params}
    sums |= {f"gradient of initial {x.name}" for x in rule.states if x.axis is Axis.SCALAR}
    for part, x in found.items():
        kind = 3 if part in sums else 2 if part in decays else 1 if part.startswith("gradient") else 0
        limit = LIMITS[dtype][kind] * (factor if kind == 0 else 1.0)
        note = f"{case}, {str(dtype)[6:]}"
        # what rounding the arguments alone does to float64 is in the rule, not in its kernels
        own = relative(expected[part], exact[part])
        if 2 * own > limit:
            limit, note = 2 * own, f"{note}; rounding the arguments alone: {own:.1e}"
        # where the true value is past the dtype's range, infinity is right
        most = torch.finfo(x.dtype).max
        yield Check(part, relative(x.cpu().clamp(-most, most), expected[part].clamp(-most, most)), limit, note)


def _moved(tensors: dict[str, Tensor], device: str, dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: x.to(device, dtype) for name, x in tensors.items()}


def relative(x: Tensor, reference: Tensor) -> float:
    """rms(x - reference) / max(rms(reference), FLOOR); NaN in x is NaN."""
    if not reference.numel():
        return 0.0
    difference = (x.double() - reference.double()).square().mean().sqrt().item()
    return difference / max(reference.double().square().mean().sqrt().item(), FLOOR)


@contextmanager
def poisoned() -> Iterator[None]:
    """Uninitialised memory is NaN."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
