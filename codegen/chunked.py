"""The chunked PyTorch form of a rule, written out as source text for the shape of its core form.

T tokens are cut into chunks. Everything within a chunk is computed for all chunks at once; only the state's way from
chunk to chunk is sequential. The algebra of one chunk (docs/design.md), its rows interleaved with time:

    (I + A) U = Y - C X - E S     U: what the erasing rows write; X: what the pure writes write, known beforehand
    O  = Q S + M U + N X          E, Q: covectors of erases and reads, moved to the start of the chunk, where S is
    S' = D S + P'U + W'X          P, W: directions of erasing rows and pure writes, moved to its end; D: its decay

A, C, M, N couple the covectors to the directions of the rows before them. Between tokens the decay enters them: not at
all, as a factor beside the matrix product (scalar), or inside it (key). Within a token they are the rule's own. A rule
without erases has no U and no solve, one without pure writes no X.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from . import chunk_parts as parts
from .shape import Coupling, Shape

DEFAULT_CHUNK = {"none": 64, "scalar": 64, "key": 64}


def default_chunk(shape: Shape) -> int:
    """A good chunk size on a CPU, by the kind of decay."""
    return DEFAULT_CHUNK[shape.decay]


@cache
def chunked_source(shape: Shape) -> str:
    """Source text, needing only torch, that defines

        chunked(tensors: dict[str, Tensor], S0: Tensor, chunk: int) -> tuple[Tensor, Tensor]

    `tensors` are those of `shape.tensors()`, all of S0's dtype; S0 is [B, H, K, V]; chunk >= 1. Returns the output
    [B, T, H, V] and the last state [B, H, K, V], differentiable in all of them.
    """
    plan = _plan(shape)
    sections = (_load(shape), _between_tokens(plan), _within_token(plan), _values(plan), _scan(plan), _output(plan))
    body = "\n\n".join(_indented(section) for section in map(list, sections) if section)
    head = "def chunked(tensors: dict[str, Tensor], S0: Tensor, chunk: int) -> tuple[Tensor, Tensor]:"
    doc = _indented(
        ['"""Output [B, T, H, V] and last state, for S0 [B, H, K, V] and tensors [B, T, H, ...]; chunk >= 1."""']
    )
    pieces = [piece.strip("\n") for piece in _helpers(plan)]
    return "\n\n\n".join([*pieces, f"{head}\n{doc}\n{body}\n"])


@dataclass(frozen=True)
class _Group:
    """Covectors or directions, one or several a token, that stand together in one tensor, interleaved with time.

    `moved` names that tensor moved to the start (covectors) or end (directions) of the chunk; `couplings` holds for
    each covector the rows of its own token that it sees, and `explicit` begins the names of its explicit couplings.
    """

    name: str
    moved: str
    members: tuple[str, ...]
    posts: tuple[bool, ...] = ()
    couplings: tuple[tuple[Coupling, ...], ...] = ()
    explicit: tuple[str, ...] = ()

    @property
    def stacked(self) -> str:
        return _stack(self.members)

    @property
    def tensor(self) -> str:
        """The name of the stacked tensor, which for one member is the member."""
        return self.name if len(self.members) > 1 else self.members[0]


@dataclass(frozen=True)
class _Plan:
    shape: Shape
    readers: tuple[_Group, ...]
    writers: tuple[_Group, ...]
    write_rows: dict[str, tuple[int, ...]]

    @property
    def pairs(self) -> Iterator[tuple[str, _Group, _Group]]:
        """The couplings of the algebra: name, covectors, directions."""
        for reader in self.readers:
            for writer in self.writers:
                yield {"ep": "A", "ew": "C", "qp": "M", "qw": "N"}[reader.name + writer.name], reader, writer

    @property
    def erases(self) -> bool:
        return bool(self.shape.erasing)

    @property
    def writes(self) -> bool:
        return bool(self.shape.writing)


def _plan(shape: Shape) -> _Plan:
    rows, reads = shape.rows, shape.reads
    if any(not (row.erases or row.has_y) for row in rows):
        raise ValueError("a row must erase or write: one without e and y does nothing")
    erase = _Group(
        "e",
        "E",
        tuple(f"e{j}" for j in shape.erasing),
        tuple(rows[j].post for j in shape.erasing),
        tuple(rows[j].couplings for j in shape.erasing),
        tuple(f"c{j}_" for j in shape.erasing),
    )
    read = _Group(
        "q",
        "Q",
        tuple(f"q{r}" for r in range(len(reads))),
        tuple(r.post for r in reads),
        tuple(r.couplings for r in reads),
        tuple(f"m{r}_" for r in range(len(reads))),
    )
    write_rows = {"p": shape.erasing, "w": shape.writing}
    writers = (
        _Group(name, name.upper(), tuple(f"p{rows[i].p_same}" for i in members)) for name, members in write_rows.items()
    )
    return _Plan(
        shape,
        tuple(group for group in (erase, read) if group.members),
        tuple(group for group in writers if group.members),
        write_rows,
    )


def _indented(lines: Sequence[str]) -> str:
    return "\n".join(f"    {line}".rstrip() for line in lines)


def _stack(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"torch.stack(({', '.join(parts)}), 2).flatten(1, 2)"


def _helpers(plan: _Plan) -> Iterator[str]:
    decay = plan.shape.decay
    yield parts.IMPORTS
    yield parts.TO_CHUNKS
    if decay == "key":
        yield parts.TO_POWER_OF_TWO
        yield parts.PAIRS
    else:
        if any(len(reader.members) * len(writer.members) > 1 for _, reader, writer in plan.pairs):
            yield parts.NOT_BEFORE
        if decay == "scalar":
            yield parts.LEVELS
    if any(_seen(plan, reader, writer) for _, reader, writer in plan.pairs):
        yield parts.ON_DIAGONAL
    seen = (c for reader in plan.readers for couplings in reader.couplings for c in couplings)
    if any(not c.explicit for c in seen):
        yield parts.DOT
    if plan.shape.reads:
        yield parts.FROM_CHUNKS


def _load(shape: Shape) -> Iterator[str]:
    names = [name for name, _ in shape.tensors() if name[0] != "f" and name != "rest"]
    some = next(name for name, _ in shape.tensors())
    load = "to_chunks(tensors[name], n, chunk)"
    yield "B, H, keys, values = S0.shape"
    yield "S0 = to_lines(to_lines(S0).mT).mT.contiguous()"
    yield "K, V = S0.shape[2:]"
    yield f'T = tensors["{some}"].shape[1]'
    yield "n = max(1, -(-T // chunk))  # for no token, one chunk of zeros"
    yield ""
    yield "def load(name: str) -> Tensor:"
    yield f"    return to_power_of_two({load})" if shape.decay == "key" else f"    return {load}"
    yield ""
    yield from (f'{name} = load("{name}")' for name in names)


def _between_tokens(plan: _Plan) -> Iterator[str]:
    """Couplings to earlier tokens, covectors moved to the start of the chunk, directions moved to its end."""
    yield {
        "none": "# Couplings to earlier tokens.",
        "scalar": "# Couplings to earlier tokens: the decay is a factor of each entry.",
        "key": "# Couplings to earlier tokens, E and Q read at the start of the chunk, P and W written to its end.",
    }[plan.shape.decay]
    if plan.shape.decay == "key":
        yield from _between_key(plan)
        return
    for group in plan.readers + plan.writers:
        if len(group.members) > 1:
            yield f"{group.name} = {group.stacked}"
    scalar = plan.shape.decay == "scalar"
    if scalar:
        yield "decays = between(g[..., 0])"
        yield from _levels(plan)
    for name, reader, writer in plan.pairs:
        product = f"({reader.tensor} @ {writer.tensor}.mT)"
        r, w = len(reader.members), len(writer.members)
        strict = ".tril(-1)" if r * w == 1 else f".masked_fill(not_before({reader.tensor}, {r}, {w}), 0.0)"
        factor = f" * decays_{reader.name}{_repeat(w, 2)}" if scalar else ""
        yield f"{name} = {product}{strict}{factor}"
    for group in plan.readers + plan.writers:
        factor = f" * since_{group.name}" if group in plan.readers else f" * until{_repeat(len(group.members), 1)}"
        yield f"{group.moved} = {group.tensor}{factor if scalar else ''}"
    if scalar:
        yield "D = decays[:, -1, :1]"


def _levels(plan: _Plan) -> Iterator[str]:
    """The decays from the directions and the start to where the covectors stand, after or before their own decay."""
    for reader in plan.readers:
        after = {post: ":, 1:" if post else ":, :-1" for post in reader.posts}
        posts = reader.posts if len(after) > 1 else reader.posts[:1]
        repeat = _repeat(len(reader.members), 1) if len(after) == 1 else ""
        if plan.writers:
            yield f"decays_{reader.name} = {_stack([f'decays[{after[post]}, 1:]' for post in posts])}{repeat}"
        yield f"since_{reader.name} = {_stack([f'decays[{after[post]}, :1]' for post in posts])}{repeat}"
    if plan.writers:
        yield "until = decays[:, -1, 1:, None]"


def _repeat(count: int, dim: int) -> str:
    return f".repeat_interleave({count}, {dim})" if count > 1 else ""


def _between_key(plan: _Plan) -> Iterator[str]:
    if any(post for reader in plan.readers for post in reader.posts):
        yield "decay = torch.exp(g)"
    for letter, groups in (("covectors", plan.readers), ("directions", plan.writers)):
        yield f"{letter} = ["
        for group in groups:
            posts = group.posts or (False,) * len(group.members)
            members = [f"{x} * decay" if post else x for x, post in zip(group.members, posts, strict=True)]
            yield f"    {_stack(members)},"
        yield "]"
    pairs = [[name for name, reader, _ in plan.pairs if reader is row] for row in plan.readers]
    targets = [_list([_list(names) for names in pairs])]
    targets += [_list([group.moved for group in groups]) for groups in (plan.readers, plan.writers)]
    yield f"{', '.join(targets)}, D = decayed_pairs(g, covectors, directions)"


def _list(names: Sequence[str]) -> str:
    return f"[{', '.join(names)}]"


def _seen(plan: _Plan, reader: _Group, writer: _Group) -> bool:
    rows = plan.write_rows[writer.name]
    return any(c.row in rows for couplings in reader.couplings for c in couplings)


def _within_token(plan: _Plan) -> Iterator[str]:
    """Couplings to rows of the same token."""
    seen = [pair for pair in plan.pairs if _seen(plan, pair[1], pair[2])]
    if not seen:
        return
    yield "# Couplings within a token."
    for name, reader, writer in seen:
        rows = plan.write_rows[writer.name]
        table = []
        for x, couplings, prefix in zip(reader.members, reader.couplings, reader.explicit, strict=True):
            by_row = {c.row: c for c in couplings}
            entries = [_own(x, p, prefix, by_row.get(i)) for i, p in zip(rows, writer.members, strict=True)]
            table.append(entries[0] if len(entries) == 1 else f"torch.cat(({', '.join(entries)}), -1)")
        if len(table) == 1:
            yield f"{name} = {name} + on_diagonal({table[0]}[:, :, None])"
        else:
            yield "own = ("
            yield from (f"    {row}," for row in table)
            yield ")"
            yield f"{name} = {name} + on_diagonal(torch.stack(own, 2))"


def _own(x: str, p: str, prefix: str, coupling: Coupling | None) -> str:
    if coupling is None:
        return f"torch.zeros_like({p}[..., :1])"
    return f"{prefix}{coupling.row}" if coupling.explicit else f"dot({x}, {p})"


def _values(plan: _Plan) -> Iterator[str]:
    """X, and the solved rows as U = U0 - US S, so that the scan needs no solve."""
    rows = plan.shape.rows
    if plan.writes:
        yield f"X = {_stack([f'y{i}' for i in plan.shape.writing])}"
    if not plan.erases:
        return
    have = [f"y{i}" for i in plan.shape.erasing if rows[i].has_y]
    if have:
        values = [f"y{i}" if rows[i].has_y else f"torch.zeros_like({have[0]})" for i in plan.shape.erasing]
        yield f"Y = {_stack(values)}"
    if _solved_values(plan):
        right = {(True, True): "Y - C @ X", (True, False): "Y", (False, True): "-(C @ X)"}[bool(have), plan.writes]
        yield "# (I + A) U = Y - C X - E S, solved for every S at once: U = U0 - US S."
        yield f"right = torch.cat((E, {right}), -1)"
        yield "solved = torch.linalg.solve_triangular(A, right, upper=False, unitriangular=True)"
        yield "US, U0 = solved.split((K, V), -1)"
    else:
        yield "# (I + A) U = -E S, solved for every S at once: U = -US S."
        yield "US = torch.linalg.solve_triangular(A, E, upper=False, unitriangular=True)"


def _solved_values(plan: _Plan) -> bool:
    """Whether the erasing rows write anything beyond what they take from S."""
    return plan.writes or any(plan.shape.rows[i].has_y for i in plan.shape.erasing)


def _scan(plan: _Plan) -> Iterator[str]:
    """The state at the start of every chunk, one after the other."""
    adds = ["P.mT @ U0"] * (plan.erases and _solved_values(plan)) + ["W.mT @ X"] * plan.writes
    decays = plan.shape.decay != "none"
    loop: dict[str, str] = {}
    if plan.erases:
        yield (
            "# From chunk to chunk: S' = (D - P'US) S + (P'U0 + W'X)."
            if plan.writes
            else ("# From chunk to chunk: S' = (D - P'US) S + P'U0.")
        )
        decay = "torch.diag_embed(D.expand(-1, K))" if decays else "torch.eye(K, dtype=S0.dtype, device=S0.device)"
        yield f"turn = {decay} - P.mT @ US"
        loop["turn"] = "turn"
        update = "torch.baddbmm(add_c, turn_c, S)" if adds else "turn_c @ S"
    else:
        yield "# From chunk to chunk: S' = D S + W'X."
        if decays:
            loop["D"] = "D[..., None]"
        update = " + ".join(["D_c * S" if decays else "S", *(["add_c"] if adds else [])])
    if adds:
        yield f"add = {' + '.join(adds)}"
        loop["add"] = "add"
    yield "S = S0.reshape(B * H, K, V)"
    yield "starts = []"
    if loop:
        sources = [f"{x}.unflatten(0, (B * H, n)).unbind(1)" for x in loop.values()]
        names = [f"{name}_c" for name in loop]
        if len(loop) == 1:
            yield f"for {names[0]} in {sources[0]}:"
        else:
            yield f"for {', '.join(names)} in zip("
            yield from (f"    {source}," for source in sources)
            yield "    strict=True,"
            yield "):"
    else:
        yield "for _ in range(n):"
    yield "    starts.append(S)"
    if loop:
        yield f"    S = {update}"
    yield "last = S.view(B, H, K, V)[..., :keys, :values]"


def _output(plan: _Plan) -> Iterator[str]:
    reads = plan.shape.reads
    terms = []
    if reads:
        yield "# Outputs."
        yield "S_start = torch.stack(starts, 1).flatten(0, 1)"
        out = ["Q @ S_start"]
        if plan.erases:
            out.append(f"M @ {'(U0 - US @ S_start)' if _solved_values(plan) else '(-US @ S_start)'}")
        if plan.writes:
            out.append("N @ X")
        yield f"O = {' + '.join(out)}"
        if len(reads) > 1:
            names = [f"o{r}" for r in range(len(reads))]
            yield f"{', '.join(names)} = O.unflatten(1, (-1, {len(reads)})).unbind(2)"
        for r, read in enumerate(reads):
            source = f"o{r}" if len(reads) > 1 else "O"
            value = f"from_chunks({source}, B, H, T, chunk)[..., :values]"
            factor = {"none": "", "scalar": f'tensors["f{r}"][..., None] * ', "value": f'tensors["f{r}"] * '}
            terms.append(factor[read.factor] + value)
    if plan.shape.rest:
        terms.append('tensors["rest"]')
    yield f"o = {terms[0]}"
    yield from (f"o = o + {term}" for term in terms[1:])
    yield "return o, last"
