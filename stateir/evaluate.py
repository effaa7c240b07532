"""One token of a rule in numbers (numpy, float64): for counter-examples and for the search of stability witnesses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .ir import (
    Axis,
    Bin,
    Call,
    Contract,
    Dim,
    Expr,
    Input,
    Interval,
    Neg,
    Num,
    Outer,
    Param,
    Prev,
    Read,
    Ref,
    Rule,
    State,
    Update,
    walk,
)  # fmt: skip

Values = dict[tuple[str, int | None], Any]


def past(e: Prev) -> str:
    """The name under which `draw` and `evaluate` keep the value of a look-back."""
    return f"prev({e.of.name}, {e.n})"


def evaluate(e: Expr, names: Mapping[tuple[str, int | None, int], Any], dims: Mapping[Axis, int]) -> Any:
    """The value of an expression: a float, a vector, or a [K, V] array. `names` maps (name, index, version)."""

    def of(x: Expr) -> Any:
        return evaluate(x, names, dims)

    match e:
        case Num(value):
            return value
        case Dim(axis):
            return float(dims[axis])
        case Ref(name, _, index, version):
            return names[name, index, version]
        case Prev(ref):
            return names[past(e), ref.index, 0]
        case Neg(x):
            return -of(x)
        case Contract(a, b):
            if a.axis is Axis.MATRIX:
                return of(a) @ of(b) if b.axis is Axis.VALUE else of(b) @ of(a)
            return of(a) @ of(b)
        case Outer(key, value):
            return np.outer(of(key), of(value))
        case Call(fn, args):
            return _call(fn, [of(x) for x in args])
        case Bin(op, a, b):
            x, y = of(a), of(b)
            if a.axis is Axis.KEY and b.axis is Axis.MATRIX:
                x = x[:, None]
            if b.axis is Axis.KEY and a.axis is Axis.MATRIX:
                y = y[:, None]
            return {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "^": np.power}[op](x, y)
    raise TypeError(f"{type(e).__name__} has no value in a token")


def _call(fn: str, args: list[Any]) -> Any:
    x = args[0]
    match fn:
        case "exp" | "log" | "sqrt" | "tanh" | "abs":
            return getattr(np, fn)(x)
        case "rsqrt":
            return 1 / np.sqrt(x)
        case "sigmoid":
            return 1 / (1 + np.exp(-x))
        case "softplus":
            return np.logaddexp(0.0, x)
        case "min":
            return np.minimum(*args)
        case "max":
            return np.maximum(*args)
        case "unit":
            return x / np.sqrt(np.sum(x * x) + 1e-6)
        case "rotate":
            angle = np.broadcast_to(args[1], (len(x) // 2,))
            a, b, c, s = x[0::2], x[1::2], np.cos(angle), np.sin(angle)
            return np.stack([c * a - s * b, s * a + c * b], axis=1).reshape(-1)
    raise ValueError(f"no function {fn}")


Names = dict[tuple[str, int | None, int], Any]


def run_lines(rule: Rule, given: Values, S: Any, dims: Mapping[Axis, int]) -> Names:
    """The value of every name, and every version of every state, by the rule's lines; the read is ("", None, 0)."""
    names: Names = {(n, i, 0): v for (n, i), v in given.items()}
    names["S", None, 0] = S
    counts = {s.name: 0 for s in rule.states}
    for line in rule.lines:
        value = evaluate(line.value, names, dims)
        if isinstance(line, Update):
            counts[line.state] += 1
            names[line.state, None, counts[line.state]] = value
        else:
            names["" if isinstance(line, Read) else line.name, None, 0] = value
    return names


def token(rule: Rule, given: Values, S: Any, dims: Mapping[Axis, int]) -> tuple[Any, dict[str, Any]]:
    """(o, every state after the token) by the rule's lines. `given` has all names but S, by (name, index)."""
    names = run_lines(rule, given, S, dims)
    last = {s.name: sum(isinstance(x, Update) and x.state == s.name for x in rule.lines) for s in rule.states}
    return names["", None, 0], {name: names[name, None, count] for name, count in last.items()}


def draw(rule: Rule, rng: np.random.Generator, dims: Mapping[Axis, int], ends: bool = False) -> Values:
    """Random values of a token's inputs, params and vector states, inside their ranges; `ends`: often at a bound."""
    out: Values = {}
    for line in rule.lines:
        for e in walk(line.value):
            if isinstance(e, Prev):
                source = next(x for x in rule.inputs if x.name == e.of.name)
                out[past(e), e.of.index] = _vector(rng, source, _shape(e.axis, dims), ends)
    for x in rule.declared:
        if x.name == "S":
            continue
        size = getattr(x, "size", None)
        for index in [None] if size is None else range(size):
            out[x.name, index] = _vector(rng, x, _shape(x.axis, dims), ends)
    return out


def _shape(axis: Axis, dims: Mapping[Axis, int]) -> tuple[int, ...]:
    if axis is Axis.MATRIX:
        return dims[Axis.KEY], dims[Axis.VALUE]
    return () if axis is Axis.SCALAR else (dims[axis],)


def _vector(rng: np.random.Generator, x: Input | Param | State, shape: tuple[int, ...], ends: bool) -> Any:
    value = _inside(rng, x.range, shape, ends)
    return value / max(float(np.linalg.norm(value)), 1e-12) if x.unit else value


def _inside(rng: np.random.Generator, interval: Interval | None, shape: tuple[int, ...], ends: bool) -> Any:
    if interval is None:
        return rng.standard_normal(shape)
    lo, hi = interval.lo, interval.hi
    if np.isinf(lo) and np.isinf(hi):
        return rng.standard_normal(shape)
    if np.isinf(lo) or np.isinf(hi):
        size = rng.exponential(size=shape) * (rng.choice([0.0, 1.0, 30.0], size=shape) if ends else 1.0)
        return hi - size if np.isinf(lo) else lo + size
    x = rng.random(shape)
    if ends:
        x = np.where(rng.random(shape) < 0.5, np.round(x), x)
    inner = 1e-6 * (hi - lo)
    return np.clip(lo + x * (hi - lo), lo + inner * interval.lo_open, hi - inner * interval.hi_open)
