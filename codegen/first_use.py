"""Compiled kernels are checked before they are used: forward and every gradient, against the step reference.

Triton has shipped versions that compile right source to wrong kernels on some GPU for some tile sizes. So the first
call of a rule's kernels on a GPU, with a Triton version, head sizes and dtype, runs them on a small input first. A
configuration that fails is passed over for the next; with none left the call raises. Verdicts are kept as JSON under
$XDG_CACHE_HOME/stateir (~/.cache/stateir). STATEIR_FIRST_USE=0 in the environment turns all of this off.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from stateir.ir import Rule

from .arguments import State
from .dry import compile_all, dry
from .generated import load_source
from .samples import sample_arguments
from .text import arguments_of
from .torch_ops import recording

SWITCH = "STATEIR_FIRST_USE"
# The largest rms error relative to float64. Ordinary rounding stays below half of it (docs/kernels.md).
LIMITS = {torch.bfloat16: 5e-2, torch.float16: 5e-3, torch.float32: 5e-3}
# A result whose rms is below this is mostly what cancels; its error is taken relative to this.
FLOOR = 1e-2
TOKENS, HEADS = 70, 2

_lock = threading.Lock()


class KernelError(RuntimeError):
    """No configuration of a rule's kernels computes the rule here."""


@dataclass(frozen=True)
class Configuration:
    """How kernels are tiled, where it differs from the tiles that the generated module chooses.

    chunk: tokens of a chunk; columns: the most value columns of a scan's tile; stages: the most that a kernel's loops
    keep in flight.
    """

    chunk: int | None = None
    columns: int | None = None
    stages: int | None = None

    def __str__(self) -> str:
        changed = ", ".join(f"{name} = {value}" for name, value in asdict(self).items() if value is not None)
        return changed or "default"


DEFAULT = Configuration()
# The default, and what sidesteps the miscompilations that were met: narrower tiles, then no pipelining as well.
CONFIGURATIONS = (DEFAULT, Configuration(stages=2, columns=32), Configuration(stages=1, columns=16))


@dataclass(frozen=True)
class Use:
    """What a verdict holds for: the kernels' text, where and with what they were compiled, and their sizes."""

    source: str
    gpu: str
    triton: str
    K: int
    V: int
    dtype: str
    configuration: Configuration

    @property
    def file(self) -> Path:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        name = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:32]
        return Path(base) / "stateir" / f"{name}.json"


def wanted(device: torch.device) -> bool:
    """Whether kernels on a device are checked at all."""
    return device.type == "cuda" and os.environ.get(SWITCH) != "0"


def configured(source: str, label: str, configuration: Configuration) -> ModuleType:
    """The module of `source` with the tiles of a configuration."""
    if configuration == Configuration():
        return load_source(source, label)
    module = load_source(source, f"{label}.{configuration}")
    plain = module.__dict__.setdefault("_default_launches", module._launches)

    def launches(*key: object) -> dict[str, dict[str, int]]:
        found = {name: dict(launch) for name, launch in plain(*key).items()}
        for name, launch in found.items():
            launch["num_stages"] = min(launch["num_stages"], configuration.stages or launch["num_stages"])
            if "scan" in name:
                launch["BV"] = min(launch["BV"], configuration.columns or launch["BV"])
        return found

    module._launches = functools.cache(launches)  # type: ignore[attr-defined]
    if configuration.chunk:
        module.CHUNK = configuration.chunk  # type: ignore[attr-defined]
    return module


def choose(
    rule: Rule, source: str, label: str, reference: ModuleType, K: int, V: int, dtype: torch.dtype,
    device: torch.device, candidates: Sequence[Configuration] = CONFIGURATIONS,
) -> Configuration:  # fmt: skip
    """The first configuration whose kernels compute the rule. KernelError with what each got wrong if none does."""
    faults = []
    with _lock:
        for configuration in candidates:
            use = _use(source, K, V, dtype, device, configuration)
            errors = _remembered(use)
            if errors is None:
                try:
                    module = configured(source, label, configuration)
                    twin = configured(source, f"{label}.dry", configuration) if device.type == "cuda" else None
                    errors = measured(rule, module, reference, K, V, dtype, device, twin)
                except torch.OutOfMemoryError:
                    raise
                except Exception as error:  # what a compiler or launch raises has no common type
                    faults.append(f"{configuration}: {type(error).__name__}: {str(error).splitlines()[0][:200]}")
                    continue
                _remember(use, errors)
            if not (wrong := failing(errors, dtype)):
                return configuration
            name = max(wrong, key=lambda name: (math.isnan(wrong[name]), wrong[name]))
            faults.append(f"{configuration}: {name} off by {wrong[name]:.1e} ({', '.join(wrong)})")
    where = f"{_gpu(device)}, Triton {_triton()}, K = {K}, V = {V}, {str(dtype)[6:]}"
    raise KernelError(
        f"{rule.name}: no configuration of the kernels gives right results on {where}. {'; '.join(faults)}. "
        f"Use backend='chunked', or another Triton version. {SWITCH}=0 turns this check off."
    )


def measured(
    rule: Rule, module: ModuleType, reference: ModuleType, K: int, V: int, dtype: torch.dtype, device: torch.device,
    twin: ModuleType | None = None,
) -> dict[str, float]:  # fmt: skip
    """The rms error of each output, state and gradient relative to the reference in float64.

    With `twin`, which has the module's text, all kernels are compiled at once beforehand.
    """
    x = {name: t.to(dtype).double() for name, t in _arguments(rule, K, V).items()}
    before = _parts(reference.start(1, HEADS, K, V, torch.float64, torch.device("cpu")))
    before["S"] = 0.1 * torch.randn(before["S"].shape, generator=_seeded()).double()
    exact = _results(rule, reference, x, before)
    # Inputs in one dtype and params in float32, as models give them: kernels are compiled for the dtypes that they get.
    inputs = {i.name for i in rule.inputs}
    there = {name: t.to(device, dtype if name in inputs else torch.float32) for name, t in x.items()}
    start = {n: t.to(device, torch.float32) for n, t in before.items()}
    if twin is not None:
        launches = dry(module, twin)
        _results(rule, twin, there, start)
        compile_all(launches, device)
    found = _results(rule, module, there, start)
    return {name: _error(t.cpu().double(), exact[name]) for name, t in found.items()}


def failing(errors: dict[str, float], dtype: torch.dtype) -> dict[str, float]:
    """The errors that are above the limit, or no numbers."""
    return {name: e for name, e in errors.items() if not e <= LIMITS[dtype]}


def _arguments(rule: Rule, K: int, V: int) -> dict[str, Tensor]:
    """Well inside the declared ranges: at their ends a gradient may be lost to rounding, whoever computes it."""
    x = sample_arguments(rule, B=1, T=TOKENS, H=HEADS, K=K, V=V, ends=0.0)
    for d in arguments_of(rule):
        if d.range is not None and abs(d.range.lo) + abs(d.range.hi) < float("inf"):
            middle = (d.range.lo + d.range.hi) / 2
            x[d.name] = middle + 0.8 * (x[d.name] - middle)
    return x


def _results(rule: Rule, module: ModuleType, x: dict[str, Tensor], before: dict[str, Tensor]) -> dict[str, Tensor]:
    """Everything that a call gives, with the gradients of a random sum of it, and one token of decode."""
    with torch.inference_mode(False), recording():
        every = x | {f"initial {n}": t for n, t in before.items()}
        leaves = {n: t.clone().requires_grad_() for n, t in every.items()}
        own = {n: leaves[f"initial {n}"] for n in before}
        o, after = module.run(*(leaves[d.name] for d in arguments_of(rule)), own if len(own) > 1 else own["S"])
        found = {"output": o} | {f"last {n}": t for n, t in _parts(after).items()}
        there = [t for t in found.values() if t.requires_grad]
        weights = [torch.randn(t.shape, generator=_seeded(), dtype=torch.float64).to(t) for t in there]
        gradients = torch.autograd.grad(
            there, list(leaves.values()), weights, allow_unused=True, materialize_grads=True
        )
        found |= {f"gradient of {n}": g for n, g in zip(leaves, gradients, strict=True)}
    with torch.no_grad():
        inputs = {i.name for i in rule.inputs}
        token = [x[d.name][:, 0] if d.name in inputs else x[d.name] for d in arguments_of(rule)]
        o, after = module.step(before if len(before) > 1 else before["S"], *token)
        found |= {"token's output": o} | {f"token's {n}": t for n, t in _parts(after).items()}
    return {name: t.detach() for name, t in found.items()}


def _parts(state: State) -> dict[str, Tensor]:
    return state if isinstance(state, dict) else {"S": state}


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _error(x: Tensor, exact: Tensor) -> float:
    difference = (x - exact).square().mean().sqrt().item()
    return float(difference / max(exact.square().mean().sqrt().item(), FLOOR))


def _use(source: str, K: int, V: int, dtype: torch.dtype, device: torch.device, configuration: Configuration) -> Use:
    text = hashlib.sha256(source.encode()).hexdigest()
    return Use(text, _gpu(device), _triton(), K, V, str(dtype)[6:], configuration)


def _gpu(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _triton() -> str:
    import triton

    return str(triton.__version__)


def _remembered(use: Use) -> dict[str, float] | None:
    """The errors on file; None where there are none, or no readable ones."""
    try:
        errors = json.loads(use.file.read_text())["errors"]
        return {str(name): float(e) for name, e in errors.items()} or None
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None


def _remember(use: Use, errors: dict[str, float]) -> None:
    """Write a verdict as a whole or not at all; without a place to write to it is found anew in the next process."""
    try:
        use.file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=use.file.parent, suffix=".new", delete=False) as file:
            json.dump({**asdict(use), "errors": errors}, file, indent=1)
        Path(file.name).replace(use.file)
    except OSError:
        return
