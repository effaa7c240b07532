"""Hostile texts: an error in bounded time, never an exception of the interpreter."""

import random
import time

import pytest
from language_cases import H, R, U

import stateir

TEXTS = {
    "parentheses": H + "let a = " + "(" * 3000 + "1" + ")" * 3000 + "\n" + U + R,
    "open parentheses": H + "let a = " + "(" * 3000 + "\n" + U + R,
    "minus signs": H + "let a = " + "-" * 3000 + "1\n" + U + R,
    "powers": H + "let a = " + "2^" * 3000 + "2\n" + U + R,
    "calls": H + "let a = " + "exp(" * 3000 + "1" + ")" * 3000 + "\n" + U + R,
    "terms": H + "let a = " + "c + " * 3000 + "c\n" + U + R,
    "factors": H + "let a = " + "c * " * 3000 + "c\n" + U + R,
    "tower": H + "let a = 9^9^9\n" + U + R,
    "digits": H + "let a = " + "9" * 10_000 + "\n" + U + R,
    "long index": H + "input a[2]: key\nlet x = a[" + "9" * 10_000 + "]\n" + U + R,
    "look-back": H + "let a = prev(k, " + "9" * 10_000 + ")\n" + U + R,
    "lines": H + "let a = kk\n" * 10_000 + U + R,
    "good lines": H + "".join(f"let a{i} = 2 * k\n" for i in range(10_000)) + U + R,
    "updates": H + "update S += outer(k, v) for i in 0..64\n" * 20 + R,
    "chained lets": H + "let a0 = k\n" + "".join(f"let a{i + 1} = a{i} + a{i}\n" for i in range(900)) + U + R,
    "doubled lets": H + "let a0 = k\n" + "".join(f"let a{i + 1} = a{i} + a{i}\n" for i in range(20)) + U + R,
    "a long line": H + "let a = " + "x" * 300_000 + "\n" + U + R,
    "declarations": "rule x\ninput " + ", ".join(f"a{i}: kee" for i in range(20_000)) + "\n" + U + R,
    "quotes": 'rule x "' * 3000,
    "broken lines": H + ("foo ) ( bar baz " * 12 + "\n") * 900,
    "factors without signs": H + ("update S += " + "k v " * 40 + "\n") * 900,
    "a long line of them": H + "update S += " + "k v " * 40_000 + "\n" + R,
    "white space": H + "let a = k" + " " * 100_000 + "v\n" + U + R,
    "semicolons": H + "let a = 1;" * 15_000 + "\n" + U + R,
    "look-alikes": H + "let a = k " + "− β " * 30_000 + "\n" + U + R,
    "prefixes": H + "let a = " + "np." * 30_000 + "k\n" + U + R,
    "quotes after a name": H + "let a = k" + "'" * 100_000 + "\n" + U + R,
    "NUL": H + "let a = \x00\n" + U + R,
    "no text": "\n" * 900,
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_hostile_text_is_refused_soon(text: str) -> None:
    start = time.process_time()
    with pytest.raises(stateir.RuleError) as caught:
        stateir.parse(text)
    assert str(caught.value)
    assert time.process_time() - start < 10


def test_random_bytes_and_random_cuts_never_raise_anything_else() -> None:
    rng = random.Random(0)
    good = stateir.load("qed").text
    refused = 0
    for _ in range(150):
        kind = rng.randrange(3)
        if kind == 0:
            text = bytes(rng.randrange(256) for _ in range(rng.randrange(200))).decode("latin-1")
        elif kind == 1:
            cut = rng.randrange(len(good))
            text = good[:cut] + good[cut + rng.randrange(1, 9) :]
        else:
            cut = rng.randrange(len(good))
            text = good[:cut] + rng.choice("()[]*@^=,:#\"'\\~λ\x00 \n") + good[cut:]
        try:
            stateir.parse(text)
        except stateir.RuleError as error:
            refused += 1
            assert str(error)
            assert error.diagnostics
    assert refused > 75
