"""E4xx: ranges; Wxxx: warnings."""

from __future__ import annotations

from .row import Row, rule, update

RANGES = {
    "E401": Row(
        "empty range",
        "no number lies in {range}",
        "A range is `in [a, b]`, round brackets exclude a bound. It needs a < b, or a = b with square brackets.",
        rule("input  s: scalar in [1, 0]"),
        rule("input  s: scalar in [0, 1]"),
        "write the smaller bound first",
    ),
    "E402": Row(
        "range not kept",
        "{what}",
        "A range on a state is a claim, proved by induction: the start value (0 by default) lies inside, and every "
        "update "
        "of it, given the declared ranges, stays inside. Nothing is clamped. A start value of a param lies in its "
        "range.",
        rule("state  z: key in [0, inf)", "update z += k"),
        rule("state  z: key in [0, inf)", "update z += k^2"),
    ),
    "E403": Row(
        "undefined for some values",
        "{what}",
        "`x / y` needs y ≠ 0, `log(x)` and `rsqrt(x)` x > 0, `sqrt(x)` x ≥ 0, `x ^ y` x > 0 unless y is a whole "
        "number. "
        "The declared ranges must prove it. Equal factors are squares (`k @ k` ≥ 0); `max(x, 1e-6)` guards.",
        update("S += outer(k / (k @ k), v)"),
        update("S += outer(k / max(k @ k, 1e-6), v)"),
    ),
    "E404": Row(
        "a decay of unknown sign",
        "the decay may be negative: it lies in [{lo:g}, {hi:g}]",
        "The factor of S is its decay and is kept as a log, so the declared ranges must prove it is not negative. "
        "Negative "
        "eigenvalues come from an erase: `outer(beta * k, v - k @ S)` with beta up to 2.",
        update("S = c * S + outer(k, v)", "input  c: scalar"),
        update("S = c * S + outer(k, v)", "input  c: scalar in (0, 1)"),
        "declare its range: `in (0, 1)`",
    ),
    "E405": Row(
        "a decay without bound",
        "the decay has no upper bound: it lies in [{lo:g}, {hi:g}]",
        "A factor of S above 1 makes the state grow; a bounded one is accepted, and the plan says how far it may "
        "grow in a "
        "chunk. Without a bound nothing can be said. A log decay is declared `in (-inf, 0]`.",
        update("S = exp(h) * S + outer(k, v)", "input  h: scalar"),
        update("S = exp(h) * S + outer(k, v)", "input  h: scalar in (-inf, 0]"),
        "declare its range: `in (-inf, 0]` for a log",
    ),
    "E406": Row(
        "a constant that is not finite",
        "the constant {what} is not finite",
        "Constants are finite in double precision, but for `inf` in start values and ranges.",
        rule("let    a = 9^9^9"),
        rule("let    a = 9^9"),
    ),
}

WARNINGS = {
    "W101": Row(
        "unused name",
        "the {kind} `{name}` is not used",
        "Nothing uses this name. An unused input still has to be given with every call, an unused param is trained for "
        "nothing. Often it is a slip: another name stands where this one was meant.",
        rule("input  beta: scalar in (0, 1)"),
        update("S += outer(beta * k, v)", "input  beta: scalar in (0, 1)"),
        "use it, or leave it out",
    ),
    "W102": Row(
        "unit of a unit vector",
        "this vector has norm 1 already",
        "`unit(x)` divides by the norm (with 1e-6 inside the root), so on a unit vector it costs work and makes its "
        "norm "
        "slightly less than 1.",
        update("S += outer(unit(u), v)", "input  u: key unit"),
        update("S += outer(u, v)", "input  u: key unit"),
        "leave `unit` out",
    ),
}
