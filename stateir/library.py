"""Where rules come from: a text, a file, or the library that ships with the package."""

from __future__ import annotations

import os
from collections.abc import Mapping
from numbers import Real
from pathlib import Path

from . import recurrences
from .compile_text import check_constants, compile_text
from .diagnostics import RuleError
from .ir import Rule

_FOLDER = Path(recurrences.__path__[0])


def names() -> tuple[str, ...]:
    """The rules of the library, sorted."""
    return tuple(sorted(file.stem for file in _FOLDER.glob("*.rule")))


def parse(text: str, filename: str = "<rule>", constants: Mapping[str, float] | None = None) -> Rule:
    """The typed rule of `text`. `constants` replace constant lets by name.

    Raises RuleError with every finding if the text is refused, TypeError or ValueError for a constant that is no number
    or that the rule does not have or does not allow.
    """
    for name, given in (constants or {}).items():
        value: object = given
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(f"{filename}: {name}: expected a number, got {type(value).__name__}")
    rule, found = compile_text(text, constants)
    if rule is None:
        if constants:
            check_constants(text, constants)
        raise RuleError([d for d in found if not d.is_warning], text, filename)
    return rule


def load(source: str | os.PathLike[str], **constants: float) -> Rule:
    """A rule of the library by name, or of a file by path; `load("delta_product", n=3)` replaces its `let n`.

    A string with a path separator or the suffix .rule is a path. ValueError: no such rule, a file that is no text, or a
    constant that the rule does not have or that is outside its range. OSError: no such file. RuleError: refused text.
    """
    if isinstance(source, os.PathLike) or source.endswith(".rule") or "/" in source or os.sep in source:
        path = Path(source)
        return parse(read_rule_text(path), str(path), constants)
    file = _FOLDER / f"{source}.rule"
    if source not in names():
        raise ValueError(f"the library has no rule {source!r}{_hint(source)}")
    return parse(file.read_text(encoding="utf-8"), f"{source}.rule", constants)


def read_rule_text(path: Path) -> str:
    """The text of a file. OSError if it cannot be read, ValueError if it is not UTF-8 text."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: not a text file in UTF-8: byte {error.start} is {error.object[error.start]:#04x}"
        ) from error


def _hint(source: str) -> str:
    import difflib

    known = names()
    same = [n for n in known if n == source.lower().replace("-", "_")]
    close = same or difflib.get_close_matches(source.lower(), known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    if Path(source).exists():
        return f"; write ./{source} for the file of that name"
    return f"; it has {', '.join(known)}"
