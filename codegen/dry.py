"""The launches of generated kernels, written down instead of done: what would be compiled, and with which arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch import Tensor

from .first_use import Configuration, configured


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


def dry_module(source: str, label: str, configuration: Configuration) -> tuple[ModuleType, list[Launch]]:
    """The module of `source` that launches nothing, and the list to which its calls add what they would launch.

    The kernels in that list are those of the module that `configured` gives. What a call returns has shapes but no
    values.
    """
    from triton.runtime import KernelInterface

    module, launches = configured(source, f"{label}.dry", configuration), []
    real = configured(source, label, configuration)
    for name, kernel in vars(real).items():
        if isinstance(kernel, KernelInterface):
            setattr(module, name, _Written(kernel, launches))
    return module, launches
