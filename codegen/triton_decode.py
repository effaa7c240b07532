"""Decode: one token in one kernel, one program a sequence, head and block of value columns.

The rows run in their order, on the state in fp32; what a row or read sees of an earlier row of the token comes through
the couplings, so the state is read once and written once. The new state never overwrites the old one.
"""

from __future__ import annotations

from .triton_text import Kernel, KernelText
from .triton_tiles import Group, Tiles


def decode_kernel(tiles: Tiles, comments: tuple[str, ...] = ()) -> Kernel:
    """The kernel `decode`; its tensors are those of a sequence of one token."""
    groups = tiles.groups
    pointers = [x.name for x in groups]
    pointers += ["y"] if tiles.e else []
    pointers += ["yw"] if tiles.w else []
    pointers += ["g"] if tiles.decays else []
    pointers += ["c"] if tiles.couplings else []
    pointers += ["before"]
    pointers += ["o"] if tiles.q else []
    pointers += ["after"]
    text = KernelText("decode", "One token.", pointers, ["K", "V", "KP", "BV"], comments)
    text(
        "sequence = tl.program_id(0).to(tl.int64)",
        "col_k = tl.arange(0, KP)",
        "col_v = tl.program_id(1) * BV + tl.arange(0, BV)",
        "in_k, in_v = col_k < K, col_v < V",
        "at_state = sequence * (K * V) + col_k[:, None] * V + col_v[None, :]",
        "in_state = in_k[:, None] & in_v[None, :]",
        "state = tl.load(before + at_state, mask=in_state, other=0.0)",
    )
    if tiles.decay == "key":
        text("decay = tl.exp(tl.load(g + sequence * K + col_k, mask=in_k, other=0.0).to(tl.float32))[:, None]")
    elif tiles.decay == "scalar":
        text("decay = tl.exp(tl.load(g + sequence).to(tl.float32))")
    for row in range(len(tiles.shape.rows)):
        _row(text, tiles, row)
    for read in range(len(tiles.shape.reads)):
        _read(text, tiles, read)
    text("", "new = state * decay" if tiles.decays else "new = state")
    text(*(f"new += p{row}[:, None] * u{row}[None, :]" for row in range(len(tiles.shape.rows))))
    text("tl.store(after + at_state, new, mask=in_state)")
    return text.kernel()


def _row(text: KernelText, tiles: Tiles, row: int) -> None:
    erases = tiles.shape.rows[row].erases
    e, right = tiles.e, tiles.p if erases else tiles.w
    assert right is not None
    slot = right.members.index(row)
    text("", f"p{row} = {_vector(right.name, right, slot, 'k')}")
    text(f"u{row} = {_vector('y' if erases else 'yw', right, slot, 'v')}")
    if erases and e:
        text(f"e{row} = {_vector('e', e, slot, 'k')}")
        text(f"u{row} -= {_through_state(tiles, f'e{row}', e.post[slot])}")
        for other, coupling in _couplings(tiles, e, slot):
            text(f"u{row} -= {coupling or f'tl.sum(e{row} * p{other}, 0)'} * u{other}")


def _read(text: KernelText, tiles: Tiles, read: int) -> None:
    q = tiles.q
    assert q is not None
    text("", f"q{read} = {_vector('q', q, read, 'k')}")
    text(f"o{read} = {_through_state(tiles, f'q{read}', q.post[read])}")
    for other, coupling in _couplings(tiles, q, read):
        text(f"o{read} += {coupling or f'tl.sum(q{read} * p{other}, 0)'} * u{other}")
    text(f"tl.store(o + (sequence * {q.rows} + {read}) * V + col_v, o{read}, mask=in_v)")


def _vector(name: str, group: Group, slot: int, axis: str) -> str:
    row = f"(sequence * {group.rows} + {slot})" if group.rows > 1 else "sequence"
    return f"tl.load({name} + {row} * {axis.upper()} + col_{axis}, mask=in_{axis}, other=0.0).to(tl.float32)"


def _through_state(tiles: Tiles, vector: str, post: bool) -> str:
    level = "state * decay" if post and tiles.decays else "state"
    return f"tl.sum({vector}[:, None] * ({level}), 0)"


def _couplings(tiles: Tiles, left: Group, slot: int) -> list[tuple[int, str | None]]:
    """(row, coupling) for each row that a left row sees; None stands for e . p~."""
    found: list[tuple[int, str | None]] = []
    for pair in tiles.pairs:
        if pair.left != left:
            continue
        found += [(pair.right.members[j], None) for i, j in pair.implicit if i == slot]
        found += [(pair.right.members[j], _column(tiles, column)) for i, j, column in pair.explicit if i == slot]
    return sorted(found)


def _column(tiles: Tiles, column: int) -> str:
    return f"tl.load(c + sequence * {len(tiles.couplings)} + {column})"
