"""The typed rule: what the checker makes of a syntax tree, and what every later stage reads.

All nodes stand on this page. They are frozen; a span says where in the rule's text a node came from and is not part
of equality, so two rules that say the same thing compare equal.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Literal, TypeAlias


@dataclass(frozen=True)
class Span:
    """A piece of one line of a rule's text: 1-based line, 1-based first column, column after the last character."""

    line: int
    column: int
    end: int


NOWHERE = Span(0, 0, 0)


class Axis(enum.Enum):
    """The nominal axes. A pair vector has one entry for two neighbouring key channels; a matrix is key x value."""

    SCALAR = "scalar"
    KEY = "key"
    VALUE = "value"
    PAIR = "pair"
    MATRIX = "matrix"


@dataclass(frozen=True)
class Interval:
    """A range of real numbers; an open end excludes its bound."""

    lo: float
    hi: float
    lo_open: bool = False
    hi_open: bool = False


@dataclass(frozen=True)
class Num:
    """A constant scalar."""

    value: float
    span: Span = field(default=NOWHERE, compare=False)
    axis: Axis = field(default=Axis.SCALAR, init=False)


@dataclass(frozen=True)
class Dim:
    """dim(key) or dim(value): the size of an axis, known when the operator is called."""

    of: Axis
    span: Span = field(default=NOWHERE, compare=False)
    axis: Axis = field(default=Axis.SCALAR, init=False)


@dataclass(frozen=True)
class Head:
    """The global index of the head, from 0; only in the start value of a param."""

    span: Span = field(default=NOWHERE, compare=False)
    axis: Axis = field(default=Axis.SCALAR, init=False)


@dataclass(frozen=True)
class Ref:
    """The value of an input, a param, a let or a state.

    `index` selects an element of an array. For a state, `version` counts the updates of it that stand above the use
    within the token: version 0 is what the previous token left. Other names have version 0.
    """

    name: str
    axis: Axis
    index: int | None = None
    version: int = 0
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Prev:
    """prev(x, n): the input x (or x[i]) n tokens ago, zero before the sequence."""

    of: Ref
    n: int
    axis: Axis
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Neg:
    x: Expr
    axis: Axis
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Bin:
    """Elementwise arithmetic with the broadcasts that the language allows."""

    op: Literal["+", "-", "*", "/", "^"]
    a: Expr
    b: Expr
    axis: Axis
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Contract:
    """a @ b: the sum over the one axis that both share."""

    a: Expr
    b: Expr
    axis: Axis
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Outer:
    """outer(key, value), always stored with the key first."""

    key: Expr
    value: Expr
    span: Span = field(default=NOWHERE, compare=False)
    axis: Axis = field(default=Axis.MATRIX, init=False)


@dataclass(frozen=True)
class Call:
    """A function of FUNCTIONS, elementwise but for `unit` and `rotate`."""

    fn: str
    args: tuple[Expr, ...]
    axis: Axis
    span: Span = field(default=NOWHERE, compare=False)


Expr: TypeAlias = Num | Dim | Head | Ref | Prev | Neg | Bin | Contract | Outer | Call

# name -> number of arguments
FUNCTIONS = {
    "exp": 1, "log": 1, "sqrt": 1, "rsqrt": 1, "sigmoid": 1, "softplus": 1, "tanh": 1, "abs": 1,
    "min": 2, "max": 2, "unit": 1, "rotate": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Input:
    """A value for every token and head; `size` is the length of an array, None for a single one."""

    name: str
    axis: Axis
    size: int | None = None
    unit: bool = False
    range: Interval | None = None
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Param:
    """A value for every head, constant in time, trained unless fixed."""

    name: str
    axis: Axis
    size: int | None = None
    unit: bool = False
    fixed: bool = False
    range: Interval | None = None
    start: Expr | None = None
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class State:
    """Carried from token to token. `start` is its value before the first token, 0 where None."""

    name: str
    axis: Axis
    unit: bool = False
    range: Interval | None = None
    start: Expr | None = None
    span: Span = field(default=NOWHERE, compare=False)


S = State("S", Axis.MATRIX)


@dataclass(frozen=True)
class Let:
    name: str
    value: Expr
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Update:
    """state = value; `x += e` has become x + (e), a loop has become its lines."""

    state: str
    value: Expr
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Read:
    name: str
    value: Expr
    span: Span = field(default=NOWHERE, compare=False)


Line: TypeAlias = Let | Update | Read


@dataclass(frozen=True)
class Rule:
    """A checked rule. `states` starts with S; `lines` are in time order with exactly one Read among them.

    `text` is the rule's text as given, with which the spans agree.
    """

    name: str
    title: str
    inputs: tuple[Input, ...]
    params: tuple[Param, ...]
    states: tuple[State, ...]
    lines: tuple[Line, ...]
    text: str = field(default="", compare=False)

    @property
    def arguments(self) -> tuple[Input | Param, ...]:
        """What the caller gives: the inputs, then the params."""
        return (*self.inputs, *self.params)

    @property
    def declared(self) -> tuple[Input | Param | State, ...]:
        """Every declared name, S among the states."""
        return (*self.inputs, *self.params, *self.states)

    @property
    def read(self) -> Read:
        return next(line for line in self.lines if isinstance(line, Read))

    @property
    def lets(self) -> dict[str, Expr]:
        return {line.name: line.value for line in self.lines if isinstance(line, Let)}


def children(e: Expr) -> tuple[Expr, ...]:
    """The direct subexpressions, in the order written."""
    match e:
        case Neg(x):
            return (x,)
        case Bin(_, a, b) | Contract(a, b) | Outer(a, b):
            return (a, b)
        case Call(_, args):
            return args
        case Prev(of):
            return (of,)
    return ()


def walk(e: Expr) -> Iterator[Expr]:
    """e and everything below it, parents first."""
    stack = [e]
    while stack:
        x = stack.pop()
        yield x
        stack.extend(reversed(children(x)))


def rebuild(e: Expr, new: tuple[Expr, ...]) -> Expr:
    """e with its direct subexpressions replaced; the axes must be the same."""
    names = [f.name for f in fields(e) if f.init]
    values = {n: getattr(e, n) for n in names}
    match e:
        case Neg():
            values["x"] = new[0]
        case Bin() | Contract():
            values["a"], values["b"] = new
        case Outer():
            values["key"], values["value"] = new
        case Call():
            values["args"] = new
        case Prev():
            values["of"] = new[0]
    return type(e)(**values)
