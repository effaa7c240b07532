"""Text -> syntax tree. What lark accepts is converted here; what it refuses goes to `recover.py`, line by line."""

from __future__ import annotations

import re
from typing import Any

from lark import Token, Tree
from lark.exceptions import UnexpectedInput

from . import syntax as syn
from .diagnostics import Diagnostic
from .errors import diagnostic
from .ir import Span
from .tables import grammar

MAX_CHARACTERS = 200_000
MAX_LINES = 1_000
MAX_DEPTH = 100

_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_TARGET = re.compile(r"([A-Za-z_][A-Za-z_0-9]*)\s*[-+*/:]?=")
_CODE = re.compile(r'(?:"[^"\n]*"|[^#])*')


def code_of(line: str) -> str:
    """A line without its comment, white space kept."""
    match = _CODE.match(line)
    return match[0] if match else ""


def defined(line: str) -> list[str]:
    """The names that a line, broken or not, means to define; for a read also `read` itself."""
    code = code_of(line)
    words = _WORD.findall(code)
    first = words[0].lower() if words else ""
    if first in ("input", "param", "state"):
        return words[1:]
    if first in ("read", "return", "output"):
        return ["read", *words[1:2]]
    targets = _TARGET.findall(code)
    reads = ["read"] if targets and "S" in words and "S" not in targets and first != "let" else []
    return words[1:2] + targets + reads


class Malformed(Exception):
    """What lark accepts and the language does not: an attribute given twice, and nesting beyond MAX_DEPTH, which would
    exhaust the stages that recurse."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        self.diagnostic = diagnostic


def parse_text(text: str) -> tuple[syn.File | None, list[Diagnostic]]:
    """The tree and the syntax errors of `text`. With errors the tree holds the lines that do parse."""
    lines = text.count("\n") + 1
    if len(text) > MAX_CHARACTERS or lines > MAX_LINES:
        span = Span(1, 1, 1 + len(text.partition("\n")[0].rstrip("\r")))
        return None, [
            diagnostic(
                "E005",
                span,
                what=f"a text of {lines} lines and {len(text)} characters",
                limit=f"{MAX_LINES} lines and {MAX_CHARACTERS} characters",
            )
        ]
    try:
        tree: Any = grammar().parse(text if text.endswith("\n") else text + "\n", start="start")
    except UnexpectedInput:
        from .recover import parse_lines

        return parse_lines(text)
    header, *rest = (child for child in tree.children if isinstance(child, Tree))
    found: list[Diagnostic] = []
    statements: list[syn.Statement] = []
    broken: set[str] = set()
    for node in rest:
        made, error = statement(node, 0)
        statements += made
        if error is not None:
            found.append(error)
            broken.update(defined(text.split("\n")[error.span.line - 1]))
    name, title, span = heading(header, 0)
    return syn.File(name, title, tuple(statements), frozenset(broken), span), found


def heading(tree: Tree[Token], above: int) -> tuple[str, str, Span]:
    name, title = tree.children
    return str(name), str(title)[1:-1] if title else "", _span(tree, above)


def statement(tree: Tree[Token], above: int) -> tuple[list[syn.Statement], Diagnostic | None]:
    """The statements of one line (a declaration line has several), or its error."""
    try:
        return _Converter(above).statement(tree), None
    except Malformed as error:
        return [], error.diagnostic


def _span(node: Any, above: int) -> Span:
    if isinstance(node, Token):
        assert node.line is not None and node.column is not None
        return Span(node.line + above, node.column, node.column + len(node))
    return Span(node.meta.line + above, node.meta.column, node.meta.end_column)


class _Converter:
    """lark's tree -> syntax tree. `above` is the number of lines above the parsed piece of text."""

    def __init__(self, above: int) -> None:
        self.above = above

    def span(self, node: Any) -> Span:
        return _span(node, self.above)

    def name(self, token: Any) -> syn.Name:
        return syn.Name(str(token), self.span(token))

    def statement(self, tree: Any) -> list[syn.Statement]:
        span, parts = self.span(tree), tree.children
        match tree.data:
            case "declare":
                kind = str(parts[0])
                return [self.declare(kind, decl, decl is parts[1]) for decl in parts[1:]]
            case "let":
                return [syn.Let(self.name(parts[0]), self.expr(parts[1]), span)]
            case "read":
                return [syn.Read(self.name(parts[0]), self.expr(parts[1]), span)]
        state, op, value, index, lo, hi = parts
        loop = syn.Loop(self.name(index), self.place(lo), self.place(hi)) if index is not None else None
        return [syn.Update(self.name(state), str(op), self.expr(value), loop, span)]

    def declare(self, kind: str, tree: Any, first: bool) -> syn.Declare:
        name, size, axis, *attrs, start = tree.children
        unit = fixed = bounds = None
        kinds: set[str] = set()
        for attr in attrs:
            head = attr.children[0]
            kind_of = head.lower() if head.type in ("UNIT", "FIXED") else "in"
            if kind_of in kinds:
                found = f"a second `{kind_of}`"
                raise Malformed(diagnostic("E001", self.span(attr), expected=f"one `{kind_of}`", found=found))
            kinds.add(kind_of)
            if kind_of == "unit":
                unit = self.span(head)
            elif kind_of == "fixed":
                fixed = self.span(head)
            else:
                left, lo, hi, right = attr.children
                bounds = syn.Range(self.expr(lo), self.expr(hi), left == "(", right == ")", self.span(attr))
        return syn.Declare(
            kind,
            self.name(name),
            None if size is None else self.place(size),
            str(axis),
            unit,
            fixed,
            bounds,
            None if start is None else self.expr(start),
            first,
            self.span(tree),
        )

    def place(self, tree: Any) -> syn.Place:
        span, parts = self.span(tree), tree.children
        written = "".join(part for part in parts if part is not None)
        if parts[0].type == "INT":
            return syn.Place(None, _whole(parts[0]), written, span)
        name, sign, offset = (*parts, None, None)[:3]
        if offset is None:
            return syn.Place(str(name), 0, written, span)
        return syn.Place(str(name), _whole(offset) * (1 if sign == "+" else -1), written, span)

    def expr(self, tree: Any, depth: int = 1) -> syn.Expr:
        """`depth` is that of the typed expression, where a run of n operands is a tree of n - 1 levels."""
        span, parts = self.span(tree), tree.children
        if depth > MAX_DEPTH:
            limit = f"{MAX_DEPTH} levels"
            raise Malformed(diagnostic("E005", span, what="an expression nested this deep", limit=limit))
        match tree.data:
            case "num":
                return syn.Number(str(parts[0]), span)
            case "name":
                return syn.Name(str(parts[0]), span)
            case "item":
                return syn.Item(str(parts[0]), self.place(parts[1]), span)
            case "call":
                return syn.Apply(self.name(parts[0]), tuple(self.expr(x, depth + 1) for x in parts[1:]), span)
            case "group":
                return syn.Group(self.expr(parts[0], depth + 1), span)
            case "neg":
                return syn.Negate(self.expr(parts[0], depth + 1), span)
            case "pow":
                return syn.Power(self.expr(parts[0], depth + 1), self.expr(parts[1], depth + 1), span)
        count = len(parts) // 2
        operands = tuple(self.expr(x, depth + count - max(i - 1, 0)) for i, x in enumerate(parts[::2]))
        ops = tuple(str(op) for op in parts[1::2])
        return syn.Sum(operands, ops, span) if tree.data == "sum" else syn.Chain(operands, ops, span)


def _whole(token: Token) -> int:
    """The token's number; anything beyond every limit of the language becomes a million."""
    return int(token) if len(token) <= 6 else 1_000_000
