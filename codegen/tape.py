"""A rule's expressions as a tape: elementary operations in one line, each of which is written once.

What is equal is the same entry, so common subexpressions are shared by construction, and what nobody asks for is never
printed (`tape_text`). `lower` makes the entries of an expression, in the forms that stay sharp at the ends of ranges,
as `expr` chooses them for PyTorch; `reverse` adds those of its derivatives.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from stateir import consts
from stateir.ir import Axis, Bin, Call, Contract, Dim, Expr, Neg, Num, Ref, Rule
from stateir.logform import FLOOR
from stateir.ranges import Ranges

from .expr import LOG_FLOOR


class Level(enum.IntEnum):
    """What a value depends on: nothing that is given, the head alone, or the token too."""

    CONSTANT = 0
    HEAD = 1
    TOKEN = 2


@dataclass(frozen=True)
class Entry:
    """One operation on earlier entries. `data` is the number, the name, or the axis that belongs to it.

    number      a constant                      dim         the size of the axis `data`
    tiny        the smallest normal number      leaf        a value given by name, `data` = (name, index in its array)
    add sub mul div neg, exp expm1 log sqrt rsqrt sigmoid softplus tanh abs, logsigmoid log_softplus
    max min     of two values                   at_least, at_most    x, bound: a bound that is constant
    sum         over the axis of a vector       spread      a scalar as a vector of the axis `data`
    rows        the sum over all tokens         sign        -1, 0, 1
    pass_ge     d, x, bound: d where x >= bound, else 0; pass_le likewise
    share       d, a, b: d where a > b, half of it where they are equal, else 0
    """

    op: str
    args: tuple[int, ...]
    axis: Axis
    level: Level
    data: float | Axis | tuple[str, int | None] | None = None

    @property
    def key(self) -> tuple[str, int | None]:
        """The name of a leaf, and its index in an array."""
        assert isinstance(self.data, tuple)
        return self.data


class Tape:
    """Entries, referred to by their numbers."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._numbers: dict[Entry, int] = {}

    def __getitem__(self, n: int) -> Entry:
        return self.entries[n]

    def _add(self, entry: Entry) -> int:
        if entry not in self._numbers:
            self._numbers[entry] = len(self.entries)
            self.entries.append(entry)
        return self._numbers[entry]

    def value(self, n: int) -> float | None:
        """The number that entry n is, if it is one."""
        entry = self.entries[n]
        return entry.data if entry.op == "number" and isinstance(entry.data, float) else None

    def number(self, value: float) -> int:
        return self._add(Entry("number", (), Axis.SCALAR, Level.CONSTANT, float(value)))

    def dim(self, axis: Axis) -> int:
        return self._add(Entry("dim", (), Axis.SCALAR, Level.CONSTANT, axis))

    def tiny(self) -> int:
        return self._add(Entry("tiny", (), Axis.SCALAR, Level.CONSTANT))

    def leaf(self, name: str, axis: Axis, level: Level, index: int | None = None) -> int:
        return self._add(Entry("leaf", (), axis, level, (name, index)))

    def op(self, name: str, *args: int) -> int:
        """An elementwise operation; scalars broadcast beside vectors."""
        known = [self.value(x) for x in args]
        if all(x is not None for x in known) and (folded := _folded(name, [x for x in known if x is not None])):
            return self.number(folded[0])
        if (simpler := self._simplified(name, args)) is not None:
            return simpler
        args = self._unspread(args)
        return self._add(Entry(name, args, self._axis(args), max(self[x].level for x in args)))

    def sum(self, x: int) -> int:
        """The sum over a vector's axis."""
        entry = self[x]
        if entry.op == "spread":
            axis = entry.axis
            return self.op("mul", entry.args[0], self.dim(axis))
        return self._add(Entry("sum", (x,), Axis.SCALAR, entry.level, entry.axis))

    def rows(self, x: int) -> int:
        """The sum of a token's value over all tokens."""
        return self._add(Entry("rows", (x,), self[x].axis, Level.HEAD))

    def spread(self, x: int, axis: Axis) -> int:
        """A scalar as a vector of equal entries; x itself where it has the axis."""
        if self[x].axis is axis:
            return x
        return self._add(Entry("spread", (x,), axis, self[x].level, axis))

    def power(self, x: int, n: int) -> int:
        """x^n by squarings."""
        if n < 0:
            return self.op("div", self.number(1.0), self.power(x, -n))
        if n == 0:
            return self.number(1.0)
        half = self.power(x, n // 2) if n > 1 else x
        if n == 1:
            return x
        square = self.op("mul", half, half)
        return self.op("mul", square, x) if n % 2 else square

    def _axis(self, args: tuple[int, ...]) -> Axis:
        axes = {self[x].axis for x in args} - {Axis.SCALAR}
        if len(axes) > 1:
            raise ValueError(f"no operation joins {' and '.join(sorted(a.value for a in axes))}")
        return axes.pop() if axes else Axis.SCALAR

    def _unspread(self, args: tuple[int, ...]) -> tuple[int, ...]:
        """Scalars in place of their spreads, where another operand has the axis."""
        spread = [self[x].op == "spread" for x in args]
        if all(s or self[x].axis is Axis.SCALAR for s, x in zip(spread, args, strict=True)):
            return args
        return tuple(self[x].args[0] if s else x for s, x in zip(spread, args, strict=True))

    def _simplified(self, name: str, args: tuple[int, ...]) -> int | None:
        """An equal entry that is simpler, or sharper where digits would be lost."""
        first, ops = self.value(args[0]), [self[x].op for x in args]
        second = self.value(args[1]) if len(args) > 1 else None
        inner = [self[x].args[0] if self[x].args else -1 for x in args]
        match name:
            case "mul" if first == 1:
                return args[1]
            case "mul" | "div" if second == 1:
                return args[0]
            case "mul" if first == -1:
                return self.op("neg", args[1])
            case "add" if first == 0:
                return args[1]
            case "add" | "sub" if second == 0:
                return args[0]
            case "add" if ops[1] == "neg":
                return self.op("sub", args[0], inner[1])
            case "neg" if ops[0] == "neg":
                return inner[0]
            case "sub" if first == 1 and ops[1] == "exp":
                return self.op("neg", self.op("expm1", inner[1]))
            case "sub" if second == 1 and ops[0] == "exp":
                return self.op("expm1", inner[0])
            case "sub" if first == 1 and ops[1] == "sigmoid":
                return self.op("sigmoid", self.op("neg", inner[1]))
            case "log" if ops[0] == "exp":
                return inner[0]
            case "log" if ops[0] == "sigmoid":
                return self.op("logsigmoid", inner[0])
            case "log" if ops[0] == "softplus":
                return self.op("log_softplus", inner[0])
        return None


_SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_CALLS = {x: x for x in ("exp", "log", "sqrt", "rsqrt", "sigmoid", "softplus", "tanh", "abs", "min", "max")}
_CALLS |= {"at_least": "max", "at_most": "min"}


def _folded(name: str, values: list[float]) -> tuple[float] | None:
    """The value of an operation on numbers, where it is finite."""
    if name in _SYMBOLS:
        found = consts.binary(_SYMBOLS[name], *values)
    elif name in _CALLS:
        found = consts.call(_CALLS[name], *values)
    elif name == "neg":
        found = -values[0]
    else:
        return None
    return (found,) if math.isfinite(found) else None


class Lowering:
    """The entries of one rule's expressions. Values are given as leaves by the names of inputs and params."""

    def __init__(self, rule: Rule) -> None:
        self.tape = Tape()
        self.lets: dict[str, int] = {}
        self._rule, self._ranges = rule, Ranges(rule)
        self._levels = {x.name: Level.TOKEN for x in rule.inputs} | {x.name: Level.HEAD for x in rule.params}

    def lower(self, e: Expr) -> int:
        """The entry of e, which has e's axis."""
        return self.tape.spread(self._lower(e), e.axis)

    def _lower(self, e: Expr) -> int:
        tape = self.tape
        match e:
            case Num(value):
                return tape.number(value)
            case Dim(of):
                return tape.dim(of)
            case Ref(name) if name in self._levels:
                return tape.leaf(name, e.axis, self._levels[name], e.index)
            case Ref(name):
                if name not in self.lets:
                    self.lets[name] = self.lower(self._rule.lets[name])
                return self.lets[name]
            case Neg(x):
                return tape.op("neg", self.lower(x))
            case Contract(a, b):
                return tape.sum(tape.op("mul", self.lower(a), self.lower(b)))
            case Bin("^"):
                return self._power(e)
            case Bin("/", a, b):
                return tape.op("div", self.lower(a), self._guarded(e, b))
            case Bin(op, a, b):
                return tape.op({"+": "add", "-": "sub", "*": "mul"}[op], self.lower(a), self.lower(b))
            case Call():
                return self._call(e)
        raise ValueError(f"a tape has no {type(e).__name__}")

    def _guarded(self, e: Expr, operand: Expr) -> int:
        """The operand of e, kept off 0 by the smallest normal number where underflow could bring it there."""
        tape, x = self.tape, self.lower(operand)
        if tape[x].level is Level.CONSTANT or not self._ranges.needs_clamp(e):
            return x
        if self._ranges.of(operand).lo >= 0:
            return tape.op("at_least", x, tape.tiny())
        return tape.op("at_most", x, tape.op("neg", tape.tiny()))

    def _power(self, e: Bin) -> int:
        tape = self.tape
        exponent = tape.value(self.lower(e.b))
        if exponent is not None and exponent.is_integer():
            return tape.power(self._guarded(e, e.a), int(exponent))
        return tape.op("exp", tape.op("mul", self.lower(e.b), self._call(Call("log", (e.a,), e.a.axis))))

    def _call(self, e: Call) -> int:
        tape = self.tape
        if e.fn == "unit":
            vector = self.lower(e.args[0])
            square = tape.op("add", tape.sum(tape.op("mul", vector, vector)), tape.number(1e-6))
            return tape.op("mul", vector, tape.op("rsqrt", square))
        if e.fn in ("min", "max"):
            return self._extremum(e)
        (x,) = e.args
        if e.fn == "log" and isinstance(x, Call) and x.fn == "max" and x.args[1] == Num(FLOOR):
            return tape.op("log", tape.op("add", self.lower(x.args[0]), tape.number(LOG_FLOOR)))
        operand = self.lower(x)
        sharp = e.fn == "log" and tape[operand].op in ("exp", "sigmoid", "softplus")
        if e.fn in ("log", "sqrt", "rsqrt") and not sharp:
            operand = self._guarded(e, x)
        return tape.op(e.fn, operand)

    def _extremum(self, e: Call) -> int:
        """min or max; a bound that is constant passes the gradient where it is just reached, two values share it."""
        tape, args = self.tape, [self.lower(x) for x in e.args]
        for i in (0, 1):
            if tape[args[i]].level is Level.CONSTANT and tape[args[1 - i]].level is not Level.CONSTANT:
                return tape.op("at_most" if e.fn == "min" else "at_least", args[1 - i], args[i])
        return tape.op(e.fn, *args)
