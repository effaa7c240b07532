"""Where rules come from: a text, a file, or the library that ships with the package."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path

from . import recurrences
from .compile_text import compile_text
from .diagnostics import RuleError
from .ir import Rule

_FOLDER = Path(recurrences.__path__[0])


def names() -> tuple[str, ...]:
    """The rules of the library, sorted."""
    return tuple(sorted(file.stem for file in _FOLDER.glob("*.rule")))


def parse(text: str, filename: str = "<rule>", constants: Mapping[str, float] | None = None) -> Rule:
    """The typed rule of `text`. `constants` replace constant lets by name.

    Raises RuleError with every finding if the text is refused.
    """
    rule, found = compile_text(text, constants)
    if rule is None:
        raise RuleError([d for d in found if not d.is_warning], text, filename)
    return rule


def load(source: str | os.PathLike[str], **constants: float) -> Rule:
    """A rule of the library by name, or of a file by path; `load("delta_product", n=3)` replaces its `let n`.

    A string with a path separator or the suffix .rule is a path.
    """
    if isinstance(source, os.PathLike) or source.endswith(".rule") or "/" in source or os.sep in source:
        path = Path(source)
        return parse(path.read_text(encoding="utf-8-sig"), str(path), constants)
    file = _FOLDER / f"{source}.rule"
    if not file.is_file():
        close = difflib.get_close_matches(source, names(), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; it has {', '.join(names())}"
        raise ValueError(f"the library has no rule {source!r}{hint}")
    return parse(file.read_text(encoding="utf-8"), f"{source}.rule", constants)
