"""What a rule's inputs are when it is told to store one key and one value: roles derived from its text, not its name.

Key vectors without a range are keys, but for the queries: those on which no written direction depends. Value vectors
without a range are values. Of an array the first element is the binding and the rest are zero. All else is a gate and
is held open: at the point of its range nearest to 1 (a log decay at 0), anything without a range at 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from stateir.codegen.start import start_value
from stateir.ir import Axis, Expr, Input, Interval, Let, Outer, Param, Ref, Rule, Update, walk

from .config import require


@dataclass(frozen=True)
class Roles:
    """Names of a rule's inputs by what they carry."""

    queries: tuple[str, ...]
    keys: tuple[str, ...]
    values: tuple[str, ...]
    gates: tuple[str, ...]


def roles(rule: Rule) -> Roles:
    """Who carries what in `rule`."""
    written = _written_from(rule)
    content = [i for i in rule.inputs if i.range is None]
    keys = [i.name for i in content if i.axis is Axis.KEY]
    values = [i.name for i in content if i.axis is Axis.VALUE]
    return Roles(
        queries=tuple(name for name in keys if name not in written),
        keys=tuple(name for name in keys if name in written),
        values=tuple(values),
        gates=tuple(i.name for i in rule.inputs if i.name not in (*keys, *values)),
    )


def binding_arguments(
    rule: Rule, keys: Tensor, values: Tensor, queries: Tensor, given: Mapping[str, float | Tensor], seed: int = 0
) -> dict[str, Tensor]:
    """Arguments of the operator, inputs [N, D, 1, ...] and params [1, ...], with which it stores D bindings in turn.

    keys, queries: [N, D, K]. values: [N, D, V]. given: inputs and params by name in place of the derived ones: a
    number, or a tensor that broadcasts to [N, D, ...] (params: [1, ...]). seed: draws params left to chance.

    Raises:
        ValueError: for a name that the rule does not have, a number outside a declared range (its ends are allowed), or
            a rule that has no key or no value vector to write with.
    """
    role = roles(rule)
    declared: dict[str, Input | Param] = {d.name: d for d in (*rule.inputs, *rule.params)}
    for name in given:
        require(name in declared, f"{rule.name} has no input or param {name!r}; it has {', '.join(declared)}")
    writable = bool(role.keys) or any(declared[name].axis is Axis.KEY for name in given)
    require(writable, f"{rule.name} has no key input without a range to write with; give {' or '.join(role.gates)}")
    require(bool(role.values), f"{rule.name} has no value input without a range to write with")
    N, D, K = keys.shape
    dims = {Axis.SCALAR: (), Axis.KEY: (K,), Axis.VALUE: (values.shape[-1],), Axis.PAIR: (K // 2,)}
    content = dict.fromkeys(role.keys, keys) | dict.fromkeys(role.queries, queries) | dict.fromkeys(role.values, values)
    generator = torch.Generator().manual_seed(seed)
    arguments = {}
    for d in declared.values():
        array = () if d.size is None else (d.size,)
        shape = (*((1,) if isinstance(d, Param) else (N, D)), *array, *dims[d.axis])
        if d.name in given:
            x = torch.as_tensor(given[d.name], dtype=keys.dtype)
            _check_range(rule, d, x)
            x = x.expand(shape)
        elif d.name in content:
            x = content[d.name] if d.size is None else _first_of(content[d.name], d.size)
        elif isinstance(d, Param) and d.start is not None:
            x = start_value(d, 1, K, values.shape[-1], dtype=keys.dtype)
        elif d.unit:
            x = torch.nn.functional.normalize(torch.randn(shape, dtype=keys.dtype, generator=generator), dim=-1)
        else:
            x = torch.full(shape, open_gate(d.range), dtype=keys.dtype)
        arguments[d.name] = x if isinstance(d, Param) else x.unsqueeze(2)
    return arguments


def open_gate(range: Interval | None) -> float:
    """The number nearest to 1 in the closed range, hence 0 for a log decay; 0 where there is no range."""
    return 0.0 if range is None else min(max(1.0, range.lo), range.hi)


def _check_range(rule: Rule, d: Input | Param, x: Tensor) -> None:
    if d.range is None:
        return
    low, high = float(x.min()), float(x.max())
    inside = d.range.lo <= low and high <= d.range.hi
    worst = low if low < d.range.lo else high
    require(inside, f"{rule.name} declares {d.name} in [{d.range.lo:g}, {d.range.hi:g}], got {worst:g}")


def _first_of(x: Tensor, size: int) -> Tensor:
    """[N, D, d] -> [N, D, size, d] with x first and zeros behind: a zero key stores nothing."""
    rest = x.new_zeros(*x.shape[:2], size - 1, x.shape[-1])
    return torch.cat([x.unsqueeze(2), rest], 2)


def _written_from(rule: Rule) -> set[str]:
    """Names on which the direction of some write to a matrix state depends."""
    matrices = {s.name for s in rule.states if s.axis is Axis.MATRIX}
    sources: dict[str, list[Expr]] = {}
    pending: list[Expr] = []
    for line in rule.lines:
        match line:
            case Let(name, value):
                sources.setdefault(name, []).append(value)
            case Update(name, value) if name in matrices:
                pending += [x.key for x in walk(value) if isinstance(x, Outer)]
            case Update(name, value):
                sources.setdefault(name, []).append(value)
    found: set[str] = set()
    while pending:
        for x in walk(pending.pop()):
            if isinstance(x, Ref) and x.name not in found:
                found.add(x.name)
                pending += sources.get(x.name, [])
    return found
