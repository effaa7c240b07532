"""What the page shows of a rule's memory. Every number is of `interference.py`, hence of the step reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch

from stateir.codegen.start import start_value
from stateir.ir import Axis, Input, Param, Rule
from stateir.models.binding import open_gate, roles
from stateir.models.config import require
from stateir.models.interference import Array, BindingsConfig, Trace, draw_bindings, write_bindings

Queries: TypeAlias = Literal["own key", "previous key", "random"]

# A knob needs two ends; where a range has none, it ends here.
WIDEST = 4.0


@dataclass(frozen=True)
class Knob:
    """One number in place of a gate (an input, the same for all tokens and channels) or a scalar param."""

    name: str
    low: float
    high: float
    start: float


@dataclass(frozen=True)
class Answer:
    """What a state reads for one key. read, value [V]; error |read - value|^2, None where the key is not yet written;
    nearest: the stored binding whose value is nearest in angle, None for an empty or zero read.
    """

    read: Array
    value: Array
    error: float | None
    nearest: int | None


def knobs(rules: Sequence[Rule]) -> tuple[Knob, ...]:
    """The gates and scalar params of the rules, by name; of one that several have, the range that all allow."""
    found: dict[str, Knob] = {}
    for rule in rules:
        for knob in _knobs_of(rule):
            other = found.get(knob.name, knob)
            low, high = max(knob.low, other.low), min(knob.high, other.high)
            found[knob.name] = Knob(knob.name, low, high, min(max(other.start, low), high))
    return tuple(found[name] for name in sorted(found) if found[name].low < found[name].high)


def watch(
    rule: Rule,
    config: BindingsConfig,
    seed: int,
    queries: Queries = "own key",
    given: Mapping[str, float] | None = None,
) -> Trace:
    """One repetition of `config` written by `rule`.

    queries: what the rule's query inputs see while a binding is written: its key, the one written before it (its own
        for the first), or a random one.
    given: numbers by name; those that the rule does not declare are left out.

    Raises:
        ValueError: for a rule that cannot be told to store a key and a value, and for a number outside its range.
    """
    require(queries in get_args(Queries), f"queries must be one of {get_args(Queries)}, got {queries!r}")
    keys, values = draw_bindings(config, 1, seed)
    asked = keys
    if queries == "previous key":
        asked = np.concatenate([keys[:, :1], keys[:, :-1]], axis=1)
    elif queries == "random":
        independent = BindingsConfig(config.writes, config.key_dim, config.value_dim, "sphere")
        asked, _ = draw_bindings(independent, 1, (seed, 1))
    declared = {i.name for i in rule.inputs} | {p.name for p in rule.params}
    own = {name: x for name, x in (given or {}).items() if name in declared}
    return write_bindings(rule, keys, values, queries=asked, inputs=own)


def ask(trace: Trace, writes: int, key: int) -> Answer:
    """What the state after the first `writes` writes reads for binding `key`; both are within the trace."""
    read = trace.keys[0, key] @ trace.states[0, writes]
    stored = trace.values[0, :writes]
    nearest = int((stored @ read).argmax()) if writes and np.any(read) else None
    error = float(trace.error[0, writes - 1, key]) if key < writes else None
    return Answer(read, trace.values[0, key], error, nearest)


def _knobs_of(rule: Rule) -> list[Knob]:
    gates = roles(rule).gates
    out = [_knob(i, open_gate(i.range)) for i in rule.inputs if i.name in gates and not i.unit]
    for p in rule.params:
        if p.axis is Axis.SCALAR and p.size is None and p.start is not None:
            out.append(_knob(p, float(start_value(p, 1, 2, 2, dtype=torch.float64)[0])))
    return out


def _knob(d: Input | Param, start: float) -> Knob:
    if d.range is None:
        return Knob(d.name, -WIDEST, WIDEST, start)
    return Knob(d.name, max(d.range.lo, -WIDEST), min(d.range.hi, WIDEST), start)
