"""A rule as the aligned equations of a paper. Output only: `k (b * k)^T` would be ambiguous as input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .ir import Expr, Let, Prev, Read, Ref, Rule, Update, walk
from .notation import GREEK, Style, expression

_NAMES = {name: "\\" + {"lam": "lambda"}.get(name, name) for name in GREEK}
_FUNCTIONS = {"sigmoid": r"\sigma", "log": r"\log", "tanh": r"\tanh", "max": r"\max", "min": r"\min"}


def rule(r: Rule) -> str:
    """The lines of r in an aligned environment, time as subscripts: S_{t-1} is what the last token left."""
    written = style(r)
    updates: Counter[str] = Counter()
    lines = []
    for line in r.lines:
        match line:
            case Update(state):
                updates[state] += 1
                axis = next(s.axis for s in r.states if s.name == state)
                left: Expr = Ref(state, axis, version=updates[state])
            case Let(name, value) | Read(name, value):
                left = Ref(name, value.axis)
        lines.append(rf"{expression(left, written)} &= {expression(line.value, written)}")
    return "\\begin{aligned}\n" + " \\\\\n".join(lines) + "\n\\end{aligned}"


def style(r: Rule) -> Style:
    """LaTeX with the time subscripts that r's declarations call for."""
    constant = {p.name for p in r.params} | {name for name, value in r.lets.items() if _is_constant(value, r)}
    states = {s.name for s in r.states}
    last = Counter(line.state for line in r.lines if isinstance(line, Update))

    def name(ref: Ref, back: int) -> str:
        text = _letter(ref)
        index = [] if ref.index is None else [str(ref.index)]
        if ref.name in constant:
            return _subscripted(text, index)
        if ref.name not in states:
            return _subscripted(text, [f"t-{back}" if back else "t", *index])
        if ref.version == 0:
            return _subscripted(text, ["t-1"])
        part = "" if ref.version == last[ref.name] else rf"^{{({ref.version})}}"
        return _subscripted(text, ["t"]) + part

    return Style(
        name=name,
        number=_number,
        dim=lambda x: x,
        paren=lambda x: rf"\left({x}\right)",
        power=lambda base, exponent: rf"{_base(base)}^{{{exponent}}}",
        exp=lambda x: rf"e^{{{x}}}",
        root=lambda x: rf"\sqrt{{{x}}}",
        call=_call,
        transpose=lambda x: rf"{_base(x)}^\top",
        minus="-",
        hadamard=r" \odot ",
        scale=r"\, ",
        dot=r"^\top ",
        fraction=lambda a, b: rf"\frac{{{a}}}{{{b}}}",
        transposed_reads=True,
    )


def _base(text: str) -> str:
    """Grouped where it has a superscript of its own: TeX refuses two."""
    return f"{{{text}}}" if "^" in text else text


def _letter(ref: Ref) -> str:
    """A Greek letter by its name, another letter as it is, a word upright."""
    if ref.name in _NAMES:
        return _NAMES[ref.name]
    word = ref.name.replace("_", r"\_")
    return word if len(ref.name) == 1 else rf"\mathrm{{{word}}}"


def _subscripted(text: str, parts: Sequence[str]) -> str:
    return f"{text}_{{{','.join(parts)}}}" if parts else text


def _number(x: float) -> str:
    if x in (float("inf"), float("-inf")):
        return r"\infty" if x > 0 else r"-\infty"
    digits = f"{x:g}"
    if "e" not in digits:
        return digits
    mantissa, exponent = digits.split("e")
    power = rf"10^{{{int(exponent)}}}"
    return power if mantissa == "1" else rf"{mantissa} \cdot {power}"


def _call(fn: str, args: Sequence[str]) -> str:
    if fn == "abs":
        return rf"\left|{args[0]}\right|"
    name = _FUNCTIONS.get(fn) or rf"\operatorname{{{fn}}}"
    return rf"{name}\left({', '.join(args)}\right)"


def _is_constant(e: Expr, r: Rule) -> bool:
    constant = {p.name for p in r.params}
    return not any(isinstance(x, Prev) or (isinstance(x, Ref) and x.name not in constant) for x in walk(e))
