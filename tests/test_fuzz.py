"""Mutated texts: whatever is written, the front end answers with a rule or with findings, soon and in little memory.

The rules of the library are mutated by their tokens (deleted, doubled, swapped, taken from elsewhere, replaced by look-
alikes), by their lines, and cut short.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

import stateir
from stateir.compile_text import compile_text
from stateir.edits import applied
from stateir.ir import Rule
from stateir.library import names
from stateir.render import records, render_all

TEXTS = [stateir.load(name).text for name in names()]
TOKEN = re.compile(r'"[^"\n]*"|#[^\n]*|\w+|\.\.|[-+]=|[^\w\s]|\n|[ \t]+')
LOOK_ALIKES = "−–—×⋅·⊙⊗∗÷“”’′ᵀ⊤∞√λβσΣκкѕаоеΚＳｋ²₁\u00a0\u200b\u202e\ufeff\u2028\x0b\x0c\x1f\x85"
SECONDS = 2.0  # of the processor, for one mutated rule of the library; the slowest takes a tenth


def mutated(rng: random.Random) -> str:
    """A rule of the library after one to four mutations."""
    tokens = TOKEN.findall(rng.choice(TEXTS))
    for _ in range(rng.randint(1, 4)):
        i, j = rng.randrange(len(tokens)), rng.randrange(len(tokens))
        match rng.randrange(9):
            case 0:
                del tokens[i]
            case 1:
                tokens.insert(i, tokens[i])
            case 2:
                tokens[i], tokens[j] = tokens[j], tokens[i]
            case 3:
                tokens[i] = rng.choice(TOKEN.findall(rng.choice(TEXTS)))
            case 4:
                tokens.insert(i, rng.choice(LOOK_ALIKES))
            case 5:
                cut = rng.randint(0, len(tokens[i]))
                tokens[i] = tokens[i][:cut] + rng.choice(LOOK_ALIKES) + tokens[i][cut + 1 :]
            case 6:
                tokens[min(i, j) : max(i, j)] = tokens[min(i, j) : max(i, j)][::-1]
            case 7:
                del tokens[i:]
            case _:
                lines = "".join(tokens).split("\n")
                rng.shuffle(lines)
                tokens = TOKEN.findall("\n".join(lines))
        tokens = tokens or ["\n"]
    return "".join(tokens)


def garbage(rng: random.Random) -> str:
    """Random bytes, random characters of the language, random characters of Unicode."""
    size = rng.randrange(300)
    match rng.randrange(3):
        case 0:
            return rng.randbytes(size).decode("latin-1")
        case 1:
            words = "rule input param let update read key value scalar S q k v = += @ * ( ) [ ] , : for in 0..1 \n"
            return " ".join(rng.choice(words.split(" ")) for _ in range(size))
    return "".join(chr(rng.choice([rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)])) for _ in range(size))


def answers(text: str) -> tuple[Rule | None, list[str]]:
    """The rule, and the codes of the findings; each is rendered, and its rewrite applied."""
    start = time.process_time()
    rule, found = compile_text(text)
    assert time.process_time() - start < SECONDS, text
    assert (rule is None) == any(not d.is_warning for d in found)
    lines = text.split("\n")
    for d in found:
        assert 1 <= d.span.line <= len(lines)
        assert 1 <= d.span.column <= d.span.end
        assert not d.rewrite or applied(text, d.rewrite) != text
    assert bool(render_all(found, text, "x.rule")) == bool(found)
    assert len(records(found, "x.rule")) == len(found)
    return rule, [d.code for d in found]


def texts(seed: int, count: int) -> Iterator[str]:
    rng = random.Random(seed)
    for n in range(count):
        yield garbage(rng) if n % 6 == 5 else mutated(rng)


def walk(seed: int, count: int) -> None:
    answered = [answers(text) for text in texts(seed, count)]
    accepted = sum(rule is not None for rule, _ in answered)
    codes = {code for _, found in answered for code in found}
    assert 0 < accepted < count / 2
    assert len(codes) > 5


def test_some_mutations() -> None:
    walk(0, 200)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_many_mutations(seed: int) -> None:
    walk(seed, 1000)


@pytest.mark.slow
def test_prefixes_of_every_rule() -> None:
    for text in TEXTS:
        for end in range(0, len(text), 5):
            answers(text[:end])


HUGE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2 ** 30, 2 ** 30))
sys.path.insert(0, {tests!r})
from test_hostile import TEXTS
from stateir.compile_text import compile_text
for text in TEXTS.values():
    assert any(not d.is_warning for d in compile_text(text)[1])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_hostile_texts_take_little_memory() -> None:
    """All of them within an address space of 1 GiB, which holds the interpreter too."""
    code = HUGE.format(tests=str(__file__.rsplit("/", 1)[0]))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 640
