"""Tile sizes, warps and pipeline stages of each kernel: data, by what a shape's tiles look like and by dtype.

Measured on an NVIDIA H200 (compute capability 9.0) at K = V = 128, kernel by kernel. Other cards take the same values,
with as many chunks in flight as their shared memory holds. For capabilities 8.0, 8.9 and 10.0 they compile; they were
never run there.
"""

from __future__ import annotations

from dataclasses import dataclass

from .triton_tiles import Tiles


@dataclass(frozen=True)
class Launch:
    """Columns of a block (of K, or of V where a kernel runs over values), warps, pipeline stages."""

    block: int
    warps: int
    stages: int

    def __str__(self) -> str:
        return f"({self.block}, {self.warps}, {self.stages})"


# Kernels whose blocks are of V.
OVER_VALUES = ("values", "scan", "reverse_scan", "couplings_grad")


def chunk_size(tiles: Tiles) -> int:
    """Tokens of a chunk: tiles of at most 64 rows where that leaves the 16 tokens that a matrix product needs."""
    widest = max(x.slots for x in tiles.groups)
    most = 64 if not tiles.e and tiles.decay != "key" else 32 if tiles.merged or tiles.decay != "key" else 16
    return max(16, min(most, 64 // widest))


def launches(tiles: Tiles) -> dict[str, dict[str, Launch]]:
    """For bfloat16 and float32 tiles, each kernel's launch."""
    return {"torch.bfloat16": _bfloat16(tiles), "torch.float32": _float32(tiles)}


def _rows(tiles: Tiles) -> int:
    """Rows of the tallest tile."""
    return max(x.slots for x in tiles.groups) * chunk_size(tiles)


def _bfloat16(tiles: Tiles) -> dict[str, Launch]:
    rows = _rows(tiles)
    found = {
        "intra": Launch(64, 1 if rows <= 32 else 4, 3),
        "keys": Launch(64, 2, 1) if tiles.decay == "key" else Launch(128, 2, 1),
        "values": Launch(128, 2, 1),
        "scan": Launch(64, 4, 3),
        "reverse_scan": Launch(64, 4, 3),
        "couplings_grad": Launch(64, 2 if rows <= 32 else 4, 3),
        "local_grad": Launch(64, 4, 2),
    }
    if tiles.merged:
        found |= {"intra": Launch(32, 1, 1), "local_grad": Launch(64, 4, 3) if tiles.e else Launch(32, 4, 2)}
    elif tiles.e and rows <= 32 and tiles.decay != "key":
        found["local_grad"] = Launch(128, 4, 2) if tiles.decay == "none" else Launch(64, 2, 2)
    elif tiles.inline:
        found |= {"scan": Launch(64, 4, 2), "reverse_scan": Launch(64, 4, 2)}
    if rows > 64:
        found |= {"intra": Launch(32, 8, 1), "keys": Launch(32, 4, 1), "local_grad": Launch(32, 4, 1)}
    return found


def _float32(tiles: Tiles) -> dict[str, Launch]:
    wide = _rows(tiles) > 64
    block = 16 if wide else 32
    names = ("intra", "keys", "values", "scan", "reverse_scan", "couplings_grad", "local_grad")
    found = {name: Launch(block, 4, 1) for name in names}
    if wide:
        found["intra"] = Launch(block, 8, 1)
    return found | {"scan": Launch(32, 4, 1), "reverse_scan": Launch(32, 4, 1)}


def table_source(tiles: Tiles, used: list[str]) -> str:
    """The table and the function that reads it, as source text; `used` are the kernels that there are."""
    lines = ["# Columns of a block, warps and pipeline stages of each kernel, as measured on an H200.", "LAUNCHES = {"]
    for dtype, found in launches(tiles).items():
        lines.append(f"    {dtype}: {{")
        lines += [f'        "{name}": {x},' for name, x in found.items() if name in used]
        lines.append("    },")
    over = ", ".join(f'"{name}"' for name in OVER_VALUES if name in used)
    rows = sum(x.slots for x in tiles.groups)
    return "\n".join(
        [
            f"CHUNK = {chunk_size(tiles)}  # tokens",
            *lines,
            "}",
            f"OVER_VALUES = ({over},)  # kernels whose blocks are of V",
            "",
            "",
            _FUNCTION.strip("\n").format(rows=rows),
        ]
    )


_FUNCTION = '''
def _shared_memory(device: torch.device) -> int:
    """Bytes of shared memory of a program; without a GPU, those of a small one."""
    if device.type != "cuda":
        return 99 * 1024
    index = torch.cuda.current_device() if device.index is None else device.index
    return triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"]


@functools.cache
def _launches(K: int, V: int, dtype: torch.dtype, device: torch.device) -> dict[str, dict[str, int]]:
    """The launch of each kernel: the table's, its blocks no wider than K or V, its stages as shared memory allows."""
    KP, VP = max(16, triton.next_power_of_2(K)), max(16, triton.next_power_of_2(V))
    found = {{}}
    for name, (block, warps, stages) in LAUNCHES[dtype].items():
        columns = {{"BV": min(VP, block)}} if name in OVER_VALUES else {{"BK": min(KP, block)}}
        if "scan" in name:
            rows = {rows} * CHUNK * KP * dtype.itemsize  # of a chunk; values and matrices take half as much again
            stages = max(1, min(stages, int(0.6 * _shared_memory(device)) // rows))
            # The state stays in registers. Without stages, Triton 3.6.0 miscompiles its products of 64 rows on Hopper.
            columns["BV"] = min(columns["BV"], max(16, (8192 if stages > 1 else 4096) // KP))
        if name == "local_grad":
            columns["BV"] = min(VP, 64 if dtype == torch.bfloat16 else block)
        found[name] = {{**columns, "num_warps": warps, "num_stages": stages}}
    return found
'''
