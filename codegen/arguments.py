"""What an operator accepts: every argument is checked before any work, and an error says what came and what should."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from stateir.ir import Axis, Input, Param, Rule

from .carried import prev_windows
from .text import arguments_of

State = Tensor | dict[str, Tensor]

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LARGEST_DIM = 256

_DIM = {Axis.KEY: "K", Axis.VALUE: "V", Axis.PAIR: "K/2"}
_STATE: dict[Axis, tuple[str, ...]] = {
    Axis.SCALAR: (), Axis.KEY: ("K",), Axis.VALUE: ("V",), Axis.PAIR: ("K/2",), Axis.MATRIX: ("K", "V")
}  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """The sizes of a call. H is the largest head count among the inputs; T is 1 for a single token."""

    B: int
    T: int
    H: int
    K: int
    V: int


def layout(d: Input | Param, token: bool = False) -> tuple[str, ...]:
    """The dimensions of an argument by name, such as ("B", "T", "H", "K"); an array of 2 has "2" before the vector."""
    leading = ("H",) if isinstance(d, Param) else ("B", "H") if token else ("B", "T", "H")
    array = () if d.size is None else (str(d.size),)
    vector = (_DIM[d.axis],) if d.axis in _DIM else ()
    return leading + array + vector


@dataclass(frozen=True)
class Signature:
    """What the calls of a rule are checked against, put together once.

    `sequence` and `token` are the layouts of the arguments by name, `parts` those of what is carried: "S", the declared
    states, and "prev.x", whose window takes the place of T.
    """

    name: str
    inputs: tuple[str, ...]
    optional: frozenset[str]
    sequence: dict[str, tuple[str, ...]]
    token: dict[str, tuple[str, ...]]
    parts: dict[str, tuple[str, ...]]

    @property
    def carries_dict(self) -> bool:
        """Whether the carried state is a dict by name, not the tensor S."""
        return list(self.parts) != ["S"]


def signature(rule: Rule) -> Signature:
    """The signature of a rule."""
    declared = arguments_of(rule)
    parts = {s.name: ("B", "H", *_STATE[s.axis]) for s in rule.states}
    windows = prev_windows(rule)
    for i in rule.inputs:
        if i.name in windows:
            parts[f"prev.{i.name}"] = ("B", str(windows[i.name]), *layout(i, token=True)[1:])
    return Signature(
        rule.name,
        tuple(i.name for i in rule.inputs),
        frozenset(d.name for d in declared if optional(d)),
        {d.name: layout(d) for d in declared},
        {d.name: layout(d, token=True) for d in declared},
        parts,
    )


def optional(d: Input | Param) -> bool:
    """Whether an argument may be left out: a fixed param whose start value is its value."""
    return isinstance(d, Param) and d.fixed and d.start is not None


def check_arguments(rule: Signature, given: Mapping[str, object], token: bool = False) -> Sizes:
    """The sizes of a call whose arguments are all there and fit together.

    Raises ValueError (missing, surplus, shape, size, device) or TypeError (not a floating tensor), naming the argument.
    """
    layouts = rule.token if token else rule.sequence
    for name in given:
        if name not in layouts:
            raise ValueError(f"{rule.name}: unexpected argument {name!r}; the arguments are {', '.join(layouts)}")
    for name, expected in layouts.items():
        if name not in given and name not in rule.optional:
            raise ValueError(f"{rule.name}: missing argument {name!r}: expected {_shown(expected)}")
    tensors: dict[str, Tensor] = {}
    for name in layouts:
        if name in given:
            tensors[name] = _floating(rule, name, given[name])
    _same_device(rule, tensors)
    for name, x in tensors.items():
        if x.ndim != len(layouts[name]):
            raise ValueError(_mismatch(rule, name, _shown(layouts[name]), x))

    sizes = {dim: _common(rule, dim, tensors, layouts) for dim in ("B", "T", "K", "V", "K/2")}
    for name, x in tensors.items():
        for dim, size in zip(layouts[name], x.shape, strict=True):
            if dim.isdigit() and size != int(dim):
                raise ValueError(_mismatch(rule, name, _shown(layouts[name]), x))
    if (pairs := sizes["K/2"]) is not None:
        if sizes["K"] is not None and sizes["K"] != 2 * pairs:
            name = next(n for n in tensors if "K/2" in layouts[n])
            raise ValueError(_mismatch(rule, name, f"{_shown(layouts[name])} with K = {sizes['K']}", tensors[name]))
        sizes["K"] = 2 * pairs
    K, V = (_dim(rule, dim, sizes[dim]) for dim in ("K", "V"))
    B, T = sizes["B"], 1 if token else sizes["T"]
    assert B is not None and T is not None, "a rule without inputs was compiled"
    return Sizes(B, T, _heads(rule, tensors, layouts), K, V)


def check_state(
    rule: Signature, state: object, sizes: Sizes, device: torch.device, name: str = "initial_state"
) -> State:
    """`state` itself, if it is what the rule carries: S, or a dict of S, the declared states and the prev windows."""
    shapes = state_shapes(rule, sizes)
    if not rule.carries_dict:
        _check_part(rule, name, state, shapes["S"], device)
        return state  # type: ignore[return-value]
    if not isinstance(state, dict):
        raise TypeError(f"{rule.name}: {name}: expected a dict with {', '.join(shapes)}, got {type(state).__name__}")
    if missing := [key for key in shapes if key not in state]:
        raise ValueError(f"{rule.name}: {name}: missing {missing[0]!r}; expected {', '.join(shapes)}")
    if surplus := [key for key in state if key not in shapes]:
        raise ValueError(f"{rule.name}: {name}: unexpected {surplus[0]!r}; expected {', '.join(shapes)}")
    for key, shape in shapes.items():
        _check_part(rule, f"{name}[{key!r}]", state[key], shape, device)
    return state


def state_shapes(rule: Signature, sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """The shape of everything that the rule carries, by name."""
    dims = {"B": sizes.B, "H": sizes.H, "K": sizes.K, "V": sizes.V, "K/2": sizes.K // 2}
    return {name: tuple(int(dim) if dim.isdigit() else dims[dim] for dim in part) for name, part in rule.parts.items()}


def check_cu_seqlens(rule: Signature, cu_seqlens: object, sizes: Sizes) -> int:
    """The number N of packed sequences whose offsets [N + 1] these are, by their type and shape alone."""
    where = f"{rule.name}: argument 'cu_seqlens'"
    if not isinstance(cu_seqlens, Tensor) or cu_seqlens.dtype not in (torch.int32, torch.int64):
        kind = cu_seqlens.dtype if isinstance(cu_seqlens, Tensor) else type(cu_seqlens).__name__
        raise TypeError(f"{where}: expected an int32 or int64 tensor, got {kind}")
    if cu_seqlens.ndim != 1 or cu_seqlens.shape[0] < 1:
        raise ValueError(f"{where}: expected [N + 1] offsets of N sequences, got {list(cu_seqlens.shape)}")
    if sizes.B != 1:
        raise ValueError(f"{where}: packed sequences need B = 1, got B = {sizes.B}")
    return cu_seqlens.shape[0] - 1


def check_offsets(rule: Signature, offsets: list[int], T: int) -> None:
    """ValueError unless the offsets divide T tokens."""
    if offsets[0] != 0 or offsets[-1] != T or any(a > b for a, b in itertools.pairwise(offsets)):
        shown = str(offsets) if len(offsets) <= 8 else f"[{', '.join(map(str, offsets[:4]))}, ..., {offsets[-1]}]"
        raise ValueError(
            f"{rule.name}: argument 'cu_seqlens': expected offsets that rise from 0 to T = {T}, got {shown}"
        )


def check_slots(rule: Signature, slots: object, state: State) -> Tensor:
    """The rows [B] of a state's tensors that a token's sequences have, as int64."""
    where = f"{rule.name}: argument 'slots'"
    if not isinstance(slots, Tensor) or slots.dtype not in (torch.int32, torch.int64):
        kind = slots.dtype if isinstance(slots, Tensor) else type(slots).__name__
        raise TypeError(f"{where}: expected an int32 or int64 tensor, got {kind}")
    if slots.ndim != 1:
        raise ValueError(f"{where}: expected [B], got {list(slots.shape)}")
    if slots.device.type == "cpu" and not torch.compiler.is_compiling():
        rows = min(x.shape[0] for x in (state.values() if isinstance(state, dict) else (state,)))
        taken = slots.tolist()
        if len(set(taken)) < len(taken) or any(not 0 <= n < rows for n in taken):
            raise ValueError(f"{where}: expected different numbers from 0 to {rows - 1}, got {taken}")
    return slots.long()


def compute_dtype(tensors: Mapping[str, Tensor]) -> torch.dtype:
    """The dtype of states and sums: float64 if any argument is, else float32."""
    return torch.float64 if any(x.dtype == torch.float64 for x in tensors.values()) else torch.float32


def _shown(names: tuple[str, ...]) -> str:
    return f"[{', '.join(names)}]"


def _mismatch(rule: Signature, name: str, expected: str, x: Tensor) -> str:
    return f"{rule.name}: argument {name!r}: expected {expected}, got {list(x.shape)}"


def _floating(rule: Signature, name: str, x: object) -> Tensor:
    if not isinstance(x, Tensor):
        raise TypeError(f"{rule.name}: argument {name!r}: expected a tensor, got {type(x).__name__}")
    if x.dtype not in DTYPES:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise TypeError(f"{rule.name}: argument {name!r}: expected {names}, got {str(x.dtype).removeprefix('torch.')}")
    return x


def _same_device(rule: Signature, tensors: dict[str, Tensor]) -> None:
    first = next(iter(tensors.values())).device
    if all(x.device == first for x in tensors.values()):
        return
    common = Counter(x.device for x in tensors.values()).most_common(1)[0][0]
    for name, x in tensors.items():
        if x.device != common:
            raise ValueError(f"{rule.name}: argument {name!r}: expected device {common}, got {x.device}")


def _common(rule: Signature, dim: str, tensors: dict[str, Tensor], layouts: dict[str, tuple[str, ...]]) -> int | None:
    """The size of a dimension. Where arguments disagree, the one that differs from most is named."""
    found = {name: x.shape[layouts[name].index(dim)] for name, x in tensors.items() if dim in layouts[name]}
    if not found:
        return None
    first = next(iter(found.values()))
    if all(size == first for size in found.values()):  # while PyTorch traces, sizes are symbols and cannot be counted
        return first
    common = Counter(int(size) for size in found.values()).most_common(1)[0][0]
    witness = next(name for name, size in found.items() if size == common)
    for name, size in found.items():
        if size != common:
            expected = f"{_shown(layouts[name])} with {dim} = {common} as in {witness!r}"
            order = _heads_first(tensors[name], common) if dim == "T" else ""
            raise ValueError(_mismatch(rule, name, expected, tensors[name]) + order)
    return common


def _heads_first(x: Tensor, tokens: int) -> str:
    """What to do with an input whose heads stand before its tokens; nothing is said of another one."""
    if x.shape[2] != tokens:
        return ""
    return f"; it looks like {_shown(('B', 'H', 'T', *('D',) * (x.ndim - 3)))}: transpose(1, 2)"


def _dim(rule: Signature, dim: str, size: int | None) -> int:
    assert size is not None, f"a rule without the axis of {dim} was compiled"
    if not 1 <= size <= LARGEST_DIM:
        raise ValueError(f"{rule.name}: {dim} = {size}: expected 1 to {LARGEST_DIM}")
    return size


def _heads(rule: Signature, tensors: dict[str, Tensor], layouts: dict[str, tuple[str, ...]]) -> int:
    """The largest head count of the inputs, which every other count must divide."""
    counts = {name: x.shape[layouts[name].index("H")] for name, x in tensors.items()}
    inputs = {name: counts[name] for name in rule.inputs}
    witness = max(inputs, key=lambda name: inputs[name])
    H = inputs[witness]
    for name, count in counts.items():
        if count < 1 or H % count:
            expected = f"{_shown(layouts[name])} with a head count that divides H = {H} (of {witness!r})"
            raise ValueError(_mismatch(rule, name, expected, tensors[name]))
    return H


def _check_part(rule: Signature, name: str, x: object, shape: tuple[int, ...], device: torch.device) -> None:
    tensor = _floating(rule, name, x)
    if tuple(tensor.shape) != shape:
        raise ValueError(_mismatch(rule, name, str(list(shape)), tensor))
    if tensor.device != device:
        raise ValueError(f"{rule.name}: argument {name!r}: expected device {device}, got {tensor.device}")
