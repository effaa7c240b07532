"""A row of the table of errors, and the rules that its examples are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Row:
    """`message` is a format string over the facts of a finding; `why` is the explanation that `bad` and `good` show.

    `at` says where the code arises: from the text alone, or when a backend is asked for.
    """

    title: str
    message: str
    why: str
    bad: str
    good: str
    help: str | None = None
    at: Literal["text", "backend"] = "text"


_HEAD = "rule example\ninput  q: key, k: key, v: value\n"
_WRITE = "update S += outer(k, v)\n"
_READ = "read   o = q @ S\n"


def rule(*lines: str, write: str = _WRITE, read: str = _READ) -> str:
    """An example: declarations and lets, the update and the read."""
    return _HEAD + "".join(f"{line}\n" for line in lines) + write + read


def update(line: str, *above: str) -> str:
    return rule(*above, write=f"update {line}\n")
