"""Small pieces of text that every PyTorch emitter needs."""

from __future__ import annotations

import itertools
import re

from stateir.ir import Axis, Expr, Input, Line, Param, Ref, Rule, Update, walk

from .expr import HELPERS, Scope
from .once import ONCE

WIDTH = 120
INDENT = 4


def line_comment(rule: Rule, line: Line) -> str:
    """The rule's own line as a comment: `# my.rule:6  update S = exp(g) * S`."""
    number = line.span.line
    lines = rule.text.split("\n")
    if not 0 < number <= len(lines):
        return f"# {type(line).__name__.lower()} {line.state if isinstance(line, Update) else line.name}"
    code = re.sub(r"\s+", " ", lines[number - 1].split("#")[0]).strip()
    return f"# {rule.name}.rule:{number}  {code}"


def arguments_of(rule: Rule) -> list[Input | Param]:
    """The inputs, then the params: the order in which generated functions take them."""
    return [*rule.inputs, *rule.params]


def helpers(scope: Scope) -> list[str]:
    """The definitions of the helper functions that the scope's text calls."""
    return [text.strip("\n") for name, text in HELPERS.items() if name in scope.used]


def size_of(rule: Rule, scope: Scope, axis: Axis) -> str:
    """The text for the size of an axis, read off the first input or param that has it."""
    for d in arguments_of(rule):
        if d.axis is axis:
            return f"{scope.names[d.name]}.shape[-1]"
    for d in arguments_of(rule):
        if d.axis is Axis.PAIR and axis is Axis.KEY:
            return f"2 * {scope.names[d.name]}.shape[-1]"
    raise ValueError(f"{rule.name}: no input or param has the {axis.value} axis, so its size is unknown")


def sizes(rule: Rule, scope: Scope, leading: tuple[str, ...]) -> list[str]:
    """Statements that name the sizes which the text uses, and the smallest normal number.

    `leading` are the dimensions before an input's own: B, T, H for a sequence, B, H for a token.
    """
    first = scope.names[rule.inputs[0].name]
    lines = []
    if "H" in scope.used:
        lines.append(f"{', '.join(scope.fresh(name) for name in leading)} = {first}.shape[:{len(leading)}]")
    for name, axis in (("K", Axis.KEY), ("V", Axis.VALUE)):
        if name in scope.used:
            lines.append(f"{scope.fresh(name)} = {size_of(rule, scope, axis)}")
    if "tiny" in scope.used:
        lines.append(f"{scope.fresh('tiny')} = torch.finfo({first}.dtype).tiny")
    return lines


def varies(e: Expr, varying: set[str]) -> bool:
    """Whether e has the dimensions of a token or sequence: it does if any name in it does."""
    return any(isinstance(x, Ref) and x.name in varying for x in walk(e))


def expanded(text: str, e: Expr, axis: Axis, rule: Rule, scope: Scope, leading: tuple[str, ...]) -> str:
    """`text`, made of params and constants alone, with the leading dimensions of an input."""
    own = {Axis.SCALAR: [], Axis.KEY: ["K"], Axis.VALUE: ["V"], Axis.PAIR: ["K"]}[axis]
    scope.used.update([*leading, *own])
    shape = ", ".join(scope.fresh(name) for name in [*leading, *own]) + (" // 2" if axis is Axis.PAIR else "")
    if scope.is_const(e):
        return f"{scope.names[rule.inputs[0].name]}.new_full(({shape}), {text})"
    return f"({text}).expand({shape})"


def assignment(target: str, text: str) -> str:
    """`target = text`; one that is too long is broken before each term of its outermost sum."""
    line = f"{target} = {text}"
    if len(line) + INDENT <= WIDTH:
        return line
    breaks, depth = [0], 0
    for i, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if depth == 0 and text[i : i + 3] in (" + ", " - "):
            breaks.append(i + 1)
    terms = [text[a:b].strip() for a, b in itertools.pairwise([*breaks, len(text)])]
    return "\n".join([f"{target} = (", *(f"    {term}" for term in terms), ")"])


def call(head: str, arguments: list[str]) -> str:
    """`head(arguments)`; one that is too long has an argument a line."""
    line = f"{head}({', '.join(arguments)})"
    if len(line) + INDENT <= WIDTH:
        return line
    return "\n".join([f"{head}(", *(f"    {a}," for a in arguments), ")"])


def function(name: str, arguments: list[str], result: str, docstring: str, body: list[str]) -> str:
    """The text of a function; a head that is too long is broken as formatters do."""
    head = f"def {name}({', '.join(arguments)}) -> {result}:"
    if len(head) > WIDTH:
        head = f"def {name}(\n    {', '.join(arguments)}\n) -> {result}:"
    if max(map(len, head.split("\n"))) > WIDTH:
        head = "\n".join([f"def {name}(", *(f"    {a}," for a in arguments), f") -> {result}:"])
    return "\n".join([head, f'    """{docstring}"""', *_indented(body)])


def _indented(lines: list[str]) -> list[str]:
    return [" " * INDENT + part for line in lines for part in line.split("\n")]


def module(docstring: str, parts: list[str]) -> str:
    """The text of a module that stands on its own. Imports that the parts begin with are gathered at its top."""
    lines = "\n\n\n".join(part.strip("\n") for part in parts).split("\n")
    found = {line for line in lines if _is_import(line)} | {"import torch", "from torch import Tensor"}
    body = "\n".join(line for line in lines if not _is_import(line)).strip("\n")
    body = re.sub(r"\n{4,}", "\n\n\n", body)
    if "@_once\n" in body:
        body = f"{ONCE.strip()}\n\n\n{body}"
    found |= {f"import {name}" for name in ("functools", "math") if re.search(rf"\b{name}\.", body)}
    found |= {"import torch.nn.functional as F"} if re.search(r"\bF\.", body) else set()
    future = sorted(line for line in found if line.startswith("from __future__"))
    torch = sorted((line for line in found if line.split()[1].startswith("torch")), key=_import_order)
    library = sorted(found - {*future, *torch}, key=_import_order)
    top = "\n\n".join("\n".join(group) for group in (future, library, torch) if group)
    docstring = docstring.replace("\\", "\\\\")
    return f'"""{docstring}"""\n\n{top}\n\n\n{body}\n'


def _is_import(line: str) -> bool:
    return line.startswith(("import ", "from "))


def _import_order(line: str) -> tuple[bool, str]:
    return line.startswith("from"), line
