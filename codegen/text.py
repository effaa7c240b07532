"""Small pieces of text that every PyTorch emitter needs."""

from __future__ import annotations

import itertools
import re

from stateir.ir import Axis, Expr, Input, Line, Param, Ref, Rule, Update, walk

from .expr import HELPERS, Scope

WIDTH = 120
INDENT = 4


def imports(text: str) -> str:
    """The import statements that generated text needs."""
    lines = ["import math", ""] if "math." in text else []
    lines.append("import torch")
    if "F." in text:
        lines.append("import torch.nn.functional as F")
    return "\n".join([*lines, "from torch import Tensor"])


def line_comment(rule: Rule, line: Line) -> str:
    """The rule's own line as a comment: `# gdn2.rule:6  update S = exp(g) * S`."""
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
    names = [*leading] + ([] if axis is Axis.SCALAR else ["K" if axis is Axis.KEY else "V"])
    scope.used.update(names)
    shape = ", ".join(scope.fresh(name) for name in names)
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
    """The text of a module that stands on its own."""
    text = "\n\n\n".join(parts) + "\n"
    docstring = docstring.replace("\\", "\\\\")
    return f'"""{docstring}"""\n\n{imports(text)}\n\n\n{text}'
