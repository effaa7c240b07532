"""The battery of calls: what training and serving code does around a rule, on the backend that a device takes.

Strides, packed sequences, carried states, head groups, decode, and what PyTorch does (verify_torch.py). Where nothing
may differ, the number of values that do is measured, with a limit of 0; elsewhere the error relative to the step
reference in float64. On a CPU what needs a GPU is left out, and sizes are small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from stateir.ir import Axis, Rule

from .call_bench import Bench, Given, Tensors, bench_of, bits, leaves_of, run
from .verify import Call, Check, given, parts_of, results
from .verify_device import compare, poisoned, rounded
from .verify_torch import checkpoints, compiled, configurations, determinism, graphs


def verify_calls(rule: Rule, device: str, seed: int = 0, subjects: Iterable[str] = ()) -> list[Check]:
    """The checks of one rule, of all SUBJECTS or some. What raises is a check that failed, the error its note."""
    bench = bench_of(rule, device, seed)
    checks: list[Check] = []
    with poisoned():
        for subject in subjects or SUBJECTS:
            try:
                for check in SUBJECTS[subject](bench):
                    checks.append(replace(check, name=f"{subject}: {check.name}"))
            except Exception as error:  # what a compiler, a launch or a capture raises has no common type
                said = str(error).strip().splitlines() or [""]
                checks.append(Check(subject, math.inf, 0.0, f"{type(error).__name__}: {said[0][:300]}"))
    return checks


def _strides(bench: Bench) -> Iterator[Check]:
    op, (x, before) = bench.op, bench.leaves()
    kept = {n: t.detach().clone() for n, t in x.items()}
    want = run(op, op, x, before)

    def expanded(t: Tensor) -> Tensor:
        return torch.ones((), dtype=t.dtype, device=t.device).expand(t.shape)

    yield bits("expanded gradients = full ones", run(op, op, x, before, expanded), want)
    for name, view in VIEWS.items():
        given = {n: view(t.detach()).requires_grad_() for n, t in x.items()}
        yield bits(f"{name} arguments = contiguous ones", run(op, op, given, before), want)
        found = run(op, op, x, before, lambda t, view=view: view(torch.ones_like(t)))  # type: ignore[misc]
        yield bits(f"{name} gradients = contiguous ones", found, want)
    inputs = {i.name for i in op.rule.inputs}
    one: Given = {n: t.detach()[:, :, :1].expand_as(t) if n in inputs else t.detach() for n, t in x.items()}
    with torch.no_grad():
        a, b = ({"output": op(**some)[0]} for some in (one, {n: t.contiguous() for n, t in one.items()}))
    yield bits("expanded arguments = contiguous ones", a, b)
    yield bits("arguments after all calls = before", {n: t.detach() for n, t in x.items()}, kept)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "turned": lambda t: t.movedim(0, -1).contiguous().movedim(-1, 0),
    "sliced": lambda t: torch.stack((t, torch.full_like(t, torch.nan)), -1)[..., 0],
}


def _packed(bench: Bench) -> Iterator[Check]:
    op, offsets = bench.op, bench.offsets
    N = len(offsets) - 1
    call = bench.call(N)
    inputs = {i.name for i in op.rule.inputs}
    packed = {n: t[:1] if n in inputs else t for n, t in call.arguments.items()}
    call = replace(call, arguments=packed, offsets=offsets)
    exact = results(bench.reference, call)
    for dtype in bench.dtypes:
        wide, there = rounded(call, dtype, bench.device)
        yield from compare(op.rule, results(op, there), results(bench.reference, wide), exact, dtype, f"N = {N}")
    _, there = rounded(call, bench.dtypes[0], bench.device)
    x, before = leaves_of(there.arguments), leaves_of(there.state)
    cu = torch.tensor(offsets, device=bench.device)
    found = run(op, op, x, before, cu_seqlens=cu)
    yield bits("int32 offsets = int64 ones", run(op, op, x, before, cu_seqlens=cu.int()), found)
    empty = [n for n in range(N) if offsets[n] == offsets[n + 1]]
    states = {n: found[f"state {n}"][empty] for n in before}
    yield bits("states of empty sequences = before", states, {n: t.detach()[empty] for n, t in before.items()})
    none = {n: t[:, :0] if n in inputs else t for n, t in x.items()}
    _, after = op(**none, initial_state=given(op, before), return_state=True, cu_seqlens=torch.zeros_like(cu))
    yield bits("states without tokens = before", parts_of(after), before)


def _states(bench: Bench) -> Iterator[Check]:
    op, (x, before) = bench.op, bench.leaves()
    inputs = {i.name for i in op.rule.inputs}
    nothing = {n: t.detach()[:, :0] if n in inputs else t.detach() for n, t in x.items()}
    _, start = op(**nothing, return_state=True)
    absent, present = run(op, op, x, {}), run(op, op, x, parts_of(start))
    yield bits("absent = the start values", absent, present)
    narrow = {n: t.detach().bfloat16().requires_grad_() for n, t in before.items()}
    wide = {n: t.detach().float().requires_grad_() for n, t in narrow.items()}
    a, b = run(op, op, x, narrow), run(op, op, x, wide)
    b = {n: t.bfloat16() if n.startswith("gradient of initial") else t for n, t in b.items()}
    yield bits("bfloat16 = the same in float32", a, b)
    without = run(op, op, x, {n: t.detach() for n, t in wide.items()})
    yield bits("no gradient wanted = wanted", without, {n: t for n, t in b.items() if n in without})
    narrower = sum(t.dtype != torch.float32 for n, t in a.items() if n.startswith("state"))
    yield Check("returned in another dtype than float32", narrower, 0.0)
    cut = bench.sizes["T"] // 2
    first, second = ({n: t[:, part] if n in inputs else t for n, t in x.items()}
                     for part in (slice(None, cut), slice(cut, None)))  # fmt: skip
    with torch.no_grad():
        o, end = op(**x, initial_state=given(op, before), return_state=True)
        o1, middle = op(**first, initial_state=given(op, before), return_state=True)
        o2, last = op(**second, initial_state=middle, return_state=True)
    whole, split = ({"output": y} | {f"state {n}": t for n, t in parts_of(s).items()}
                    for y, s in ((o, end), (torch.cat((o1, o2), 1), last)))  # fmt: skip
    for c in compare(op.rule, split, _doubles(whole), _doubles(whole), bench.dtypes[0], f"cut at {cut}"):
        yield replace(c, name=f"two calls = one: {c.name}")


def _doubles(x: Tensors) -> Tensors:
    return {n: t.double().cpu() for n, t in x.items()}


def _groups(bench: Bench) -> Iterator[Check]:
    """Half as many heads for all inputs without a value axis, beside as many heads whose gradients are added."""
    op, call = bench.op, bench.call(2, H=4)
    few = {i.name for i in op.rule.inputs if i.axis is not Axis.VALUE}
    if len(few) == len(op.rule.inputs):
        few.pop()
    call = replace(call, arguments={n: t[:, :, ::2] if n in few else t for n, t in call.arguments.items()}, state={})

    def expected(call: Call) -> Tensors:
        every = {n: t.repeat_interleave(2, 2) if n in few else t for n, t in call.arguments.items()}
        found = results(bench.reference, replace(call, arguments=every))
        summed = {f"gradient of {n}" for n in few}
        return {n: t.unflatten(2, (-1, 2)).sum(3) if n in summed else t for n, t in found.items()}

    exact = expected(call)
    for dtype in bench.dtypes:
        wide, there = rounded(call, dtype, bench.device)
        yield from compare(op.rule, results(op, there), expected(wide), exact, dtype, "4 heads, 2 of keys")


def _decode(bench: Bench) -> Iterator[Check]:
    op, (x, before) = bench.op, bench.leaves(B=5)
    token = {n: t[:2] if n in {i.name for i in op.rule.inputs} else t for n, t in bench.token(x).items()}
    rows = torch.tensor([4, 1], device=bench.device)
    pool = {n: t.detach().clone() for n, t in before.items()}
    mine = {n: t[rows] for n, t in pool.items()}
    with torch.no_grad():
        o, after = op.step(**token, state=given(op, mine))
        want = {"output": o} | parts_of(after)
        o, _ = op.step(**token, state=given(op, mine), inplace=True)
        yield bits("in place = a new state", {"output": o} | mine, want)
        for inplace in (False, True):
            o, every = op.step(**token, state=given(op, pool), slots=rows, inplace=inplace)
            found = {"output": o} | {n: t[rows] for n, t in parts_of(every).items()}
            yield bits(f"slots{' in place' if inplace else ''} = rows taken by hand", found, want)
        others = [0, 2, 3]
        kept = {n: t.detach()[others] for n, t in before.items()}
        yield bits("other slots = before", {n: t[others] for n, t in pool.items()}, kept)


SUBJECTS: dict[str, Callable[[Bench], Iterator[Check]]] = {
    "strides": _strides,
    "packed": _packed,
    "states": _states,
    "groups": _groups,
    "decode": _decode,
    "checkpoints": checkpoints,
    "compile": compiled,
    "graphs": graphs,
    "determinism": determinism,
    "configurations": configurations,
}
