"""Text to train on that every Python brings along: the sources of its standard library, as bytes."""

from __future__ import annotations

import hashlib
import sysconfig
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

LIBRARY = "python"  # the name of the standard library as a text
HELD_OUT = 0.05  # the share of a text, its end, that is not trained on


@lru_cache(maxsize=2)
def text(source: str = LIBRARY) -> bytes:
    """The bytes of a text: a file, all *.py files of a folder by name, or those of the standard library.

    A zero byte stands between files. Installed packages are no part of the standard library.

    Raises:
        ValueError: if there is nothing.
    """
    place = Path(sysconfig.get_path("stdlib")) if source == LIBRARY else Path(source)
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    files = [f for f in files if not {"site-packages", "dist-packages"} & set(f.relative_to(place.parent).parts)]
    found = b"\0".join(f.read_bytes() for f in files)
    if not found:
        raise ValueError(f"the text {source!r} has no bytes: expected a file, a folder of *.py files, or {LIBRARY!r}")
    return found


def digest(source: str) -> str:
    """Sixteen hex digits of a text's bytes; they differ between versions of Python."""
    return hashlib.sha256(text(source)).hexdigest()[:16]


def rows(source: str, length: int, count: int, seed: tuple[int, ...], held_out: bool = False) -> tuple[Tensor, Tensor]:
    """`count` pieces of a text at places drawn from the seed: inputs and the tokens that follow, [count, length] each.

    The same arguments give the same pieces on every machine that has the same text.
    """
    data = np.frombuffer(text(source), dtype=np.uint8)
    border = int(len(data) * (1 - HELD_OUT))
    data = data[border:] if held_out else data[:border]
    if len(data) <= length:
        raise ValueError(f"the text {source!r} has {len(data)} bytes to draw from: too few for rows of {length} tokens")
    starts = np.random.default_rng(seed).integers(0, len(data) - length, count)
    found = torch.from_numpy(np.stack([data[s : s + length + 1] for s in starts]).astype(np.int64))
    return found[:, :-1], found[:, 1:]
