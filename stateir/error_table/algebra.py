"""E3xx: the algebra of S."""

from __future__ import annotations

from .row import Row, rule, update

ALGEBRA = {
    "E301": Row(
        "nonlinear in S",
        "not affine in S: a nonlinear function of an expression that contains S",
        "An update and a read are affine in S: sums of S with factors, reads `k @ S`, and anything that does not "
        "contain S. "
        "Then a chunk of tokens has a closed form. A nonlinear function of a read (a norm, tanh, a division by it) "
        "has none. "
        "What does not read S may be as nonlinear as you like.",
        update("S += outer(k, tanh(k @ S))"),
        update("S += outer(k, tanh(v) - k @ S)"),
        "apply the function to something that does not read S, or leave it out",
    ),
    "E302": Row(
        "product of two expressions of S",
        "not affine in S: product of two expressions that both contain S",
        "An update and a read are affine in S; a product of two reads is quadratic, and a chunk of tokens has no "
        "closed form.",
        update("S += outer(k, (q @ S) * (k @ S))"),
        update("S += outer(k, v - (q + k) @ S)"),
        "keep S in one factor only",
    ),
    "E303": Row(
        "a contraction over value",
        "S is contracted over the value axis",
        "S is read from the key side, `k @ S`, a value vector. `S @ v`, and the `@` of a read with a value vector, "
        "sum over "
        "the value axis: then the columns of S depend on each other, and they are what a chunk treats alone.",
        update("S += outer(k - S @ v, v)"),
        update("S += outer(k, v - k @ S)"),
        "read S by a key vector: `k @ S`",
    ),
    "E304": Row(
        "a factor over value on S or a read",
        "a factor that varies over the value axis on S or on a read of S",
        "With a value-axis gate on S or on a read within an update, each value column needs a triangular solve of "
        "its own. "
        "A decay of each entry of S is the same. Decays are scalar or key; gate the written value instead.",
        update("S += outer(k, w * (v - k @ S))", "input  w: value in [0, 1]"),
        update("S += outer(k, w * v - k @ S)", "input  w: value in [0, 1]"),
        "gate the written value: `w * v - k @ S`",
    ),
    "E305": Row(
        "a vector state reads S",
        "the update of `{name}` reads {matrix}",
        "Lets and the updates of scalar, key, value and pair states never depend on S, so that they can be scanned "
        "before "
        "it. A state that must read S has to be a matrix.",
        rule("state  y: value", "update y += k @ S"),
        rule("state  y: value", "update y += v"),
    ),
    "E306": Row(
        "a line that forgets S",
        "this update keeps nothing of the state",
        "The factor of S on an update line is its decay, and its log is what is stored. A line without S multiplies "
        "it by 0, "
        "and is an output of the token alone.",
        update("S = outer(k, v)"),
        update("S = c * S + outer(k, v)", "input  c: scalar in (0, 1)"),
        "add to it with `+=`, or decay it: `c * S + ...`",
    ),
    "E307": Row(
        "a write of full rank",
        "a write that is not a sum of outer products",
        "What is written to S is a sum of `outer(key, value)`, with factors of scalar, key or value axis. A nonlinear "
        "function of an outer product has full rank, and a chunk cannot carry it as vectors.",
        update("S += exp(outer(k, v))"),
        update("S += outer(exp(k), v)"),
        "apply the function to the vectors",
    ),
}
