"""The scans over chunks, forward with the state and backward with its gradient, one program a block of value columns.

    forward    U = U0 - W S      O = (Q e^L) S + M U + N Y_w      S <- e^(G_C) S + (P e^(G_C - G))^T U + (...)^T Y_w
    backward   dU = (P e^(G_C - G)) dS + M^T dO       dR = inverse^T dU        dY = dR
               dY_w = (P_w e^(G_C - G)) dS + N^T dO - B^T dR
               dS <- e^(G_C) dS + (Q e^L)^T dO - W^T dU

The state stays in registers in fp32, transposed ([V, K]): then every product has a tile made in the scan on its left
and a tile straight from memory on its right.
"""

from __future__ import annotations

from .triton_pairs import explicit_couplings, pairs_from_products
from .triton_text import Kernel, KernelText, Text, blocks_of, from_start, locate, to_end
from .triton_tiles import Group, Tiles


def forward_kernel(tiles: Tiles, comments: tuple[str, ...] = ()) -> Kernel:
    """The kernel `scan`. SAVE keeps what the backward pass reads: the state before each chunk, and U.

    SCALE is a constant factor of all that is read. With key decay it stands in Q e^L already, and in stored matrices.
    """
    e, p, w, q = tiles.e, tiles.p, tiles.w, tiles.q
    pointers = ["solved_k", "solved_v", "p"] if p else []
    pointers += ["w", "yw"] if w else []
    pointers += ["q"] if q else []
    pointers += _given(tiles, [x.name for x in tiles.pairs if x.left.name == "q"])
    pointers += ["initial"]
    pointers += ["o"] if q else []
    pointers += ["u"] if p else []
    pointers += ["states", "final"]
    docstring = "All chunks of a sequence and head in time order, for a block of value columns."
    text = KernelText("scan", docstring, pointers, ["K", "V", "KP", "BV", "C", "SAVE", *_scale(tiles)], comments)
    _program(text, "states")
    text("state = tl.load(initial + at_state, mask=in_state, other=0.0)")
    if tiles.decay == "scalar":
        text("ahead = _log_decay(g, sequence, 0, tau, T, H)")
    with text.block("for chunk in range(chunks):"):
        _chunk(text, tiles, "first + C")
        text("state_tile = state.to(dtype)")
        with text.block("if SAVE:"):
            text("tl.store(states + at_saved, state_tile, mask=in_state)")
        if e and p:
            text(
                f"u_tile = _load_t(solved_v, {p.at}, {p.live}, col_v, V).to(tl.float32)",
                f"u_tile -= _dot(state_tile, _load_t(solved_k, {e.at}, {e.live}, col_k, K))",
                "u_tile = u_tile.to(dtype)",
            )
            with text.block("if SAVE:"):
                text(f"_store_t(u, {p.at}, {p.live}, col_v, V, u_tile)")
        if w:
            text(
                f"yw_tile = _load_t(yw, {w.at}, {w.live}, col_v, V)",
                f"w_tile = _load(w, {w.at}, {w.live}, col_k, K)",
            )
        if q:
            text(f"q_tile = _load_t(q, {q.at}, {q.live}, col_k, K)")
            if tiles.inline and w:
                _form(text, tiles, "w_tile", "q_tile", transposed=True)
            text(f"out = _dot(state_tile, q_tile){_factor(tiles, q)}")
            for name, tile in (("m", "u_tile"), ("n", "yw_tile")):
                pair = tiles.pair(name)
                if pair:
                    matrix = f"tl.load(_matrix({name}, number, {pair.right.size}, {q.size}))"
                    text(f"out += _dot({tile}, {name if tiles.inline else matrix})")
            text(f"_store_t(o, {q.at}, {q.live}, col_v, V, out.to(o.dtype.element_ty))")
        _decayed(text, tiles, "state")
        if p:
            _end(text, tiles, p, "u_tile")
            text(f"state += _dot(u_tile, _load(p, {p.at}, {p.live}, col_k, K))")
        if w:
            _end(text, tiles, w, "yw_tile")
            text("state += _dot(yw_tile, w_tile)")
    text("tl.store(final + at_state, state, mask=in_state)")
    return text.kernel()


def reverse_kernel(tiles: Tiles) -> Kernel:
    """The kernel `reverse_scan`: the state's gradient after each chunk, and the gradients of the values."""
    e, p, w, q = tiles.e, tiles.p, tiles.w, tiles.q
    pointers = ["solved_k", "p", "inverse"] if p else []
    pointers += ["w"] if w else []
    pointers += ["q", "do"] if q else []
    pointers += _given(tiles, [x.name for x in tiles.pairs if x.name != "a"])
    pointers += ["dfinal"]
    pointers += ["dy"] if p else []
    pointers += ["dyw"] if w else []
    pointers += ["dstates", "dinitial"]
    docstring = "All chunks of a sequence and head against time, for a block of value columns."
    text = KernelText("reverse_scan", docstring, pointers, ["K", "V", "KP", "BV", "C", *_scale(tiles)])
    _program(text, "dstates")
    text("dstate = tl.load(dfinal + at_state, mask=in_state, other=0.0)")
    if tiles.decay == "scalar":
        text("ahead = _log_decay(g, sequence, (chunks - 1) * C, tau, T, H)")
    with text.block("for step in range(chunks):"):
        text("chunk = chunks - 1 - step")
        _chunk(text, tiles, "tl.maximum(first - C, 0)")
        text("dstate_tile = dstate.to(dtype)", "tl.store(dstates + at_saved, dstate_tile, mask=in_state)")
        if q:
            text(
                f"do_tile = _load_t(do, {q.at}, {q.live}, col_v, V).to(dtype)",
                f"q_tile = _load(q, {q.at}, {q.live}, col_k, K)",
            )
        if e and p:
            _from_right(text, tiles, p, "du_tile", "m")
            text(
                "du_tile = du_tile.to(dtype)",
                f"solve = tl.load(_matrix(inverse, number, {p.size}, {p.size}))",
                "dy_tile = _dot(du_tile, solve).to(dtype)",
                f"_store_t(dy, {p.at}, {p.live}, col_v, V, dy_tile)",
            )
        if w:
            _from_right(text, tiles, w, "dyw_tile", "n")
            if p:
                matrix = f"_matrix(b, number, {p.size}, {w.size})"
                text(f"dyw_tile -= _dot(dy_tile, tl.load({matrix}))")
            text(f"_store_t(dyw, {w.at}, {w.live}, col_v, V, dyw_tile.to(dtype))")
        _decayed(text, tiles, "dstate")
        if q:
            if factor := _factor(tiles, q):
                text(f"do_tile = (do_tile.to(tl.float32){factor}).to(dtype)")
            text("dstate += _dot(do_tile, q_tile)")
        if e:
            text(f"dstate -= _dot(du_tile, _load(solved_k, {e.at}, {e.live}, col_k, K))")
    text("tl.store(dinitial + at_state, dstate, mask=in_state)")
    return text.kernel()


def _given(tiles: Tiles, matrices: list[str]) -> list[str]:
    """The pointers of matrices and decays: stored ones, or what the scan forms them from."""
    if tiles.inline:
        matrices = ["c"] if tiles.couplings else []
    return matrices + {"key": ["total"], "scalar": ["g"], "none": []}[tiles.decay]


def _scale(tiles: Tiles) -> list[str]:
    return ["SCALE"] if tiles.q and tiles.decay != "key" else []


def _factor(tiles: Tiles, q: Group) -> str:
    """What the reads' products with the state are to be multiplied by."""
    if tiles.decay == "key":
        return ""
    return f" * ({from_start(tiles, q)} * SCALE)[None, :]" if tiles.decays else " * SCALE"


def _end(text: Text, tiles: Tiles, x: Group, tile: str) -> None:
    """Decays values to the end of the chunk, where their directions are not."""
    if tiles.decay == "scalar":
        text(f"{tile} = ({tile} * {to_end(tiles, x)}[None, :]).to(dtype)")


def _form(text: Text, tiles: Tiles, left: str, right: str, transposed: bool) -> None:
    """The matrix n, times SCALE, from the two groups' tiles."""
    pair = tiles.pair("n")
    if pair is None:
        return
    text(f"z_n = _dot({left}, {right})")
    pairs_from_products(text, tiles, (pair,), transposed)
    explicit_couplings(text, tiles, pair, transposed)
    text("n = (n * SCALE).to(dtype)")


def _program(text: Text, saved: str) -> None:
    blocks_of(text, "tl.cdiv(V, BV)", "sequence")
    text(
        "chunks = tl.cdiv(T, C)",
        "tau = tl.arange(0, C)",
        "col_k = tl.arange(0, KP)",
        "col_v = block * BV + tl.arange(0, BV)",
        "at_state = sequence * (K * V) + col_k[None, :] * V + col_v[:, None]",
        "in_state = (col_k < K)[None, :] & (col_v < V)[:, None]",
        f"dtype: tl.constexpr = {saved}.dtype.element_ty",
    )


def _chunk(text: Text, tiles: Tiles, following: str) -> None:
    """Where a chunk lies, and its scalar decays; those of the chunk that follows are loaded meanwhile."""
    text("first = chunk * C", "number = sequence * chunks + chunk")
    text("at_saved = number * (K * V) + col_v[:, None] * K + col_k[None, :]")
    locate(text, tiles.groups)
    if tiles.decay == "scalar":
        text("decay = ahead", "sums = tl.cumsum(decay, 0)")
        text(f"ahead = _log_decay(g, sequence, {following}, tau, T, H)")


def _decayed(text: Text, tiles: Tiles, state: str) -> None:
    if tiles.decay == "key":
        text(f"{state} *= tl.load(total + number * K + col_k, mask=col_k < K, other=0.0)[None, :]")
    elif tiles.decay == "scalar":
        text(f"{state} *= _exp(tl.sum(decay, 0))")


def _from_right(text: Text, tiles: Tiles, x: Group, tile: str, name: str) -> None:
    """The gradient of what the rows of x write: through the state, and through the chunk's own reads."""
    text(f"{x.name}_tile = _load_t({x.name}, {x.at}, {x.live}, col_k, K)")
    factor = f" * {to_end(tiles, x)}[None, :]" if tiles.decay == "scalar" else ""
    text(f"{tile} = _dot(dstate_tile, {x.name}_tile){factor}")
    pair = tiles.pair(name)
    if pair and tiles.inline:
        _form(text, tiles, "q_tile", f"{x.name}_tile", transposed=False)
        text(f"{tile} += _dot(do_tile, n)")
    elif pair:
        matrix = f"_matrix_t({name}, number, {x.size}, {pair.left.size})"
        text(f"{tile} += _dot(do_tile, tl.load({matrix}))")
