"""Random rule texts that must be accepted: every function, axis and operator, nested at random."""

import random

HEAD = """rule random
input q: key unit, k: key, b: key in [0, 1], g: key in (-inf, 0]
input v: value, w: value in [0, 1], u: value unit
input c: scalar in (0, 1), s: scalar, h: scalar in [-0.5, 2], th: pair
input ka[2]: key, sa[3]: scalar in [0, 1]
param lam: scalar in [0, 0.25] = 0.25 * sigmoid(-2), D: value fixed = 1 / (1 + head)
state z: key, m: scalar = -inf
"""
_ATOMS = {
    "scalar": [
        "c",
        "s",
        "h",
        "lam",
        "m",
        "2",
        "0.5",
        "1e-3",
        "dim(key)",
        "sa[1]",
        "n",
        "(q @ k)",
        "prev(s, 2)",
        "(v @ w)",
    ],
    "key": ["q", "k", "b", "g", "z", "ka[0]", "ka[n-1]", "prev(k)", "rotate(k, th)", "prev(ka[1], 3)"],
    "value": ["v", "w", "u", "D", "prev(v)"],
}


def _expression(rng: random.Random, axis: str, depth: int) -> str:
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(_ATOMS[axis])

    def of(other: str = axis) -> str:
        return _expression(rng, other, depth - 1)

    match rng.randrange(10):
        case 0:
            return f"({of()} {rng.choice('+-*')} {of()})"
        case 1:
            return f"({of()} {rng.choice('+-*')} {of()} {rng.choice('+-*')} {of()})"
        case 2:
            return f"{of('scalar')} * {of()}" if rng.random() < 0.5 else f"({of('scalar')} * {of()})"
        case 3:
            return f"-{of()}"
        case 4:
            return f"{rng.choice(['tanh', 'sigmoid', 'softplus', 'abs'])}({of()})"
        case 5:
            return f"{rng.choice(['min', 'max'])}({of()}, {of(rng.choice([axis, 'scalar']))})"
        case 6:
            return f"({of()} / max(abs({of()}), 1e-3))"
        case 7:
            return f"({of()})^{rng.choice(['2', '3', '0'])}"
        case 8:
            return f"sqrt(({of()})^2)" if axis == "scalar" else f"unit({of()})"
    if axis == "scalar":
        other = rng.choice(["key", "value"])
        return f"(({of(other)}) @ ({of(other)}))"
    return f"exp(-abs({of()}))"


def rule_text(seed: int) -> str:
    """A rule with lets, states, loops, erases and decays; the same text for the same seed."""
    rng = random.Random(seed)

    def of(axis: str) -> str:
        return _expression(rng, axis, rng.randrange(1, 4))

    lines = [f"let n = {rng.choice([1, 2])}"]
    lines += [f"let x{i} = {of(rng.choice(['scalar', 'key', 'value']))}" for i in range(rng.randrange(3))]
    lines.append(f"update z {rng.choice(['=', '+=', '-='])} {of('key')}")
    lines.append(f"update m = {of('scalar')}")
    decay = rng.choice(["exp(g) * S", "c * S", "S * exp(g) / 2", "sigmoid(s) * S"])
    lines.append(f"update S = {decay} + outer({of('key')}, {of('value')})")
    lines.append(f"update S += outer({of('key')}, {of('value')} - ({of('key')}) @ S)")
    lines.append("update S -= outer(sa[i+1] * ka[i], ka[i] @ S) for i in 0..1")
    lines.insert(rng.randrange(2, len(lines) + 1), f"read o = {of('value')} + ({of('key')}) @ S / sqrt(dim(key))")
    return HEAD + "\n".join(lines) + "\n"
