"""The battery that `stateir verify` runs on a rule: measured errors of its backends against its step reference.

The step reference follows the rule's lines literally, so it is the meaning of the rule; everything else is compared
with it, in float64 where rounding alone may differ, and bit for bit where nothing may.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stateir.ir import Rule

from .arguments import State
from .carried import comparable
from .operator import Operator, compile
from .samples import sample_arguments

# Rounding of float64, times the tokens and the growth that a sum of them allows.
FLOAT64 = 1e-10
# The limits that this field asks of single precision; a param's gradient sums over all tokens, and may cancel.
FLOAT32_OUTPUT, FLOAT32_GRADIENT, FLOAT32_PARAM = 1e-5, 1e-4, 5e-4

K, V, HEADS = 6, 5, 2


@dataclass(frozen=True)
class Check:
    """One measurement: `error` is an rms ratio, or where bits are compared the number of values that differ."""

    name: str
    error: float
    limit: float
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether the error is within the limit; a NaN is not."""
        return self.error <= self.limit


def verify(rule: Rule, *, full: bool = False, seed: int = 0) -> list[Check]:
    """All checks of a rule on the CPU. `full` takes more lengths, chunk sizes and seeds."""
    checks: list[Check] = []
    reference = compile(rule, "step")
    if reference.backends["chunked"] is None:
        lengths = (1, 13, 64, 150) if full else (1, 40)
        sizes = (1, 2, 4, 7, 16, 32, 64, 200) if full else (1, 4, 16, 64)
        checks += against_step(rule, lengths, sizes, range(seed, seed + (3 if full else 1)))
        chunked = compile(rule, "chunked")
        ends = [make_call(reference, 40, seed, ends=1.0, resets=True)]
        checks += _worst("at the ends of the ranges", [chunked], ends, reference, "T = 40; log decays down to -inf")
        checks += _single(chunked, reference, seed)
        checks += over_time(rule, "chunked", seed, chunk_size=8)
    else:
        checks += _single(reference, reference, seed)
    checks += over_time(rule, "step", seed)
    return checks


def against_step(rule: Rule, lengths: Sequence[int], chunk_sizes: Sequence[int], seeds: Sequence[int]) -> list[Check]:
    """Output, states and every gradient of the chunked backend against the step reference, in float64."""
    reference = compile(rule, "step")
    ops = [compile(rule, "chunked", chunk_size=c) for c in chunk_sizes]
    calls = [make_call(reference, T, seed) for seed in seeds for T in lengths]
    note = f"T = {', '.join(map(str, lengths))}; chunks of {', '.join(map(str, chunk_sizes))}"
    return list(_worst("chunked = step", ops, calls, reference, note))


def over_time(rule: Rule, backend: str, seed: int, *, chunk_size: int | None = None) -> list[Check]:
    """Splitting, decoding and causality of a backend."""
    return list(_time(compile(rule, backend, chunk_size=chunk_size), compile(rule, "step"), seed))


@dataclass(frozen=True)
class Call:
    """Arguments, the state before, and random weights that make one number of everything a call returns.

    state: empty for the rule's start values; offsets: those of packed sequences, empty for whole sequences.
    """

    arguments: dict[str, Tensor]
    state: dict[str, Tensor]
    seed: int
    offsets: tuple[int, ...] = ()


def parts_of(state: State | None) -> dict[str, Tensor]:
    assert state is not None
    return state if isinstance(state, dict) else {"S": state}


def given(op: Operator, state: dict[str, Tensor]) -> State:
    """A state by parts as the operator takes it."""
    return state if op.carries_dict else state["S"]


def make_call(
    reference: Operator, T: int, seed: int, dtype: torch.dtype = torch.float64, ends: float = 0.1, resets: bool = False,
    K: int = K, V: int = V,
) -> Call:  # fmt: skip
    """Random arguments, and the state that a few other tokens lead to."""
    rule = reference.rule
    before = sample_arguments(rule, T=5, H=HEADS, K=K, V=V, seed=seed + 1000, dtype=dtype)
    arguments = sample_arguments(rule, T=T, H=HEADS, K=K, V=V, seed=seed, dtype=dtype, ends=ends, resets=resets)
    params = {p.name: arguments[p.name] for p in rule.params}
    _, state = reference(**before | params, return_state=True)
    return Call(arguments, parts_of(state), seed)


def results(op: Operator, call: Call) -> dict[str, Tensor]:
    """Output, states, and the gradient of every argument and of the initial state."""
    inputs = {name: x.detach().clone().requires_grad_() for name, x in call.arguments.items()}
    before = {name: x.detach().clone().requires_grad_() for name, x in call.state.items()}
    cu_seqlens = torch.tensor(call.offsets, device=next(iter(inputs.values())).device) if call.offsets else None
    start = given(op, before) if before else None
    o, after = op(**inputs, initial_state=start, return_state=True, cu_seqlens=cu_seqlens)
    found = {"output": o} | {f"state {name}": x for name, x in comparable(op.rule, parts_of(after)).items()}
    generator = torch.Generator().manual_seed(call.seed)
    loss = torch.zeros((), device=o.device)
    for name in sorted(found):
        x = found[name]
        weights = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        loss = loss + (x.double() * weights.to(x.device)).sum()
    leaves = inputs | {f"initial {name}": x for name, x in before.items()}
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
        found[f"gradient of {name}"] = torch.zeros_like(leaf) if gradient is None else gradient
    return {name: x.detach() for name, x in found.items()}


def rms_ratio(x: Tensor, reference: Tensor) -> float:
    """rms(x - reference) / rms(reference); a reference below 1e-6 counts as that, so that zeros have a scale."""
    if not reference.numel():
        return 0.0
    difference = (x.double() - reference.double()).square().mean().sqrt().item()
    scale = max(reference.double().square().mean().sqrt().item(), 1e-6)
    return math.nan if math.isnan(scale) else difference / scale


def _worst(name: str, ops: list[Operator], calls: list[Call], reference: Operator, note: str) -> Iterator[Check]:
    """The largest error of each result over all operators and calls."""
    worst: dict[str, float] = {}
    for call in calls:
        expected = results(reference, call)
        for op in ops:
            for part, x in results(op, call).items():
                error = rms_ratio(x, expected[part])
                worst[part] = max(worst.get(part, 0.0), math.inf if math.isnan(error) else error)
    for part, error in worst.items():
        yield Check(f"{name}: {part}", error, FLOAT64, note)


def _single(op: Operator, reference: Operator, seed: int) -> Iterator[Check]:
    """float32 against float64, from the same rounded arguments.

    A rule that is itself ill-conditioned, as the step reference's own float32 error shows, is allowed five times that.
    """
    call = make_call(reference, 150, seed, torch.float32)
    wide = {name: x.double() for name, x in call.arguments.items()}
    expected = results(reference, Call(wide, {name: x.double() for name, x in call.state.items()}, seed))
    found = results(op, call)
    own = found if op is reference else results(reference, call)
    params = {f"gradient of {p.name}" for p in op.rule.params}
    for part, x in found.items():
        limit = FLOAT32_PARAM if part in params else FLOAT32_GRADIENT if part.startswith("gradient") else FLOAT32_OUTPUT
        note = f"T = 150, {op.backend}"
        if op is not reference and 5 * (floor := rms_ratio(own[part], expected[part])) > limit:
            limit, note = 5 * floor, f"{note}; the step reference itself {floor:.1e}"
        yield Check(f"float32: {part}", rms_ratio(x, expected[part]), limit, note)


def _time(op: Operator, reference: Operator, seed: int) -> Iterator[Check]:
    """Splitting, decoding and causality of one backend."""
    T, name = 29, op.backend
    call = make_call(reference, T, seed)
    before = given(op, call.state)
    whole, end = op(**call.arguments, initial_state=before, return_state=True)
    for split in (8, 13):
        first, middle = op(**_tokens(op, call, 0, split), initial_state=before, return_state=True)
        second, last = op(**_tokens(op, call, split, T), initial_state=middle, return_state=True)
        pairs = [(torch.cat((first, second), 1), whole), *_paired(op, last, end)]
        if name == "step":
            yield Check(f"{name}, split at {split} = whole, bits", sum(_differing(*pair) for pair in pairs), 0)
        else:
            yield Check(f"{name}, split at {split} = whole", max(rms_ratio(*pair) for pair in pairs), FLOAT64)

    state: State | None = before
    outputs = []
    for t in range(T):
        token: dict[str, Any] = {n: x[:, t] if n in _inputs(op) else x for n, x in call.arguments.items()}
        o, state = op.step(**token, state=state)
        outputs.append(o)
    pairs = [(torch.stack(outputs, 1), whole), *_paired(op, state, end)]
    yield Check(f"{name}, decoding = whole", max(rms_ratio(*pair) for pair in pairs), FLOAT64)

    other = make_call(reference, T, seed + 1)
    for kept in (1, 8, 13):
        past, future = _tokens(op, call, 0, kept), _tokens(op, other, kept, T)
        mixed: dict[str, Any] = {n: torch.cat((x, future[n]), 1) if n in _inputs(op) else x for n, x in past.items()}
        changed, _ = op(**mixed, initial_state=before)
        differing = _differing(changed[:, :kept], whole[:, :kept])
        yield Check(f"{name}, first {kept} outputs under another future, bits", differing, 0)


def _inputs(op: Operator) -> set[str]:
    return {i.name for i in op.rule.inputs}


def _tokens(op: Operator, call: Call, first: int, last: int) -> dict[str, Any]:
    """The arguments of the tokens from `first` to before `last`."""
    return {n: x[:, first:last] if n in _inputs(op) else x for n, x in call.arguments.items()}


def _paired(op: Operator, a: State | None, b: State | None) -> list[tuple[Tensor, Tensor]]:
    first, second = (comparable(op.rule, parts_of(state)) for state in (a, b))
    return [(x, second[name]) for name, x in first.items()]


def _differing(a: Tensor, b: Tensor) -> int:
    """The number of values that are not the same."""
    return int((a != b).sum())
