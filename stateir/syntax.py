"""The syntax tree: a rule's text exactly as written, with groups, chains, loops and `+=` kept.

Nodes are frozen; spans are not part of equality. `check.py` turns a tree into the typed rule of `ir.py`.
"""

from __future__ import annotations

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
