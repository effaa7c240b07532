"""Timing of several forms of one rule on the same tensors."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from stateir.ir import Rule

from .backends import lacks
from .operator import Operator, compile
from .samples import sample_arguments

Form = Callable[[dict[str, Tensor], Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Timing:
    """Median seconds of one call: without gradients, and with the backward pass."""

    forward: float
    both: float


@dataclass(frozen=True)
class Comparison:
    """Timings by the form's name; `baseline` names the one that the others are compared with."""

    baseline: str
    timings: dict[str, Timing]
    repeats: int
    threads: int

    def speedup(self, name: str) -> tuple[float, float]:
        """How many times faster than the baseline: forward, forward and backward."""
        base, form = self.timings[self.baseline], self.timings[name]
        return base.forward / form.forward, base.both / form.both

    def __str__(self) -> str:
        lines = [
            f"PyTorch {torch.__version__}, {self.threads} threads, median of {self.repeats}",
            f"{'':12} {'forward ms':>11} {'':8} {'with backward ms':>17}",
        ]
        for name, timing in self.timings.items():
            forward, both = self.speedup(name)
            times = f"{timing.forward * 1e3:11.1f} {forward:7.1f}x {timing.both * 1e3:17.1f} {both:7.1f}x"
            lines.append(f"{name:12} {times}")
        return "\n".join(lines)


def compare(
    forms: Mapping[str, Form], tensors: Mapping[str, Tensor], S0: Tensor, *, repeats: int = 5, warmup: int = 1
) -> Comparison:
    """Time every form on the CPU; the first is the baseline.

    A form maps (tensors, S0) to (output, last state). The forms take turns, so that a busy machine slows all of them.
    """
    forward: dict[str, list[float]] = {name: [] for name in forms}
    both: dict[str, list[float]] = {name: [] for name in forms}
    for turn in range(warmup + repeats):
        for name, form in forms.items():
            times = _forward(form, tensors, S0), _both(form, tensors, S0)
            if turn >= warmup:
                forward[name].append(times[0])
                both[name].append(times[1])
    timings = {name: Timing(statistics.median(forward[name]), statistics.median(both[name])) for name in forms}
    return Comparison(next(iter(forms)), timings, repeats, torch.get_num_threads())


def compare_backends(
    rule: Rule, *, B: int, T: int, H: int, K: int, V: int, repeats: int = 5, threads: int = 2
) -> Comparison:
    """Time the CPU's backends of a rule, the step reference first, in float32 on random arguments.

    Sets the number of PyTorch's threads for the process.
    """
    torch.set_num_threads(threads)
    tensors = sample_arguments(rule, B=B, T=T, H=H, K=K, V=V, dtype=torch.float32)
    operators = {name: compile(rule, name) for name in ("step", "chunked") if lacks(rule, name) is None}
    return compare({n: _form(op) for n, op in operators.items()}, tensors, torch.zeros(B, H, K, V), repeats=repeats)


def _form(op: Operator) -> Form:
    def run(tensors: dict[str, Tensor], S0: Tensor) -> tuple[Tensor, Tensor]:
        # The other states of a dict start where the rule says.
        start = None if op.carries_dict else S0
        o, last = op(**tensors, initial_state=start, return_state=True, cu_seqlens=None)
        assert last is not None
        return o, last["S"] if isinstance(last, dict) else last

    return run


def _forward(form: Form, tensors: Mapping[str, Tensor], S0: Tensor) -> float:
    plain = {name: x.detach() for name, x in tensors.items()}
    start = time.perf_counter()
    with torch.no_grad():
        form(plain, S0.detach())
    return time.perf_counter() - start


def _both(form: Form, tensors: Mapping[str, Tensor], S0: Tensor) -> float:
    leaves = {name: x.detach().requires_grad_() for name, x in tensors.items()}
    state = S0.detach().requires_grad_()
    start = time.perf_counter()
    o, last = form(leaves, state)
    torch.autograd.backward([o, last], [torch.ones_like(o), torch.ones_like(last)])
    return time.perf_counter() - start
