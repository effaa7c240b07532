"""What the battery of calls measures by: random calls on a device, their results, and values whose bits differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stateir.ir import Rule

from .operator import Operator, compile
from .samples import sample_arguments
from .verify import Call, Check, given, parts_of
from .verify_device import rounded

Tensors = dict[str, Tensor]
Given = dict[str, Any]  # tensors by name, as keyword arguments of a call


@dataclass(frozen=True)
class Bench:
    """A rule, where it runs, and the sizes of its calls."""

    op: Operator
    reference: Operator
    device: str
    seed: int

    @property
    def gpu(self) -> bool:
        return torch.device(self.device).type == "cuda"

    @property
    def kernels(self) -> bool:
        return self.gpu and self.op.backends["triton"] is None

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        return (torch.bfloat16, torch.float32) if self.gpu else (torch.float32,)

    @property
    def sizes(self) -> Given:
        return {"T": 150, "H": 2, "K": 48, "V": 80} if self.gpu else {"T": 40, "H": 2, "K": 6, "V": 5}

    @property
    def offsets(self) -> tuple[int, ...]:
        """Empty sequences in every place, one token, one of several chunks."""
        T = self.sizes["T"]
        return (0, 0, 5, 5, T // 2, T // 2 + 1, T, T)

    def call(self, B: int, **sizes: int) -> Call:
        """Random arguments, and the state of B sequences that a few other tokens lead to."""
        rule = self.op.rule
        x = sample_arguments(rule, B=B, **self.sizes | sizes, seed=self.seed)
        earlier = sample_arguments(rule, B=B, **self.sizes | sizes | {"T": 5}, seed=self.seed + 1000)
        params = {p.name: x[p.name] for p in rule.params}
        _, state = self.reference(**earlier | params, return_state=True)
        return Call(x, parts_of(state), self.seed)

    def leaves(self, B: int = 2, **sizes: int) -> tuple[Given, Given]:
        """Arguments and a state on the device, in the narrowest dtype that is checked."""
        _, there = rounded(self.call(B, **sizes), self.dtypes[0], self.device)
        return leaves_of(there.arguments), leaves_of(there.state)

    def token(self, x: Given) -> Given:
        """The first token of arguments, without gradients."""
        inputs = {i.name for i in self.op.rule.inputs}
        return {n: (t[:, 0] if n in inputs else t).detach().contiguous() for n, t in x.items()}


def leaves_of(x: Tensors) -> Given:
    """These tensors, wanting gradients."""
    return {n: t.requires_grad_() for n, t in x.items()}


def run(
    op: Callable[..., Any], carries: Operator, x: Tensors, before: Tensors,
    upstream: Callable[[Tensor], Tensor] = torch.ones_like, **options: Any,
) -> Tensors:  # fmt: skip
    """Output, states and the gradients of all leaves."""
    o, after = op(**x, initial_state=given(carries, before) if before else None, return_state=True, **options)
    found = {"output": o} | {f"state {n}": t for n, t in parts_of(after).items()}
    leaves = {n: t for n, t in (x | {f"initial {n}": t for n, t in before.items()}).items() if t.requires_grad}
    there = [t for t in found.values() if t.requires_grad]
    gradients = torch.autograd.grad(
        there, list(leaves.values()), [upstream(t) for t in there], allow_unused=True, materialize_grads=True
    )
    every = found | {f"gradient of {n}": g for n, g in zip(leaves, gradients, strict=True)}
    return {n: t.detach() for n, t in every.items()}


def differing(a: Tensors, b: Tensors) -> int:
    """The number of values that are not the same; all of a tensor whose shape or dtype is another one."""
    count = len(a.keys() ^ b.keys())
    for name in a.keys() & b.keys():
        x, y = a[name], b[name]
        count += int((x != y).sum()) if x.shape == y.shape and x.dtype == y.dtype else max(x.numel(), 1)
    return count


def bits(name: str, a: Tensors, b: Tensors, note: str = "") -> Check:
    return Check(f"{name}, bits", differing(a, b), 0.0, note)


def bench_of(rule: Rule, device: str, seed: int = 0) -> Bench:
    """The bench of a rule, with the backend that a call takes on the device."""
    return Bench(compile(rule), compile(rule, "step"), device, seed)
