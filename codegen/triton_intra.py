"""The first kernel of a chunk: the matrices between its rows, and the inverse that solves them.

    A_rs = sum over k of  e_r exp(L_r - G_s) p_s     s in an earlier token; L_r is the level at which row r reads
         = c_rs, or e_r . p_s                        s in the same token, where row r sees it
    M, B, N likewise;  inverse = (I + A)^-1

Key decay cannot leave the sum over k. It enters through dyadic references (`_to_reference`): level by level, every
earlier pair of tokens is met once, and each factor's exponent is a sum of log decays of its own. Only upper halves read
and only lower halves write at a level. So where tiles lie alike (`Tiles.merged`), one product of

    X (E above, P below)   with   X (Q above, P below)

has A's part of the level in its upper rows and M's, transposed, in its lower rows. M and N are stored transposed, since
the scans multiply by them from the right, and times SCALE, the constant factor of all that is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .triton_pairs import earlier, explicit_couplings, pairs_from_products
from .triton_text import Kernel, KernelText, Text, chunk_program, locate, log_decay, same_token, wide
from .triton_tiles import Group, Pair, Tiles


def intra_kernel(tiles: Tiles) -> Kernel | None:
    """The kernel `intra`, one program a chunk; None where there are no matrices or the scans form them."""
    if tiles.inline or not tiles.pairs:
        return None
    lefts, rights = tiles.lefts, tiles.rights
    pointers = [x.name for x in (*lefts, *rights)]
    pointers += ["g"] if tiles.decays else []
    pointers += ["c"] if tiles.couplings else []
    pointers += [output(pair) for pair in tiles.pairs]
    scale = ["SCALE"] if any(pair.left == tiles.q for pair in tiles.pairs) else []
    text = KernelText("intra", _docstring(tiles), pointers, ["K", "BK", "C", "LEVELS", *scale])
    chunk_program(text)
    locate(text, tiles.groups)
    text(f"dtype: tl.constexpr = {rights[0].name}.dtype.element_ty")
    text("")
    if tiles.merged:
        _merged_levels(text, tiles)
    elif tiles.decay == "key":
        _levels(text, tiles)
    else:
        _one_product(text, tiles)
    for pair in tiles.pairs:
        explicit_couplings(text, tiles, pair)
    text("")
    if tiles.e:
        _invert(text, tiles.e)
    for pair in tiles.pairs:
        value = {"a": "inverse", "b": "b"}.get(pair.name) or f"({pair.name} * SCALE)"
        text(f"tl.store(_matrix({output(pair)}, pid, {extent(pair)}), {value}.to(dtype))")
    return text.kernel()


def extent(pair: Pair) -> str:
    """Rows and columns of a matrix as it is stored."""
    rows, columns = (pair.right, pair.left) if pair.transposed else (pair.left, pair.right)
    return f"{rows.size}, {columns.size}"


def output(pair: Pair) -> str:
    """The stored form of a matrix: a is kept as the inverse that it defines."""
    return "inverse_out" if pair.name == "a" else f"{pair.name}_out"


def factor(group: Group) -> str:
    """The variable of a group's dyadic decay factors; equal for groups that lie alike in time."""
    return f"x{group.slots}" if all(group.post) else f"x_{group.name}"


def log(group: Group) -> str:
    """The variable of the log decays between the chunk's middle and each row; equal as `factor` is."""
    return factor(group).replace("x", "log", 1)


def factors(text: Text, tiles: Tiles) -> None:
    """The dyadic factors of all groups at `level`."""
    done = set()
    for x in tiles.groups:
        if factor(x) not in done:
            text(f"{factor(x)} = _to_reference(decay, {x.token}, {x.end}, tau, level, dtype)")
            done.add(factor(x))


@contextmanager
def from_middle(text: Text, tiles: Tiles) -> Iterator[None]:
    """The branch for chunks whose decays, summed from the middle, are bounded: `NAME_x` are the groups' tiles times
    their factors, of left rows exp(sum), of right rows exp(-sum). A product of two such is the decay between them.
    """
    logs = {log(x): x.end for x in tiles.groups}
    text(*(f"{name} = _from_middle(decay, {end}, tau, dtype)" for name, end in logs.items()))
    with text.block(f"if {' & '.join(f'_bounded({name})' for name in logs)}:"):
        for x in tiles.groups:
            sign = "" if x in tiles.lefts else "-"
            text(f"{x.name}_x = _scaled({x.name}_tile, _exp({sign}{log(x)}))")
        yield


def _docstring(tiles: Tiles) -> str:
    names = ", ".join(f"{x.name} = {x.left.name} x {x.right.name}" for x in tiles.pairs)
    return f"The chunk's matrices {names}" + ("; a as inverse = (I + a)^-1." if tiles.e else ".")


def _load(text: Text, x: Group) -> None:
    text(f"{x.name}_tile = _load({x.name}, {x.at}, {x.live}, col, K)")


def _zeros(text: Text, pair: Pair, prefix: str = "") -> None:
    text(f"{prefix}{pair.name} = tl.zeros([{extent(pair)}], tl.float32)")


def _merged_levels(text: Text, tiles: Tiles) -> None:
    """Key decay, one product a level."""
    right, left = tiles.rights[0].name, tiles.lefts[0].name
    last = tiles.lefts[-1].name
    text("level_rows = tl.zeros([C, C], tl.float32)")
    q = tiles.q
    own = q is not None and any(pair.implicit for pair in tiles.pairs)
    if own:
        text("own = tl.zeros([C], tl.float32)")
    with text.block("for k in range(0, K, BK):"):
        text("col = k + tl.arange(0, BK)", *log_decay(tiles))
        for x in tiles.groups:
            _load(text, x)
        if own:
            text(f"own += tl.sum({last}_tile.to(tl.float32) * {right}_tile.to(tl.float32), 1)")
        with from_middle(text, tiles):
            if tiles.e:
                text(f"z = _dot(e_x, tl.trans({right}_x))")
                if q:
                    text(f"z = tl.where(tau[None, :] < tau[:, None], z, _dot({right}_x, tl.trans(q_x)))")
            else:
                text(f"z = _dot(q_x, tl.trans({right}_x))")
            text("level_rows += z")
        with text.block("else:"), text.block("for level in range(LEVELS):"):
            merged_factors(text, tiles)
            second = f"{last}_{right}" if left != last else f"{left}_{right}"
            text(
                f"z = _dot({left}_{right}, tl.trans({second}))",
                "level_rows += tl.where(_across(tau, level), z, 0.0)",
            )
    text("earlier = tau[None, :] < tau[:, None]")
    if tiles.e:
        text("a = tl.where(earlier, level_rows, 0.0)")
    if q:
        name = tiles.pairs[-1].name
        text(f"{name} = tl.where({'earlier' if tiles.e is None else 'tau[:, None] < tau[None, :]'}, level_rows, 0.0)")
        if tiles.e is None:
            text(f"{name} = tl.trans({name})")
        if own:
            text(f"{name} += tl.where(tau[:, None] == tau[None, :], own[:, None], 0.0)")


def merged_factors(text: Text, tiles: Tiles) -> None:
    """`x1`, and for each left group the tile that holds its rows above the reference, the right group's below."""
    right = tiles.rights[0].name
    text(
        "above = ((tau >> level) & 1)[:, None] != 0",
        "x1 = _to_reference(decay, tau, tau, tau, level, dtype)",
    )
    for x in tiles.lefts:
        text(f"{x.name}_{right} = _either(above, {x.name}_tile, {right}_tile, x1)")


def _levels(text: Text, tiles: Tiles) -> None:
    """Key decay, a product for each pair and level."""
    for pair in tiles.pairs:
        _zeros(text, pair)
        if pair.implicit:
            _zeros(text, pair, "own_")
    text("")
    with text.block("for k in range(0, K, BK):"):
        text("col = k + tl.arange(0, BK)", *log_decay(tiles))
        for x in tiles.groups:
            _load(text, x)
        for pair in tiles.pairs:
            if pair.implicit:
                text(f"own_{pair.name} += {_product(pair, '_tile')}")
        with from_middle(text, tiles):
            for pair in tiles.pairs:
                text(
                    f"earlier = {earlier(pair, pair.transposed)}",
                    f"{pair.name} += tl.where(earlier, {_product(pair, '_x')}, 0.0)",
                )
        with text.block("else:"), text.block("for level in range(LEVELS):"):
            factors(text, tiles)
            for x in tiles.groups:
                text(f"{x.name}_x = _scaled({x.name}_tile, {factor(x)})")
            for pair in tiles.pairs:
                meet = "_meet_t" if pair.transposed else "_meet"
                text(
                    f"meet = {meet}({pair.left.token}, {pair.right.token}, level)",
                    f"{pair.name} += tl.where(meet, {_product(pair, '_x')}, 0.0)",
                )
    if any(pair.implicit for pair in tiles.pairs):
        text("# Within a token no decay stands between the two rows.")
    for pair in tiles.pairs:
        if pair.implicit:
            same_token(text, pair, pair.implicit, pair.transposed)
            text(f"{pair.name} += tl.where(same, own_{pair.name}, 0.0)")


def _product(pair: Pair, suffix: str) -> str:
    """The product of a pair's tiles, as the matrix is stored."""
    rows, columns = (pair.right, pair.left) if pair.transposed else (pair.left, pair.right)
    return f"_dot({rows.name}{suffix}, tl.trans({columns.name}{suffix}))"


def _one_product(text: Text, tiles: Tiles) -> None:
    """No decay, or one that leaves the sum over k."""
    for pair in tiles.pairs:
        _zeros(text, pair, "z_")
    with text.block("for k in range(0, K, BK):"):
        text("col = k + tl.arange(0, BK)")
        for x in tiles.groups:
            _load(text, x)
        for pair in tiles.pairs:
            text(f"z_{pair.name} += {_product(pair, '_tile')}")
    text("")
    if tiles.decays:
        text(*log_decay(tiles))
    pairs_from_products(text, tiles, tiles.pairs)


def _invert(text: Text, e: Group) -> None:
    """(I + a)^-1 by blocks: the inverse of a block of twice the size from those of its two halves, exactly."""
    text(
        "# Exact block substitution from single rows upwards:",
        "# [[X, 0], [A, Y]]^-1 = [[X^-1, 0], [-Y^-1 A X^-1, Y^-1]].",
        f"row = tl.arange(0, {e.size})",
        "identity = tl.where(row[:, None] == row[None, :], 1.0, 0.0)",
        "inverse = identity - tl.where(_meet(row, row, 0), a, 0.0)",
    )
    dot, exact = ("_dot_wide", "") if wide(e) else ("_dot_for", ", dtype")
    levels = "LEVELS" if e.slots == 1 else f"LEVELS + {e.slots.bit_length() - 1}"
    with text.block(f"for level in range(1, {levels}):"):
        text(
            "lower = tl.where(_meet(row, row, level), a, 0.0)",
            f"lower = {dot}(inverse, lower{exact})",
            f"inverse -= {dot}(lower, inverse{exact})",
        )
