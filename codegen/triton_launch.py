"""The host side of generated kernels, as source text: packing, launches and the autograd function.

_launches(K, V, dtype, device)    tile sizes, warps and stages (`triton_config`)
_scan_forward, _scan_backward     the launches of the chunked scan and of its gradients, on packed rows
_decode(rows..., S)               the reads and the state after one token
_scan(t, S, dtype)                the scan as a function that autograd knows, from the PyTorch prologue's tensors
_token(t, S)                      one token from these
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .triton_decode import decode_kernel
from .triton_grad import couplings_kernel, local_kernel
from .triton_intra import intra_kernel
from .triton_outputs import keys_kernel, values_kernel
from .triton_scan import forward_kernel, reverse_kernel
from .triton_text import Kernel, Text
from .triton_tiles import Group, Tiles

# What a constant of a kernel is called on the host; blocks come from `triton_config`.
_CONSTANTS = {"C": "CHUNK", "LEVELS": "CHUNK.bit_length() - 1", "SAVE": "save", "SCALE": "scale"}


@dataclass(frozen=True)
class Kernels:
    """All kernels of a shape; None where it needs none."""

    intra: Kernel | None
    keys: Kernel | None
    values: Kernel | None
    forward: Kernel
    reverse: Kernel
    couplings: Kernel | None
    local: Kernel
    decode: Kernel

    @property
    def names(self) -> list[str]:
        return [x.name for x in vars(self).values() if x]

    @property
    def sources(self) -> list[str]:
        return [x.source for x in vars(self).values() if x]


def kernels_of(tiles: Tiles, comments: tuple[str, ...] = ()) -> Kernels:
    """The kernels of a shape, forward, backward and decode; the lines of a rule as comments in those that run them."""
    return Kernels(
        intra_kernel(tiles),
        keys_kernel(tiles),
        values_kernel(tiles),
        forward_kernel(tiles, comments),
        reverse_kernel(tiles),
        couplings_kernel(tiles),
        local_kernel(tiles),
        decode_kernel(tiles, comments),
    )


def launch_source(tiles: Tiles, kernels: Kernels) -> list[str]:
    """The functions that launch the kernels on packed rows, in the order in which they are to stand."""
    return [_scan_forward(tiles, kernels), _scan_backward(tiles, kernels), _decode(tiles, kernels)]


def tensors_source(tiles: Tiles) -> list[str]:
    """What joins the launches with a prologue in PyTorch: packing, and the scan as autograd sees it."""
    return [_PACK.strip("\n"), _autograd(tiles), _scan(tiles), _token(tiles)]


_PACK = '''
def _pack(rows: list[Tensor], dtype: torch.dtype) -> Tensor:
    """The rows of a token beside each other: [B, T, H, rows, ...]."""
    x = torch.stack(rows, 3) if len(rows) > 1 else rows[0].unsqueeze(3)
    return x.to(dtype).contiguous()
'''


def packed(tiles: Tiles) -> dict[str, tuple[str, ...]]:
    """The kernels' input tensors and the prologue's tensors in each; "" stands for a row without a value."""
    rows = tiles.shape.rows
    found: dict[str, tuple[str, ...]] = {}
    for group, vectors, values in ((tiles.e, "p", "y"), (tiles.w, "w", "yw")):
        if group:
            if group is tiles.e:
                found["e"] = tuple(f"e{i}" for i in group.members)
            found[vectors] = tuple(f"p{rows[i].p_same}" for i in group.members)
            found[values] = tuple(f"y{i}" if rows[i].has_y else "" for i in group.members)
    if tiles.q:
        found["q"] = tuple(f"q{r}" for r in tiles.q.members)
    if tiles.decays:
        found["g"] = ("g",)
    if tiles.couplings:
        found["c"] = tiles.couplings
    return found


def _launch(text: Text, kernel: Kernel, grid: str, names: Mapping[str, str]) -> None:
    arguments = [names.get(x, x) for x in kernel.pointers]
    arguments += ["T", "H", *(f"{c}={_CONSTANTS.get(c, c)}" for c in kernel.constants if c not in ("BK", "BV"))]
    text.call(f"{kernel.name}[({grid},)]", [*arguments, f'**launches["{kernel.name}"]'])


def _blocks(kernel: Kernel, size: str) -> str:
    return f'triton.cdiv({size}, launches["{kernel.name}"]["B{size}"])'


def _rows(group: Group) -> str:
    return "CHUNK" if group.slots == 1 else f"{group.slots} * CHUNK"


def _decayed(tiles: Tiles) -> dict[str, str]:
    """The tensors that stand for q, p and w in the scans: with key decay, what `keys` has made of them."""
    key = tiles.decay == "key"
    return {x.name: f"{x.name}_decayed" if key else x.name for x in tiles.groups if x.name != "e"}


def _saved(tiles: Tiles) -> list[str]:
    """What the forward pass keeps for the backward pass."""
    names = [name for name in packed(tiles) if name != "y" and (name != "c" or tiles.inline)]
    names += ["inverse", "solved_k"] if tiles.e else []
    names += [pair.name for pair in tiles.pairs if pair.name != "a"] if not tiles.inline else []
    names += [*_decayed(tiles).values(), "total"] if tiles.decay == "key" else []
    return [*names, *(["u"] if tiles.e else []), "states"]


def _scan_forward(tiles: Tiles, kernels: Kernels) -> str:
    text = Text()
    arguments = [*(f"{x}: Tensor" for x in packed(tiles)), "initial: Tensor", "save: bool"]
    arguments += ["dtype: torch.dtype", "scale: float"]
    text.call("def _scan_forward", arguments, " -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:")
    text.depth = 1
    text(
        '"""The reads [B, T, H, reads, V] in dtype, times scale, and the last state.',
        "",
        "Third: what the backward pass needs, if `save`.",
        '"""',
    )
    _forward(text, tiles, kernels)
    return str(text)


def _scan_backward(tiles: Tiles, kernels: Kernels) -> str:
    text = Text()
    text.call("def _scan_backward", ["saved: tuple[Tensor, ...]", "do: Tensor", "dfinal: Tensor",
              "scale: float"], " -> tuple[Tensor, ...]:")  # fmt: skip
    text.depth = 1
    text('"""The gradients of the packed rows, in their order, and of the first state."""')
    _backward(text, tiles, kernels, list(packed(tiles)))
    return str(text)


def _autograd(tiles: Tiles) -> str:
    inputs = list(packed(tiles))
    text = Text()
    with text.block("class _Scan(torch.autograd.Function):"):
        text('"""The chunked scan on packed rows; its gradients are not differentiable again."""')
        text("", "@staticmethod")
        head = [f"{x}: Tensor" for x in inputs] + ["initial: Tensor", "save: bool"]
        text.call("def forward", ["ctx", *head], " -> tuple[Tensor, Tensor]:")
        text.depth += 1
        text.call("o, final, saved = _scan_forward", [*inputs, "initial", "save", "torch.float32", "1.0"])
        text("ctx.save_for_backward(*saved)", "return o, final")
        text.depth -= 1
        text("", "@staticmethod", "@_once")
        text.call("def backward", ["ctx", "do: Tensor", "dfinal: Tensor"], " -> tuple[Tensor | None, ...]:")
        text.depth += 1
        text("return *_scan_backward(ctx.saved_tensors, do, dfinal, 1.0), None")
    return str(text)


def _sizes(text: Text, tiles: Tiles, initial: str) -> None:
    dtype = f"{tiles.rights[0].name}.dtype"
    text(
        f"B, T, H, _, K = {tiles.rights[0].name}.shape",
        f"V = {initial}.shape[-1]",
        "chunks = triton.cdiv(T, CHUNK)",
        "KP = max(16, triton.next_power_of_2(K))",
        f"launches = _launches(K, V, {dtype}, {dtype.removesuffix('.dtype')}.device)",
    )


def _forward(text: Text, tiles: Tiles, kernels: Kernels) -> None:
    like = tiles.rights[0].name
    _sizes(text, tiles, "initial")
    for pair in tiles.pairs if kernels.intra else ():
        name = "inverse" if pair.name == "a" else pair.name
        rows, columns = (pair.right, pair.left) if pair.transposed else (pair.left, pair.right)
        text(f"{name} = {like}.new_empty(B * H * chunks, {_rows(rows)}, {_rows(columns)})")
    if tiles.e:
        text("solved_k, solved_v, u = torch.empty_like(e), torch.empty_like(y), torch.empty_like(y)")
    if tiles.decay == "key":
        text(*(f"{new} = torch.empty_like({old})" for old, new in _decayed(tiles).items()))
        text("total = initial.new_empty(B * H * chunks, K)")
    if tiles.q:
        text(f"o = initial.new_empty(B, T, H, {tiles.q.rows}, V, dtype=dtype)")
    else:
        text("o = initial.new_empty(B, T, H, 0, V, dtype=dtype)")
    text(f"states = {like}.new_empty(B * H * chunks if save else 0, V, K)", "final = torch.empty_like(initial)")
    decayed = _decayed(tiles)
    with text.block(f"with torch.cuda.device_of({like}):"):
        if kernels.intra:
            names = {f"{x.name}_out": x.name for x in tiles.pairs} | {"inverse_out": "inverse"}
            _launch(text, kernels.intra, "B * H * chunks", names)
        if kernels.keys:
            names = {f"{old}_out": new for old, new in decayed.items()} | {"solved": "solved_k"}
            _launch(text, kernels.keys, f"B * H * chunks * {_blocks(kernels.keys, 'K')}", names)
        if kernels.values:
            grid = f"B * H * chunks * {_blocks(kernels.values, 'V')}"
            _launch(text, kernels.values, grid, {"solved": "solved_v"})
        _launch(text, kernels.forward, f"B * H * {_blocks(kernels.forward, 'V')}", decayed)
    text.call("return o, final, ", _saved(tiles))


def _backward(text: Text, tiles: Tiles, kernels: Kernels, inputs: list[str]) -> None:
    like = tiles.rights[0].name
    text.call("", _saved(tiles), " = saved")
    _sizes(text, tiles, "dfinal")
    text("do, dfinal = do.contiguous(), dfinal.contiguous()")
    for value, like_value in (("dy", "u"), ("dyw", "yw")):
        if value[1:] in inputs:
            text(f"{value} = torch.empty_like({like_value})")
    text("dstates, dinitial = torch.empty_like(states), torch.empty_like(dfinal)")
    text(*(f"d{x.name} = {like}.new_empty(B * H * chunks, {_rows(x.left)}, {_rows(x.right)})" for x in tiles.pairs))
    if tiles.couplings:
        text(f"dc = dfinal.new_empty(B, T, H, {len(tiles.couplings)})")
    text(*(f"d{x.name} = torch.empty_like({x.name})" for x in tiles.groups))
    if tiles.decays:
        if tiles.decay == "key":
            text("dg = torch.empty_like(g)")
        else:
            text(f"dg = g.new_empty(B, T, H, {_blocks(kernels.local, 'K')}, dtype=torch.float32)")
    with text.block(f"with torch.cuda.device_of({like}):"):
        _launch(text, kernels.reverse, f"B * H * {_blocks(kernels.reverse, 'V')}", _decayed(tiles))
        if kernels.couplings:
            _launch(text, kernels.couplings, "B * H * chunks", {})
        _launch(text, kernels.local, f"B * H * chunks * {_blocks(kernels.local, 'K')}", {})
    gradients = {f"d{x}": f"d{x}" for x in inputs}
    if tiles.decays:
        gradients["dg"] = "dg" if tiles.decay == "key" else "dg.sum(-1, keepdim=True).to(g.dtype)"
    text(f"return {', '.join(gradients.values())}, dinitial")


def _scan(tiles: Tiles) -> str:
    inputs = packed(tiles)
    text = Text()
    with text.block("def _scan(t: dict[str, Tensor], S: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:"):
        text(
            '"""The reads [B, T, H, reads, V] and the state after the sequence, in float32.',
            "",
            "bfloat16 inputs are multiplied as such, all others as float32; sums and the state are float32.",
            '"""',
            "tile = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32",
        )
        _pack_all(text, tiles, "tile")
        text("S = S.float().contiguous()")
        text(f"save = torch.is_grad_enabled() and any(x.requires_grad for x in ({', '.join(inputs)}, S))")
        text(f"return _Scan.apply({', '.join(inputs)}, S, save)")
    return str(text)


def _pack_all(text: Text, tiles: Tiles, dtype: str) -> None:
    for name, members in packed(tiles).items():
        kind = "torch.float32" if name in ("g", "c") else dtype
        rows = ", ".join(f't["{x}"]' if x else _no_value(tiles) for x in members)
        text(f"{name} = _pack([{rows}], {kind})")


def _no_value(tiles: Tiles) -> str:
    """Zeros for a row that only erases."""
    key = next(name for name, axis in tiles.shape.tensors() if axis == "key")
    return f't["{key}"].new_zeros(*t["{key}"].shape[:3], S.shape[-1])'


def _token(tiles: Tiles) -> str:
    text = Text()
    with text.block("def _token(t: dict[str, Tensor], S: Tensor) -> tuple[Tensor, Tensor]:"):
        text('"""The reads [B, 1, H, reads, V] of one token and the state after it, in float32; S is left as it is."""')
        with text.block("if torch.is_grad_enabled() and any(x.requires_grad for x in (S, *t.values())):"):
            text('raise RuntimeError("decode has no gradient: call it under torch.no_grad()")')
        _pack_all(text, tiles, "torch.float32")
        text(f"return _decode({', '.join(packed(tiles))}, S)")
    return str(text)


def _decode(tiles: Tiles, kernels: Kernels) -> str:
    text = Text()
    like = tiles.rights[0].name
    text.call("def _decode", [*(f"{x}: Tensor" for x in packed(tiles)), "S: Tensor"], " -> tuple[Tensor, Tensor]:")
    text.depth = 1
    text('"""The reads [B, 1, H, reads, V] of one token and the state after it, from its rows, all in float32."""')
    text("before = S.float().contiguous()", f"B, T, H, _, K = {like}.shape", "V = S.shape[-1]")
    text("after = torch.empty_like(before)", f"o = before.new_empty(B, 1, H, {tiles.q.rows if tiles.q else 0}, V)")
    text("KP, BV = max(16, triton.next_power_of_2(K)), 16")
    with text.block(f"with torch.cuda.device_of({like}):"):
        arguments = [*kernels.decode.pointers, "T", "H", *(f"{c}={c}" for c in kernels.decode.constants)]
        text.call("decode[(B * H, triton.cdiv(V, BV))]", arguments)
    text("return o, after")
    return str(text)
