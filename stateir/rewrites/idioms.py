"""How the functions and habits of array libraries are written in the language."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stateir.edits import grouped

# name -> what is written for it, {0}, {1} ... its arguments as factors; several where the axes decide.
FUNCTIONS: dict[str, tuple[str, ...]] = {
    "relu": ("max({0}, 0)",),
    "silu": ("{0} * sigmoid({0})",),
    "swish": ("{0} * sigmoid({0})",),
    "gelu": ("{0} * sigmoid(1.702 * {0})",),
    "elu": ("max({0}, 0) + exp(min({0}, 0)) - 1",),
    "softmax": ("exp({0}) / (exp({0}) @ {0}^0)",),
    "logsigmoid": ("-softplus(-{0})",),
    "expm1": ("exp({0}) - 1",),
    "log1p": ("log(1 + {0})",),
    "exp2": ("2^{0}",),
    "square": ("{0}^2",),
    "pow": ("{0}^{1}",),
    "power": ("{0}^{1}",),
    "reciprocal": ("1 / {0}",),
    "norm": ("sqrt({0} @ {0})",),
    "normalize": ("unit({0})",),
    "l2norm": ("unit({0})",),
    "l2_norm": ("unit({0})",),
    "rms_norm": ("unit({0})",),
    "rmsnorm": ("unit({0})",),
    "layernorm": ("unit({0})",),
    "layer_norm": ("unit({0})",),
    "clamp": ("min(max({0}, {1}), {2})", "max({0}, {1})"),
    "clip": ("min(max({0}, {1}), {2})", "max({0}, {1})"),
    "maximum": ("max({0}, {1})",),
    "minimum": ("min({0}, {1})",),
    "dot": ("{0} @ {1}",),
    "inner": ("{0} @ {1}",),
    "matmul": ("{0} @ {1}", "outer({0}, {1})"),
    "mm": ("{0} @ {1}", "outer({0}, {1})"),
    "mul": ("{0} * {1}", "outer({0}, {1})"),
    "add": ("{0} + {1}",),
    "sub": ("{0} - {1}",),
    "div": ("{0} / {1}",),
    "sum": ("{0} @ {0}^0",),
    "diag": ("{0}",),
    "transpose": ("{0}",),
    "old": ("{0}",),
    "rot": ("rotate({0}, {1})",),
    "rope": ("rotate({0}, {1})",),
    "sqr": ("{0}^2",),
}

# What has no counterpart, and why.
NONE = {
    "diag": "there is no `diag`: Diag(a) S is written `a * S`",
    "softmax": "there is no softmax: it sums over an axis; of a vector that does not read S it is a quotient, "
    "of a read of S it is not affine",
    "sign": "there is no sign: it has no useful derivative",
    "where": "there is no choice by a condition: `min`, `max` and `sigmoid` bound and gate",
    "cumsum": "there is no sum over time: what a rule carries is a `state`",
    "sin": "there is no sine: `rotate(x, a)` turns the pairs of a key vector by an angle",
    "cos": "there is no cosine: `rotate(x, a)` turns the pairs of a key vector by an angle",
    "mean": "there is no mean: `x @ y` sums over an axis, `dim(key)` and `dim(value)` are its length",
}


def words(name: str) -> str | None:
    """What to say of an unknown function, None if it is no function of the array libraries."""
    key = name.lower()
    if key in NONE:
        return NONE[key]
    if key in FUNCTIONS:
        xs = ", ".join(f"`{t.format('x', 'y', 'z')}`" for t in FUNCTIONS[key][:1])
        return f"there is no `{name}`: write {xs}"
    return None


def rewritten(name: str, args: Sequence[str]) -> Iterator[str]:
    """A call of a function of another library in the language's own words."""
    given = [grouped(a) for a in args]
    for template in FUNCTIONS.get(name.lower(), ()):
        if f"{{{len(args)}}}" not in template and given:
            yield template.format(*given)
