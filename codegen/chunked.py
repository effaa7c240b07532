"""The chunked PyTorch form of a rule, written out as source text for the shape of its core form.

T tokens are cut into chunks. Everything within a chunk is computed for all chunks at once; only the state's way from
chunk to chunk is sequential. The algebra of one chunk (docs/design.md), its rows interleaved with time:

    (I + A) U = Y - C W - E S     U: what the erasing rows write; W: what the pure writes write, known beforehand
    O  = Q S + M U + N W          E, Q: covectors of erases and reads, moved to the start of the chunk, where S is
    S' = D S + P'U + R'W          P, R: directions of erasing rows and pure writes, moved to its end; D: its decay

A, C, M, N couple the covectors to the directions of the rows before them: `pairs` holds all four. Between tokens the
decay enters them (chunk_decay.py): not at all, as a factor beside the matrix product (scalar), or inside it (key).
Within a token they are the rule's own. A rule without erases has no U and no solve, one without pure writes no W.

The text is an autograd function with its backward pass written out: autograd would go through memory twice as often.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from textwrap import indent, wrap

from . import chunk_decay as decays
from . import chunk_parts as parts
from .shape import Shape
from .text import WIDTH

DEFAULT_CHUNK = {"none": 64, "scalar": 64, "key": 64}


def default_chunk(shape: Shape) -> int:
    """A good chunk size on a CPU, by the kind of decay."""
    return DEFAULT_CHUNK[shape.decay]


@cache
def chunked_source(shape: Shape) -> str:
    """Source text, needing only torch, that defines

        chunked(tensors: dict[str, Tensor], S0: Tensor, chunk: int) -> tuple[Tensor, Tensor]

    `tensors` are those of `shape.tensors()`, all of S0's dtype; S0 is [B, H, K, V]; chunk >= 1 is rounded up to a power
    of two for key-wise decays. Returns the output [B, T, H, V] and the last state [B, H, K, V], both differentiable
    once in all tensors.
    """
    plan = _plan(shape)
    pieces = [*_helpers(plan), _function(plan), _call(plan)]
    return "\n\n\n".join(piece.strip("\n") for piece in pieces) + "\n"


@dataclass(frozen=True)
class _Own:
    """Within a token, covector `reader` sees direction `writer` (places among all of them); `name`: by that tensor."""

    reader: int
    writer: int
    name: str | None


@dataclass(frozen=True)
class _Plan:
    """The rows of a shape in the order of the tensors: erases before reads, erasing rows before pure writes."""

    shape: Shape
    covectors: tuple[str, ...]
    posts: tuple[bool, ...]
    directions: tuple[str, ...]
    own: tuple[_Own, ...]
    inputs: tuple[str, ...]

    @property
    def erases(self) -> int:
        return len(self.shape.erasing)

    @property
    def writes(self) -> int:
        return len(self.shape.writing)

    @property
    def reads(self) -> int:
        return len(self.shape.reads)

    @property
    def decay(self) -> bool:
        return self.shape.decay != "none"

    @property
    def written(self) -> str:
        """The name of what the directions write."""
        return "UW" if self.erases and self.writes else "U" if self.erases else "W"

    @property
    def matrices(self) -> dict[str, str]:
        """Texts for those matrices of the algebra that this shape has, by their names."""
        e, r, w = self.erases, len(self.covectors), len(self.directions)
        erases, reads, rows, writes = _slice(0, e, r), _slice(e, r, r), _slice(0, e, w), _slice(e, w, w)
        start, end = ("at_start", "at_end") if self.decay else ("covectors", "directions")
        found = {"A": _part("pairs", erases, rows), "C": _part("pairs", erases, writes), "E": _part(start, erases)}
        found |= {"M": _part("pairs", reads, rows), "N": _part("pairs", reads, writes), "Q": _part(start, reads)}
        found |= {"P": _part(end, rows), "R": _part(end, writes)}
        missing = "ACEMP" * (not e) + "CNR" * (not self.writes) + "MNQ" * (not self.reads)
        return {name: f"matrix({text})" for name, text in found.items() if name not in missing}


def _plan(shape: Shape) -> _Plan:
    rows, erasing = shape.rows, shape.erasing
    if any(not (row.erases or row.has_y) for row in rows):
        raise ValueError("a row must erase or write: one without e and y does nothing")
    order = [*erasing, *shape.writing]
    seen = [(f"c{j}", rows[j].couplings) for j in erasing] + [(f"m{r}", x.couplings) for r, x in enumerate(shape.reads)]
    own = [
        _Own(place, order.index(c.row), f"{prefix}_{c.row}" if c.explicit else None)
        for place, (prefix, couplings) in enumerate(seen)
        for c in couplings
    ]
    return _Plan(
        shape,
        covectors=(*(f"e{j}" for j in erasing), *(f"q{r}" for r in range(len(shape.reads)))),
        posts=(*(rows[j].post for j in erasing), *(read.post for read in shape.reads)),
        directions=tuple(f"p{rows[i].p_same}" for i in order),
        own=tuple(own),
        inputs=tuple(name for name, _ in shape.tensors() if name[0] != "f" and name != "rest"),
    )


def _helpers(plan: _Plan) -> Iterator[str]:
    yield parts.IMPORTS
    yield parts.TO_CHUNKS
    yield parts.FROM_CHUNKS
    yield parts.STATE
    yield parts.MATRIX
    yield parts.BY_CHUNK
    if plan.own:
        yield parts.OWN
    if any(not c.name for c in plan.own):
        yield parts.DOT
    if plan.erases:
        yield parts.INVERSE
    yield {"none": decays.NONE, "scalar": decays.SCALAR, "key": decays.KEY}[plan.shape.decay]


def _function(plan: _Plan) -> str:
    forward = [_rows(plan), _couplings(plan), _scan(plan), _outputs(plan)]
    backward = [_outputs_backward(plan), _scan_backward(plan), _products_backward(plan), _inputs_backward(plan)]
    return "\n".join(
        [
            "class Chunks(torch.autograd.Function):",
            '    """The chunks of a sequence and, written out, the backward pass."""',
            "",
            "    @staticmethod",
            "    def forward(ctx: Any, S0: Tensor, chunk: int, *tensors: Tensor) -> tuple[Tensor, ...]:",
            _body(forward),
            "",
            "    @staticmethod",
            "    @torch.autograd.function.once_differentiable",
            "    def backward(ctx: Any, dlast: Tensor, *douts: Tensor) -> tuple[Tensor | None, ...]:",
            _body(backward),
        ]
    )


def _body(sections: Sequence[Iterator[str]]) -> str:
    texts = (indent("\n".join(section), " " * 8) for section in sections)
    return "\n\n".join(texts)


def _enclosed(head: str, items: Sequence[str], tail: str) -> str:
    """`head items tail`, where head ends and tail begins with a bracket; too long a list is broken into lines."""
    line = f"{head}{', '.join(items)}{tail}"
    if len(line) + 8 <= WIDTH:
        return line
    whole = (item.replace(" ", "\0") for item in items)
    lines = wrap(f"{', '.join(whole)},", WIDTH - 12, break_long_words=False, break_on_hyphens=False)
    return "\n".join([head, *(f"    {line}".replace("\0", " ") for line in lines), tail.removeprefix(",")])


def _tuple(items: Sequence[object]) -> str:
    return f"({', '.join(map(str, items))}{',' if len(items) == 1 else ''})"


def _slice(start: int, stop: int, count: int) -> str:
    return f"{start or ''}:{'' if stop == count else stop}"


def _part(name: str, members: str, others: str = ":") -> str:
    """Some members of each token, in `pairs` with some others."""
    index = [members] if others == ":" else [members, ":", others]
    return name if index == [":"] else f"{name}[{', '.join([':', ':', *index])}]"


def _named(plan: _Plan, names: str) -> Iterator[str]:
    """Statements that give the matrices of these names, as far as the shape has them."""
    found = [name for name in names if name in plan.matrices]
    if found:
        yield f"{', '.join(found)} = {', '.join(plan.matrices[name] for name in found)}"


def _rows(plan: _Plan) -> Iterator[str]:
    shape = plan.shape
    yield _enclosed("(", plan.inputs, ",) = tensors") if len(plan.inputs) == 1 else _unpacked(plan.inputs, "tensors")
    yield "B, H, keys, values = S0.shape"
    yield f"T = {plan.inputs[0]}.shape[1]"
    if shape.decay == "key":
        yield "chunk = 1 << (chunk - 1).bit_length()"
    yield "n = max(1, -(-T // chunk))  # for no token, one chunk of zeros"
    yield "S = to_state(S0)"
    yield ""
    yield "# Covectors and directions [Z, C, r, K] of all chunks; what the rows write."
    for name, members in (("covectors", plan.covectors), ("directions", plan.directions)):
        if members:
            yield _enclosed(f"{name} = to_chunks([", members, "], n, chunk)")
        else:
            yield f"{name} = S.new_zeros(B * H * n, chunk, 0, S.shape[1])"
    if plan.erases:
        have = [f"y{i}" for i in shape.erasing if shape.rows[i].has_y]
        if have:
            names = [f"y{i}" if shape.rows[i].has_y else f"torch.zeros_like({have[0]})" for i in shape.erasing]
            yield _enclosed("Y = matrix(to_chunks([", names, "], n, chunk))")
        else:
            yield f"Y = S.new_zeros(B * H * n, chunk * {plan.erases}, S.shape[2])"
    if plan.writes:
        yield _enclosed("W = to_chunks([", [f"y{i}" for i in shape.writing], "], n, chunk)")
    elif not plan.erases:
        yield "W = S.new_zeros(B * H * n, chunk, 0, S.shape[2])"


def _unpacked(names: Sequence[str], source: str) -> str:
    line = f"{', '.join(names)} = {source}"
    return line if len(line) + 8 <= WIDTH else _enclosed("(", names, f") = {source}")


def _couplings(plan: _Plan) -> Iterator[str]:
    if plan.decay:
        yield "# Couplings to earlier tokens, covectors moved to the start of the chunk and directions to its end."
        load = "to_chunks([g], n, chunk)"
        yield f"decay = between({load}[:, :, 0, 0])" if plan.shape.decay == "scalar" else f"decay = {load}.exp_()"
        yield f"pairs, at_start, at_end = coupled(covectors, directions, decay, {_tuple(plan.posts)})"
        yield "D = decay[:, -1, :1, None]" if plan.shape.decay == "scalar" else "D = decay.prod(1).mT"
    else:
        yield "# Couplings to earlier tokens."
        yield "pairs = coupled(covectors, directions)"
    if plan.own:
        yield "# Couplings within a token."
    for c in plan.own:
        dot = f"dot(covectors[:, :, {c.reader}], directions[:, :, {c.writer}])"
        value = f"to_chunks([{c.name}], n, chunk)[:, :, 0, 0]" if c.name else dot
        yield f"own(pairs, {c.reader}, {c.writer}).copy_({value})"
    for names in ("AC", "MN", "EQ", "PR"):
        yield from _named(plan, names)


def _steps(items: dict[str, str], *, reverse: bool = False) -> Iterator[str]:
    """The head of a loop over chunks, with a name in it for each of these texts."""
    sources = [f"by_chunk({text}, n)" for text in items.values()]
    if len(items) > 1:
        yield _enclosed("steps = zip(", [*sources, "strict=True"], ")")
        yield f"for {', '.join(items)} in {'reversed(list(steps))' if reverse else 'steps'}:"
    elif items:
        yield f"for {next(iter(items))} in {f'reversed({sources[0]})' if reverse else sources[0]}:"
    else:
        yield "for _ in range(n):"


def _scan(plan: _Plan) -> Iterator[str]:
    """The state at the start of every chunk, one after the other, and what the erasing rows write."""
    decay = {"d": "D"} if plan.decay else {}
    add = {"a": "R.mT @ matrix(W)"} if plan.writes else {}
    kept = {"da": "torch.addcmul(a, d, S)", "d": "d * S", "a": "S + a", "": "S"}["".join(decay | add)]
    if plan.erases:
        yield f"# From chunk to chunk: (I + A) U = Y{' - C W' * bool(plan.writes)} - E S."
        yield "solve = inverse(A)"
        yield "starts, Us = [], []"
        right = "Y - C @ matrix(W)" if plan.writes else "Y"
        yield from _steps({"y": right, "e": "E", "s": "solve", "p": "P"} | decay | add)
        yield "    starts.append(S)"
        yield "    u = s @ torch.baddbmm(y, e, S, alpha=-1)"
        yield "    Us.append(u)"
        yield f"    S = torch.baddbmm({kept}, p.mT, u)"
        yield f"U = torch.stack(Us, 1).view(B * H * n, chunk, {plan.erases}, -1)"
    else:
        yield "# From chunk to chunk."
        yield "starts = []"
        yield from _steps(decay | add)
        yield "    starts.append(S)"
        yield f"    S = {kept if kept != 'S' else 'S.clone()'}"
    yield "S_start = torch.stack(starts, 1).flatten(0, 1)"


def _outputs(plan: _Plan) -> Iterator[str]:
    if plan.erases and plan.writes:
        yield "UW = torch.cat((U, W), 2)"
    outs = [f"from_chunks(O[:, :, {r}], B, T, H, values)" for r in range(plan.reads)]
    if outs:
        terms = ["Q @ S_start", *["M @ matrix(U)"] * bool(plan.erases), *["N @ matrix(W)"] * bool(plan.writes)]
        yield f"O = ({' + '.join(terms)}).view(B * H * n, chunk, {plan.reads}, -1)"
    yield "ctx.sizes = B, T, H, keys, values, n, chunk"
    yield _enclosed("ctx.save_for_backward(", _saved(plan), ")")
    yield _enclosed("return (", ["from_state(S, B, keys, values)", *outs], ")" if outs else ",)")


def _saved(plan: _Plan) -> list[str]:
    names = ["covectors", "directions", "pairs", plan.written, "S_start"]
    if plan.decay:
        names += ["at_start", "at_end", "decay", "D"]
    if plan.erases:
        names.append("solve")
    return names


def _outputs_backward(plan: _Plan) -> Iterator[str]:
    yield "B, T, H, keys, values, n, chunk = ctx.sizes"
    yield _unpacked(_saved(plan), "ctx.saved_tensors")
    yield from _named(plan, "EQ")
    yield from _named(plan, "PR")
    yield "dS = to_state(dlast)"
    if plan.reads:
        yield "dO = to_chunks(douts, n, chunk)"
        yield "dS_read = Q.mT @ matrix(dO)"
    if plan.reads and plan.erases:
        yield from _named(plan, "M")
        yield "dU_read = M.mT @ matrix(dO)"


def _scan_backward(plan: _Plan) -> Iterator[str]:
    items = {"ds": "dS_read"} if plan.reads else {}
    items |= {"d": "D"} if plan.decay else {}
    kept = {"dsd": "torch.addcmul(ds, d, dS)", "d": "d * dS", "ds": "ds + dS", "": "dS"}["".join(items)]
    if plan.erases:
        yield "# From chunk to chunk, the last one first: dY = (I + A)^-T dU."
        yield "dS_ends, dYs = [], []"
        items |= {"du": "dU_read"} if plan.reads else {}
        yield from _steps(items | {"e": "E", "s": "solve", "p": "P"}, reverse=True)
        yield "    dS_ends.append(dS)"
        yield f"    dy = s.mT @ {'torch.baddbmm(du, p, dS)' if plan.reads else '(p @ dS)'}"
        yield "    dYs.append(dy)"
        yield f"    dS = torch.baddbmm({kept}, e.mT, dy, alpha=-1)"
        yield f"dY = torch.stack(dYs[::-1], 1).view(B * H * n, chunk, {plan.erases}, -1)"
    else:
        yield "# From chunk to chunk, the last one first."
        yield "dS_ends = []"
        yield from _steps(items, reverse=True)
        yield "    dS_ends.append(dS)"
        yield f"    dS = {kept}"
    yield "dS_end = torch.stack(dS_ends[::-1], 1).flatten(0, 1)"


def _products_backward(plan: _Plan) -> Iterator[str]:
    """Gradients of the couplings, of the moved rows, of the pure writes and of the log of a chunk's decay."""
    yield "# Gradients of what the covectors have read, hence of covectors, directions and their couplings."
    match bool(plan.erases), bool(plan.reads):
        case True, True:
            yield "dread = torch.cat((-dY, dO), 2)"
        case True, False:
            yield "dread = -dY"
        case False, True:
            yield "dread = dO"
        case _:
            yield "dread = S_start.new_zeros(B * H * n, chunk, 0, S_start.shape[2])"
    yield f"dpairs = (matrix(dread) @ matrix({plan.written}).mT).view(pairs.shape)"
    yield "dcovectors = (matrix(dread) @ S_start.mT).view(covectors.shape)"
    yield f"ddirections = (matrix({plan.written}) @ dS_end.mT).view(directions.shape)"
    if plan.writes:
        CN = _part("pairs", ":", _slice(plan.erases, len(plan.directions), len(plan.directions)))
        yield f"dW = (matrix({CN}).mT @ matrix(dread) + R @ dS_end).view(B * H * n, chunk, {plan.writes}, -1)"
    if plan.decay:
        axes = "(1, 2), keepdim=True" if plan.shape.decay == "scalar" else "2, keepdim=True"
        yield f"dlogD = D * (S_start * dS_end).sum({axes})"


def _inputs_backward(plan: _Plan) -> Iterator[str]:
    gradients = ["dpairs", "dcovectors", "ddirections", *["dlogD"] * plan.decay]
    decay = ["decay", _tuple(plan.posts)] if plan.decay else []
    pairs = ["pairs"] if plan.shape.decay == "scalar" else []
    target = f"dcovectors, ddirections{', dg' * plan.decay}"
    yield _enclosed(f"{target} = coupled_backward(", ["covectors", "directions", *decay, *pairs, *gradients], ")")
    for c in plan.own:
        if not c.name:
            yield f"c = own(dpairs, {c.reader}, {c.writer})[..., None]"
            yield f"dcovectors[:, :, {c.reader}] += c * directions[:, :, {c.writer}]"
            yield f"ddirections[:, :, {c.writer}] += c * covectors[:, :, {c.reader}]"
    yield "return ("
    yield "    from_state(dS, B, keys, values),"
    yield "    None,"
    yield from (f"    {_gradient(plan, name)}," for name in plan.inputs)
    yield ")"


def _gradient(plan: _Plan, name: str) -> str:
    """Text for the gradient of an input."""
    erasing, writing = plan.shape.erasing, plan.shape.writing
    explicit = {c.name: c for c in plan.own}
    size = "keys"
    if name in explicit:
        x, size = f"own(dpairs, {explicit[name].reader}, {explicit[name].writer})", ""
    elif name == "g":
        x, size = "dg", size if plan.shape.decay == "key" else ""
    elif name[0] == "p":
        x = " + ".join(f"ddirections[:, :, {i}]" for i, p in enumerate(plan.directions) if p == name)
    elif name[0] == "y":
        i, size = int(name[1:]), "values"
        x = f"dY[:, :, {erasing.index(i)}]" if i in erasing else f"dW[:, :, {writing.index(i)}]"
    else:
        x = f"dcovectors[:, :, {plan.covectors.index(name)}]"
    return f"from_chunks({x}, B, T, H, {size})" if size else f"from_chunks({x}[..., None], B, T, H, 1)[..., 0]"


def _call(plan: _Plan) -> str:
    """The function itself; what comes after the reads is left to autograd."""
    outs = [f"o{r}" for r in range(plan.reads)]
    factors = {"none": "", "scalar": 'tensors["f{r}"][..., None] * ', "value": 'tensors["f{r}"] * '}
    terms = [f"{factors[read.factor].format(r=r)}o{r}" for r, read in enumerate(plan.shape.reads)]
    terms += ['tensors["rest"]'] * plan.shape.rest
    lines = [
        '"""Output [B, T, H, V] and last state, for S0 [B, H, K, V] and tensors [B, T, H, ...]; chunk >= 1."""',
        _enclosed("inputs = [", [f'tensors["{name}"]' for name in plan.inputs], "]"),
        f"{', '.join(['last', *outs])}{'' if outs else ','} = Chunks.apply(S0, chunk, *inputs)",
        f"o = {terms[0]}",
        *(f"o = o + {term}" for term in terms[1:]),
        "return o, last",
    ]
    head = "def chunked(tensors: dict[str, Tensor], S0: Tensor, chunk: int) -> tuple[Tensor, Tensor]:"
    return f"{head}\n{indent(chr(10).join(lines), ' ' * 4)}"
