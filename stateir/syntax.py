"""The syntax tree: a rule's text exactly as written, with groups, chains, loops and `+=` kept.

Nodes are frozen; spans are not part of equality. `check.py` turns a tree into the typed rule of `ir.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from .ir import NOWHERE, Span


@dataclass(frozen=True)
class Number:
    text: str
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Name:
    id: str
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Place:
    """A whole number known at compile time: `offset`, or the value of `name` plus `offset`; `text` as written."""

    name: str | None
    offset: int
    text: str
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Item:
    """name[place]."""

    id: str
    place: Place
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Apply:
    """fn(args)."""

    fn: Name
    args: tuple[Expr, ...]
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Group:
    """A pair of parentheses."""

    x: Expr
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Negate:
    x: Expr
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Power:
    base: Expr
    exponent: Expr
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Chain:
    """A run of `*`, `/` and `@` without parentheses; len(ops) == len(factors) - 1."""

    factors: tuple[Expr, ...]
    ops: tuple[str, ...]
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Sum:
    """A run of `+` and `-`; len(ops) == len(terms) - 1."""

    terms: tuple[Expr, ...]
    ops: tuple[str, ...]
    span: Span = field(default=NOWHERE, compare=False)


Expr: TypeAlias = Number | Name | Item | Apply | Group | Negate | Power | Chain | Sum


@dataclass(frozen=True)
class Range:
    lo: Expr
    hi: Expr
    lo_open: bool
    hi_open: bool
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Declare:
    """One name of an `input`, `param` or `state` line. `first` marks the first name of its line."""

    kind: str
    name: Name
    size: Place | None
    axis: str
    unit: Span | None
    fixed: Span | None
    range: Range | None
    start: Expr | None
    first: bool
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Let:
    name: Name
    value: Expr
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Loop:
    name: Name
    lo: Place
    hi: Place


@dataclass(frozen=True)
class Update:
    state: Name
    op: str
    value: Expr
    loop: Loop | None
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Read:
    name: Name
    value: Expr
    span: Span = field(default=NOWHERE, compare=False)


Statement: TypeAlias = Declare | Let | Update | Read


@dataclass(frozen=True)
class File:
    """One rule. `broken` holds the names of lines that do not parse, so that their uses are not reported again."""

    name: str
    title: str
    statements: tuple[Statement, ...]
    broken: frozenset[str] = frozenset()
    span: Span = field(default=NOWHERE, compare=False)


def children(e: Expr) -> tuple[Expr, ...]:
    """The direct subexpressions, in the order written."""
    match e:
        case Apply(_, args):
            return args
        case Group(x) | Negate(x):
            return (x,)
        case Power(base, exponent):
            return (base, exponent)
        case Chain(operands) | Sum(operands):
            return operands
    return ()


def walk(e: Expr) -> Iterator[Expr]:
    """e and everything below it, parents first."""
    stack = [e]
    while stack:
        x = stack.pop()
        yield x
        stack.extend(reversed(children(x)))


def values(s: Statement) -> tuple[Expr, ...]:
    """The expressions of a statement: start values and bounds of a declaration, the right side of another line."""
    if isinstance(s, Declare):
        bounds = (s.range.lo, s.range.hi) if s.range is not None else ()
        return bounds if s.start is None else (*bounds, s.start)
    return (s.value,)


def places(s: Statement) -> tuple[Place, ...]:
    """The whole numbers that a statement asks for: lengths, indices, bounds of a loop."""
    own: tuple[Place, ...] = (s.size,) if isinstance(s, Declare) and s.size is not None else ()
    if isinstance(s, Update) and s.loop is not None:
        own = (s.loop.lo, s.loop.hi)
    return own + tuple(x.place for e in values(s) for x in walk(e) if isinstance(x, Item))
