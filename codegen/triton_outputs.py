"""The second step of a chunk: what the scan over chunks needs of it, in one kernel over K and one over V.

    keys     W = inverse (E e^L)    Q e^L    P e^(G_C - G)    e^(G_C)
    values   U0 = inverse (Y - B Y_w)

so that U = U0 - W S_0 solves the chunk for any state S_0 before it. Q and P are written with key decay alone; a decay
that leaves the sum over k the scan applies to its products.
"""

from __future__ import annotations

from .triton_text import Kernel, KernelText, chunk_program, from_start, locate, log_decay, to_end
from .triton_tiles import Tiles


def keys_kernel(tiles: Tiles) -> Kernel | None:
    """The kernel `keys`, one program a chunk and block of K; None where the scan can use the inputs themselves."""
    key = tiles.decay == "key"
    if not (tiles.e or key):
        return None
    groups = tiles.groups if key else tiles.lefts[:1]
    pointers = [x.name for x in groups]
    pointers += ["g"] if tiles.decays else []
    pointers += ["inverse", "solved"] if tiles.e else []
    pointers += [f"{x.name}_out" for x in groups if x.name != "e"]
    pointers += ["total"] if key else []
    constants = ["K", "BK", "C", *(["SCALE"] if key and tiles.q else [])]
    docstring = "The chunk's rows as the scan needs them, decayed to its start or end."
    text = KernelText("keys", docstring, pointers, constants)
    chunk_program(text, "tl.cdiv(K, BK)")
    locate(text, groups)
    text(f"dtype: tl.constexpr = {groups[0].name}.dtype.element_ty")
    text("col = block * BK + tl.arange(0, BK)")
    if tiles.decays:
        text(*log_decay(tiles))
    text("")
    for x in groups:
        tile = f"_load({x.name}, {x.at}, {x.live}, col, K)"
        if tiles.decays:
            factor = from_start(tiles, x) if x in tiles.lefts else to_end(tiles, x)
            tile += f" * {factor}" if key else f" * {factor}[:, None]"
        if x.name == "e":
            text(
                f"e_tile = ({tile}).to(dtype)" if tiles.decays else f"e_tile = {tile}",
                f"solve = tl.load(_matrix(inverse, pid, {x.size}, {x.size}))",
                "w_tile = _dot(solve, e_tile)",
                f"_store(solved, {x.at}, {x.live}, col, K, w_tile.to(dtype))",
            )
        else:
            tile += " * SCALE" if x.name == "q" else ""
            text(f"{x.name}_tile = {tile}")
            text(f"_store({x.name}_out, {x.at}, {x.live}, col, K, {x.name}_tile.to(dtype))")
    if key:
        text("tl.store(total + pid * K + col, _exp(tl.sum(decay.to(tl.float32), 0)), mask=col < K)")
    return text.kernel()


def values_kernel(tiles: Tiles) -> Kernel | None:
    """The kernel `values`, one program a chunk and block of V; None where nothing is solved."""
    if tiles.p is None:
        return None
    p, w = tiles.p, tiles.w
    pointers = ["y", "yw", "b"] if w else ["y"]
    text = KernelText("values", "The values that the chunk's erasing rows would write to a zero state.",
                  [*pointers, "inverse", "solved"], ["V", "BV", "C"])  # fmt: skip
    chunk_program(text, "tl.cdiv(V, BV)")
    locate(text, [p, w] if w else [p])
    text("dtype: tl.constexpr = y.dtype.element_ty", "col = block * BV + tl.arange(0, BV)", "")
    text(f"y_tile = _load(y, {p.at}, {p.live}, col, V)")
    if w:
        text(
            f"coupling = tl.load(_matrix(b, pid, {p.size}, {w.size}))",
            f"yw_tile = _load(yw, {w.at}, {w.live}, col, V)",
            "y_tile = (y_tile - _dot(coupling, yw_tile)).to(dtype)",
        )
    text(
        f"solve = tl.load(_matrix(inverse, pid, {p.size}, {p.size}))",
        f"_store(solved, {p.at}, {p.live}, col, V, _dot(solve, y_tile).to(dtype))",
    )
    return text.kernel()
