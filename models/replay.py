"""Steps of training as CUDA graphs: recorded once, then replayed, so that a step costs no Python and one launch."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

# Calls before a recording: kernels are compiled, workspaces and constants made, which a recording must not do.
WARM = 2
# Calls after which the host waits for those before, so that it is never far ahead of the device.
AHEAD = 16


class Replay:
    """Calls functions that read and write tensors in place, on one device.

    With `record` the third call of a function on a GPU is recorded and replayed, and so is every later one. A recording
    that fails is told as a warning; functions are then called as on a CPU, with `generators` made anew.

    Args:
        generators: all that the functions draw from. Seeding one before a call holds for that call, replayed or not.
    """

    def __init__(self, device: torch.device, record: bool, generators: Sequence[torch.Generator] = ()) -> None:
        self.device, self.record, self.generators = device, record and device.type == "cuda", list(generators)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._calls: Counter[Hashable] = Counter()
        self._pool: Any = None
        self._mark: torch.cuda.Event | None = None

    @property
    def recorded(self) -> int:
        """The functions that are replayed by now."""
        return len(self._graphs)

    def __call__(self, key: Hashable, function: Callable[[], None]) -> None:
        """`function`, which is the same one at every call with `key`."""
        if self._stream is None:
            function()
            return
        if self.record and key not in self._graphs and self._calls[key] >= WARM:
            self._try(key, function)
        graph = self._graphs.get(key)
        self._calls[key] += 1
        here = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            if graph is None:
                function()
            else:
                graph.replay()
        here.wait_stream(self._stream)
        self._keep_pace()

    def _try(self, key: Hashable, function: Callable[[], None]) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            for generator in self.generators:
                graph.register_generator_state(generator)
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                function()
        except RuntimeError as error:
            self.record = False
            self._graphs.clear()
            # A generator that was being recorded refuses to draw outside of it.
            self.generators[:] = [_copy(g) for g in self.generators]
            with contextlib.suppress(RuntimeError):
                torch.cuda.synchronize(self.device)
            warnings.warn(f"steps are launched one by one, since none could be recorded: {error}", stacklevel=2)
            return
        self._pool = graph.pool()
        self._graphs[key] = graph

    def _keep_pace(self) -> None:
        if sum(self._calls.values()) % AHEAD == 0:
            if self._mark is not None:
                self._mark.synchronize()
            self._mark = torch.cuda.Event()
            self._mark.record(torch.cuda.current_stream(self.device))


def _copy(generator: torch.Generator) -> torch.Generator:
    return torch.Generator(generator.device).manual_seed(generator.initial_seed())
