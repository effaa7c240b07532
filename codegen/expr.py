"""Rule expressions as PyTorch source text.

Tensors are [..., D] for key, value and pair vectors, [...] for scalars and [..., K, V] for matrices, with the same
leading dimensions; an array of n has n after the leading dimensions. Params have only the head among them and
broadcast. So one lowering serves a single token ([B, H]), a whole sequence ([B, T, H]) and start values ([H]).
"""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Callable
from dataclasses import dataclass, field

from stateir.ir import Axis, Bin, Call, Contract, Dim, Expr, Head, Neg, Num, Outer, Prev, Ref, Rule, children, walk
from stateir.logform import FLOOR
from stateir.ranges import Ranges

# Python's precedence, from loose to tight.
SUM, PRODUCT, UNARY, POWER, ATOM = range(5)

# Added to a decay that may be 0 before its log is taken, in place of a floor under it: a decay above 1e-14 stays what
# it is in float64, and at 0 the decay's gradient, exp(log(1e-30)) / 1e-30, is 1 as it should be; a clamp's would be 0.
LOG_FLOOR = 1e-30

# Functions of plain numbers.
_MATH = {
    "exp": "math.exp({})", "log": "math.log({})", "sqrt": "math.sqrt({})", "rsqrt": "math.sqrt({}) ** -1",
    "sigmoid": "(1 + math.exp(-({}))) ** -1", "softplus": "math.log1p(math.exp({}))", "tanh": "math.tanh({})",
    "abs": "abs({})", "min": "min({}, {})", "max": "max({}, {})",
}  # fmt: skip

# softplus returns x above the threshold: PyTorch's default of 20 is off by 2e-9, too much for float64.
_TORCH = {
    "exp": "torch.exp({})", "log": "torch.log({})", "sqrt": "torch.sqrt({})", "rsqrt": "torch.rsqrt({})",
    "sigmoid": "torch.sigmoid({})", "softplus": "F.softplus({}, threshold=40)", "tanh": "torch.tanh({})",
    "abs": "torch.abs({})", "unit": "unit({})",
}  # fmt: skip

# Definitions that generated text may call; each stands on its own.
HELPERS = {
    "unit": '''
def unit(x: Tensor) -> Tensor:
    """x scaled to norm 1; the zero vector stays zero, with a finite gradient."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
''',
    "rotate": '''
def rotate(x: Tensor, angle: Tensor) -> Tensor:
    """x with each pair of neighbouring channels (2i, 2i + 1) turned by angle i."""
    c, s = torch.cos(angle), torch.sin(angle)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((c * even - s * odd, s * even + c * odd), -1).flatten(-2)
''',
    "log_softplus": '''
def log_softplus(x: Tensor) -> Tensor:
    """log(softplus(x)), which is x to the last bit of float64 where softplus(x) begins to underflow."""
    return torch.where(x < -37, x, torch.log(F.softplus(torch.clamp(x, min=-37), threshold=40)))
''',
}

# What generated functions that have the rule's names as arguments refer to.
_RESERVED = frozenset({
    "torch", "triton", "math", "F", "Tensor", "ctx", "step", "run", "start", "prologue", "chunked", "prologue_grad",
    "epilogue", "epilogue_grad", "affine_scan", "max_plus_scan", "angle_scan", "widened", "output", "CHUNK", "_scan",
    "_token", "_once", "functools", *HELPERS, *dir(builtins),
})  # fmt: skip


def python_names(rule: Rule) -> dict[str, str]:
    """A Python name for every name of the rule: its own wherever Python and the generated text leave it free."""
    declared = [*(x.name for x in rule.inputs), *(x.name for x in rule.params), *(x.name for x in rule.states)]
    names: dict[str, str] = {}
    for name in [*declared, *rule.lets, rule.read.name]:
        python = name
        while python in _RESERVED or keyword.iskeyword(python) or (name not in names and python in names.values()):
            python += "_"
        names[name] = python
    return names


@dataclass
class Scope:
    """How one rule's names are spelled in one generated text.

    `names` maps the rule's names to Python's; `consts` are the names of lets that are plain numbers. `state` and `prev`
    spell the use of a state and of an earlier token. `ranges` says which operands underflow could bring to a 0 that
    their range excludes. `used` collects the helpers and the names of sizes that the text needs.
    """

    names: dict[str, str]
    consts: frozenset[str] = frozenset()
    state: Callable[[Ref], str | None] | None = None
    prev: Callable[[Prev], str] | None = None
    ranges: Ranges | None = None
    used: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)

    def fresh(self, name: str) -> str:
        """`name`, with underscores after it until no name of the rule has it."""
        while name in self.names.values() or name in self.taken:
            name += "_"
        return name

    def new(self, name: str) -> str:
        """A fresh name that is taken from now on."""
        name = self.fresh(name)
        self.taken.add(name)
        return name

    def is_const(self, e: Expr) -> bool:
        """Whether e is a plain number in the text, not a tensor."""
        match e:
            case Num() | Dim():
                return True
            case Ref(name):
                return name in self.consts
            case Neg() | Bin() | Call():
                return all(self.is_const(x) for x in children(e))
        return False


def const_lets(rule: Rule) -> frozenset[str]:
    """The lets that are plain numbers: made of constants, dimensions and other such lets."""
    consts: set[str] = set()
    for name, value in rule.lets.items():
        if all(not isinstance(x, Ref | Prev | Head) or (isinstance(x, Ref) and x.name in consts) for x in walk(value)):
            consts.add(name)
    return frozenset(consts)


def scope_of(rule: Rule) -> Scope:
    """A fresh scope for a text about this rule."""
    return Scope(python_names(rule), const_lets(rule), ranges=Ranges(rule))


def torch_text(e: Expr, scope: Scope, axis: Axis | None = None) -> str:
    """The text of e; with `axis`, shaped to broadcast against tensors of that axis."""
    text, prec = _emit(e, scope)
    return text if axis is None else _lift(text, prec, e, axis, scope)[0]


def _wrap(part: tuple[str, int], least: int) -> str:
    text, prec = part
    return text if prec >= least else f"({text})"


def _lift(text: str, prec: int, e: Expr, to: Axis, scope: Scope) -> tuple[str, int]:
    """The text of e with the dimensions added that it needs beside a tensor of axis `to`."""
    if e.axis is to or scope.is_const(e):
        return text, prec
    if e.axis is Axis.SCALAR:
        index = "[..., None, None]" if to is Axis.MATRIX else "[..., None]"
    elif to is Axis.MATRIX and e.axis is Axis.KEY:
        index = "[..., None]"
    elif to is Axis.MATRIX and e.axis is Axis.VALUE:
        index = "[..., None, :]"
    else:
        raise ValueError(f"a {e.axis.value} cannot stand beside a {to.value}")
    return _wrap((text, prec), ATOM) + index, ATOM


def _operand(e: Expr, to: Axis, scope: Scope, least: int) -> str:
    return _wrap(_lift(*_emit(e, scope), e, to, scope), least)


def _emit(e: Expr, scope: Scope) -> tuple[str, int]:
    """Text and precedence of e, in its own axis."""
    match e:
        case Num(value):
            return number(value)
        case Dim(of):
            name = "K" if of is Axis.KEY else "V"
            scope.used.add(name)
            return scope.fresh(name), ATOM
        case Head():
            return scope.fresh("head"), ATOM
        case Ref():
            return _ref(e, scope), ATOM
        case Prev():
            if scope.prev is None:
                raise ValueError("prev() is not available here")
            return scope.prev(e), ATOM
        case Neg(x):
            return "-" + _wrap(_emit(x, scope), UNARY), UNARY
        case Bin():
            return _bin(e, scope)
        case Contract():
            return _contract(e, scope), ATOM
        case Outer(key, value):
            k, v = _operand(key, Axis.MATRIX, scope, PRODUCT), _operand(value, Axis.MATRIX, scope, UNARY)
            return f"{k} * {v}", PRODUCT
        case Call():
            return _call(e, scope)


def number(value: float) -> tuple[str, int]:
    """A Python literal for a constant of a rule."""
    if value in (float("inf"), float("-inf")):
        text = "math.inf" if value > 0 else "-math.inf"
    elif value.is_integer() and abs(value) < 1e15:
        text = str(int(value))
    else:
        text = repr(value)
    return text, UNARY if text.startswith("-") else ATOM


def element(name: str, axis: Axis, index: int | None) -> str:
    """`name`, or its element `index`, which comes before the axis of a vector."""
    if index is None:
        return name
    return f"{name}[..., {index}]" if axis is Axis.SCALAR else f"{name}[..., {index}, :]"


def _ref(e: Ref, scope: Scope) -> str:
    if scope.state is not None and (spelled := scope.state(e)):
        return spelled
    return element(scope.names[e.name], e.axis, e.index)


def _exp_argument(e: Expr) -> Expr | None:
    return e.args[0] if isinstance(e, Call) and e.fn == "exp" else None


def _bin(e: Bin, scope: Scope) -> tuple[str, int]:
    if e.op == "^":
        return _power(e, scope)
    if not scope.is_const(e):
        one_a, one_b = e.a == Num(1.0), e.b == Num(1.0)
        # expm1 keeps the digits that 1 - exp(x) loses where x is small.
        if e.op == "-" and one_a and (x := _exp_argument(e.b)) is not None:
            return f"-torch.expm1({torch_text(x, scope)})", UNARY
        if e.op == "-" and one_b and (x := _exp_argument(e.a)) is not None:
            return f"torch.expm1({torch_text(x, scope)})", ATOM
        if e.op == "-" and one_a and isinstance(e.b, Call) and e.b.fn == "sigmoid":
            return f"torch.sigmoid({torch_text(Neg(e.b.args[0], e.b.axis), scope)})", ATOM
    prec = SUM if e.op in "+-" else PRODUCT
    # a - (b + c) and a / (b * c) keep their parentheses; a + (b + c) too, so that rounding is that of the rule's text.
    a = _operand(e.a, e.axis, scope, prec)
    if e.op == "/":
        b = _wrap(_lift(*_guarded(e, e.b, scope), e.b, e.axis, scope), prec + 1)
    else:
        b = _operand(e.b, e.axis, scope, prec + 1)
    return f"{a} {e.op} {b}", prec


def _guarded(e: Expr, operand: Expr, scope: Scope) -> tuple[str, int]:
    """The operand of e, kept off 0 by the smallest normal number where `Ranges.needs_clamp` says so.

    The clamp stops the gradient there: that of sqrt(k @ k) at k = 0 is 0.
    """
    text, prec = _emit(operand, scope)
    if scope.ranges is None or scope.is_const(operand) or not scope.ranges.needs_clamp(e):
        return text, prec
    scope.used.add("tiny")
    tiny = scope.fresh("tiny")
    bound = f"min={tiny}" if scope.ranges.of(operand).lo >= 0 else f"max=-{tiny}"
    return f"torch.clamp({text}, {bound})", ATOM


def _power(e: Bin, scope: Scope) -> tuple[str, int]:
    whole = isinstance(e.b, Num) and e.b.value.is_integer()
    negative = isinstance(e.b, Neg) and isinstance(e.b.x, Num) and e.b.x.value.is_integer()
    if whole or negative or scope.is_const(e.a):
        base = _guarded(e, e.a, scope)
        return f"{_wrap(base, ATOM)} ** {_wrap(_emit(e.b, scope), POWER)}", POWER
    y = _operand(e.b, e.axis, scope, PRODUCT)
    log = Call("log", (e.a,), e.a.axis)
    x = _wrap(_lift(*_emit(log, scope), e.a, e.axis, scope), UNARY)
    return f"torch.exp({y} * {x})", ATOM


def _contract(e: Contract, scope: Scope) -> str:
    a, b = e.a, e.b
    if Axis.MATRIX in (a.axis, b.axis):
        vector = b if a.axis is Axis.MATRIX else a
        over = -2 if vector.axis is Axis.KEY else -1
        left, right = _operand(a, Axis.MATRIX, scope, PRODUCT), _operand(b, Axis.MATRIX, scope, UNARY)
        return f"({left} * {right}).sum({over})"
    left, right = _operand(a, a.axis, scope, PRODUCT), _operand(b, b.axis, scope, UNARY)
    return f"({left} * {right}).sum(-1)"


def _call(e: Call, scope: Scope) -> tuple[str, int]:
    if e.fn == "rotate":
        scope.used.add("rotate")
        return f"rotate({torch_text(e.args[0], scope)}, {torch_text(e.args[1], scope, Axis.PAIR)})", ATOM
    args = [torch_text(x, scope, e.axis) for x in e.args]
    if scope.is_const(e):
        text = _MATH[e.fn].format(*args)
        return text, POWER if " ** " in text else ATOM
    if e.fn in ("min", "max"):
        return _extremum(e, args, scope), ATOM
    (x,) = e.args
    if e.fn == "log" and isinstance(x, Call) and x.fn == "max" and x.args[1] == Num(FLOOR):
        return f"torch.log({_operand(x.args[0], x.axis, scope, SUM)} + {LOG_FLOOR})", ATOM
    if e.fn == "log" and isinstance(x, Call):
        inner = torch_text(x.args[0], scope)
        if x.fn == "exp":
            return _emit(x.args[0], scope)
        if x.fn == "sigmoid":
            return f"F.logsigmoid({inner})", ATOM
        if x.fn == "softplus":
            scope.used.add("log_softplus")
            return f"log_softplus({inner})", ATOM
    if e.fn in ("log", "sqrt", "rsqrt"):
        args = [_guarded(e, x, scope)[0]]
    if e.fn in HELPERS:
        scope.used.add(e.fn)
    return _TORCH[e.fn].format(*args), ATOM


def _extremum(e: Call, args: list[str], scope: Scope) -> str:
    """min or max; against a plain number it is a clamp."""
    for i in (0, 1):
        if scope.is_const(e.args[i]):
            return f"torch.clamp({args[1 - i]}, {'max' if e.fn == 'min' else 'min'}={args[i]})"
    return f"torch.{'minimum' if e.fn == 'min' else 'maximum'}({args[0]}, {args[1]})"
