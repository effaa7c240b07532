"""The matrices between a chunk's rows where no decay stands inside the sum over k: a product each, then its decays.

The first kernel of a chunk writes them as text with this, and so do the scans of shapes where nothing is solved
(`Tiles.inline`): those form them anew, forward and backward, which costs less than to store and load them.
"""

from __future__ import annotations

from .triton_text import Text, level, same_token
from .triton_tiles import Pair, Tiles


def pairs_from_products(text: Text, tiles: Tiles, pairs: tuple[Pair, ...], transposed: bool | None = None) -> None:
    """From each `z_NAME`, the product of a pair's tiles, the matrix NAME; log decays are in `decay`.

    Laid out as [right, left] if `transposed`, else as [left, right]; as stored if None.
    """
    before = ""
    for pair in pairs:
        turned = pair.transposed if transposed is None else transposed
        left, right, z = pair.left, pair.right, f"z_{pair.name}"
        if tiles.decays:
            between = "_between_t" if turned else "_between"
            call = f"{between}({level(left)}, {level(right)}, decay, {left.end}, {right.token}, tau, earlier, dtype)"
            if call != before:
                text(f"earlier = {earlier(pair, turned)}", f"between = {call}")
            before = call
            text(f"{pair.name} = {z} * between")
            if pair.implicit:
                same_token(text, pair, pair.implicit, turned)
                text(f"{pair.name} += tl.where(same, {z}, 0.0)")
        else:
            text(f"seen = {earlier(pair, turned)}")
            if pair.implicit:
                same_token(text, pair, pair.implicit, turned)
                text("seen |= same")
            text(f"{pair.name} = tl.where(seen, {z}, 0.0)")


def earlier(pair: Pair, transposed: bool) -> str:
    """The mask of a right row's token before a left row's, [right, left] if `transposed`."""
    left, right = pair.left.token, pair.right.token
    return f"{right}[:, None] < {left}[None, :]" if transposed else f"{right}[None, :] < {left}[:, None]"


def explicit_couplings(text: Text, tiles: Tiles, pair: Pair, transposed: bool | None = None) -> None:
    """Adds the couplings of a token that the prologue has computed."""
    turned = pair.transposed if transposed is None else transposed
    columns = len(tiles.couplings)
    for i, j, column in pair.explicit:
        token = pair.left.token
        row = f"_locate(sequence, first, {token}, 0, T, H, {columns})"
        text(f"row, live = {row}", f"coupling = tl.load(c + row + {column}, mask=live, other=0.0)")
        same_token(text, pair, [(i, j)], turned)
        where = "coupling[None, :]" if turned else "coupling[:, None]"
        text(f"{pair.name} += tl.where(same, {where}, 0.0)")
