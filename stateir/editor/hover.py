"""What an editor shows of the word under the cursor, as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stateir import intervals
from stateir.affine import normal_form
from stateir.core import core
from stateir.error_table import TABLE
from stateir.ir import Axis, Expr, Input, Interval, Let, Param, Read, Ref, Rule, Span, State, walk
from stateir.plan import describe, plan
from stateir.ranges import Ranges
from stateir.unicode import normal_form as written

from .document import Definition, Document
from .glossary import WORDS
from .patterns import Token

LANGUAGE = "stateir"
_ANY = Interval(-math.inf, math.inf, True, True)


def hover(document: Document, line: int, column: int) -> tuple[str, Span] | None:
    """The Markdown for a place (line and column from 1) and what it is about: a word, an error that stands there, or
    both; None where there is nothing to say."""
    word = document.word(line, column)
    here = [d for d in document.found if d.span.line == line and d.span.column <= column <= d.span.end]
    parts = [] if word is None else list(_word(document, word))
    parts += [f"**{d.code}: {TABLE[d.code].title}**\n\n{TABLE[d.code].why}" for d in here]
    if not parts:
        return None
    return "\n\n---\n\n".join(parts), here[0].span if word is None else word.span


def _word(document: Document, word: Token) -> Iterator[str]:
    definition = document.definition(word)
    if definition is not None and definition.kind == "rule":
        yield _rule(document)
    elif definition is not None:
        yield _name(document, word, definition)
    elif word.text in WORDS:
        yield f"**`{word.text}`** {WORDS[word.text]}"


def _rule(document: Document) -> str:
    rule = document.rule
    if rule is None:
        return "This rule has errors, so it has no normal form yet."
    head = f"**{rule.name}**" + (f" {rule.title}" if rule.title else "")
    nf = normal_form(rule)
    if nf is None:
        return f"{head}\n\nNo normal form: it has matrix states beside `S`, so the step reference alone."
    steps = [f"{what:<11} {how}" for what, how in describe(plan(nf, core(nf)))]
    return "\n\n".join([head, "Normal form", _code(written(nf)), "Plan", _code("\n".join(steps))])


def _name(document: Document, word: Token, definition: Definition) -> str:
    source = _code(document.line(definition.span.line).strip(), LANGUAGE)
    if definition.kind == "for":
        return f"**`{word.text}`** counts the passes of its line\n\n{source}"
    what = f"**`{word.text}`** {WORDS['S'] if word.kind == 'state' else _kind(document.rule, definition)}"
    parts = [what] if word.kind == "state" else [what, source]
    parts += _range(document.rule, word)
    return "\n\n".join(parts)


def _kind(rule: Rule | None, definition: Definition) -> str:
    """What the compiler knows of the name; while the text has errors, the statement's word alone."""
    kind, name = definition.kind, definition.name
    if rule is None:
        return kind
    declared = _declared(rule, name)
    if declared is not None:
        size = "" if isinstance(declared, State) or declared.size is None else f"array of {declared.size}, each "
        return f"{kind}, {size}{', '.join([_axis(declared.axis), *_claims(declared)])}"
    value = _defined(rule, name)
    return f"{kind}, a constant" if value is None else f"{kind}, {_axis(value.axis)}"


def _range(rule: Rule | None, word: Token) -> list[str]:
    """What interval analysis says of the name beyond its declaration, for a state at the very place of the word."""
    ref = None if rule is None else _use(rule, word)
    if rule is None or ref is None:
        return []
    found = Ranges(rule).of(ref)
    declared = _declared(rule, ref.name)
    if found in (None if declared is None else declared.range, _ANY):
        return []
    return [f"Range{'' if ref.axis is Axis.SCALAR else ' of its entries'}: `{intervals.text(found)}`"]


def _use(rule: Rule, word: Token) -> Ref | None:
    """The typed name at the word's place; at a definition the name as its readers see it first."""
    starts = [p.start for p in rule.params] + [s.start for s in rule.states]
    for e in (*(start for start in starts if start is not None), *(line.value for line in rule.lines)):
        for x in walk(e):
            at_word = (x.span.line, x.span.column) == (word.span.line, word.span.column)
            if at_word and isinstance(x, Ref) and x.name == word.text:
                return x
    declared = _declared(rule, word.text)
    if declared is not None:
        array = not isinstance(declared, State) and declared.size is not None
        return Ref(declared.name, declared.axis, 0 if array else None)
    let = rule.lets.get(word.text)
    return None if let is None else Ref(word.text, let.axis)


def _declared(rule: Rule, name: str) -> Input | Param | State | None:
    everything: tuple[Input | Param | State, ...] = (*rule.inputs, *rule.params, *rule.states)
    return next((d for d in everything if d.name == name), None)


def _defined(rule: Rule, name: str) -> Expr | None:
    return next((x.value for x in rule.lines if isinstance(x, Let | Read) and x.name == name), None)


def _claims(d: Input | Param | State) -> list[str]:
    fixed = isinstance(d, Param) and d.fixed
    words = [word for word, said in (("unit", d.unit), ("fixed", fixed)) if said]
    return [*words, *([f"in `{intervals.text(d.range)}`"] if d.range is not None else [])]


def _axis(axis: Axis) -> str:
    return axis.value if axis in (Axis.SCALAR, Axis.MATRIX) else f"{axis.value} vector"


def _code(text: str, language: str = "text") -> str:
    return f"```{language}\n{text}\n```"
