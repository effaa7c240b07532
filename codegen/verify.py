"""The battery that `stateir verify` runs on a rule: measured errors of its backends against its step reference.

The step reference follows the rule's lines literally, so it is the meaning of the rule; everything else is compared with
it, in float64 where rounding alone may differ, and bit for bit where nothing may.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from stateir.ir import Param, Rule

from .arguments import State
from .operator import Operator, compile
from .samples import sample_arguments
from .text import arguments_of

# Rounding of float64, times the tokens and the growth that a sum of them allows.
FLOAT64 = 1e-10
# The limits that this field asks of single precision; a param's gradient sums over all tokens, and may cancel.
FLOAT32_OUTPUT, FLOAT32_GRADIENT, FLOAT32_PARAM = 1e-5, 1e-4, 5e-4

K, V, HEADS = 6, 5, 2


@dataclass(frozen=True)
class Check:
    """One measurement: `error` is an rms ratio, or for a comparison of bits the number of values that differ (limit 0)."""

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
        pairs = [
            (compile(rule, "chunked", chunk_size=c), _call(reference, T, seed + s))
            for s in range(3 if full else 1) for T in lengths for c in sizes
        ]  # fmt: skip
        note = f"T = {', '.join(map(str, lengths))}; chunks of {', '.join(map(str, sizes))}"
        checks += _worst("chunked = step", pairs, reference, note)
        ends = [(compile(rule, "chunked"), _call(reference, 40, seed, ends=1.0, resets=True))]
        checks += _worst("at the ends of the ranges", ends, reference, "log decays down to -inf")
        checks += _single(rule, compile(rule, "chunked"), reference, seed)
    else:
        checks += _single(rule, reference, reference, seed)
    for backend in ("step", "chunked"):
        if reference.backends[backend] is None:
            checks += _time(rule, compile(rule, backend, chunk_size=8), seed)
    return checks


@dataclass(frozen=True)
class _Call:
    """Arguments, the state before, and random weights that make one number of everything a call returns."""

    arguments: dict[str, Tensor]
    state: dict[str, Tensor]
    seed: int


def _parts(state: State | None) -> dict[str, Tensor]:
    assert state is not None
    return state if isinstance(state, dict) else {"S": state}


def _given(op: Operator, state: dict[str, Tensor]) -> State:
    """A state by parts as the operator takes it."""
    return state if op.carries_dict else state["S"]


def _call(
    reference: Operator, T: int, seed: int, dtype: torch.dtype = torch.float64, ends: float = 0.1, resets: bool = False
) -> _Call:
    """Random arguments, and the state that a few other tokens lead to."""
    rule = reference.rule
    before = sample_arguments(rule, T=5, H=HEADS, K=K, V=V, seed=seed + 1000, dtype=dtype)
    arguments = sample_arguments(rule, T=T, H=HEADS, K=K, V=V, seed=seed, dtype=dtype, ends=ends, resets=resets)
    params = {p.name: arguments[p.name] for p in rule.params}
    _, state = reference(**before | params, return_state=True)
    return _Call(arguments, _parts(state), seed)


def _results(op: Operator, call: _Call) -> dict[str, Tensor]:
    """Output, states, and the gradient of every argument and of the initial state."""
    inputs = {name: x.detach().clone().requires_grad_() for name, x in call.arguments.items()}
    before = {name: x.detach().clone().requires_grad_() for name, x in call.state.items()}
    o, after = op(**inputs, initial_state=_given(op, before), return_state=True)
    found = {"output": o} | {f"state {name}": x for name, x in _parts(after).items()}
    generator = torch.Generator().manual_seed(call.seed)
    loss = sum(
        (
            (x * torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype)).sum()
            for x in found.values()
        ),
        torch.zeros(()),
    )
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


def _worst(name: str, pairs: list[tuple[Operator, _Call]], reference: Operator, note: str) -> Iterator[Check]:
    """The largest error of each result over several calls."""
    expected: dict[int, dict[str, Tensor]] = {}
    worst: dict[str, float] = {}
    for op, call in pairs:
        key = id(call)
        if key not in expected:
            expected[key] = _results(reference, call)
        for part, x in _results(op, call).items():
            error = rms_ratio(x, expected[key][part])
            worst[part] = max(worst.get(part, 0.0), math.inf if math.isnan(error) else error)
    for part, error in worst.items():
        yield Check(f"{name}: {part}", error, FLOAT64, note)


def _single(rule: Rule, op: Operator, reference: Operator, seed: int) -> Iterator[Check]:
    """float32 against float64 from the same rounded arguments. A rule that is itself ill-conditioned, which shows in the
    step reference's own float32 error, is allowed five times that."""
    call = _call(reference, 150, seed, torch.float32)
    exact = _Call(
        {name: x.double() for name, x in call.arguments.items()}, {n: x.double() for n, x in call.state.items()}, seed
    )
    expected, found = _results(reference, exact), _results(op, call)
    own = found if op is reference else _results(reference, call)
    params = {f"gradient of {d.name}" for d in arguments_of(rule) if isinstance(d, Param)}
    for part, x in found.items():
        limit = FLOAT32_PARAM if part in params else FLOAT32_GRADIENT if part.startswith("gradient") else FLOAT32_OUTPUT
        note, floor = f"T = 150, {op.backend}", rms_ratio(own[part], expected[part])
        if 5 * floor > limit:
            limit, note = 5 * floor, f"{note}; step itself {floor:.1e}"
        yield Check(f"float32: {part}", rms_ratio(x, expected[part]), limit, note)


def _time(rule: Rule, op: Operator, seed: int) -> Iterator[Check]:
    """Splitting, decoding and causality of one backend; its chunks are of 8 tokens."""
    T, name = 29, op.backend
    call = _call(op if name == "step" else compile(rule, "step"), T, seed)
    inputs = {i.name for i in rule.inputs}

    def cut(index: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        return {n: index(x) if n in inputs else x for n, x in call.arguments.items()}

    before = _given(op, call.state)
    whole, end = op(**call.arguments, initial_state=before, return_state=True)
    for split in (8, 13):
        first, middle = op(**cut(lambda x, s=split: x[:, :s]), initial_state=before, return_state=True)
        second, last = op(**cut(lambda x, s=split: x[:, s:]), initial_state=middle, return_state=True)
        joined = torch.cat((first, second), 1)
        label = f"{name}, split at {split} = whole"
        if name == "step":
            bits = _differing(joined, whole) + sum(_differing(x, _parts(end)[part]) for part, x in _parts(last).items())
            yield Check(f"{label}, bits", bits, 0)
        else:
            errors = [rms_ratio(x, _parts(end)[part]) for part, x in _parts(last).items()]
            yield Check(label, max(rms_ratio(joined, whole), *errors), FLOAT64)

    state: State = before
    tokens = []
    for t in range(T):
        o, state = op.step(**cut(lambda x, t=t: x[:, t]), state=state)
        tokens.append(o)
    decoded = [rms_ratio(torch.stack(tokens, 1), whole)]
    decoded += [rms_ratio(x, _parts(end)[part]) for part, x in _parts(state).items()]
    yield Check(f"{name}, decoding = whole", max(decoded), FLOAT64)

    other = sample_arguments(rule, T=T, H=HEADS, K=K, V=V, seed=seed + 1)
    for cutoff in (1, 8, 13):
        mixed = {
            n: torch.cat((x[:, :cutoff], other[n][:, cutoff:]), 1) if n in inputs else x
            for n, x in call.arguments.items()
        }
        changed, _ = op(**mixed, initial_state=before)
        label = f"{name}, {cutoff} outputs under another future, bits"
        yield Check(label, _differing(changed[:, :cutoff], whole[:, :cutoff]), 0)


def _differing(a: Tensor, b: Tensor) -> int:
    """The number of values that are not the same."""
    return int((a != b).sum())
