"""Printing: canonical text gives back the identical rule; the formatter changes no meaning and is idempotent."""

import re
from pathlib import Path

import pytest
from language_cases import CASES
from random_texts import rule_text

import stateir
from stateir import library
from stateir.fmt import format_text, text
from stateir.printer import canonical, fingerprint

ROOT = Path(__file__).parents[1]
RULES = [stateir.load(name) for name in library.names()] + [stateir.load("delta_product", n=3)]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_canonical_text_gives_back_the_rule(rule: stateir.ir.Rule) -> None:
    again = stateir.parse(canonical(rule))
    assert again == rule
    assert canonical(again) == canonical(rule)


@pytest.mark.parametrize("seed", range(40))
def test_canonical_text_gives_back_random_rules(seed: int) -> None:
    rule = stateir.parse(rule_text(seed))
    again = stateir.parse(canonical(rule))
    assert again == rule
    assert fingerprint(again) == fingerprint(rule)


def test_canonical_text_gives_back_the_accepted_cases() -> None:
    accepted = [source for _, code, source in CASES if code is None]
    assert len(accepted) > 10
    for source in accepted:
        rule = stateir.parse(source)
        assert stateir.parse(canonical(rule)) == rule


def test_fingerprints_tell_rules_apart_and_only_rules() -> None:
    assert len({fingerprint(rule) for rule in RULES}) == len(RULES)
    header, body = stateir.load("qed").text.split("\n", 1)
    spaced = header + "\n" + re.sub(" +", "  ", body.replace("# gate", "# a gate"))
    assert stateir.fingerprint(stateir.parse(spaced)) == fingerprint(stateir.load("qed"))
    assert re.fullmatch("[0-9a-f]{64}", fingerprint(RULES[0]))


@pytest.mark.parametrize("file", sorted((ROOT / "recurrences").glob("*.rule")), ids=lambda file: file.stem)
def test_the_library_is_formatted(file: Path) -> None:
    assert format_text(file.read_text()) == file.read_text()


@pytest.mark.parametrize("seed", range(20))
def test_formatting_keeps_the_rule_and_is_idempotent(seed: int) -> None:
    source = rule_text(seed)
    once = format_text(source)
    assert stateir.parse(once) == stateir.parse(source)
    assert format_text(once) == once
    assert text(stateir.parse(source)) == once


UGLY = """\


#first
rule   x   "a # in a title"# comment of the rule
input q:key unit ,k :key,v:value#  inputs
   # own line


state z[ 2]:key
let n=2
input a[n+1 ] : key   in( - inf,0 ]
param p: scalar in [0,1] fixed=1/(1+head)
update S+=outer( a[ i ],v-( 2*k )@S )for i in 0 .. n-1  # loop
update S=S*p^2
read o=-q@S"""

NEAT = """\
#first
rule x "a # in a title"                          # comment of the rule
input  q: key unit, k: key, v: value             #  inputs
# own line

state  z[2]: key
let    n = 2
input  a[n+1]: key in (-inf, 0]
param  p: scalar fixed in [0, 1] = 1 / (1 + head)
update S += outer(a[i], v - (2 * k) @ S) for i in 0..n-1  # loop
update S  = S * p^2
read   o = -q @ S
"""


def test_the_layout() -> None:
    assert format_text(UGLY) == NEAT
    assert format_text(UGLY.replace("\n", "\r\n")) == NEAT
    assert format_text(NEAT) == NEAT


def test_a_text_that_does_not_parse_is_left_alone() -> None:
    with pytest.raises(stateir.RuleError, match=r"mine\.rule:2:7"):
        format_text("rule x\nlet a b\n", "mine.rule")
