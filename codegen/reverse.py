"""Reverse-mode differentiation on a tape: the derivatives are entries of the same tape.

At a kink the derivative is that which PyTorch takes: 0 at abs(0), all of it where a constant bound is just reached,
half of it each where two values are equal under min or max.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stateir.ir import Axis

from .tape import Entry, Level, Tape


def reverse(tape: Tape, cotangents: Mapping[int, Sequence[int]], wanted: Sequence[int]) -> dict[int, int | None]:
    """The cotangents of the `wanted` entries, given those of others; None for one on which these do not depend.

    A given cotangent has the axis of its entry. That of an entry which depends on the head alone is summed over tokens.
    """
    depends = _dependents(tape, wanted)
    sums: dict[int, int | None] = dict.fromkeys(wanted)

    def collect(target: int, d: int) -> None:
        if target in depends:
            d = _fitted(tape, d, tape[target])
            before = sums.get(target)
            sums[target] = d if before is None else tape.op("add", before, d)

    for entry, given in cotangents.items():
        for d in given:
            collect(entry, d)
    for n in range(max(cotangents, default=-1), -1, -1):
        cotangent = sums.get(n)
        if cotangent is not None and tape[n].args:
            for target, part in _derivatives(tape, n, cotangent):
                collect(target, part)
    return {n: sums[n] for n in wanted}


def _dependents(tape: Tape, wanted: Sequence[int]) -> set[int]:
    found = set(wanted)
    for n, entry in enumerate(tape.entries):
        if found.intersection(entry.args):
            found.add(n)
    return found


def _fitted(tape: Tape, d: int, target: Entry) -> int:
    """A cotangent as one of its target: summed over what was broadcast, spread over what was summed."""
    if target.axis is Axis.SCALAR and tape[d].axis is not Axis.SCALAR:
        d = tape.sum(d)
    d = tape.spread(d, target.axis)
    if target.level is Level.HEAD and tape[d].level is Level.TOKEN:
        d = tape.rows(d)
    return d


def _derivatives(tape: Tape, n: int, d: int) -> list[tuple[int, int]]:
    """(operand, its part of the cotangent) for each operand of entry n, whose cotangent is d."""
    op, number, entry = tape.op, tape.number, tape[n]
    a, b = entry.args[0], entry.args[-1]
    match entry.op:
        case "add":
            return [(a, d), (b, d)]
        case "sub":
            return [(a, d), (b, op("neg", d))]
        case "mul":
            return [(a, op("mul", d, b)), (b, op("mul", d, a))]
        case "div":
            part = op("div", d, b)
            return [(a, part), (b, op("neg", op("mul", part, n)))]
        case "max":
            return [(a, op("share", d, a, b)), (b, op("share", d, b, a))]
        case "min":
            return [(a, op("share", d, b, a)), (b, op("share", d, a, b))]
        case "at_least":
            return [(a, op("pass_ge", d, a, b))]
        case "at_most":
            return [(a, op("pass_le", d, a, b))]
        case "sum" | "spread":
            return [(a, d)]
        case "neg":
            return [(a, op("neg", d))]
        case "exp":
            return [(a, op("mul", d, n))]
        case "expm1":
            return [(a, op("mul", d, op("add", n, number(1.0))))]
        case "log":
            return [(a, op("div", d, a))]
        case "sqrt":
            return [(a, op("div", op("mul", number(0.5), d), n))]
        case "rsqrt":
            return [(a, op("mul", op("mul", number(-0.5), d), tape.power(n, 3)))]
        case "sigmoid":
            return [(a, op("mul", d, op("mul", op("sub", number(1.0), n), n)))]
        case "softplus":
            return [(a, op("mul", d, op("sigmoid", a)))]
        case "tanh":
            return [(a, op("mul", d, op("sub", number(1.0), op("mul", n, n))))]
        case "abs":
            return [(a, op("mul", d, op("sign", a)))]
        case "logsigmoid":
            return [(a, op("mul", d, op("sigmoid", op("neg", a))))]
        case "log_softplus":
            bounded = op("at_least", a, number(-37.0))  # below, the ratio is 1 to the last bit of float64
            return [(a, op("mul", d, op("div", op("sigmoid", bounded), op("softplus", bounded))))]
    raise ValueError(f"{entry.op} has no derivative")
