"""What a rule costs and how its chunks are computed, from the core form alone: `stateir show RULE --as plan`.

Counts are for one token and one head. Bytes are the compulsory ones: every input read once, the output written once;
backward reads the inputs and the output's gradient and writes the inputs' gradients. Flops count a multiply-add as two
and the dense tiles of a chunk as they are, without halving for causality. The prologue (gates, norms, projections) is
elementwise work of the order of the bytes and is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from .column import column
from .ir import Axis, Expr, Prev, Ref, Rule, walk
from .normal import Core, NormalForm
from .ranges import Ranges
from .scans import Scan, scans


@dataclass(frozen=True)
class Shape:
    """Sizes that a plan is for: channels, tokens a chunk, bytes a number of the inputs."""

    K: int = 64
    V: int = 64
    chunk: int = 64
    itemsize: int = 2


@dataclass(frozen=True)
class Cost:
    """For one token and one head."""

    forward_bytes: int
    backward_bytes: int
    chunk_flops: int
    step_flops: int
    state_bytes: int

    @property
    def intensity(self) -> float:
        """Flops a byte of the chunked forward."""
        return self.chunk_flops / self.forward_bytes


@dataclass(frozen=True)
class Plan:
    """`erases` of the `rows` read S and take part in the solve; `products` are the distinct tiles of vector pairs.

    `column` is a state that S carries along, so that `scans` need not have it; `unfused` says why the Triton backend
    leaves the prologue to PyTorch (None: its kernels compute it).
    """

    decay: Axis | None
    rows: int
    erases: int
    reads: int
    products: int
    cost_class: str
    pairs: str
    solve: str
    unfused: str | None
    scans: tuple[Scan, ...]
    column: str | None
    carried: tuple[str, ...]
    largest_exponent: float
    shape: Shape
    cost: Cost


def plan(nf: NormalForm, core: Core, shape: Shape | None = None) -> Plan:
    """The plan of a normal form and its core. `shape` sizes the counts: K = V = 64, chunks of 64, 2 bytes if None."""
    shape = shape or Shape()
    decay = None if core.g is None else core.g.axis
    erases = [r for r in core.rows if r.e is not None]
    left: set[tuple[Expr, bool]] = {(r.e, r.post) for r in erases if r.e is not None}
    left |= {(r.q, r.post) for r in core.reads}
    right = {r.p_same for r in core.rows}
    products = len(left) * len(right)
    found = column(nf.rule, core)
    return Plan(
        decay=decay,
        rows=len(core.rows),
        erases=len(erases),
        reads=len(core.reads),
        products=products,
        cost_class=_cost_class(decay, len(erases)),
        pairs=_pairs(decay, shape.chunk),
        solve=_solve(len(erases), len(core.rows), shape.chunk),
        unfused=unfused(nf.rule, core),
        scans=tuple(x for x in scans(nf.rule) if found is None or x.states != (found.state,)),
        column=None if found is None else found.state,
        carried=carried(nf.rule),
        largest_exponent=_largest_exponent(nf, shape.chunk),
        shape=shape,
        cost=_cost(nf, core, len(erases), products, found is not None, shape),
    )


def carried(rule: Rule) -> tuple[str, ...]:
    """What goes from token to token: S, the declared states, and each input under `prev` (language rule 20)."""
    back: dict[str, int] = {}
    for line in rule.lines:
        for e in walk(line.value):
            if isinstance(e, Prev):
                back[e.of.name] = max(back.get(e.of.name, 0), e.n)
    return (
        *(s.name for s in rule.states),
        *(f"the last {n} {name}" if n > 1 else f"the last {name}" for name, n in back.items()),
    )


def unfused(rule: Rule, core: Core) -> str | None:
    """Why the prologue is not computed by kernels, a token from its own inputs; None if it is."""
    if beside := [x for x in carried(rule) if x != "S"]:
        return f"the rule carries {', '.join(beside)}"
    stack = list(core.expressions())
    seen: set[str] = set()
    while stack:
        for x in walk(stack.pop()):
            if x.axis is Axis.PAIR:
                return "the rule has pair vectors"
            if isinstance(x, Ref) and x.name in rule.lets and x.name not in seen:
                seen.add(x.name)
                stack.append(rule.lets[x.name])
    return None


def _cost_class(decay: Axis | None, erases: int) -> str:
    key = decay is Axis.KEY
    if not erases:
        return "dyadic levels, no solve" if key else "one masked product, no solve (the cheapest)"
    return "dyadic levels and a solve from the same masks" if key else "one product, decay outside it, and a solve"


def _pairs(decay: Axis | None, chunk: int) -> str:
    if decay is None:
        return "plain products, causal mask"
    if decay is Axis.SCALAR:
        return "plain products times exp(G_i - G_j), masked before the exponential"
    return f"dyadic references at {_levels(chunk)} levels; kernels: one product where sums from the middle are bounded"


def _levels(chunk: int) -> int:
    return max(1, math.ceil(math.log2(chunk)))


def _solve(erases: int, rows: int, chunk: int) -> str:
    if not erases:
        return "none: no row reads S"
    size = erases * chunk
    writes = rows - erases
    outside = f"; {writes} pure write{'s' if writes > 1 else ''} a token outside it" if writes else ""
    return f"unit lower triangular, {size} x {size} a chunk, exact block substitution{outside}"


def _largest_exponent(nf: NormalForm, chunk: int) -> float:
    """An upper bound on the exponent of a decay over a chunk: 0 unless a decay may exceed one."""
    ranges = Ranges(nf.rule)
    return chunk * sum(max(0.0, ranges.of(d).hi) for d in nf.decays if d is not None)


def _channels(axis: Axis, shape: Shape) -> int:
    """The numbers that one value of an axis has."""
    match axis:
        case Axis.KEY:
            return shape.K
        case Axis.VALUE:
            return shape.V
        case Axis.PAIR:
            return shape.K // 2
        case Axis.MATRIX:
            return shape.K * shape.V
    return 1


def _cost(nf: NormalForm, core: Core, erases: int, products: int, column: bool, shape: Shape) -> Cost:
    K, V, C = shape.K, shape.V + column, shape.chunk
    R, Q = len(core.rows), len(core.reads)
    levels = _levels(C) if core.g is not None and core.g.axis is Axis.KEY else 1
    inputs = sum(_channels(x.axis, shape) * (x.size or 1) for x in nf.rule.inputs) * shape.itemsize
    output = shape.V * shape.itemsize
    vectors = 2 * K * V * (erases + Q + R)  # reads of the state, and its update
    chunk = vectors + 2 * C * K * products * levels + 2 * C * V * R * Q
    if erases:
        inverse = 2 * erases**3 * C**2 // 3
        chunk += inverse + 2 * C * erases**2 * (K + V)  # T times the erase vectors and times the values
        chunk += 2 * C * V * erases * (R - erases)
    step = vectors + (K * V if core.g is not None else 0)
    state = sum(_channels(x.axis, shape) for x in nf.rule.states) * 4
    return Cost(inputs + output, 2 * inputs + output, chunk, step, state)


def _scan(scan: Scan) -> str:
    kinds = {
        "affine": "affine, z -> a z + b, by chunks",
        "max-plus": "(max, +), m -> max(m + a, b), by chunks",
        "sequential": "sequential: the rule's own lines, token by token",
    }
    return f"{', '.join(scan.states)}: {kinds[scan.kind]}"


def describe(p: Plan, backends: Mapping[str, str | None] | None = None) -> list[tuple[str, str]]:
    """The plan as (what, how) lines. `backends`: by name None, or why the rule does not have it; no line if None."""
    s, c = p.shape, p.cost
    rows = "1 row" if p.rows == 1 else f"{p.rows} rows"
    lines = [
        ("cost class", p.cost_class),
        ("decay", "none" if p.decay is None else f"{p.decay.value}, kept as a log"),
        ("rows", f"{rows} a token, {p.erases} of them erasing; {p.reads} read{'s' if p.reads != 1 else ''} of S"),
        ("pairs", f"{p.products} tile{'s' if p.products != 1 else ''} of pairs a chunk: {p.pairs}"),
        ("solve", p.solve),
        *([] if p.column is None else [("column", f"{p.column}: one more value column of S, read as S is")]),
        ("prologue", "fused kernels" if p.unfused is None else f"PyTorch, because {p.unfused}"),
        *(("scan", _scan(scan)) for scan in p.scans),
        ("carried", ", ".join(p.carried)),
        ("sizes", f"K = {s.K}, V = {s.V}, chunks of {s.chunk} tokens, {s.itemsize} bytes a number"),
        ("bytes", f"{c.forward_bytes:,} forward, {c.backward_bytes:,} backward (a token and head, compulsory)"),
        ("flops", f"{c.chunk_flops:,} chunked forward, {c.step_flops:,} a decoded token"),
        ("intensity", f"{c.intensity:.0f} flops a byte (chunked forward)"),
        ("state", f"{c.state_bytes:,} bytes a head"),
    ]
    if p.largest_exponent > 0:
        grows = f"a decay may exceed one: exponents up to {p.largest_exponent:.4g} a chunk"
        lines.append(("growth", f"{grows}, {'finite' if p.largest_exponent < 80 else 'too large'} in fp32"))
    return lines if backends is None else lines + describe_backends(backends)


def describe_backends(backends: Mapping[str, str | None]) -> list[tuple[str, str]]:
    """Which backends there are, and why not the others."""
    has = ", ".join(name for name, lack in backends.items() if lack is None)
    return [("backends", has), *((f"no {name}", lack) for name, lack in backends.items() if lack is not None)]
