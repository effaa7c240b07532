"""What the makers of rewrites know of a text: its tree, its names, and the source of every piece."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from stateir import syntax as syn
from stateir.edits import Edit, Rewrite, applied, line_below, replaced
from stateir.ir import Axis, Rule, Span
from stateir.names import Entry
from stateir.parser import code_of

# Names that the field gives to the vectors that read S, that are written, and that address the writing.
USUAL = {Axis.KEY: ("k", "B", "q", "r"), Axis.VALUE: ("v", "x")}


@dataclass(frozen=True)
class Context:
    """`names` are those at the end of the text, `rule` the typed rule if no update has an error."""

    text: str
    file: syn.File
    names: Mapping[str, Entry]
    rule: Rule | None

    def line(self, number: int) -> str:
        return self.text.split("\n")[number - 1].rstrip("\r")

    def source(self, span: Span) -> str:
        return self.line(span.line)[span.column - 1 : span.end - 1]

    def code(self, number: int) -> Span:
        """The place of a line's code, without white space and comment around it."""
        code = code_of(self.line(number)).rstrip()
        return Span(number, len(code) - len(code.lstrip()) + 1, len(code) + 1)

    def statement(self, span: Span) -> syn.Statement | None:
        """The statement, of several declarations the one, that `span` lies in."""
        return next((s for s in self.file.statements if _within(span, s.span)), None)

    def path(self, span: Span) -> list[syn.Expr]:
        """The expressions around the one at `span`, from the outermost to itself; empty if none is there."""
        s = self.statement(span)
        found: list[syn.Expr] = []
        for e in [] if s is None else syn.values(s):
            for x in syn.walk(e):
                if _within(span, x.span):
                    found.append(x)
        return found if found and found[-1].span == span else []

    def around(self, span: Span) -> list[syn.Expr]:
        """The expressions that `span` lies in, from the outermost to the innermost."""
        s = self.statement(span)
        return [] if s is None else [x for e in syn.values(s) for x in syn.walk(e) if _within(span, x.span)]

    def of_axis(self, axis: Axis, line: int, first: tuple[str, ...] = ()) -> list[str]:
        """The vectors of an axis that are defined above a line, the likeliest first, as they are written."""
        known = {
            name: name if entry.size is None else f"{name}[0]"
            for name, entry in self.names.items()
            if entry.axis is axis and entry.line < line and entry.kind in ("input", "param", "let")
        }
        return [known[n] for n in usual_first(known, axis, first)]

    def vector(self, axis: Axis, line: int, first: tuple[str, ...] = ()) -> tuple[str, Rewrite]:
        """A vector of an axis to use on a line, and the declaration of it if there is none yet."""
        known = self.of_axis(axis, line, first)
        if known:
            return known[0], ()
        name = self.fresh((*first, *USUAL[axis])[0])
        return name, (self.below_header(f"input  {name}: {axis.value}"),)

    def below_header(self, text: str) -> Edit:
        line = self.file.span.line
        return line_below(line, len(self.line(line)) + 1, text)

    def fresh(self, name: str) -> str:
        """`name`, with a number behind it if the text has that word already."""
        words = set(re.findall(r"\w+", self.text))
        return next(n for n in (name, *(f"{name}{i}" for i in range(2, len(words) + 3))) if n not in words)

    def uses(self, name: str, line: int) -> Iterator[syn.Name | syn.Item]:
        """The uses of a name in the expressions from a line on."""
        for s in self.file.statements:
            for e in syn.values(s) if s.span.line >= line else ():
                yield from (x for x in syn.walk(e) if isinstance(x, syn.Name | syn.Item) and x.id == name)

    def replaced_uses(self, name: str, line: int, new: str) -> Rewrite:
        """Every use of a name from a line on as `new`; an index stays behind it."""
        spans = (replace(x.span, end=x.span.column + len(name)) for x in self.uses(name, line))
        return tuple(Edit(span, new) for span in spans)

    def without(self, span: Span) -> Rewrite:
        """The text without a declaration of several, or without a whole line, which stays as a comment."""
        line, s = self.line(span.line), self.statement(span)
        alone = not isinstance(s, syn.Declare) or len(self.of_line(span.line)) == 1
        if alone:
            place = self.code(span.line)
            return replaced(place, f"# {self.source(place)}")
        assert isinstance(s, syn.Declare)
        before, after = line[: s.span.column - 1], line[s.span.end - 1 :]
        if s.first:
            comma = len(after) - len(after.lstrip(" \t,"))
            return replaced(Span(span.line, s.span.column, s.span.end + comma), "")
        comma = len(before) - len(before.rstrip(" \t,"))
        return replaced(Span(span.line, s.span.column - comma, s.span.end), "")

    @property
    def read(self) -> Span | None:
        """The place of the first `read` line."""
        return next((s.span for s in self.file.statements if isinstance(s, syn.Read)), None)

    def of_line(self, line: int) -> list[syn.Statement]:
        return [s for s in self.file.statements if s.span.line == line]

    def piece(self, rewrite: Rewrite, span: Span) -> str:
        """What a rewrite within one line makes of the piece at `span`."""
        moved = tuple(replace(e, span=replace(e.span, line=1)) for e in rewrite)
        changed = applied(self.line(span.line), moved)
        return changed[span.column - 1 : span.end - 1 + len(changed) - len(self.line(span.line))]


def usual_first(names: Iterable[str], axis: Axis, first: tuple[str, ...] = ()) -> list[str]:
    """Names in the order in which one is likely meant: `first`, then those that the field gives to the axis."""
    usual = (*first, *USUAL.get(axis, ()))
    return sorted(names, key=lambda n: usual.index(n) if n in usual else len(usual))


def _within(inner: Span, outer: Span) -> bool:
    return inner.line == outer.line and outer.column <= inner.column and inner.end <= outer.end
