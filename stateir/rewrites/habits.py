"""Slips of the pen and habits of other notations: how they are found in a line, and what is written instead."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stateir.edits import grouped

_LOOK_ALIKES = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "×": "*", "⋅": "*", "·": "*", "⊙": "*", "∘": "*", "∗": "*", "•": "*",
    "÷": "/", "∕": "/", "←": "=", "≔": "=", "“": '"', "”": '"', "„": '"', "‘": '"', "’": "", "′": "", "ᵀ": "",
    "⊤": "", "⊺": "", "∞": "inf", "√": "sqrt", "λ": "lam", "…": "..",
    # Cyrillic letters that look like Latin ones
    "а": "a", "е": "e", "о": "o", "р": "p", "с": "c", "х": "x", "у": "y", "к": "k", "в": "v", "т": "t", "і": "i",
    "ѕ": "s", "ԛ": "q", "ѵ": "v", "ᴠ": "v", "Ѕ": "S", "А": "A", "В": "B", "С": "C", "Е": "E", "К": "K", "М": "M",
    "О": "O", "Р": "P", "Т": "T", "Х": "X",
}  # fmt: skip
_ARRAY_LIBRARIES = r"(?:np|numpy|torch|math|jnp|jax|tf|F|nn|functional)"
_NAME = r"[A-Za-z_]\w*"
_ATOM = rf"{_NAME}(?:\[[^\[\]]*\]|\([^()]*\))?|\([^()]*\)|[0-9][0-9.]*"
_FUNCTIONS = "exp|log|sqrt|rsqrt|sigmoid|softplus|tanh|abs|unit"
_WORDS = r"for|in|unit|fixed"


@dataclass(frozen=True)
class Habit:
    """`words` say how it is written; `write` makes of a match what is written instead."""

    pattern: re.Pattern[str]
    write: Callable[[re.Match[str]], str]
    words: str


def _habit(pattern: str, write: str | Callable[[re.Match[str]], str], words: str) -> Habit:
    made = write if callable(write) else (lambda match: match.expand(write))
    return Habit(re.compile(pattern), made, words)


def plain(text: str) -> str:
    """Text in ASCII as far as its characters have a look-alike or a Latin name; the rest as it is."""
    return "".join(_ascii(ch) for ch in text)


def _ascii(ch: str) -> str:
    if ch.isascii():
        return ch
    if ch in _LOOK_ALIKES:
        return _LOOK_ALIKES[ch]
    if unicodedata.category(ch) == "Cf":
        return ""
    if ch.isspace():
        return " "
    if ch in "⁰¹²³⁴⁵⁶⁷⁸⁹":
        return f"^{unicodedata.digit(ch)}"
    simple = unicodedata.normalize("NFKD", ch)
    ascii_part = "".join(x for x in simple if x.isascii())
    if ascii_part:
        return ascii_part
    name = unicodedata.name(ch, "")
    return name.split()[-1].lower() if name.startswith("GREEK ") else ch


def _range(match: re.Match[str]) -> str:
    first, second = match[1], match[2]
    lo, hi = ("0", first) if second is None else (first, second)
    hi = hi.strip()
    return f"{lo.strip()}..{int(hi) - 1 if hi.isdecimal() else f'{hi}-1'}"


def _in_place(match: re.Match[str]) -> str:
    space, name, op, value = match.groups()
    return f"{space}update {name} = {name} {op} {grouped(value.strip())}"


HABITS = (
    _habit(rf"({_ATOM})\s*⊗\s*({_ATOM})", r"outer(\1, \2)", "k ⊗ v is written `outer(k, v)`"),
    _habit(
        rf"\b({_NAME})\s*@?\s*({_NAME})(?:\^\{{?T\}}?|\.T|'|ᵀ)\s*@?\s*(S)\b",
        r"outer(\1, \2 @ \3)",
        "k kᵀ S is written `outer(k, k @ S)`",
    ),
    _habit(r"[^\x00-\x7f]+", lambda m: plain(m[0]), "names and operators are ASCII"),
    _habit(r"^(\s*rule\s+\w+\s+)'([^'\"]*)'", r'\1"\2"', "titles stand in double quotes"),
    _habit(
        rf"\b({_NAME})(?:\^\{{?(?:T|top|intercal)\}}?|\.m?T\b|\.t\(\)|'|\.transpose\([^()]*\))",
        r"\1",
        "there is no transpose: write `outer(k, v)` for k vᵀ, `k @ S` for Sᵀk",
    ),
    _habit(r"(\))(?:\^\{?(?:T|top)\}?|\.m?T\b|')", r"\1", "there is no transpose: `@` sums over the one shared axis"),
    _habit(rf"\b{_ARRAY_LIBRARIES}\s*\.\s*(?={_NAME})", "", "functions have no prefix: `exp(x)`"),
    _habit(rf"\b({_NAME})\.({_FUNCTIONS})\(\)", r"\2(\1)", "a function is written `exp(x)`"),
    _habit(r"(?<=[\w)\]])\s*\*\*\s*", "^", "a power is written `x ^ y`"),
    _habit(
        rf"^(\s*)(?:update\s+)?({_NAME})\s*([*/])=\s*(.*)",
        _in_place,
        "only `=`, `+=` and `-=` update: write `S = a * S`",
    ),
    _habit(r"==|:=|<-", "=", "a name is defined with one `=`"),
    _habit(r"\brange\(([^(),]+)(?:,([^(),]+))?\)", _range, "a loop is written `for i in 0..n-1`, both ends included"),
    _habit(r"(?<=\d)\s*(?:\.\.\.|:)\s*(?=\w)", "..", "a loop is written `for i in 0..n-1`, both ends included"),
    _habit(r"(?<![\w.)\]])\.(?=\d)", "0.", "a number starts with a digit: `0.5`"),
    _habit(r"(?<![\w.])(\d+)\.(?![\d.])", r"\1", "a number ends with a digit: `1.0`"),
    _habit(r"\s*;\s*$", "", "a line ends without a semicolon"),
    _habit(r"\s*;\s*", "\n", "one statement a line, without semicolons"),
    _habit(r"^(\s*)(?:return|output|yield)\b\s*(?=\w+\s*=[^=])", r"\1read ", "the output is written `read o = q @ S`"),
    _habit(r"^(\s*)(?:return|output|yield)\b\s*", r"\1read o = ", "the output is written `read o = q @ S`"),
    _habit(r"\s*(?://|%|--)\s*(.*)$", r"  # \1", "a comment starts with `#`"),
    _habit(r"^\s*for\s+(\w+)\s+in\s+(\S+?)\s*:\s*(update\b.*)$", r"\3 for \1 in \2", "a loop stands behind its line"),
    _habit(rf"\b({_FUNCTIONS})\s+({_NAME})\b", r"\1(\2)", "a function has parentheses: `exp(x)`"),
    _habit(rf"\b({_NAME})_\{{\s*t\s*(?:-\s*1)?\s*\}}", r"\1", "a state's name is that state just before its line"),
    _habit(r"\{([^{}]*)\}", r"(\1)", "parentheses are round"),
    _habit(r"\\(?:odot|cdot|times|circ)\s*", "* ", "a product is written `*`"),
    _habit(
        r"(:\s*(?:scalar|key|value|pair)\b.*?)\bin\s+([^\s\[(.,]+)\s*(?:\.\.|,)\s*([^\s\])]+)",
        r"\1in [\2, \3]",
        "a range is written `in [0, 1]`",
    ),
)
# A line that a person writes; the patterns take a time that grows with the square of it.
LONGEST = 500
MOST_SIGNS = 3  # each may be one of three
_MISSING = re.compile(rf"(?<![\w.])(?!(?:{_WORDS})\b)({_ATOM})\s+(?!(?:{_WORDS})\b)({_ATOM})(?![\w(])")
_STATEMENT = re.compile(r"(\s*(?:update|read|let)\s+\w+\s*(?:\+=|-=|=)\s*)(.*)", re.S)


def hint(code: str, column: int) -> str | None:
    """How to write what stands at a column (from 1) of a line that does not parse, or anywhere in it."""
    if len(code) > LONGEST:
        return None
    found = [(m.start() <= column - 1 <= m.end(), h.words) for h in HABITS for m in h.pattern.finditer(code)]
    if found:
        return max(found, key=lambda x: x[0])[1]
    line = _STATEMENT.match(code)
    if line is not None and any(m.start(2) == column - 1 - len(line[1]) for m in _MISSING.finditer(line[2])):
        return "a product has its sign: `k * q`, `k @ S`, `outer(k, v)`"
    return None


def all_corrected(code: str) -> Iterator[str]:
    """The line with every habit in it written the language's way, if it has one."""
    line = code
    for habit in HABITS:
        line = habit.pattern.sub(habit.write, line)
    if line != code:
        yield line


def corrected(code: str) -> Iterator[str]:
    """The line with one habit written the language's way, for each that is in it."""
    for habit in HABITS:
        line = habit.pattern.sub(habit.write, code)
        if line != code:
            yield line


def multiplied(line: str, written: str, most: int = MOST_SIGNS) -> Iterator[str]:
    """A sign between two factors, for up to `most` pairs; `@` first where the left one of `written` is transposed."""
    statement = _STATEMENT.match(line)
    if statement is None:
        return
    head, body = statement.groups()
    found = _MISSING.search(body)
    if found is None:
        return
    a, b = found.groups()
    product, contraction, outer = f"{a} * {b}", f"{a} @ {b}", f"outer({a}, {b})"
    transposed = re.search(rf"{re.escape(a)}\s*(?:\^|\.|'|ᵀ)", written) is not None
    for text in (contraction, outer, product) if transposed else (product, outer, contraction):
        made = head + body[: found.start()] + text + body[found.end() :]
        yield made
        yield from multiplied(made, written, most - 1) if most > 1 else ()
