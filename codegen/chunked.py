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
from functools import cache
from textwrap import indent

from . import chunk_decay as decays
from . import chunk_parts as parts
from .chunk_backward import backward
from .chunk_plan import METHOD, Plan, enclosed, named, plan_of, saved, steps, tuple_text, unpacked
from .shape import Shape

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
    plan = plan_of(shape)
    pieces = [*_helpers(plan), _function(plan), _call(plan)]
    return "\n\n\n".join(piece.strip("\n") for piece in pieces) + "\n"


def _helpers(plan: Plan) -> Iterator[str]:
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


def _function(plan: Plan) -> str:
    forward = [_rows(plan), _couplings(plan), _scan(plan), _outputs(plan)]
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
            "    @_once",
            "    def backward(ctx: Any, dlast: Tensor, *douts: Tensor) -> tuple[Tensor | None, ...]:",
            _body(backward(plan)),
        ]
    )


def _body(sections: Sequence[Iterator[str]]) -> str:
    texts = (indent("\n".join(section), " " * METHOD) for section in sections)
    return "\n\n".join(texts)


def _rows(plan: Plan) -> Iterator[str]:
    shape = plan.shape
    yield enclosed("(", plan.inputs, ",) = tensors") if len(plan.inputs) == 1 else unpacked(plan.inputs, "tensors")
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
            yield enclosed(f"{name} = to_chunks([", members, "], n, chunk)")
        else:
            yield f"{name} = S.new_zeros(B * H * n, chunk, 0, S.shape[1])"
    if plan.erases:
        have = [f"y{i}" for i in shape.erasing if shape.rows[i].has_y]
        if have:
            names = [f"y{i}" if shape.rows[i].has_y else f"torch.zeros_like({have[0]})" for i in shape.erasing]
            yield enclosed("Y = matrix(to_chunks([", names, "], n, chunk))")
        else:
            yield f"Y = S.new_zeros(B * H * n, chunk * {plan.erases}, S.shape[2])"
    if plan.writes:
        yield enclosed("W = to_chunks([", [f"y{i}" for i in shape.writing], "], n, chunk)")
    elif not plan.erases:
        yield "W = S.new_zeros(B * H * n, chunk, 0, S.shape[2])"


def _couplings(plan: Plan) -> Iterator[str]:
    if plan.decay:
        yield "# Couplings to earlier tokens, covectors moved to the start of the chunk and directions to its end."
        load = "to_chunks([g], n, chunk)"
        yield f"decay = between({load}[:, :, 0, 0])" if plan.shape.decay == "scalar" else f"decay = {load}.exp_()"
        yield f"pairs, at_start, at_end = coupled(covectors, directions, decay, {tuple_text(plan.posts)})"
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
        yield from named(plan, names)


def _scan(plan: Plan) -> Iterator[str]:
    """The state at the start of every chunk, one after the other, and what the erasing rows write."""
    decay = {"d": "D"} if plan.decay else {}
    add = {"a": "R.mT @ matrix(W)"} if plan.writes else {}
    kept = {"da": "torch.addcmul(a, d, S)", "d": "d * S", "a": "S + a", "": "S"}["".join(decay | add)]
    if plan.erases:
        yield f"# From chunk to chunk: (I + A) U = Y{' - C W' * bool(plan.writes)} - E S."
        yield "solve = inverse(A)"
        yield "starts, Us = [], []"
        right = "Y - C @ matrix(W)" if plan.writes else "Y"
        yield from steps({"y": right, "e": "E", "s": "solve", "p": "P"} | decay | add)
        yield "    starts.append(S)"
        yield "    u = s @ torch.baddbmm(y, e, S, alpha=-1)"
        yield "    Us.append(u)"
        yield f"    S = torch.baddbmm({kept}, p.mT, u)"
        yield f"U = torch.stack(Us, 1).view(B * H * n, chunk, {plan.erases}, -1)"
    else:
        yield "# From chunk to chunk."
        yield "starts = []"
        yield from steps(decay | add)
        yield "    starts.append(S)"
        yield f"    S = {kept if kept != 'S' else 'S.clone()'}"
    yield "S_start = torch.stack(starts, 1).flatten(0, 1)"


def _outputs(plan: Plan) -> Iterator[str]:
    if plan.erases and plan.writes:
        yield "UW = torch.cat((U, W), 2)"
    outs = [f"from_chunks(O[:, :, {r}], B, T, H, values)" for r in range(plan.reads)]
    if outs:
        terms = ["Q @ S_start", *["M @ matrix(U)"] * bool(plan.erases), *["N @ matrix(W)"] * bool(plan.writes)]
        yield f"O = ({' + '.join(terms)}).view(B * H * n, chunk, {plan.reads}, -1)"
    yield "ctx.sizes = B, T, H, keys, values, n, chunk"
    yield enclosed("ctx.save_for_backward(", saved(plan), ")")
    yield enclosed("return (", ["from_state(S, B, keys, values)", *outs], ")" if outs else ",)")


def _call(plan: Plan) -> str:
    """The function itself; what comes after the reads is left to autograd."""
    outs = [f"o{r}" for r in range(plan.reads)]
    factors = {"none": "", "scalar": 'tensors["f{r}"][..., None] * ', "value": 'tensors["f{r}"] * '}
    terms = [f"{factors[read.factor].format(r=r)}o{r}" for r, read in enumerate(plan.shape.reads)]
    terms += ['tensors["rest"]'] * plan.shape.rest
    lines = [
        '"""Output [B, T, H, V] and last state, for S0 [B, H, K, V] and tensors [B, T, H, ...]; chunk >= 1."""',
        enclosed("inputs = [", [f'tensors["{name}"]' for name in plan.inputs], "]"),
        f"{', '.join(['last', *outs])}{'' if outs else ','} = Chunks.apply(S0, chunk, *inputs)",
        f"o = {terms[0]}",
        *(f"o = o + {term}" for term in terms[1:]),
        "return o, last",
    ]
    head = "def chunked(tensors: dict[str, Tensor], S0: Tensor, chunk: int) -> tuple[Tensor, Tensor]:"
    return f"{head}\n{indent(chr(10).join(lines), ' ' * 4)}"
