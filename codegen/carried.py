"""What a rule carries from token to token, and the text around it: its start and the run over a sequence."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from stateir.ir import Axis, Prev, Rule, S, State, walk
from stateir.scans import turning

from .expr import Scope, scope_of, torch_text
from .text import arguments_of, function, sizes


def prev_windows(rule: Rule) -> dict[str, int]:
    """How many tokens back the rule looks at each input, for those it looks back at."""
    windows: dict[str, int] = {}
    for line in rule.lines:
        for x in walk(line.value):
            if isinstance(x, Prev):
                windows[x.of.name] = max(x.n, windows.get(x.of.name, 0))
    return {i.name: windows[i.name] for i in rule.inputs if i.name in windows}


def carries_s_alone(rule: Rule) -> bool:
    """Whether the carried state is the tensor S; otherwise it is a dict by name."""
    return rule.states == (S,) and not prev_windows(rule)


def comparable(rule: Rule, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A carried state by name, its running angles as their cosines and sines: 0 and 2 pi are one angle."""
    angles = turning(rule)
    return {n: torch.stack((x.cos(), x.sin()), -1) if n in angles else x for n, x in state.items()}


def start_source(rule: Rule) -> str:
    """Text of `start(B, H, K, V)`, the state before the first token. No name of the rule occurs in it."""
    scope = Scope({})
    entries = {s.name: _filled(s, scope) for s in rule.states}
    for i in rule.inputs:
        if n := prev_windows(rule).get(i.name):
            shape = ", ".join(["B", str(n), "H", *([] if i.size is None else [str(i.size)]), *_dims(i.axis)])
            entries[f"prev.{i.name}"] = f"torch.zeros({shape}, dtype=dtype, device=device)"
    if carries_s_alone(rule):
        kind, body = "Tensor", [f"return {entries['S']}"]
    else:
        kind = "dict[str, Tensor]"
        body = ["return {", *(f'    "{key}": {text},' for key, text in entries.items()), "}"]
    arguments = [f"{size}: int" for size in "BHKV"]
    arguments += ["dtype: torch.dtype = torch.float32", "device: torch.device | str | None = None"]
    return function("start", arguments, kind, "The state before the first token.", body)


def _dims(axis: Axis) -> list[str]:
    return {
        Axis.SCALAR: [], Axis.KEY: ["K"], Axis.VALUE: ["V"], Axis.PAIR: ["K // 2"], Axis.MATRIX: ["K", "V"]
    }[axis]  # fmt: skip


def _filled(state: State, scope: Scope) -> str:
    shape = ", ".join(["B", "H", *_dims(state.axis)])
    if state.start is None:
        return f"torch.zeros({shape}, dtype=dtype, device=device)"
    return f"torch.full(({shape}), {torch_text(state.start, scope)}, dtype=dtype, device=device)"


def run_source(rule: Rule, body: Callable[[Rule, Scope], list[str]], *, cast: bool = True) -> str:
    """Text of `run(inputs..., params..., state=None)`, which gives the output and the state after a sequence.

    `body` writes the lines that compute them from the arguments and from the state before. With `cast` these have one
    dtype, float32 at least; without, the arguments are what the caller gives, and the start is in float32.
    """
    scope = scope_of(rule)
    state, dtype, each = (scope.fresh(name) for name in ("state", "dtype", "x"))
    names = [scope.names[d.name] for d in arguments_of(rule)]
    value = next((scope.names[i.name] for i in rule.inputs if i.axis is Axis.VALUE), names[0])
    scope.used |= {"K", "V", "H"}
    B, H, K, V = (scope.fresh(name) for name in "BHKV")
    every = ", ".join(names) + ("," if len(names) == 1 else "")
    output = scope.names[rule.read.name]
    kind = f"{names[0]}.dtype" if cast else "torch.float32"
    casts = [
        f"{dtype} = {value}.dtype",
        f"{every} = ({each}.to(torch.promote_types({each}.dtype, torch.float32)) for {each} in ({every}))",
    ]
    lines = [
        *(casts if cast else []),
        *sizes(rule, scope, ("B", "T", "H")),
        f"if {state} is None:",
        f"    {state} = start({B}, {H}, {K}, {V}, {kind}, {names[0]}.device)",
        *body(rule, scope),
        f"return {f'{output}.to({dtype})' if cast else output}, {state}",
    ]
    kind = "Tensor" if carries_s_alone(rule) else "dict[str, Tensor]"
    arguments = [*(f"{name}: Tensor" for name in names), f"{state}: {kind} | None = None"]
    docstring = "A sequence: inputs [B, T, H, ...], params [H, ...]; the output [B, T, H, V] and the state after it."
    return function("run", arguments, f"tuple[Tensor, {kind}]", docstring, lines)
