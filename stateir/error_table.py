"""The one table of errors. E0xx syntax, E1xx names, E2xx axes, time and loops, E3xx algebra of S, E4xx ranges,
E5xx backends, Wxxx warnings. Every row's bad example gives its code and its good example compiles: a test says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Row:
    """`message` is a format string over the facts of a finding; `why` is the explanation that `bad` and `good` show.

    `at` says where the code arises: from the text alone, or when a backend is asked for.
    """

    title: str
    message: str
    why: str
    bad: str
    good: str
    help: str | None = None
    at: Literal["text", "backend"] = "text"


_HEAD = "rule example\ninput  q: key, k: key, v: value\n"
_WRITE = "update S += outer(k, v)\n"
_READ = "read   o = q @ S\n"


def _rule(*lines: str, update: str = _WRITE, read: str = _READ) -> str:
    """An example: declarations and lets, the update and the read."""
    return _HEAD + "".join(f"{line}\n" for line in lines) + update + read


def _update(line: str, *above: str) -> str:
    return _rule(*above, update=f"update {line}\n")


_SYNTAX = {
    "E001": Row(
        "the text does not parse",
        "expected {expected}, found {found}",
        "A text is one rule: a `rule` line, then one statement a line (input, param, state, let, update, read). `#` "
        "starts "
        "a comment. Names are ASCII. There is no transpose: a matrix is made by `outer(key, value)` and read by `q @ "
        "S`.",
        _update("S += k v^T"),
        _update("S += outer(k, v)"),
    ),
    "E002": Row(
        "no read",
        "the rule has no `read` line",
        "One `read` line says what the rule puts out for every token. Above the updates it sees the state before the "
        "token, "
        "below them the state after.",
        _rule(read=""),
        _rule(),
        "add one: `read o = q @ S`",
    ),
    "E003": Row(
        "no update of S",
        "no line updates S",
        "S is the matrix state of every rule. A rule that never writes to it computes nothing.",
        _rule(update=""),
        _rule(),
        "add one: `update S += outer(k, v)`",
    ),
    "E004": Row(
        "two reads",
        "a second `read` line",
        "A rule has one output, so one `read` line, which may stand anywhere among the updates.",
        _rule(read="read   o = q @ S\nread   p = k @ S\n"),
        _rule(read="read   o = q @ S + k @ S\n"),
        "a rule has one: add the two, or write two rules",
    ),
    "E005": Row(
        "too large",
        "{what}: the limit is {limit}",
        "The size of a text, the nesting of an expression and the number of lines after unrolled loops are bounded, "
        "so that "
        "every text is answered soon and never by the interpreter's own stack. A rule of the size a person writes is "
        "far below the limits.",
        _rule("let    a = " + "-" * 120 + "1"),
        _rule("let    a = -1"),
        "name parts of it with `let`",
    ),
}

_NAMES = {
    "E101": Row(
        "unknown name",
        "{what} `{name}` is not defined above this line",
        "A name is defined on a line above its use. There is no function for a former state: the order of the lines "
        "says "
        "which state is meant, so to use the state before an update, stand above it.",
        _rule(read="read   o = qq @ S\n"),
        _rule(read="read   o = q @ S\n"),
    ),
    "E102": Row(
        "name defined twice",
        "`{name}` is defined already, on line {line}",
        "A name is defined once and never rebound, so a name means one value on every line. Only states change.",
        _rule("let    a = 2 * k", "let    a = 3 * k"),
        _rule("let    a = 2 * k", "let    b = 3 * k"),
        "choose another name",
    ),
    "E103": Row(
        "reserved name",
        "`{name}` is {what} and cannot name a value",
        "Keywords, axes, functions, `S`, `head` and `inf` are not names. `S` needs no declaration; `head` and `inf` "
        "stand in "
        "start values and ranges.",
        _rule("let    unit = 2 * k"),
        _rule("let    doubled = 2 * k"),
        "choose another name",
    ),
    "E104": Row(
        "not allowed here",
        "{what}",
        "Start values and bounds of ranges are constants: numbers, `inf`, functions, `dim(key)` and `dim(value)` "
        "(these two "
        "not in bounds), and `head` in the start value of a param. Inputs have no start value. `fixed` is for params.",
        _update("S += outer(head * k, v)"),
        _update("S += outer(c * k, v)", "param  c: scalar fixed = 1 / (1 + head)"),
    ),
}

_AXES = {
    "E202": Row(
        "axes do not fit",
        "{what}",
        "Axes are nominal: scalar, key, value, pair, matrix. `*` and `/` need equal axes, or the axes of one side "
        "within "
        "those of the other; `+`, `-`, `^`, `min` and `max` need equal axes, or a scalar and a vector; `a @ b` sums "
        "over "
        "the one axis that both share; `outer` takes a key and a value vector.",
        _update("S += outer(k + v, v)"),
        _update("S += outer(k + q, v)"),
    ),
    "E203": Row(
        "a state indexed by time",
        "`{name}` is a state: it has no index",
        "Time is the order of the lines. A state's name is that state just before its line, so the future cannot be "
        "written, and the past is what the state carries. `prev(x)` looks back at an input.",
        _update("S += outer(k, v - k @ S[0])"),
        _update("S += outer(k, v - k @ S)"),
    ),
    "E204": Row(
        "not a declared state",
        "`{name}` is {what}: only states are updated",
        "`S` is there from the start; every other state is declared with its axis, so that its size and start are "
        "known.",
        _rule("update z += k"),
        _rule("state  z: key", "update z += k"),
    ),
    "E205": Row(
        "no such declaration",
        "{what}",
        "Only states are matrices, and only inputs and params are arrays.",
        _rule("input  W: matrix"),
        _rule("input  a: key, b: value", "let    W = outer(a, b)"),
    ),
    "E206": Row(
        "update of another axis",
        "`{name}` is {axis}, its new value is {found}",
        "A state keeps its axis. A scalar may be added to a vector state; nothing else is broadcast.",
        _rule("state  z: key", "update z += v"),
        _rule("state  z: value", "update z += v"),
    ),
    "E207": Row(
        "the output is not a value vector",
        "the output must be a value vector, this is {found}",
        "`read` puts out a value vector, as `q @ S` is. It has the dtype and the head size of the value inputs.",
        _rule(read="read   o = q @ k\n"),
        _rule(read="read   o = (q @ k) * v\n"),
        "`q @ S` reads S by a key vector",
    ),
    "E208": Row(
        "bad array, index or loop",
        "{what}",
        "Lengths, indices and bounds of loops are whole numbers known at compile time: a literal, a `let` that is "
        "one, or "
        "the variable of a loop, plus or minus a literal. Indices start at 0, both ends of a loop are included, and "
        "nothing is longer than 64.",
        _update("S += outer(a[i], v) for i in 0..2", "input  a[2]: key"),
        _update("S += outer(a[i], v) for i in 0..1", "input  a[2]: key"),
    ),
    "E209": Row(
        "index and array do not fit",
        "{what}",
        "An array is always indexed, and only an array is. An index does not mean a time.",
        _update("S += outer(k[1], v)"),
        _update("S += outer(prev(k), v)"),
    ),
    "E210": Row(
        "a let reads a matrix state",
        "a `let` may not read {name}",
        "A let is evaluated where it stands. One that read S at the top of a rule would silently read the state "
        "before the "
        "decay, so what reads S is written on the line that uses it. Lets and the states of vectors can then be "
        "computed "
        "before S is.",
        _update("S += outer(k, v - r)", "let    r = k @ S"),
        _update("S += outer(k, v - k @ S)"),
        "write the reading out on the lines that use it",
    ),
    "E211": Row(
        "unit of no vector",
        "{what}",
        "`unit` speaks of the norm of a vector: of key, value or pair axis.",
        _rule("input  a: scalar unit"),
        _rule("input  a: scalar in [-1, 1]"),
        "a scalar has a range: `in [-1, 1]`",
    ),
    "E212": Row(
        "wrong arguments",
        "{what}",
        "Functions: exp, log, sqrt, rsqrt, sigmoid, softplus, tanh, abs, unit of one argument; min, max, rotate, "
        "outer of "
        "two; prev of an input and a literal; dim of the word key or value.",
        _rule("let    a = max(k)"),
        _rule("let    a = max(k, 0)"),
    ),
    "E214": Row(
        "bad look-back",
        "{what}",
        "`prev(x)` and `prev(x, n)` are the input x one or n tokens ago, zero before the sequence, with a literal n "
        "from 1 "
        "to 64. Only inputs are kept: apply `prev` to each input inside an expression. The future cannot be written.",
        _update("S += outer(prev(2 * k), v)"),
        _update("S += outer(2 * prev(k), v)"),
    ),
    "E215": Row(
        "ambiguous product",
        "{what}",
        "In a run of `*`, `/` and `@` without parentheses there is at most one `@`, and every factor but its two "
        "operands "
        "is a scalar, so that the value does not depend on how the run groups. `b * k @ S` could be `(b * k) @ S` or "
        "`b * (k @ S)`: with other axes both make sense, and they differ.",
        _update("S += outer(k, v - b * k @ S)", "input  b: key"),
        _update("S += outer(k, v - (b * k) @ S)", "input  b: key"),
    ),
}

_ALGEBRA = {
    "E301": Row(
        "nonlinear in S",
        "not affine in S: a nonlinear function of an expression that contains S",
        "An update and a read are affine in S: sums of S with factors, reads `k @ S`, and anything that does not "
        "contain S. "
        "Then a chunk of tokens has a closed form. A nonlinear function of a read (a norm, tanh, a division by it) "
        "has none. "
        "What does not read S may be as nonlinear as you like.",
        _update("S += outer(k, tanh(k @ S))"),
        _update("S += outer(k, tanh(v) - k @ S)"),
        "apply the function to something that does not read S, or leave it out",
    ),
    "E302": Row(
        "product of two expressions of S",
        "not affine in S: product of two expressions that both contain S",
        "An update and a read are affine in S; a product of two reads is quadratic, and a chunk of tokens has no "
        "closed form.",
        _update("S += outer(k, (q @ S) * (k @ S))"),
        _update("S += outer(k, v - (q + k) @ S)"),
        "keep S in one factor only",
    ),
    "E303": Row(
        "a contraction over value",
        "S is contracted over the value axis",
        "S is read from the key side, `k @ S`, a value vector. `S @ v`, and the `@` of a read with a value vector, "
        "sum over "
        "the value axis: then the columns of S depend on each other, and they are what a chunk treats alone.",
        _update("S += outer(k - S @ v, v)"),
        _update("S += outer(k, v - k @ S)"),
        "read S by a key vector: `k @ S`",
    ),
    "E304": Row(
        "a factor over value on S or a read",
        "a factor that varies over the value axis on S or on a read of S",
        "With a value-axis gate on S or on a read within an update, each value column needs a triangular solve of "
        "its own. "
        "A decay of each entry of S is the same. Decays are scalar or key; gate the written value instead.",
        _update("S += outer(k, w * (v - k @ S))", "input  w: value in [0, 1]"),
        _update("S += outer(k, w * v - k @ S)", "input  w: value in [0, 1]"),
        "gate the written value: `w * v - k @ S`",
    ),
    "E305": Row(
        "a vector state reads S",
        "the update of `{name}` reads {matrix}",
        "Lets and the updates of scalar, key, value and pair states never depend on S, so that they can be scanned "
        "before "
        "it. A state that must read S has to be a matrix.",
        _rule("state  y: value", "update y += k @ S"),
        _rule("state  y: value", "update y += v"),
    ),
    "E306": Row(
        "a line that forgets S",
        "this update keeps nothing of the state",
        "The factor of S on an update line is its decay, and its log is what is stored. A line without S multiplies "
        "it by 0, "
        "and is an output of the token alone.",
        _update("S = outer(k, v)"),
        _update("S = c * S + outer(k, v)", "input  c: scalar in (0, 1)"),
        "add to it with `+=`, or decay it: `c * S + ...`",
    ),
    "E307": Row(
        "a write of full rank",
        "a write that is not a sum of outer products",
        "What is written to S is a sum of `outer(key, value)`, with factors of scalar, key or value axis. A nonlinear "
        "function of an outer product has full rank, and a chunk cannot carry it as vectors.",
        _update("S += exp(outer(k, v))"),
        _update("S += outer(exp(k), v)"),
        "apply the function to the vectors",
    ),
}

_RANGES = {
    "E401": Row(
        "empty range",
        "no number lies in {range}",
        "A range is `in [a, b]`, round brackets exclude a bound. It needs a < b, or a = b with square brackets.",
        _rule("input  s: scalar in [1, 0]"),
        _rule("input  s: scalar in [0, 1]"),
        "write the smaller bound first",
    ),
    "E402": Row(
        "range not kept",
        "{what}",
        "A range on a state is a claim, proved by induction: the start value (0 by default) lies inside, and every "
        "update "
        "of it, given the declared ranges, stays inside. Nothing is clamped. A start value of a param lies in its "
        "range.",
        _rule("state  z: key in [0, inf)", "update z += k"),
        _rule("state  z: key in [0, inf)", "update z += k^2"),
    ),
    "E403": Row(
        "undefined for some values",
        "{what}",
        "`x / y` needs y ≠ 0, `log(x)` and `rsqrt(x)` x > 0, `sqrt(x)` x ≥ 0, `x ^ y` x > 0 unless y is a whole "
        "number. "
        "The declared ranges must prove it. Equal factors are squares (`k @ k` ≥ 0); `max(x, 1e-6)` guards.",
        _update("S += outer(k / (k @ k), v)"),
        _update("S += outer(k / max(k @ k, 1e-6), v)"),
    ),
    "E404": Row(
        "a decay of unknown sign",
        "the decay may be negative: it lies in [{lo:g}, {hi:g}]",
        "The factor of S is its decay and is kept as a log, so the declared ranges must prove it is not negative. "
        "Negative "
        "eigenvalues come from an erase: `outer(beta * k, v - k @ S)` with beta up to 2.",
        _update("S = c * S + outer(k, v)", "input  c: scalar"),
        _update("S = c * S + outer(k, v)", "input  c: scalar in (0, 1)"),
        "declare its range: `in (0, 1)`",
    ),
    "E405": Row(
        "a decay without bound",
        "the decay has no upper bound: it lies in [{lo:g}, {hi:g}]",
        "A factor of S above 1 makes the state grow; a bounded one is accepted, and the plan says how far it may "
        "grow in a "
        "chunk. Without a bound nothing can be said. A log decay is declared `in (-inf, 0]`.",
        _update("S = exp(h) * S + outer(k, v)", "input  h: scalar"),
        _update("S = exp(h) * S + outer(k, v)", "input  h: scalar in (-inf, 0]"),
        "declare its range: `in (-inf, 0]` for a log",
    ),
    "E406": Row(
        "a constant that is not finite",
        "the constant {what} is not finite",
        "Constants are finite in double precision, but for `inf` in start values and ranges.",
        _rule("let    a = 9^9^9"),
        _rule("let    a = 9^9"),
    ),
}

_MATRICES = _rule(
    "state  M: matrix",
    "input  a: scalar in [0, 1]",
    "update M = a * M - outer(k, k @ S - v)",
    update="update S = a * S + M\n",
)
_BACKENDS = {
    "E501": Row(
        "look-back on this backend",
        "the {backend} backend does not lower `prev` yet",
        "`prev(x)` needs the last tokens of an input across the ends of chunks. The `step` backend runs every rule.",
        _update("S += outer(prev(k), v)"),
        _update("S += outer(k, v)"),
        'use backend="step"',
        "backend",
    ),
    "E502": Row(
        "vector states on this backend",
        "the {backend} backend does not lower the state `{name}` yet",
        "A scalar, key, value or pair state is scanned before S. The `step` backend runs every rule.",
        _rule("state  z: key", "update z += k", read="read   o = (q + z) @ S\n"),
        _rule(read="read   o = (q + k) @ S\n"),
        'use backend="step"',
        "backend",
    ),
    "E503": Row(
        "rotations on this backend",
        "the {backend} backend does not lower `rotate` yet",
        "`rotate(x, a)` mixes neighbouring key channels. The `step` backend runs every rule.",
        _update("S += outer(rotate(k, th), v)", "input  th: pair"),
        _update("S += outer(k, v)"),
        'use backend="step"',
        "backend",
    ),
    "E504": Row(
        "a second matrix state",
        "{name} is a matrix state beside S: only the step backend runs this rule",
        "The normal form has one matrix state. With several, the lines are run token by token.",
        _MATRICES,
        _rule(),
        'use backend="step"',
        "backend",
    ),
}

_WARNINGS = {
    "W101": Row(
        "unused name",
        "the {kind} `{name}` is not used",
        "Nothing uses this name. An unused input still has to be given with every call, an unused param is trained for nothing. "
        "Often it is a slip: another name stands where this one was meant.",
        _rule("input  beta: scalar in (0, 1)"),
        _update("S += outer(beta * k, v)", "input  beta: scalar in (0, 1)"),
        "use it, or leave it out",
    ),
    "W102": Row(
        "unit of a unit vector",
        "this vector has norm 1 already",
        "`unit(x)` divides by the norm (with 1e-6 inside the root), so on a unit vector it costs work and makes its "
        "norm "
        "slightly less than 1.",
        _update("S += outer(unit(u), v)", "input  u: key unit"),
        _update("S += outer(u, v)", "input  u: key unit"),
        "leave `unit` out",
    ),
}

TABLE: dict[str, Row] = _SYNTAX | _NAMES | _AXES | _ALGEBRA | _RANGES | _BACKENDS | _WARNINGS
