"""The normal form as lines of Unicode text, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from .ir import Axis, Bin, Expr, Let, Neg, Num, Ref, Update, walk
from .normal import NormalForm, Readout, Row
from .notation import GREEK, Style, expression, factor

_GREEK = dict(zip(GREEK, "αβγδηθκλμστφ", strict=True))
_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
_SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_FUNCTIONS = {"sigmoid": "σ"}


def subscript(n: int) -> str:
    """n in subscript digits."""
    return str(n).translate(_SUBSCRIPTS)


def number(x: float) -> str:
    """A constant as one would write it."""
    if x in (float("inf"), float("-inf")):
        return "∞" if x > 0 else "−∞"
    mantissa, _, exponent = f"{x:g}".partition("e")
    return (mantissa + (f"e{int(exponent)}" if exponent else "")).replace("-", "−")


def _name(ref: Ref, back: int) -> str:
    text = _GREEK.get(ref.name, ref.name) + ("" if ref.index is None else subscript(ref.index))
    if back:
        return f"{text}[t−{back}]"
    return text


def _power(base: str, exponent: str) -> str:
    return base + exponent.translate(_SUPERSCRIPTS) if exponent.isdigit() else f"{base}^{_grouped(exponent)}"


def _grouped(text: str) -> str:
    return text if text.replace("−", "", 1).isalnum() else f"({text})"


def style(states: frozenset[str] = frozenset()) -> Style:
    """The terminal's style. A name of `states` shows which of its values is meant: z₋ is what the last token left."""

    def name(ref: Ref, back: int) -> str:
        text = _name(ref, back)
        if ref.name not in states:
            return text
        return f"{text}₋" if ref.version == 0 else text + "′" * (ref.version - 1)

    return Style(
        name=name,
        number=number,
        dim=lambda x: x,
        paren=lambda x: f"({x})",
        power=_power,
        exp=lambda x: f"e^{_grouped(x)}",
        root=lambda x: f"√{x}",
        call=lambda fn, args: f"{_FUNCTIONS.get(fn, fn)}({', '.join(args)})",
        transpose=lambda x: f"{x}ᵀ",
        minus="−",
        hadamard=" ⊙ ",
        scale=" ",
        dot="·",
    )


def normal_form(nf: NormalForm) -> str:
    """The lines of the normal form: what each update does to S, the read, and the lets and states they use."""
    rule = nf.rule
    written = style(frozenset(s.name for s in rule.states))

    def show(e: Expr) -> str:
        return expression(e, written)

    out: list[tuple[str, str]] = []
    read = _read(nf, written)
    for line, decay in enumerate(nf.decays):
        if line == nf.read_line:
            out += read
        out += _line(line, decay, [r for r in enumerate(nf.rows) if r[1].line == line], written)
    if nf.read_line == len(nf.decays):
        out += read
    out += [(name, f"= {show(value)}") for name, value in _definitions(nf)]
    width = max(len(left) for left, _ in out)
    return "\n".join(f"{left:<{width}} {right}".rstrip() for left, right in out)


def _line(line: int, decay: Expr | None, rows: Sequence[tuple[int, Row]], written: Style) -> list[tuple[str, str]]:
    """S ← e^g ⊙ S + k u₀ᵀ, then one line for each u."""
    kept = "S"
    if decay is not None:
        sign = " ⊙ " if decay.axis is Axis.KEY else " "
        kept = f"{written.exp(expression(decay, written))}{sign}S"
    writes, solved = "", []
    for i, row in rows:
        u = f"u{subscript(i)}"
        writes += f" + {factor(row.p, written)} {u}ᵀ"
        solved.append((f"  {u}", f"= {_written_value(row, written)}"))
    return [("S", f"← {kept}{writes}"), *solved]


def _written_value(row: Row, written: Style) -> str:
    """y − e·S."""
    y = "" if row.y is None else expression(row.y, written)
    match row.e:
        case None:
            return y
        case Neg(x):
            return f"{y} + {factor(x, written)}·S" if y else f"{factor(x, written)}·S"
    return f"{y} − {factor(row.e, written)}·S" if y else f"−{factor(row.e, written)}·S"


def _read(nf: NormalForm, written: Style) -> list[tuple[str, str]]:
    parts = [_readout(readout, written) for readout in nf.reads]
    if nf.rest is not None:
        parts.append(expression(nf.rest, written))
    return [(nf.rule.read.name, f"= {' + '.join(parts)}")]


def _readout(readout: Readout, written: Style) -> str:
    read = f"{factor(readout.q, written)}·S"
    match readout.factor:
        case None:
            return read
        case Bin("/", Num(1.0), divisor):
            return f"{read} / {factor(divisor, written)}"
    sign = " " if readout.factor.axis is Axis.SCALAR else " ⊙ "
    return f"{factor(readout.factor, written)}{sign}({read})"


def _definitions(nf: NormalForm) -> list[tuple[str, Expr]]:
    """The lets and the updates of vector states that the normal form refers to, in time order."""
    rule = nf.rule
    used = {r.name for e in _expressions(nf) for r in walk(e) if isinstance(r, Ref)}
    matrices = {s.name for s in rule.states if s.axis is Axis.MATRIX}
    found: list[tuple[str, Expr]] = []
    for line in reversed(rule.lines):
        name = line.name if isinstance(line, Let) else line.state if isinstance(line, Update) else None
        if name in used and name not in matrices and isinstance(line, Let | Update):
            found.append((_name(Ref(name, Axis.SCALAR), 0), line.value))
            used |= {r.name for r in walk(line.value) if isinstance(r, Ref)}
    return found[::-1]


def _expressions(nf: NormalForm) -> list[Expr]:
    rows = [e for row in nf.rows for e in (row.p, row.y, row.e)]
    reads = [e for read in nf.reads for e in (read.q, read.factor)]
    return [e for e in [*nf.decays, *rows, *reads, nf.rest] if e is not None]
