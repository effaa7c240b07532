"""The battery of calls, second part: checkpoints, torch.compile, CUDA graphs, determinism, kernels one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from . import backends
from .call_bench import Bench, bits, differing, run
from .first_use import CONFIGURATIONS, DEFAULT, LIMITS, configured, measured
from .operator import compile
from .torch_ops import registered
from .verify import Check, given, parts_of


def checkpoints(bench: Bench) -> Iterator[Check]:
    op, (x, before) = bench.op, bench.leaves()
    names, want = [*x, *before], run(op, op, x, before)
    for reentrant in (False, True):

        def call(*tensors: Tensor) -> tuple[Tensor, ...]:
            every = dict(zip(names, tensors, strict=True))
            own = {n: every[n] for n in x}
            o, after = op(**own, initial_state=given(op, {n: every[n] for n in before}), return_state=True)
            return o, *parts_of(after).values()

        leaves = [t.detach().requires_grad_() for t in (*x.values(), *before.values())]
        found = checkpoint(call, *leaves, use_reentrant=reentrant)
        there = [t for t in found if t.requires_grad]
        torch.autograd.backward(there, [torch.ones_like(t) for t in there])
        got = {n: torch.zeros_like(t) if t.grad is None else t.grad for n, t in zip(names, leaves, strict=True)}
        expected = {n: want[f"gradient of {n}" if n in x else f"gradient of initial {n}"] for n in names}
        yield bits(f"{'reentrant' if reentrant else 'not reentrant'} = none", got, expected)


def compiled(bench: Bench) -> Iterator[Check]:
    op, T = bench.op, bench.sizes["T"]
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    how = "inductor" if bench.gpu else "aot_eager"
    call = torch.compile(op, fullgraph=True, dynamic=True, backend=how)
    for tokens in (T, T + 1):
        x, before = bench.leaves(T=tokens)
        found, want = run(call, op, x, before), run(op, op, x, before)
        yield bits(f"T = {tokens}, compiled = eager", found, want, how)
    yield Check("graphs for two lengths", torch._dynamo.utils.counters["stats"]["unique_graphs"], 1.0)
    registered_op = getattr(torch.ops.stateir, registered(op)).default
    arguments = (",".join(x), [*x.values()], ",".join(before), [*before.values()], None, False, bench.dtypes[0])
    tests = torch.library.opcheck(registered_op, arguments, raise_exception=False)
    failed = [f"{name}: {said}" for name, said in tests.items() if said != "SUCCESS"]
    yield Check("failures of opcheck", len(failed), 0.0, "; ".join(failed)[:300])


@contextmanager
def _captured(call: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """A call captured in a CUDA graph, after one outside of it; calling what it gives replays the graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call()

    def replay() -> Any:
        graph.replay()
        return found

    yield replay


def graphs(bench: Bench) -> Iterator[Check]:
    if not bench.gpu:
        return
    op, (x, before) = bench.op, bench.leaves(B=1)

    def change() -> None:
        with torch.no_grad():
            for i in op.rule.inputs:
                x[i.name].copy_(x[i.name].flip(1))

    with _captured(lambda: run(op, op, x, before)) as replay:
        change()
        yield bits("replay with other values = eager", replay(), run(op, op, x, before))
    token = bench.token(x)
    own = {n: t.detach().clone() for n, t in before.items()}
    with torch.no_grad(), _captured(lambda: op.step(**token, state=given(op, own))) as replay:
        for t in own.values():
            t.mul_(0.5)
        (o, after), (want, want_after) = replay(), op.step(**token, state=given(op, own))
        yield bits("decode, replay = eager", {"o": o} | parts_of(after), {"o": want} | parts_of(want_after))
    if op.backends["chunked"] is not None:  # the step reference reads offsets on the host
        return
    N, T = 4, bench.sizes["T"]
    x, before = bench.leaves(B=N)
    x = {n: t.detach()[:1].requires_grad_() if n in {i.name for i in op.rule.inputs} else t for n, t in x.items()}
    cu = torch.tensor([0, 30, 60, 90, T], device=bench.device)
    with _captured(lambda: run(op, op, x, before, cu_seqlens=cu)) as replay:
        for offsets in ([0, 30, 60, 90, T], [0, 1, 100, 101, T], [0, 0, 0, T, T]):
            cu.copy_(torch.tensor(offsets))
            eager = run(op, op, x, before, cu_seqlens=cu)
            yield bits(f"packed, replay at {offsets} = eager", replay(), eager)


def determinism(bench: Bench) -> Iterator[Check]:
    sizes = {"T": 512, "H": 4, "K": 64, "V": 64} if bench.gpu else {}
    for configuration in CONFIGURATIONS if bench.kernels else (DEFAULT,):
        op = compile(bench.op.rule)
        op.forced = configuration if bench.kernels else None
        x, before = bench.leaves(**sizes)
        first, repeats, count = run(op, op, x, before), 50 if bench.gpu else 3, 0
        for _ in range(repeats - 1):
            count += differing(run(op, op, x, before), first)
        note = f"{str(bench.dtypes[0])[6:]}, configuration {configuration}" if bench.kernels else ""
        yield Check(f"{repeats} times the same, bits", count, 0.0, note)


def configurations(bench: Bench) -> Iterator[Check]:
    """Each that ships, forced: the worst of outputs, states, gradients and a token, as on first use."""
    if not bench.kernels:
        return
    rule, reference = bench.op.rule, bench.reference._reference
    source, label = backends.source(rule, "triton", None), backends.label(rule, "triton")
    for configuration in CONFIGURATIONS:
        for dtype in bench.dtypes:
            module, twin = (configured(source, part, configuration) for part in (label, f"{label}.dry"))
            errors = measured(rule, module, reference, 64, 64, dtype, torch.device(bench.device), twin)
            worst = max(errors, key=lambda name: (math.isnan(errors[name]), errors[name]))
            yield Check(f"{configuration}: {worst}", errors[worst], LIMITS[dtype], str(dtype)[6:])
