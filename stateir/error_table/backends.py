"""E5xx: what a backend does not run."""

from __future__ import annotations

from .row import Row, rule, update

BACKENDS = {
    "E501": Row(
        "a second matrix state",
        "it carries several matrix states ({names})",
        "The normal form has one matrix state. With several, the lines are run token by token: the rule has the `step` "
        "backend alone.",
        rule(
            "state  M: matrix",
            "input  a: scalar in [0, 1]",
            "update M = a * M - outer(k, k @ S - v)",
            write="update S = a * S + M\n",
        ),
        rule(),
        'use backend="step"',
        "backend",
    ),
    "E502": Row(
        "too many rows a token",
        "it has {rows} rows of a kind a token; the kernels hold at most {most}",
        "A row is one `outer` of an update line; rows that share their key vector up to a scalar are one. The kernels "
        "keep the rows of a chunk in a core's memory. The `chunked` and `step` backends have no such limit.",
        update("S += outer(a[i], v) for i in 0..8", "input  a[9]: key"),
        update("S += outer(a[i], v) for i in 0..7", "input  a[8]: key"),
        'use backend="chunked"',
        "backend",
    ),
    "E503": Row(
        "nothing is written to S",
        "it writes nothing to S",
        "S only decays, so it stays what it was at the start, zero unless a state is given. There are no kernels for "
        "that.",
        update("S = c * S", "input  c: scalar in (0, 1)"),
        update("S = c * S + outer(k, v)", "input  c: scalar in (0, 1)"),
        'use backend="chunked"',
        "backend",
    ),
}
