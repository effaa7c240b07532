"""E2xx: axes, time and loops."""

from __future__ import annotations

from .row import Row, rule, update

AXES = {
    "E202": Row(
        "axes do not fit",
        "{what}",
        "Axes are nominal: scalar, key, value, pair, matrix. `*` and `/` need equal axes, or the axes of one side "
        "within "
        "those of the other; `+`, `-`, `^`, `min` and `max` need equal axes, or a scalar and a vector; `a @ b` sums "
        "over "
        "the one axis that both share; `outer` takes a key and a value vector.",
        update("S += outer(k + v, v)"),
        update("S += outer(k + q, v)"),
    ),
    "E203": Row(
        "a state indexed by time",
        "`{name}` is a state: it has no index",
        "Time is the order of the lines. A state's name is that state just before its line, so the future cannot be "
        "written, and the past is what the state carries. `prev(x)` looks back at an input.",
        update("S += outer(k, v - k @ S[0])"),
        update("S += outer(k, v - k @ S)"),
    ),
    "E204": Row(
        "not a declared state",
        "`{name}` is {what}: only states are updated",
        "`S` is there from the start; every other state is declared with its axis, so that its size and start are "
        "known.",
        rule("update z += k"),
        rule("state  z: key", "update z += k"),
    ),
    "E205": Row(
        "no such declaration",
        "{what}",
        "Only states are matrices, and only inputs and params are arrays.",
        rule("input  W: matrix"),
        rule("input  a: key, b: value", "let    W = outer(a, b)"),
    ),
    "E206": Row(
        "update of another axis",
        "`{name}` is {axis}, its new value is {found}",
        "A state keeps its axis. A scalar may be added to a vector state; nothing else is broadcast.",
        rule("state  z: key", "update z += v"),
        rule("state  z: value", "update z += v"),
    ),
    "E207": Row(
        "the output is not a value vector",
        "the output must be a value vector, this is {found}",
        "`read` puts out a value vector, as `q @ S` is. It has the dtype and the head size of the value inputs.",
        rule(read="read   o = q @ k\n"),
        rule(read="read   o = (q @ k) * v\n"),
        "`q @ S` reads S by a key vector",
    ),
    "E208": Row(
        "bad array, index or loop",
        "{what}",
        "Lengths, indices and bounds of loops are whole numbers known at compile time: a literal, a `let` that is "
        "one, or "
        "the variable of a loop, plus or minus a literal. Indices start at 0, both ends of a loop are included, and "
        "nothing is longer than 64.",
        update("S += outer(a[i], v) for i in 0..2", "input  a[2]: key"),
        update("S += outer(a[i], v) for i in 0..1", "input  a[2]: key"),
    ),
    "E209": Row(
        "index and array do not fit",
        "{what}",
        "An array is always indexed, and only an array is. An index does not mean a time.",
        update("S += outer(k[1], v)"),
        update("S += outer(prev(k), v)"),
    ),
    "E210": Row(
        "a let reads a matrix state",
        "a `let` may not read {name}",
        "A let is evaluated where it stands. One that read S at the top of a rule would silently read the state "
        "before the "
        "decay, so what reads S is written on the line that uses it. Lets and the states of vectors can then be "
        "computed "
        "before S is.",
        update("S += outer(k, v - r)", "let    r = k @ S"),
        update("S += outer(k, v - k @ S)"),
        "write the reading out on the lines that use it",
    ),
    "E211": Row(
        "unit of no vector",
        "{what}",
        "`unit` speaks of the norm of a vector: of key, value or pair axis.",
        rule("input  a: scalar unit"),
        rule("input  a: scalar in [-1, 1]"),
        "a scalar has a range: `in [-1, 1]`",
    ),
    "E212": Row(
        "wrong arguments",
        "{what}",
        "Functions: exp, log, sqrt, rsqrt, sigmoid, softplus, tanh, abs, unit of one argument; min, max, rotate, "
        "outer of "
        "two; prev of an input and a literal; dim of the word key or value.",
        rule("let    a = max(k)"),
        rule("let    a = max(k, 0)"),
    ),
    "E214": Row(
        "bad look-back",
        "{what}",
        "`prev(x)` and `prev(x, n)` are the input x one or n tokens ago, zero before the sequence, with a literal n "
        "from 1 "
        "to 64. Only inputs are kept: apply `prev` to each input inside an expression. The future cannot be written.",
        update("S += outer(prev(2 * k), v)"),
        update("S += outer(2 * prev(k), v)"),
    ),
    "E215": Row(
        "ambiguous product",
        "{what}",
        "In a run of `*`, `/` and `@` without parentheses there is at most one `@`, and every factor but its two "
        "operands "
        "is a scalar, so that the value does not depend on how the run groups. `b * k @ S` could be `(b * k) @ S` or "
        "`b * (k @ S)`: with other axes both make sense, and they differ.",
        update("S += outer(k, v - b * k @ S)", "input  b: key"),
        update("S += outer(k, v - (b * k) @ S)", "input  b: key"),
    ),
}
