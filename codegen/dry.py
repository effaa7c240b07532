"""The launches of generated kernels, written down instead of done: what would be compiled, and with which arguments."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel: its positional arguments, and by name its constants, warps and stages."""

    kernel: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for launches that Triton compiles once."""
        kinds = (x.dtype if isinstance(x, Tensor) else type(x) for x in self.arguments)
        return self.kernel, *kinds, *sorted(self.options.items())


class _Written:
    """A kernel in the place of another one that writes its launches down."""

    def __init__(self, kernel: Any, launches: list[Launch]) -> None:
        self.kernel, self.launches = kernel, launches

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *arguments, **options: self.launches.append(Launch(self.kernel, arguments, options))


def dry(module: ModuleType, twin: ModuleType) -> list[Launch]:
    """Make `twin`, loaded from the same text, launch nothing: its calls add to this list what `module` would launch.

    What such a call returns has shapes but no values.
    """
    from triton.runtime import KernelInterface

    launches: list[Launch] = []
    for name, kernel in vars(module).items():
        if isinstance(kernel, KernelInterface):
            setattr(twin, name, _Written(kernel, launches))
    return launches


def compile_all(launches: Iterable[Launch], device: torch.device) -> None:
    """Compile the kernels of launches at once, in threads: at their launches they would be one after another.

    A kernel that does not compile is left to its launch, which then says so.
    """

    def one(launch: Launch) -> None:
        with suppress(Exception), torch.cuda.device(device):
            launch.kernel.warmup(*launch.arguments, grid=(1,), **launch.options)

    different = list({launch.key: launch for launch in launches}.values())
    with ThreadPoolExecutor(max(1, min(len(different), os.cpu_count() or 1))) as pool:
        list(pool.map(one, different))
