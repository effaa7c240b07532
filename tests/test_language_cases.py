"""Every text of `language_cases.py` gets its code, at the first finding, and nothing else of its line."""

import pytest
from language_cases import CASES, H, R, U

import stateir


@pytest.mark.parametrize(("code", "text"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_case(code: str | None, text: str) -> None:
    if code is None:
        stateir.parse(text)
        return
    with pytest.raises(stateir.RuleError) as caught:
        stateir.parse(text)
    first, *others = caught.value.diagnostics
    assert first.code == code
    assert first.help or first.message
    assert [d for d in others if d.span.line == first.span.line] == []


def test_there_are_85_cases_and_three_in_four_are_refused() -> None:
    assert len(CASES) == 85
    assert sum(code is not None for _, code, _ in CASES) > 60


MORE = [
    ("E001", H + "let a = 2 *\n" + U + R),
    ("E001", H + "letx = 2\n" + U + R),
    ("E001", H + "input s: keys\n" + U + R),
    ("E001", H + "input s: scalar in [0, 1] in [0, 2]\n" + U + R),
    ("E001", H + "input s: key unit unit\n" + U + R),
    ("E001", U + R),
    ("E001", ""),
    ("E001", "# only a comment"),
    ("E001", H + "update S += outer(k, v) for i in 0..\n" + R),
    ("E001", H + 'let a = "text"\n' + U + R),
    ("E001", H + "update S = S ** 2\n" + R),
    ("E003", H + "state M: matrix\nupdate M += outer(k, v)\n" + R),
    ("E101", H + "update S += outer(exq(k), v)\n" + R),
    ("E101", H + "update S += outer(k(2), v)\n" + R),
    ("E103", H + "update S += outer(exp, v)\n" + R),
    ("E104", H + "let a = inf\n" + U + R),
    ("E104", H + "input a: scalar fixed\n" + U + R),
    ("E104", H + "input a: scalar in [0, dim(key)]\n" + U + R),
    ("E104", H + "input a: scalar in [0, c]\n" + U + R),
    ("E104", H + "state z: key = head\n" + U + R),
    ("E202", H + "param a: key = outer(1, 2)\n" + U + R),
    ("E202", H + "let a = outer(k, k)\n" + U + R),
    ("E202", H + "let a = rotate(v, c)\n" + U + R),
    ("E202", H + "let a = max(k, v)\n" + U + R),
    ("E202", H + "let a = S @ S\n" + U + R),
    ("E202", H + "let a = c @ k\n" + U + R),
    ("E204", H + "update k += k\n" + U + R),
    ("E205", H + "state z[2]: key\n" + U + R),
    ("E206", H + "update S += v\n" + R),
    ("E206", H + "update S += 1\n" + R),
    ("E210", H + "state M: matrix\nlet r = k @ M\nupdate M += outer(k, v)\n" + U + R),
    ("E210", H + "let M = outer(k, v)\nlet r = (k @ M) @ (q @ S)\n" + U + R),
    ("E210", H + "let M = S + outer(k, v)\n" + U + R),
    ("E305", H + "state y: value\nlet M = outer(k, v)\nupdate y = k @ (S - M)\n" + U + R),
    ("E208", H + "input a[65]: key\n" + U + R),
    ("E208", H + "let n = 1.5\ninput a[n]: key\n" + U + R),
    ("E208", H + "input a[3]: key\nlet x = a[99999999999999999999]\n" + U + R),
    ("E208", H + "update S += outer(k, v) for i in 0..65\n" + R),
    ("E209", H + "let a = c\nlet x = a[0]\n" + U + R),
    ("E211", H + "update S += outer(unit(c) * k, v)\n" + R),
    ("E211", H + "state M: matrix unit\n" + U + R),
    ("E212", H + "let a = exp(k, q)\n" + U + R),
    ("E212", H + "let a = dim(k)\n" + U + R),
    ("E212", H + "let a = prev(k, 1, 2)\n" + U + R),
    ("E214", H + "let a = prev(k, 65)\n" + U + R),
    ("E214", H + "let a = prev(k, 1.5)\n" + U + R),
    ("E214", H + "state z: key\nlet a = prev(z)\n" + U + R),
    ("E215", H + "let a = 1 / k @ q\n" + U + R),
    ("E215", H + "let a = k @ q @ v\n" + U + R),
    ("E401", H + "input s: scalar in (1, 1]\n" + U + R),
    ("E402", H + "param s: scalar in [0, 1] = 2\n" + U + R),
    ("E402", H + "state z: key unit\nupdate z = unit(k)\n" + U + R),
    ("E403", H + "let a = log(0)\n" + U + R),
    ("E403", H + "param s: scalar = 1 / 0\n" + U + R),
    ("E403", H + "let a = rsqrt(k @ k)\n" + U + R),
    ("E403", H + "let a = sqrt(c - 1)\n" + U + R),
    ("E406", H + "let a = 9^9^9\n" + U + R),
    ("E406", H + "let a = 1e999 * k\n" + U + R),
    ("E406", H + "let a = exp(1e6) * k\n" + U + R),
]


@pytest.mark.parametrize(("code", "text"), MORE)
def test_further_refusals(code: str, text: str) -> None:
    with pytest.raises(stateir.RuleError) as caught:
        stateir.parse(text)
    assert caught.value.diagnostics[0].code == code


@pytest.mark.parametrize(
    "lines",
    [
        "state z: key unit\nupdate z = -prev(k2)\n" + U,
        "param u: key unit fixed\nupdate S += outer(k, v - u @ S)\n",
        "state m: scalar = -inf\nupdate m = max(m, c)\n" + U,
        "let W = outer(k, v)\nupdate S += W\n",
        "let W = outer(k, v)\nlet a = k @ W\nupdate S += outer(k, a)\n",
        "state y: value\nlet W = outer(k, v)\nlet X = W - c * W\nupdate y = k @ X\n" + U,
        "let n = 2\nlet m = n - 1\ninput a[n]: key\nupdate S += outer(a[m], v)\n",
        "update S += outer(k, c * v / 2 - c * k @ S / 2)\n",
        "update S += outer(-k^2, v)\n",
        "update S += outer(v, k)\n",
        "state z: key\nupdate z += 1\n" + U,
        "let a = (k2 @ k2) / (1 + k @ k)\n" + U,
        "let a = (1 / (b + 1e-6)) @ k\n" + U,
    ],
)
def test_further_texts_are_accepted(lines: str) -> None:
    stateir.parse(H + "input k2: key unit\n" + lines + R)
