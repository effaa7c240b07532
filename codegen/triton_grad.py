"""The local gradients of a chunk, after the reverse scan: one kernel for the matrices, one for all that has K columns.

    couplings   dA = -dR U^T   dB = -dR Y_w^T   dM = dO U^T   dN = dO Y_w^T, and from these the explicit dc
    local       dE = -e^L (dR S_0^T) + dA . P      dQ = e^L (dO S_0^T) + dM . P      (. carries the pair decays)
                dP = e^(G_C - G) (U dS^T) + dA^T . E + dM^T . Q
                dg_t = sum of q dQ and e dE over rows that have seen t
                     + sum of p dP over rows written before t (through the state) or from t on (-, through the pairs)
                     + e^(G_C) sum over v of S_0 dS

Products of a token with itself carry no decay and are added last, so that dg never contains them.

Where tiles lie alike (`Tiles.merged`), the matrices' gradients are stored with their transposes added: at a level, the
product with the tile that holds left rows above the reference and right rows below it gives both sides' gradients.
"""

from __future__ import annotations

from .triton_intra import factor, factors, from_middle, log, merged_factors
from .triton_pairs import earlier
from .triton_text import (
    Kernel,
    KernelText,
    Text,
    chunk_program,
    from_start,
    level,
    locate,
    log_decay,
    same_token,
    to_end,
)
from .triton_tiles import Group, Pair, Tiles


def couplings_kernel(tiles: Tiles) -> Kernel | None:
    """The kernel `couplings_grad`, one program a chunk; None where there are no matrices."""
    if not tiles.pairs:
        return None
    lefts = [x for x in tiles.lefts if any(pair.left == x for pair in tiles.pairs)]
    pointers = ["dy" if x.name == "e" else "do" for x in lefts]
    pointers += ["u" if x.name == "p" else "yw" for x in tiles.rights]
    pointers += [f"d{pair.name}" for pair in tiles.pairs]
    pointers += ["dc"] if tiles.couplings else []
    docstring = "Gradients of the chunk's matrices, where they are not zero by construction."
    text = KernelText("couplings_grad", docstring, pointers, ["V", "BV", "C", *(["SCALE"] if "do" in pointers else [])])
    chunk_program(text)
    locate(text, tiles.groups)
    text(f"dtype: tl.constexpr = d{tiles.pairs[0].name}.dtype.element_ty", "")
    for pair in tiles.pairs:
        text(f"z_{pair.name} = tl.zeros([{pair.left.size}, {pair.right.size}], tl.float32)")
    with text.block("for v in range(0, V, BV):"):
        text("col = v + tl.arange(0, BV)")
        for x in lefts:
            source = "dy" if x.name == "e" else "do"
            tile = f"_load({source}, {x.at}, {x.live}, col, V)"
            text(f"{x.name}_tile = {tile}.to(dtype)")
        for x in tiles.rights:
            source = "u" if x.name == "p" else "yw"
            text(f"{x.name}_tile = _load_t({source}, {x.at}, {x.live}, col, V)")
        for pair in tiles.pairs:
            sign = "-" if pair.left.name == "e" else "+"
            product = f"_dot({pair.left.name}_tile, {pair.right.name}_tile)"
            text(f"z_{pair.name} {sign}= {product}")
    for pair in tiles.pairs:
        z = f"z_{pair.name}"
        if pair.left == tiles.q:
            text(f"{z} *= SCALE")
        if tiles.merged:
            _both_triangles(text, pair)
            continue
        text(f"seen = {pair.right.token}[None, :] < {pair.left.token}[:, None]")
        if pair.implicit:
            same_token(text, pair, pair.implicit)
            text("seen |= same")
        shape = f"{pair.left.size}, {pair.right.size}"
        text(f"tl.store(_matrix(d{pair.name}, pid, {shape}), tl.where(seen, {z}, 0.0).to(dtype))")
        for i, j, column in pair.explicit:
            _explicit(text, tiles, pair, i, j, column)
    return text.kernel()


def _both_triangles(text: Text, pair: Pair) -> None:
    """The gradient of earlier pairs and its transpose, and on the diagonal that of tokens with themselves."""
    z = f"z_{pair.name}"
    text(
        "row = tl.arange(0, C)",
        f"both = tl.where(row[None, :] < row[:, None], {z}, 0.0)",
        "both += tl.trans(both)",
    )
    if pair.implicit:
        text(f"both += tl.where(row[None, :] == row[:, None], {z}, 0.0)")
    text(f"tl.store(_matrix(d{pair.name}, pid, C, C), both.to(dtype))")


def _explicit(text: Text, tiles: Tiles, pair: Pair, i: int, j: int, column: int) -> None:
    left = pair.left
    live = "live" if left.slots == 1 else f"live & ({left.slot} == {i})"
    same_token(text, pair, [(i, j)])
    text(
        f"row, live = _locate(sequence, first, {left.token}, 0, T, H, {len(tiles.couplings)})",
        f"coupling = tl.sum(tl.where(same, z_{pair.name}, 0.0), 1)",
        f"tl.store(dc + row + {column}, coupling, mask={live})",
    )


def local_kernel(tiles: Tiles) -> Kernel:
    """The kernel `local_grad`, one program a chunk and block of K."""
    pointers = [x.name for x in tiles.groups]
    pointers += ["g"] if tiles.decays else []
    pointers += [_value(x) for x in tiles.groups]
    pointers += [f"d{pair.name}" for pair in tiles.pairs]
    pointers += ["states", "dstates"]
    pointers += [f"d{x.name}" for x in tiles.groups]
    pointers += ["dg"] if tiles.decays else []
    docstring = "Gradients of the chunk's covectors, directions and log decays, for a block of K."
    constants = ["K", "V", "BK", "BV", "C", "LEVELS", *(["SCALE"] if tiles.q else [])]
    text = KernelText("local_grad", docstring, pointers, constants)
    chunk_program(text, "tl.cdiv(K, BK)")
    locate(text, tiles.groups)
    text(f"dtype: tl.constexpr = {tiles.rights[0].name}.dtype.element_ty")
    text("col = block * BK + tl.arange(0, BK)")
    text("")
    _through_state(text, tiles)
    text("")
    _through_pairs(text, tiles)
    if tiles.decays:
        text("")
        _decay_grad(text, tiles)
    _same_token(text, tiles)
    text("")
    for x in tiles.groups:
        text(f"_store(d{x.name}, {x.at}, {x.live}, col, K, grad_{x.name}.to(dtype))")
    return text.kernel()


def _value(x: Group) -> str:
    """The tensor that multiplies the state (or its gradient) in the gradient of x."""
    return {"e": "dy", "q": "do", "p": "u", "w": "yw"}[x.name]


def _through_state(text: Text, tiles: Tiles) -> None:
    """The parts that go through the state before the chunk, or its gradient after the chunk."""
    for x in tiles.groups:
        text(f"grad_{x.name} = tl.zeros([{x.size}, BK], tl.float32)")
    if tiles.decays:
        text("dtotal = tl.zeros([BK], tl.float32)")
    text("# All that does not depend on the loop below is loaded before it, to be there after it.")
    for x in tiles.groups:
        text(f"{x.name}_tile = _load({x.name}, {x.at}, {x.live}, col, K)")
    if tiles.decays:
        text(*log_decay(tiles))
    for pair in tiles.pairs:
        shape = f"d{pair.name}, pid, {pair.left.size}, {pair.right.size}"
        text(f"d{pair.name}_tile = tl.load(_matrix({shape}))")
        if not tiles.merged:
            text(f"d{pair.name}_tile_t = tl.load(_matrix_t({shape}))")
    with text.block("for v in range(0, V, BV):"):
        text(
            "col_v = v + tl.arange(0, BV)",
            "at_saved = pid * (K * V) + col_v[:, None] * K + col[None, :]",
            "in_saved = (col_v < V)[:, None] & (col < K)[None, :]",
            "state = tl.load(states + at_saved, mask=in_saved, other=0.0)",
            "dstate = tl.load(dstates + at_saved, mask=in_saved, other=0.0)",
        )
        for x in tiles.groups:
            state = "state" if x in tiles.lefts else "dstate"
            tile = f"_load({_value(x)}, {x.at}, {x.live}, col_v, V)"
            tile += ".to(dtype)" if x.name == "q" else ""
            sign = "-" if x.name == "e" else "+"
            text(f"grad_{x.name} {sign}= _dot({tile}, {state})")
        if tiles.decays:
            text("dtotal += tl.sum(state.to(tl.float32) * dstate.to(tl.float32), 0)")
    if tiles.q:
        text("grad_q *= SCALE")
    if not tiles.decays:
        return
    column = "" if tiles.decay == "key" else "[:, None]"
    for x in tiles.lefts:
        text(f"grad_{x.name} *= {from_start(tiles, x)}{column}")
    for x in tiles.rights:
        text(f"grad_{x.name} *= {to_end(tiles, x)}{column}")


def _through_pairs(text: Text, tiles: Tiles) -> None:
    """The parts that go through another row of the chunk."""
    if tiles.decays:
        for x in tiles.rights:
            text(f"pair_{x.name} = tl.zeros([{x.size}, BK], tl.float32)")
    if tiles.decay == "key":
        with from_middle(text, tiles):
            _from_middle(text, tiles)
        with text.block("else:"):
            (_merged_levels if tiles.merged else _levels)(text, tiles)
    else:
        _one_product(text, tiles)


def _from_middle(text: Text, tiles: Tiles) -> None:
    for pair in tiles.pairs:
        left, right, d = pair.left, pair.right, f"d{pair.name}_tile"
        d_t = d if tiles.merged else f"{d}_t"
        text(
            f"z = _dot(tl.where({earlier(pair, False)}, {d}, 0.0).to(dtype), {right.name}_x)",
            f"grad_{left.name} += z * _exp({log(left)})",
            f"z = _dot(tl.where({earlier(pair, True)}, {d_t}, 0.0).to(dtype), {left.name}_x)",
            f"pair_{right.name} += z * _exp(-{log(right)})",
        )


def _merged_levels(text: Text, tiles: Tiles) -> None:
    right = tiles.rights[0].name
    with text.block("for level in range(LEVELS):"):
        merged_factors(text, tiles)
        text("across = _across(tau, level)", "x_above = tl.where(above, x1, 0.0)")
        for pair in tiles.pairs:
            left = pair.left.name
            text(
                f"z = _dot(tl.where(across, d{pair.name}_tile, 0.0).to(dtype), {left}_{right})",
                f"grad_{left} += z * x_above",
                f"pair_{right} += z * (x1 - x_above)",
            )


def _levels(text: Text, tiles: Tiles) -> None:
    with text.block("for level in range(LEVELS):"):
        factors(text, tiles)
        for x in tiles.groups:
            text(f"{x.name}_x = _scaled({x.name}_tile, {factor(x)})")
        for pair in tiles.pairs:
            left, right, d = pair.left, pair.right, f"d{pair.name}_tile"
            text(
                f"meet = _meet({left.token}, {right.token}, level)",
                f"z = _dot(tl.where(meet, {d}, 0.0).to(dtype), {right.name}_x)",
                f"grad_{left.name} += z * {factor(left)}",
                f"meet = _meet_t({left.token}, {right.token}, level)",
                f"z = _dot(tl.where(meet, {d}_t, 0.0).to(dtype), {left.name}_x)",
                f"pair_{right.name} += z * {factor(right)}",
            )


def _one_product(text: Text, tiles: Tiles) -> None:
    before = ""
    for pair in tiles.pairs:
        left, right, d = pair.left, pair.right, f"d{pair.name}_tile"
        if tiles.decay == "scalar":
            arguments = f"{level(left)}, {level(right)}, decay, {left.end}, {right.token}, tau"
            if arguments != before:
                text(
                    f"earlier = {right.token}[None, :] < {left.token}[:, None]",
                    f"between = _between({arguments}, earlier, dtype)",
                    f"earlier = {right.token}[:, None] < {left.token}[None, :]",
                    f"between_t = _between_t({arguments}, earlier, dtype)",
                )
            before = arguments
            text(
                f"grad_{left.name} += _dot(({d} * between).to(dtype), {right.name}_tile)",
                f"pair_{right.name} += _dot(({d}_t * between_t).to(dtype), {left.name}_tile)",
            )
        else:
            text(
                f"grad_{left.name} += _dot({d}, {right.name}_tile)",
                f"grad_{right.name} += _dot({d}_t, {left.name}_tile)",
            )


def _decay_grad(text: Text, tiles: Tiles) -> None:
    if tiles.decay == "key":
        text("ddecay = tl.zeros([C, BK], tl.float32) + (dtotal * _exp(tl.sum(decay.to(tl.float32), 0)))[None, :]")
    else:
        text("ddecay = tl.zeros([C], tl.float32) + tl.sum(dtotal, 0) * _exp(tl.sum(decay, 0))")
    parts: dict[str, str] = {}

    def add(where: str, token: str, lag: int, term: str) -> None:
        last = "dtype" if tiles.decay == "key" else str(lag)
        call = f"ddecay += {where}({{}}, {token}, tau, {last})"
        parts[call] = parts.get(call, "") + term

    for x in tiles.lefts:
        lag = -1 if x.slots > 1 else 0 if all(x.post) else 1
        add("_seen", x.end, lag, f" + {x.name}_tile * grad_{x.name}")
    for x in tiles.rights:
        lag = -1 if x.slots > 1 else 0
        add("_seen", x.token, lag, f" - {x.name}_tile * pair_{x.name}")
        add("_ahead", x.token, lag, f" + {x.name}_tile * grad_{x.name}")
    for call, terms in parts.items():
        text(call.format(terms.removeprefix(" + ")))
    text(*(f"grad_{x.name} += pair_{x.name}" for x in tiles.rights))
    text("row, live = _locate(sequence, first, tau, 0, T, H, 1)")
    if tiles.decay == "key":
        text("_store(dg, row, live, col, K, ddecay.to(dg.dtype.element_ty))")
    else:
        text("# A partial sum for each block of K.", "blocks = tl.cdiv(K, BK)")
        text("tl.store(dg + row * blocks + block, ddecay, mask=live)")


def _same_token(text: Text, tiles: Tiles) -> None:
    if not tiles.decays:
        return
    for pair in tiles.pairs:
        if not pair.implicit:
            continue
        left, right, d = pair.left, pair.right, f"d{pair.name}_tile"
        if tiles.merged:
            text(
                f"own = tl.sum(tl.where(tau[:, None] == tau[None, :], {d}, 0.0).to(tl.float32), 1)[:, None]",
                f"grad_{left.name} += own * {right.name}_tile",
                f"grad_{right.name} += own * {left.name}_tile",
            )
            continue
        same = f"{left.token}[:, None] == {right.token}[None, :]"
        same_t = f"{right.token}[:, None] == {left.token}[None, :]"
        text(
            f"z = tl.where({same}, {d}, 0.0).to(dtype)",
            f"grad_{left.name} += _dot(z, {right.name}_tile)",
            f"z = tl.where({same_t}, {d}_t, 0.0).to(dtype)",
            f"grad_{right.name} += _dot(z, {left.name}_tile)",
        )
