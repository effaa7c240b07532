"""Interval analysis: exact ends, and soundness against numbers."""

import math
import operator

import numpy as np
import pytest
from language_cases import H, R, U
from random_texts import rule_text

import stateir
from stateir import evaluate as numeric
from stateir import intervals as iv
from stateir.ir import Axis, Interval, Let, Update, walk
from stateir.printer import expression
from stateir.ranges import Ranges

INF = math.inf
DECLARED = """\
input ku: key unit, vu: value unit, p: scalar in (0, inf), n: scalar in (-inf, 0), t: scalar in [0, 2], a: pair
input kp: key in (0, inf), kn: key in [0, inf), e: key in [-1, 1]
"""


def range_of(text: str) -> Interval:
    rule = stateir.parse(f"{H}{DECLARED}let x = {text}\n{U}{R}")
    return Ranges(rule).of(rule.lets["x"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("c + 0", "(0, 1)"),
        ("1 - c", "(0, 1)"),
        ("1 - b", "[0, 1]"),
        ("exp(g)", "(0, 1]"),
        ("exp(n)", "(0, 1)"),
        ("1 - exp(g)", "[0, 1)"),
        ("-t * p", "(-inf, 0]"),
        ("p * n", "(-inf, 0)"),
        ("t * t", "[0, 4]"),
        ("k * k", "[0, inf)"),
        ("k^2", "[0, inf)"),
        ("k^3", "(-inf, inf)"),
        ("k * b * k * b", "[0, inf)"),
        ("k @ k", "[0, inf)"),
        ("(b * k) @ k", "[0, inf)"),
        ("ku @ ku", "[0, 1]"),
        ("(b * ku) @ ku", "[0, 1]"),
        ("ku @ (e * ku)", "[-1, 1]"),
        ("ku @ k", "(-inf, inf)"),
        ("ku + 0", "[-1, 1]"),
        ("kp @ kp", "(0, inf)"),
        ("kp @ kn", "[0, inf)"),
        ("rotate(ku, a) @ ku", "[-1, 1]"),
        ("prev(kp) + 0", "[0, inf)"),
        ("prev(ku) @ ku", "[-1, 1]"),
        ("1 / c", "(1, inf)"),
        ("1 / (1 + p)", "(0, 1)"),
        ("p / (1 + p)", "(0, inf)"),
        ("c^b", "(0, 1]"),
        ("c^2", "(0, 1)"),
        ("p^-1", "(0, inf)"),
        ("sigmoid(k)", "(0, 1)"),
        ("tanh(t)", "[0, 0.964028]"),
        ("softplus(k)", "(0, inf)"),
        ("abs(e)", "[0, 1]"),
        ("max(k, 0) + exp(min(k, 0))", "(0, inf)"),
        ("max(t, c)", "(0, 2]"),
        ("min(t, c)", "[0, 1)"),
        ("log(1 + p)", "(0, inf)"),
        ("sqrt(p)", "(0, inf)"),
        ("rsqrt(1 + t)", "[0.57735, 1]"),
        ("dim(key) * 1", "[1, 256]"),
        ("unit(k) @ unit(q)", "[-1, 1]"),
        ("0 * p", "[0, 0]"),
    ],
)
def test_ranges_of_expressions(text: str, expected: str) -> None:
    assert iv.text(range_of(text)) == expected


@pytest.mark.parametrize(
    ("text", "norm"),
    [
        ("ku", 1),
        ("-prev(ku)", 1),
        ("2 * ku", 2),
        ("ku + ku", 2),
        ("b * ku", 1),
        ("ku / (1 + t)", 1),
        ("k", INF),
        ("t * vu", 2),
        ("rotate(ku, a)", 1),
        ("unit(k)", 1),
        ("tanh(ku)", 1),
        ("max(ku, 0)", 1),
        ("ku + 1", INF),
        ("1 / (1 + kn)", INF),
        ("ku / (1 + kn)", 1),
        ("max(ku, 1)", INF),
        ("max(1, ku)", INF),
        ("min(t, ku)", INF),
        ("ku^0", INF),
        ("exp(ku)", INF),
        ("sigmoid(ku)", INF),
        ("t - ku", INF),
        ("c", 1),
    ],
)
def test_norms(text: str, norm: float) -> None:
    rule = stateir.parse(f"{H}{DECLARED}let x = {text}\n{U}{R}")
    assert Ranges(rule).norm(rule.lets["x"]) == norm


def test_states_are_tracked_by_version() -> None:
    rule = stateir.parse(
        H + "state z: key in [0, inf)\nlet a = z + 0\nupdate z += exp(k)\nlet b2 = 1 / z\nupdate z = max(z, 2)\n"
        "let c2 = z + 0\n" + U + R
    )
    ranges = Ranges(rule)
    assert [iv.text(ranges.of(rule.lets[x])) for x in ("a", "b2", "c2")] == ["[0, inf)", "(0, inf)", "[2, inf)"]


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ("state z: key in [0, 1]\nupdate z = c * z + (1 - c) * b\n", "E402"),  # true, but not by intervals
        ("state z: key in [0, 1]\nupdate z = 0.5 * z + 0.5 * b\n", None),
        ("state z: scalar in [0, 1] = 2\nupdate z = c * z\n", "E402"),
        ("state z: scalar in (0, 1] = 1\nupdate z = c * z\n", None),
        ("state z: scalar in [0, 1)\nupdate z = z + 1\n", "E402"),
        ("state z: key in [0, inf)\nupdate z -= b\nupdate z = max(z, 0)\n", "E402"),
        ("state z: key in [0, inf)\nupdate z = max(z - b, 0)\n", None),
    ],
)
def test_claims_on_states_are_proved_by_induction(lines: str, code: str | None) -> None:
    try:
        stateir.parse(H + lines + U + R)
        found = None
    except stateir.RuleError as error:
        found = error.diagnostics[0].code
    assert found == code


@pytest.mark.parametrize(
    ("text", "clamped"),
    [
        ("k / c", True),
        ("k / (1 + c)", False),
        ("log(c)", True),
        ("c^b", True),
        ("k^2", False),
        ("rsqrt(c)", True),
        ("sqrt(c)", True),
        ("sqrt(k @ k)", True),
        ("sqrt(1 + k @ k)", False),
        ("c / exp(max(min(w @ w, 200), 100) - 400)", True),
        ("c / -exp(max(min(w @ w, 200), 100) - 400)", True),
        ("log(exp(max(min(w @ w, 200), 100) - 400) + 1e-30)", False),
        ("c / exp(max(min(w @ w, 200), 100) - 180)", False),
        ("k / (k @ k + 1e-6)", False),
        ("c * k", False),
        ("1 / (c - 1)", True),
    ],
)
def test_what_rests_on_an_open_bound_at_zero_is_clamped(text: str, clamped: bool) -> None:
    rule = stateir.parse(f"{H}let x = {text}\n{U}{R}")
    assert Ranges(rule).needs_clamp(rule.lets["x"]) == clamped


@pytest.mark.parametrize("seed", range(30))
def test_values_lie_in_their_ranges(seed: int) -> None:
    """Every subexpression of a random rule, on random inputs at and within the ends of their ranges."""
    rule = stateir.parse(rule_text(seed))
    ranges, rng = Ranges(rule), np.random.default_rng(seed)
    dims = {Axis.KEY: 6, Axis.VALUE: 5, Axis.PAIR: 3}
    checked = 0
    for ends in (False, True, True):
        given = numeric.draw(rule, rng, dims, ends)
        names = {(n, i, 0): x for (n, i), x in given.items()}
        names["S", None, 0] = rng.standard_normal((6, 5))
        counts: dict[str, int] = {}
        for line in rule.lines:
            with np.errstate(all="ignore"):
                for e in walk(line.value):
                    value, bound = numeric.evaluate(e, names, dims), ranges.of(e)
                    if not np.all(np.isfinite(value)):
                        continue
                    slack = 1e-9 * (1 + np.abs(value))
                    assert np.all((value >= bound.lo - slack) & (value <= bound.hi + slack)), expression(e)
                    if e.axis in (Axis.KEY, Axis.VALUE):
                        assert np.linalg.norm(value) <= ranges.norm(e) * (1 + 1e-9), expression(e)
                    checked += 1
                value = numeric.evaluate(line.value, names, dims)
            if isinstance(line, Update):
                counts[line.state] = counts.get(line.state, 0) + 1
                names[line.state, None, counts[line.state]] = value
            elif isinstance(line, Let):
                names[line.name, None, 0] = value
    assert checked > 50


POINTS = [-INF, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0, INF]
INTERVALS = [
    Interval(a, b, o or a == -INF, p or b == INF)
    for i, a in enumerate(POINTS)
    for b in POINTS[i:]
    for o in (False, True)
    for p in (False, True)
    if (a < b or (a == b and not (o or p))) and math.isfinite(a if a == b else 0)
]


def members(a: Interval) -> list[float]:
    """Some numbers of a, its closed ends and numbers near its open ones."""
    lo, hi = max(a.lo, -50.0), min(a.hi, 50.0)
    tiny = 1e-7 * (hi - lo)
    return [lo + tiny * a.lo_open, hi - tiny * a.hi_open, (lo + hi) / 2, (2 * lo + hi) / 3]


def holds(a: Interval, x: float) -> bool:
    return (a.lo < x or (a.lo == x and not a.lo_open)) and (x < a.hi or (x == a.hi and not a.hi_open))


@pytest.mark.parametrize("name", ["add", "mul", "maximum", "minimum", "join"])
def test_arithmetic_of_two_intervals_is_sound_and_its_closed_ends_are_reached(name: str) -> None:
    plain = {"add": operator.add, "mul": operator.mul, "maximum": max, "minimum": min, "join": lambda x, y: x}
    for a in INTERVALS[::3]:
        for b in INTERVALS[::2]:
            made = getattr(iv, name)(a, b)
            values = [plain[name](x, y) for x in members(a) for y in members(b)]
            assert all(holds(made, x) for x in values), (name, a, b, made)
            if name == "join":
                continue
            for end, is_open in ((made.lo, made.lo_open), (made.hi, made.hi_open)):
                if not is_open and end != 0:
                    assert min(abs(end - x) for x in values) == 0, (name, a, b, made)


def test_meet_and_inside() -> None:
    for a in INTERVALS[::3]:
        for b in INTERVALS[::2]:
            both = [x for x in members(a) + members(b) if holds(a, x) and holds(b, x)]
            assert all(holds(iv.meet(a, b), x) for x in both)
            if iv.inside(a, b):
                assert all(holds(b, x) for x in members(a))
            elif math.isfinite(a.lo) and math.isfinite(a.hi):
                assert not all(holds(b, x) for x in members(a)) or a.lo_open or a.hi_open


def test_an_end_beyond_the_largest_number_is_no_nan() -> None:
    huge = iv.exp(Interval(800.0, 900.0))
    assert huge.lo < INF and huge.hi == INF
    assert iv.add(huge, iv.neg(huge)) == iv.REALS
    assert iv.add(Interval(INF, INF), Interval(-INF, -INF)) == iv.REALS


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (
            "input x: scalar in [800, 900], y: scalar in [800, 900]\nupdate S = (exp(x) - exp(y)) * S + outer(k, v)\n",
            "E404",
        ),
        ("input x: scalar in [800, 900]\nupdate S = (exp(x) - 1) * S + outer(k, v)\n", "E405"),
        ("input d: key in [1, 2]\nlet e = 1 / d\nupdate S = (1 - e @ e) * S + outer(k, v)\n", "E404"),
    ],
)
def test_decays_without_a_known_bound_are_refused(lines: str, code: str) -> None:
    with pytest.raises(stateir.RuleError) as caught:
        stateir.parse(f"{H}{lines}{R}")
    assert caught.value.diagnostics[0].code == code
