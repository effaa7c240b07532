"""A summary as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

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
