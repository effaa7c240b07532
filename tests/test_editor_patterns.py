"""Colours agree with the grammar: every word and every token, in the Pygments lexer and in the TextMate grammar."""

import json
import re
from pathlib import Path

import pytest
from pygments.lexers import get_lexer_by_name, get_lexer_for_filename
from pygments.token import Whitespace
from rich.syntax import Syntax

from stateir.editor import patterns, textmate
from stateir.editor.glossary import WORDS
from stateir.editor.lexer import TOKENS, RuleLexer
from stateir.ir import FUNCTIONS
from stateir.names import AXES, BUILTINS, KEYWORDS
from stateir.parser import grammar

ROOT = Path(__file__).resolve().parent.parent
TEXTS = {file.stem: file.read_text(encoding="utf-8") for file in sorted((ROOT / "recurrences").glob("*.rule"))}
TEXTS["spacing"] = (
    'rule  a "t # no comment"  # one\ninput q:key unit,k[2]: key unit in[-1,1],v:value\n'
    "input unit_: scalar in (-inf , 2.5e-3)\n"
    "update S-=outer (unit (k[i]),v)for i in 0..1\nread o=-q@S/sqrt(dim(key))^2\r\n"
)

# What the kinds of this package are called in the grammar.
TERMINALS = {
    "string": {"STRING"},
    "statement": {"RULE", "KIND", "LET", "UPDATE", "READ"},
    "keyword": {"FOR", "IN"},
    "attribute": {"UNIT", "FIXED"},
    "axis": {"AXIS"},
    "number": {"NUMBER", "INT"},
    "operator": {"PLUS", "MINUS", "STAR", "SLASH", "AT", "CIRCUMFLEX", "ASSIGN", "EQUAL", "ANON_0"},
    "punctuation": {"LPAR", "RPAR", "LSQB", "RSQB", "COMMA", "COLON"},
    "name": {"NAME"},
    "state": {"NAME"},
    "constant": {"NAME"},
    # `unit` is a word of its own in the grammar, a function where a parenthesis follows; `key` is one in `dim(key)`.
    "function": {"NAME"},
}


def words(pattern: str) -> set[str]:
    """The words that a terminal's pattern spells out: what is left without classes, lookaheads and escapes."""
    return set(re.findall(r"[a-z]+", re.sub(r"\(\?!.*?\)|\[[^\]]*\]|\\.", " ", pattern)))


def test_the_words_are_those_of_the_grammar() -> None:
    theirs = {word for terminal in grammar().terminals for word in words(terminal.pattern.value)}
    ours = {*patterns.STATEMENTS, *patterns.ATTRIBUTES, *patterns.OTHERS, *AXES}
    assert theirs == ours == KEYWORDS | AXES
    assert set(FUNCTIONS) <= BUILTINS


def test_every_reserved_word_has_its_sentence() -> None:
    assert set(WORDS) == KEYWORDS | AXES | BUILTINS | {"S", *patterns.CONSTANTS}


def lark_tokens(text: str) -> list[tuple[str, str, int]]:
    """(terminal, text, offset) as the parser itself saw them."""
    found = []
    parser = grammar().parse_interactive(text if text.endswith("\n") else text + "\n", start="start")
    for token in parser.iter_parse():
        if token.type != "_NL":
            found.append((token.type.lstrip("_"), str(token), token.start_pos or 0))
    return found


def pygments_tokens(text: str) -> list[tuple[str, str, int]]:
    kinds = {token: kind for kind, token in TOKENS.items()}
    return [
        (kinds[token], piece, start)
        for start, token, piece in RuleLexer().get_tokens_unprocessed(text)
        if token is not Whitespace and kinds[token] != "comment"
    ]


@pytest.mark.parametrize("name", TEXTS)
def test_the_lexer_sees_what_the_parser_sees(name: str) -> None:
    text = TEXTS[name]
    theirs, ours = lark_tokens(text), pygments_tokens(text)
    assert [t[1:] for t in ours] == [t[1:] for t in theirs]
    for (kind, piece, _), (terminal, _, _) in zip(ours, theirs, strict=True):
        known = TERMINALS[kind] | ({"NAME"} if kind == "axis" else set())
        assert terminal in known or (kind == "function" and piece == "unit"), (kind, terminal, piece)


def test_functions_and_claims_of_one_name_differ() -> None:
    kinds = [kind for kind, piece, _ in pygments_tokens(TEXTS["spacing"]) if piece == "unit"]
    assert kinds == ["attribute", "attribute", "function"]


def textmate_scopes(text: str, language: dict[str, object]) -> list[tuple[str, str, int]]:
    """What an editor makes of `text`: at each place the pattern that matches first, of equal ones the earlier."""
    rules = [(re.compile(p["match"]), p["name"]) for p in language["patterns"]]  # type: ignore[attr-defined]
    found, offset = [], 0
    for line in text.split("\n"):
        at = 0
        while True:
            matches = [(m.start(), i, m) for i, (r, _) in enumerate(rules) if (m := r.search(line, at))]
            if not matches:
                break
            _, i, match = min(matches, key=lambda x: x[:2])
            found.append((rules[i][1], match[0], offset + match.start()))
            at = match.end()
        offset += len(line) + 1
    return found


@pytest.mark.parametrize("name", TEXTS)
def test_the_textmate_grammar_sees_the_same(name: str) -> None:
    language = json.loads((ROOT / "docs/editor/stateir.tmLanguage.json").read_text())
    kinds = {f"{scope}.stateir": kind for kind, scope in textmate.SCOPES.items()}
    scopes = [(kinds[scope], *rest) for scope, *rest in textmate_scopes(TEXTS[name], language)]
    assert [s for s in scopes if s[0] != "comment"] == pygments_tokens(TEXTS[name])


def test_the_textmate_file_is_fresh() -> None:
    file = ROOT / "docs/editor/stateir.tmLanguage.json"
    assert file.read_text() == textmate.grammar(), "run python docs/editor/generate.py"


def test_pygments_and_rich_find_the_lexer() -> None:
    for alias in ("stateir", "rule"):
        assert get_lexer_by_name(alias).name == RuleLexer.name
    assert get_lexer_for_filename("my.rule").name == RuleLexer.name
    shown = Syntax("update S += outer(k, v)", "stateir")
    colours = {str(span.style) for span in shown.highlight("update S += outer(k, v)").spans}
    assert len(colours) > 2


def test_a_broken_text_has_tokens_too() -> None:
    found = [(t.kind, t.text, t.span.column) for t in patterns.tokens("let é = k2 ⊙ 1e5 # x")]
    assert found == [
        ("statement", "let", 1),
        ("operator", "=", 7),
        ("name", "k2", 9),
        ("number", "1e5", 14),
        ("comment", "# x", 18),
    ]
