"""Small pieces of text that every PyTorch emitter needs."""

from __future__ import annotations

import re

from stateir.ir import Axis, Input, Line, Param, Rule, Update

from .expr import HELPERS, Scope

IMPORTS = """\
import math

import torch
import torch.nn.functional as F
from torch import Tensor
"""


def line_comment(rule: Rule, line: Line) -> str:
    """The rule's own line as a comment: `# gdn2.rule:6  update S = exp(g) * S`."""
    number = line.span.line
    lines = rule.text.splitlines()
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


def sizes(rule: Rule, scope: Scope) -> list[str]:
    """Statements that name the sizes which the text uses, and the smallest normal number."""
    first = scope.names[rule.inputs[0].name]
    lines = []
    if "T" in scope.used:
        lines.append(f"{', '.join(scope.fresh(name) for name in ('B', 'T', 'H'))} = {first}.shape[:3]")
    for name, axis in (("K", Axis.KEY), ("V", Axis.VALUE)):
        if name in scope.used:
            lines.append(f"{scope.fresh(name)} = {size_of(rule, scope, axis)}")
    if "tiny" in scope.used:
        lines.append(f"{scope.fresh('tiny')} = torch.finfo({first}.dtype).tiny")
    return lines
