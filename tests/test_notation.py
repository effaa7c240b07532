"""Printing in mathematical notation: parentheses where they are needed, and the two styles."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateir.affine import normal_form
from stateir.ir import Axis, Bin, Call, Contract, Expr, Neg, Num, Outer, Ref, children
from stateir.latex import rule as latex
from stateir.library import load, names
from stateir.notation import Style, expression
from stateir.unicode import normal_form as written

# Every axis has one entry here, so that all products are Python's and its precedence judges the parentheses.
PYTHON = Style(
    name=lambda ref, back: ref.name,
    number=lambda x: repr(x),
    dim=lambda x: x,
    paren=lambda x: f"({x})",
    power=lambda base, exponent: f"{base}**({exponent})",
    exp=lambda x: f"exp({x})",
    root=lambda x: f"sqrt({x})" if not x.startswith("(") else f"sqrt{x}",
    call=lambda fn, args: f"{fn}({', '.join(args)})",
    transpose=lambda x: f"* {x}",
    minus="-",
    hadamard=" * ",
    scale=" * ",
    dot=" * ",
)
VALUES = {"a": 1.75, "b": -0.625, "k": 2.5, "v": -1.25}


def evaluate(e: Expr) -> float:
    x = [evaluate(c) for c in children(e)]
    match e:
        case Num(value):
            return value
        case Ref(name):
            return VALUES[name]
        case Neg():
            return -x[0]
        case Call():
            return math.exp(x[0])
        case Contract() | Outer():
            return x[0] * x[1]
        case Bin(op):
            return {"+": x[0] + x[1], "-": x[0] - x[1], "*": x[0] * x[1]}[op] if op in "+-*" else x[0] / x[1]
    raise AssertionError(e)


def combine(parts: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    def axis(a: Expr, b: Expr) -> Axis:
        return b.axis if a.axis is Axis.SCALAR else a.axis

    binary = st.tuples(st.sampled_from("+-*/"), parts, parts).map(lambda t: Bin(t[0], t[1], t[2], axis(t[1], t[2])))
    return st.one_of(
        binary,
        parts.map(lambda x: Neg(x, x.axis)),
        parts.map(lambda x: Call("exp", (Bin("/", x, Num(1e3), x.axis),), x.axis)),
        st.tuples(parts, parts).map(lambda t: Contract(t[0], t[1], Axis.SCALAR)),
        st.tuples(parts, parts).map(lambda t: Outer(t[0], t[1])),
    )


LEAVES: st.SearchStrategy[Expr] = st.sampled_from(
    [Num(2.0), Num(-0.5), Ref("a", Axis.SCALAR), Ref("b", Axis.SCALAR), Ref("k", Axis.KEY), Ref("v", Axis.VALUE)]
)


@given(st.recursive(LEAVES, combine, max_leaves=12))
def test_the_parentheses_keep_the_value(e: Expr) -> None:
    try:
        expected = evaluate(e)
    except (ZeroDivisionError, OverflowError):
        return
    found = eval(expression(e, PYTHON), {"exp": math.exp, **VALUES})
    assert math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-9)


def test_the_normal_form_of_qed() -> None:
    nf = normal_form(load("qed"))
    assert nf is not None
    assert written(nf).splitlines() == [
        "S    ← e^g ⊙ S",
        "S    ← S + k u₀ᵀ",
        "  u₀ = w ⊙ v − (b ⊙ k + λ d)·S",
        "o    = q·S / √K",
        "d    = b ⊙ q − (k·(b ⊙ q)) k",
    ]


def test_a_read_above_the_update_is_printed_above_it() -> None:
    nf = normal_form(load("rwkv6"))
    assert nf is not None
    assert written(nf).splitlines()[:2] == ["o    = r·S + (r·(u ⊙ k)) v", "S    ← e^w ⊙ S + k u₀ᵀ"]


def test_a_vector_state_shows_which_value_is_meant() -> None:
    nf = normal_form(load("linear_attention"))
    assert nf is not None
    assert "z    = z₋ + fk" in written(nf).splitlines()
    assert "o    = fq·S / (fq·z)" in written(nf).splitlines()


def test_latex_has_time_as_subscripts_and_the_state_between_two_lines() -> None:
    assert latex(load("kda")).splitlines() == [
        r"\begin{aligned}",
        r"S_{t}^{(1)} &= e^{g_{t}} \odot S_{t-1} \\",
        r"S_{t} &= S_{t}^{(1)} + \beta_{t}\, k_{t} {\left(v_{t} - {S_{t}^{(1)}}^\top k_{t}\right)}^\top \\",
        r"o_{t} &= \frac{S_{t}^\top q_{t}}{\sqrt{K}}",
        r"\end{aligned}",
    ]


@pytest.mark.parametrize("name", names())
def test_latex_of_the_library_is_well_formed(name: str) -> None:
    text = latex(load(name))
    assert text.count("{") == text.count("}")
    assert text.count(r"\left") == text.count(r"\right")
    # TeX refuses a second superscript on one base.
    assert not re.search(r"\^(\{[^{}]*\}|\\top)\^", text)
