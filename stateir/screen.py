"""A summary as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from .plan import describe, describe_backends
from .stability import Fact
from .summary import Name, Summary


def report(s: Summary) -> str:
    """Everything `stateir check RULE` says of one rule."""
    return "\n".join(_lines(s))


def one_line(s: Summary, width: int) -> str:
    """What `stateir check` says of a rule among several."""
    verdict = "ok" if s.sound else "FAILED"
    if s.plan is None:
        return f"{verdict:<6} {s.rule:<{width}}  step reference only: matrix states beside S"
    p = s.plan
    decay = "no decay" if p.decay is None else f"{p.decay.value} decay"
    form = f"{p.rows} row{'s' if p.rows != 1 else ''}, {p.erases} erasing"
    return f"{verdict:<6} {s.rule:<{width}}  {form:<17} {decay:<13} {len(s.proofs)} proofs  {s.seconds:5.2f} s"


def _lines(s: Summary) -> Iterator[str]:
    yield f"{s.rule}: {s.title}" if s.title else s.rule
    yield from _section("names", [(n.name + ("" if n.size is None else f"[{n.size}]"), _claims(n)) for n in s.names])
    if s.normal_form is None or s.plan is None:
        yield from _section("normal form", [("none", "matrix states beside S"), *describe_backends(s.backends)])
        return
    yield ""
    yield "normal form"
    yield from (f"  {line}" for line in s.normal_form.splitlines())
    verdicts = {True: "proved", False: "FAILED"}
    yield from _section("proofs", [(verdicts[p.holds], f"{p.claim} ({p.seconds:.2f} s)") for p in s.proofs])
    yield from _section("stability", [row for f in s.stability for row in _fact(f)])
    yield from _section("plan", describe(s.plan, s.backends))


def _fact(f: Fact) -> Iterator[tuple[str, str]]:
    yield f.status, f"{f.claim}: {f.reason}"
    if f.witness:
        yield "", "at " + ", ".join(f"{name} = {numbers(value)}" for name, value in f.witness.items())


def numbers(x: object, digits: int = 4) -> str:
    """Numbers and nested lists or arrays of them, rounded to significant digits."""
    x = x.tolist() if isinstance(x, np.ndarray | np.generic) else x
    if isinstance(x, list | tuple):
        return f"[{', '.join(numbers(v, digits) for v in x)}]"
    return f"{x:.{digits}g}" if isinstance(x, float) else str(x)


def _claims(n: Name) -> str:
    start = "" if n.start is None else f" = {n.start}"
    return f"{n.kind:<5} {n.axis:<6} {n.claims}{start}".rstrip()


def _section(title: str, rows: list[tuple[str, str]]) -> Iterator[str]:
    if not rows:
        return
    width = max(len(left) for left, _ in rows)
    yield ""
    yield title
    yield from (f"  {left:<{width}}  {right}" for left, right in rows)


class Measured(Protocol):
    """A measured error and the limit it must keep."""

    @property
    def name(self) -> str: ...
    @property
    def error(self) -> float: ...
    @property
    def limit(self) -> float: ...
    @property
    def note(self) -> str: ...
    @property
    def passed(self) -> bool: ...


def checks_of_one(rule: str, checks: Sequence[Measured], seconds: float) -> str:
    """What `stateir verify RULE` says: every check, and how many failed."""
    width = max(len(c.name) for c in checks)
    lines = [f"{rule}: the generated code against the step reference", ""]
    note = ""
    for c in checks:
        said, note = (f"  {c.note}" if c.note not in ("", note) else ""), c.note
        lines.append(f"  {'ok' if c.passed else 'FAILED':<6} {c.name:<{width}}  {_measured(c)}{said}")
    failed = sum(not c.passed for c in checks)
    return "\n".join([*lines, "", f"{len(checks)} checks, {failed} failed, {seconds:.1f} s"])


def checks_of_several(rule: str, checks: Sequence[Measured], seconds: float) -> str:
    """One line of `stateir verify --all`: the check that comes nearest to its limit."""
    worst = max(checks, key=lambda c: math.inf if math.isnan(c.error) else c.error / (c.limit or 1.0))
    verdict = "ok" if all(c.passed for c in checks) else "FAILED"
    nearest = f"nearest its limit: {worst.name} {_measured(worst)}"
    return f"{verdict:<6} {rule}  {len(checks):3} checks {seconds:6.1f} s   {nearest}"


def _measured(c: Measured) -> str:
    """The error and its limit; a limit of 0 counts values whose bits differ."""
    return f"{c.error:.1e} of {c.limit:.1e}" if c.limit else f"{c.error:.0f} differ"
