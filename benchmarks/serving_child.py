"""One measurement of serving.py in a process of its own; each record is a line of JSON on its standard output.

python benchmarks/serving_child.py cold|memory|decode|packed|copy RULE ours|peer [--device cpu] [--small]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

BEGIN = time.perf_counter()  # before torch
LEVELS = (None, 4096, 1024, 256, 64)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
STEPS = 10
Record = dict[str, Any]


class Child:
    """What one process measures, and at which sizes."""

    def __init__(self, device: str, small: bool) -> None:
        import torch

        self.torch, self.device, self.gpu = torch, device, device == "cuda"
        self.heads, self.dim = (1, 16) if small else (16, 128)
        self.batch, self.tokens = (1, 128) if small else (8, 4096)
        self.batches = BATCHES[:2] if small else BATCHES
        self.levels = (None, 64) if small else LEVELS

    def arguments(self, rule: Any, B: int, T: int) -> dict[str, Any]:
        if self.gpu:
            from peer import arguments

            return arguments(rule, B, T, self.heads, self.dim)
        from stateir.codegen.samples import sample_arguments

        sizes = {"B": B, "T": T, "H": self.heads, "K": self.dim, "V": self.dim}
        return sample_arguments(rule, **sizes, dtype=self.torch.float32)

    def wait(self) -> None:
        if self.gpu:
            self.torch.cuda.synchronize()

    def call(self, rule: Any, side: str, **options: Any) -> Callable[[dict[str, Any]], Any]:
        if side == "peer":
            from peer import _peer

            found: Callable[[dict[str, Any]], Any] = _peer(rule.name)[1]
            return found
        import stateir

        op = stateir.compile(rule, **options)
        fixed = {p.name for p in rule.params if p.fixed}
        return lambda x: op(**{n: t for n, t in x.items() if n not in fixed})[0]

    def both(self, call: Callable[[dict[str, Any]], Any], x: dict[str, Any]) -> None:
        o = call(x)
        wanted = [t for t in x.values() if t.requires_grad]
        self.torch.autograd.grad(o, wanted, self.torch.ones_like(o), allow_unused=True)

    def leaves(self, rule: Any) -> dict[str, Any]:
        fixed = {p.name for p in rule.params if p.fixed}
        x = self.arguments(rule, self.batch, self.tokens)
        return {n: t.detach().requires_grad_(n not in fixed) for n, t in x.items()}

    def cold(self, name: str, side: str) -> Iterator[Record]:
        import stateir

        rule = stateir.load(name)
        if side == "peer":
            self.call(rule, side)  # its imports
        imported = time.perf_counter()
        x = self.leaves(rule)
        self.wait()
        started = time.perf_counter()
        call = self.call(rule, side)
        self.both(call, x)
        self.wait()
        seconds = time.perf_counter() - started
        found = {"first_s": round(seconds, 2), "import_s": round(imported - BEGIN, 2)}
        yield {**found, "start_s": round(started - imported, 2)}
        if side == "peer":
            yield {"peak_mib": self.peak(call, x)}

    def peak(self, call: Callable[[dict[str, Any]], Any], x: dict[str, Any]) -> float | None:
        """MiB of a forward and backward pass beyond what is there before it and the gradients."""
        if not self.gpu:
            return None
        cuda = self.torch.cuda
        cuda.synchronize()
        cuda.reset_peak_memory_stats()
        before = cuda.memory_allocated()
        self.both(call, x)
        cuda.synchronize()
        given = sum(t.numel() * t.element_size() for t in x.values() if t.requires_grad)
        return round((cuda.max_memory_allocated() - before - given) / 2**20, 1)

    def memory(self, name: str) -> Iterator[Record]:
        import stateir

        rule = stateir.load(name)
        x = self.leaves(rule)
        for level in self.levels:
            call = self.call(rule, "ours", recompute=level)
            self.both(call, x)
            peak, seconds = self.peak(call, x), self.seconds(lambda call=call: self.both(call, x), 3)  # type: ignore[misc]
            yield {"recompute": level, "fwdbwd_ms": round(seconds * 1e3, 3), "peak_mib": peak}

    def packed(self, name: str) -> Iterator[Record]:
        """Sequences of the same length, packed and by one call each; the offsets are on the device."""
        import stateir

        rule = stateir.load(name)
        T = self.batch * self.tokens // 2
        inputs = {i.name for i in rule.inputs}
        fixed = {p.name for p in rule.params if p.fixed}
        x = {n: t.requires_grad_(n not in fixed) for n, t in self.arguments(rule, 1, T).items()}
        op = stateir.compile(rule)
        for N in (1, 4, 16, 64):
            cu = self.torch.arange(0, T + 1, T // N, device=self.device)

            def together(x: dict[str, Any], cu: Any = cu) -> Any:
                return op(**{n: t for n, t in x.items() if n not in fixed}, cu_seqlens=cu)[0]

            def apart(x: dict[str, Any], step: int = T // N) -> Any:
                own = {n: t for n, t in x.items() if n not in fixed}
                cuts = [slice(first, first + step) for first in range(0, T, step)]
                outputs = [op(**{n: t[:, c] if n in inputs else t for n, t in own.items()})[0] for c in cuts]
                return self.torch.cat(outputs, 1)

            found: Record = {"sequences": N, "tokens": T // N}
            for kind, call in (("packed_ms", together), ("one_by_one_ms", apart)):
                found[kind] = round(self.seconds(lambda call=call: self.both(call, x), 3) * 1e3, 3)  # type: ignore[misc]
            yield found

    def seconds(self, run: Callable[[], Any], repeats: int, rounds: int = 5) -> float:
        """Seconds of one run, the median of some rounds of `repeats` runs."""
        run()
        times = []
        for _ in range(rounds):
            self.wait()
            begin = time.perf_counter()
            for _ in range(repeats):
                run()
            self.wait()
            times.append((time.perf_counter() - begin) / repeats)
        return sorted(times)[rounds // 2]

    def decode(self, name: str) -> Iterator[Record]:
        import stateir

        rule = stateir.load(name)
        op = stateir.compile(rule)
        fixed = {p.name for p in rule.params if p.fixed}
        inputs = {i.name for i in rule.inputs}
        repeats = 100 if self.gpu else 2
        with self.torch.no_grad():
            for B in self.batches:
                x = {n: t for n, t in self.arguments(rule, B, 1).items() if n not in fixed}
                token = {n: t[:, 0].contiguous() if n in inputs else t for n, t in x.items()}
                S = self.torch.zeros(B, self.heads, self.dim, self.dim, device=self.device)
                pool = self.torch.zeros(2 * B, *S.shape[1:], device=self.device)
                slots = self.torch.arange(B, device=self.device) * 2
                calls = {
                    "new state": lambda token=token, S=S: op.step(**token, state=S),
                    "in place": lambda token=token, S=S: op.step(**token, state=S, inplace=True),
                    "slots in place": lambda token=token, pool=pool, slots=slots: op.step(
                        **token, state=pool, slots=slots, inplace=True
                    ),
                }
                for mode, run in calls.items():
                    yield self.timed(name, B, mode, S, self.seconds(run, repeats))
                    if self.gpu:
                        graph = self.captured(run)
                        yield self.timed(
                            name, B, f"{mode}, graph", S, self.seconds(graph.replay, repeats // STEPS) / STEPS
                        )

    def captured(self, run: Callable[[], Any]) -> Any:
        """A graph of STEPS runs, as a model has many layers."""
        graph = self.torch.cuda.CUDAGraph()
        self.wait()
        with self.torch.cuda.graph(graph):
            for _ in range(STEPS):
                run()
        return graph

    def timed(self, name: str, B: int, mode: str, S: Any, seconds: float) -> Record:
        bytes_ = 2 * S.numel() * S.element_size()
        return {"rule": name, "batch": B, "mode": mode, "us": round(seconds * 1e6, 2),
                "gb_per_s": round(bytes_ / seconds / 1e9, 1)}  # fmt: skip

    def copy(self, _: str) -> Iterator[Record]:
        from peer import bandwidth

        yield {"copy_gb_per_s": round(bandwidth() / 1e9)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("cold", "memory", "decode", "packed", "copy"))
    parser.add_argument("rule")
    parser.add_argument("side", choices=("ours", "peer"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    child = Child(options.device, options.small)
    if options.part == "cold":
        records = child.cold(options.rule, options.side)
    else:
        records = getattr(child, options.part)(options.rule)
    for record in records:
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
