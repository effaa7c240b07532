"""The algebra of axes (rules 9 and 10): what the axis of a result is, None where the axes do not fit."""

from __future__ import annotations

from collections.abc import Sequence

from .ir import Axis

SCALAR, KEY, VALUE, PAIR, MATRIX = Axis.SCALAR, Axis.KEY, Axis.VALUE, Axis.PAIR, Axis.MATRIX


def parts(axis: Axis) -> frozenset[Axis]:
    """An axis as a set: a scalar has none, a matrix two."""
    if axis is MATRIX:
        return frozenset({KEY, VALUE})
    return frozenset() if axis is SCALAR else frozenset({axis})


def joined(op: str, a: Axis, b: Axis) -> Axis | None:
    """Elementwise `a op b`; `min` and `max` follow `+`."""
    if a is b:
        return a
    small, large = sorted((a, b), key=lambda axis: len(parts(axis)))
    if op in "*/":
        return large if parts(small) <= parts(large) else None
    return large if small is SCALAR and large is not MATRIX else None


def contracted(a: Axis, b: Axis) -> Axis | None:
    """`a @ b`: the one axis that both share goes."""
    shared = parts(a) & parts(b)
    if len(shared) != 1:
        return None
    return next(iter((parts(a) | parts(b)) - shared), SCALAR)


def named(axis: Axis) -> str:
    """The axis of a value in words."""
    return {SCALAR: "a scalar", MATRIX: "a matrix"}.get(axis, f"a {axis.value} vector")


def ambiguity(axes: Sequence[Axis], ops: Sequence[str], source: Sequence[str]) -> tuple[str, str, str] | None:
    """Why a run of `*`, `/`, `@` could be grouped in ways that differ, and two groupings; None if it could not.

    `source` has the texts of the factors.
    """
    at = [i for i, op in enumerate(ops) if op == "@"]
    if not at:
        return None

    def run(lo: int, hi: int) -> str:
        return " ".join([source[lo], *(f"{ops[n]} {source[n + 1]}" for n in range(lo, hi))])

    def group(lo: int, hi: int) -> str:
        return source[lo] if lo == hi else f"({run(lo, hi)})"

    def around(lo: int, hi: int, middle: str) -> str:
        before = f"{run(0, lo - 1)} {ops[lo - 1]} " if lo else ""
        after = f" {ops[hi]} {run(hi + 1, last)}" if hi < last else ""
        return before + middle + after

    i, last = at[0], len(source) - 1
    if len(at) > 1:
        j = at[1]
        left = around(i, j + 1, f"{group(i, j)} @ {source[j + 1]}")
        right = around(i, j + 1, f"{source[i]} @ {group(i + 1, j + 1)}")
        return "two `@` in one run of products: they can be grouped in different ways", left, right
    left, right = f"{group(0, i)} @ {group(i + 1, last)}", around(i, i + 1, f"({run(i, i + 1)})")
    for n, axis in enumerate(axes):
        if n not in (i, i + 1) and axis is not SCALAR:
            return f"`{source[n]}` is {named(axis)} in a run with `@`: groupings of it differ", left, right
    if i > 0 and ops[i - 1] == "/":
        return f"`{source[i]}` both divides and is an operand of `@`", left, right
    return None
