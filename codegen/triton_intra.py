"""The first kernel of a chunk: the matrices between its rows, and the inverse that solves them.

    A_rs = sum over k of  e_r exp(L_r - G_s) p_s     s in an earlier token; L_r is the level at which row r reads
         = c_rs, or e_r . p_s                        s in the same token, where row r sees it
    M, B, N likewise;  inverse = (I + A)^-1

Key decay cannot leave the sum over k. It enters through dyadic references (`_to_reference`): level by level, every
earlier pair of tokens is met once, and each factor's exponent is a sum of log decays of its own.
"""

from __future__ import annotations

from .triton_text import Kernel, KernelText, Text, chunk_program, locate, log_decay, same_token, wide
from .triton_tiles import Group, Pair, Tiles


def intra_kernel(tiles: Tiles) -> Kernel:
    """The kernel `intra`, one program a chunk."""
    lefts, rights = tiles.lefts, tiles.rights
    pointers = [x.name for x in (*lefts, *rights)]
    pointers += ["g"] if tiles.decays else []
    pointers += ["c"] if tiles.couplings else []
    pointers += [output(pair) for pair in tiles.pairs]
    text = KernelText("intra", _docstring(tiles), pointers,
                  ["K", "BK", "C", "LEVELS"])  # fmt: skip
    chunk_program(text)
    locate(text, tiles.groups)
    text(f"dtype: tl.constexpr = {rights[0].name}.dtype.element_ty")
    text("")
    if tiles.decay == "key":
        _key_decay(text, tiles)
    else:
        _one_product(text, tiles)
    for pair in tiles.pairs:
        _explicit(text, tiles, pair)
    text("")
    if tiles.e:
        _invert(text, tiles.e)
    for pair in tiles.pairs:
        value = "inverse" if pair.name == "a" else pair.name
        shape = f"{pair.left.size}, {pair.right.size}"
        text(f"tl.store(_matrix({output(pair)}, pid, {shape}), {value}.to(dtype))")
    return text.kernel()


def output(pair: Pair) -> str:
    """The stored form of a matrix: a is kept as the inverse that it defines."""
    return "inverse_out" if pair.name == "a" else f"{pair.name}_out"


def factor(group: Group) -> str:
    """The variable of a group's dyadic decay factors; equal for groups that lie alike in time."""
    return f"x{group.slots}" if all(group.post) else f"x_{group.name}"


def factors(text: Text, tiles: Tiles) -> None:
    """The dyadic factors of all groups at `level`."""
    done = set()
    for x in tiles.groups:
        if factor(x) not in done:
            text(f"{factor(x)} = _to_reference(decay, {x.token}, {x.end}, tau, level)")
            done.add(factor(x))


def _docstring(tiles: Tiles) -> str:
    names = ", ".join(f"{x.name} = {x.left.name} x {x.right.name}" for x in tiles.pairs)
    return f"The chunk's matrices {names}" + ("; a as inverse = (I + a)^-1." if tiles.e else ".")


def _load(text: Text, x: Group) -> None:
    text(f"{x.name}_tile = _load({x.name}, {x.at}, {x.live}, col, K)")


def _key_decay(text: Text, tiles: Tiles) -> None:
    for pair in tiles.pairs:
        text(f"{pair.name} = tl.zeros([{pair.left.size}, {pair.right.size}], tl.float32)")
    text("")
    with text.block("for level in range(LEVELS):"):
        for pair in tiles.pairs:
            text(f"z_{pair.name} = tl.zeros([{pair.left.size}, {pair.right.size}], tl.float32)")
        with text.block("for k in range(0, K, BK):"):
            text("col = k + tl.arange(0, BK)", log_decay(tiles))
            factors(text, tiles)
            for x in tiles.groups:
                text(f"{x.name}_tile = (_load({x.name}, {x.at}, {x.live}, col, K) * {factor(x)}).to(dtype)")
            _products(text, tiles.pairs)
        for pair in tiles.pairs:
            meet = f"_meet({pair.left.token}, {pair.right.token}, level)"
            text(f"{pair.name} += tl.where({meet}, z_{pair.name}, 0.0)")
    pairs = tuple(x for x in tiles.pairs if x.implicit)
    if pairs:
        text("", "# Within a token no decay stands between the two rows.")
        _undecayed(text, pairs)
        for pair in pairs:
            same_token(text, pair, pair.implicit)
            text(f"{pair.name} += tl.where(same, z_{pair.name}, 0.0)")


def _one_product(text: Text, tiles: Tiles) -> None:
    """No decay, or one that leaves the sum over k."""
    _undecayed(text, tiles.pairs)
    text("")
    if tiles.decays:
        text(log_decay(tiles))
    for pair in tiles.pairs:
        left, right, z = pair.left, pair.right, f"z_{pair.name}"
        earlier = f"{right.token}[None, :] < {left.token}[:, None]"
        if tiles.decays:
            text(f"earlier = {earlier}")
            text(f"{pair.name} = {z} * _between(decay, {left.end}, {right.token}, tau, earlier)")
            if pair.implicit:
                same_token(text, pair, pair.implicit)
                text(f"{pair.name} += tl.where(same, {z}, 0.0)")
        else:
            text(f"seen = {earlier}")
            if pair.implicit:
                same_token(text, pair, pair.implicit)
                text("seen |= same")
            text(f"{pair.name} = tl.where(seen, {z}, 0.0)")


def _undecayed(text: Text, pairs: tuple[Pair, ...]) -> None:
    """z = left x right over all of K, for each pair."""
    groups: list[Group] = []
    for pair in pairs:
        text(f"z_{pair.name} = tl.zeros([{pair.left.size}, {pair.right.size}], tl.float32)")
        groups += [x for x in (pair.left, pair.right) if x not in groups]
    with text.block("for k in range(0, K, BK):"):
        text("col = k + tl.arange(0, BK)")
        for x in groups:
            _load(text, x)
        _products(text, pairs)


def _products(text: Text, pairs: tuple[Pair, ...]) -> None:
    for pair in pairs:
        z, left, right = f"z_{pair.name}", f"{pair.left.name}_tile", f"{pair.right.name}_tile"
        text(f"{z} += _dot({left}, tl.trans({right}))")


def _explicit(text: Text, tiles: Tiles, pair: Pair) -> None:
    """Couplings of a token that the prologue has computed."""
    columns = len(tiles.couplings)
    for i, j, column in pair.explicit:
        token = pair.left.token
        row = f"_locate(sequence, first + {token}, 0, T, H, {columns})"
        text(f"row, live = {row}", f"coupling = tl.load(c + row + {column}, mask=live, other=0.0)")
        same_token(text, pair, [(i, j)])
        text(f"{pair.name} += tl.where(same, coupling[:, None], 0.0)")


def _invert(text: Text, e: Group) -> None:
    """(I + a)^-1 by blocks: the inverse of a block of twice the size from those of its two halves, exactly."""
    text(
        "# Exact block substitution from single rows upwards:",
        "# [[X, 0], [A, Y]]^-1 = [[X^-1, 0], [-Y^-1 A X^-1, Y^-1]].",
        f"row = tl.arange(0, {e.size})",
        "identity = tl.where(row[:, None] == row[None, :], 1.0, 0.0)",
        "inverse = identity - tl.where(_meet(row, row, 0), a, 0.0)",
    )
    dot = "_dot_wide" if wide(e) else "_dot"
    levels = "LEVELS" if e.slots == 1 else f"LEVELS + {e.slots.bit_length() - 1}"
    with text.block(f"for level in range(1, {levels}):"):
        text(
            "lower = tl.where(_meet(row, row, level), a, 0.0)",
            f"lower = {dot}(inverse, lower)",
            f"inverse -= {dot}(lower, inverse)",
        )
