"""A tape's operations as Triton text, on tiles of rows in float32.

A tile has a token's key vectors ([ROWS, KP]), value vectors ([ROWS, VP]) or scalars ([ROWS, 1]) in its rows; what
depends on the head alone has one row. Columns past K or V, and rows past the last token, are loaded as 0: a sum over
them masks whatever does not stay 0 there.
"""

from __future__ import annotations

import re

from stateir.ir import Axis

from .tape import Tape
from .tape_text import Dialect

# Smallest normal number of float32.
TINY = 2.0**-126

COLUMNS = {Axis.KEY: "k", Axis.VALUE: "v"}

FUNCTIONS = {
    "_expm1": '''
@triton.jit
def _expm1(x):
    """exp(x) - 1; near 0 its Taylor series, where the difference would lose digits."""
    near = tl.minimum(tl.maximum(x, -0.5), 0.5)
    series = 1.0 + near * (1 / 8 + near * (1 / 72))
    series = 1.0 + near * (1 / 5 + near * (1 / 30 + near * (1 / 210 * series)))
    series = near * (1.0 + near * (1 / 2 + near * (1 / 6 + near * (1 / 24 * series))))
    return tl.where(tl.abs(x) < 0.5, series, tl.exp(x) - 1.0)
''',
    "_log1p": '''
@triton.jit
def _log1p(x):
    """log(1 + x) for x from 0 to 1, to the last digits of small x too: twice the series of artanh(x / (2 + x))."""
    s = x / (2.0 + x)
    z = s * s
    series = 1 / 9 + z * (1 / 11 + z * (1 / 13 + z * (1 / 15)))
    return 2.0 * s * (1.0 + z * (1 / 3 + z * (1 / 5 + z * (1 / 7 + z * series))))
''',
    "_softplus": """
@triton.jit
def _softplus(x):
    return tl.maximum(x, 0.0) + _log1p(tl.exp(-tl.abs(x)))
""",
    "_log_softplus": '''
@triton.jit
def _log_softplus(x):
    """log(softplus(x)), which is x to the last bit where softplus(x) begins to underflow."""
    return tl.where(x < -17.0, x, tl.log(_softplus(tl.maximum(x, -17.0))))
''',
    "_sign": '''
@triton.jit
def _sign(x):
    """-1, 0 or 1."""
    return tl.where(x > 0.0, 1.0, 0.0) - tl.where(x < 0.0, 1.0, 0.0)
''',
    "_tanh": """
@triton.jit
def _tanh(x):
    e = _expm1(-2.0 * tl.abs(x))
    return _sign(x) * (-e / (2.0 + e))
""",
    "_max": """
@triton.jit
def _max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "_min": """
@triton.jit
def _min(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "_share": '''
@triton.jit
def _share(d, a, b):
    """What of d goes to the greater of a and b, if that is a: half of it where they are equal."""
    return tl.where(a > b, d, tl.where(a == b, 0.5 * d, 0.0))
''',
}

_CALLS = {
    "exp": "tl.exp({})", "expm1": "_expm1({})", "log": "tl.log({})", "sqrt": "tl.sqrt({})", "rsqrt": "tl.rsqrt({})",
    "sigmoid": "tl.sigmoid({})", "softplus": "_softplus({})", "tanh": "_tanh({})", "abs": "tl.abs({})",
    "logsigmoid": "(-_softplus(-({})))", "log_softplus": "_log_softplus({})", "sign": "_sign({})",
    "max": "_max({}, {})", "min": "_min({}, {})", "at_least": "_max({}, {})", "at_most": "_min({}, {})",
    "pass_ge": "tl.where({1} >= {2}, {0}, 0.0)", "pass_le": "tl.where({1} <= {2}, {0}, 0.0)",
    "share": "_share({}, {}, {})",
}  # fmt: skip


def called(sources: list[str]) -> list[str]:
    """The definitions of the functions above that the sources call, directly or through one another."""
    found: list[str] = []
    text = "\n".join(sources)
    for name, source in reversed(FUNCTIONS.items()):
        if re.search(rf"\b{name}\(", text):
            found.insert(0, source.strip("\n"))
            text += source
    return found


def _other(tape: Tape, n: int, operands: list[str]) -> str:
    entry = tape[n]
    match entry.op, entry.data:
        case "dim", Axis() as axis:
            return f"dim_{COLUMNS[axis]}"
        case "tiny", _:
            return repr(TINY)
        case "spread", Axis() as axis:
            return f"({operands[0]} + tl.zeros([1, {COLUMNS[axis].upper()}P], tl.float32))"
        case "sum", Axis() as axis:
            x = operands[0]
            if _beyond(tape, entry.args[0]) != 0:
                x = f"tl.where(in_{COLUMNS[axis]}, {x}, 0.0)"
            return f"tl.sum({x}, 1, keep_dims=True)"
        case "rows", _:
            return f"tl.sum(tl.where(live[:, None], {operands[0]}, 0.0), 0, keep_dims=True)"
    raise ValueError(f"no text for {entry.op}")


TILES = Dialect(_CALLS, _other)


def _beyond(tape: Tape, n: int) -> float | None:
    """What a vector has in the columns past its size: 0, some finite number (1 stands for any), or None: unknown.

    A scalar counts as a finite number; where it is not, the live columns are not finite either.
    """
    known: list[float | None] = []
    for entry in tape.entries[: n + 1]:
        parts = [known[x] for x in entry.args]
        known.append(1 if entry.axis is Axis.SCALAR else _column(entry.op, parts))
    return known[n]


def _column(op: str, parts: list[float | None]) -> float | None:
    if None in parts:
        return None
    match op:
        case "leaf":
            return 0
        case "mul":
            return 0 if 0 in parts else 1
        case "add" | "sub" | "max" | "min":
            return 0 if parts == [0, 0] else 1
        case "neg" | "abs" | "sqrt" | "tanh" | "expm1" | "sign" | "pass_ge" | "pass_le" | "share":
            return parts[0]
        case "exp" | "sigmoid" | "softplus" | "spread" | "at_least" | "at_most" | "logsigmoid" | "log_softplus":
            return 1
    return None
