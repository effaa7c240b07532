"""The pages of the site that are made of the code: a rule through every level, the table of errors, Python's names."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import stateir
from stateir import latex
from stateir.affine import normal_form
from stateir.codegen import backends
from stateir.compile_text import compile_text
from stateir.core import core
from stateir.error_table import TABLE
from stateir.errors import explain
from stateir.parser import parse_text
from stateir.plan import describe, plan
from stateir.proofs import prove_rule
from stateir.render import render_all
from stateir.stability import stability
from stateir.unicode import normal_form as written

RULE = "gated_delta"
# What a user of the package calls, by the module that documents it.
PUBLIC = {
    "stateir": ("load", "parse", "compile", "check_claims", "fingerprint", "RuleError"),
    "stateir.codegen.operator": ("Operator",),
    "stateir.codegen.verify": ("verify", "Check"),
    "stateir.prove": ("prove",),
    "stateir.models.mixer": ("Mixer",),
    "stateir.models.zoo": ("ModelConfig", "Model"),
    "stateir.models.mqar": ("MqarConfig", "generate"),
    "stateir.models.train_config": ("TrainConfig",),
    "stateir.models.train": ("train", "evaluate"),
    "stateir.models.interference": ("BindingsConfig", "Trace", "interference", "write_bindings"),
}
_FAMILIES = {
    "E0": "Syntax", "E1": "Names", "E2": "Axes, time, loops", "E3": "The algebra of S", "E4": "Ranges",
    "E5": "Backends", "W": "Warnings",
}  # fmt: skip


def compiler() -> str:
    """One rule through every level; the prose is `compiler.md` beside this file."""
    rule = stateir.load(RULE)
    broken = rule.text.replace("v - k @ S", "v - (q @ S) * (k @ S)")
    nf = normal_form(rule)
    assert nf is not None
    form = core(nf)
    syntax, _ = parse_text(rule.text)
    assert syntax is not None
    op = stateir.compile(rule)
    triton = op.source("triton")
    parts = {
        "rule": _fence("rule", rule.text),
        "tree": _fence("text", _tree(syntax.statements[-2])),
        "refused": _fence("text", render_all(compile_text(broken)[1], broken, "my.rule")),
        "typed": _fence("text", _tree(rule.lines[-2].value)),
        "equation": f"$$\n{latex.rule(rule)}\n$$",
        "normal": _fence("text", written(nf)),
        "core": _fence("text", "\n".join(_tree(x) for x in (*form.rows, *form.reads))),
        "proofs": "\n".join(f"- {'proved' if p.holds else 'FAILED'}: {p.claim}" for p in prove_rule(nf, form)),
        "stability": "\n".join(f"- {f.claim}: **{f.status}**, {f.reason}" for f in stability(nf)),
        "plan": _fence("text", "\n".join(f"{a:<11} {b}" for a, b in describe(plan(nf, form), _have(rule)))),
        "step": _fence("python", op.source("step")),
        "chunked": _fence("python", op.source("torch")),
        "kernels": _fence("text", "\n".join(_kernels(triton))),
        "lines": f"{triton.count(chr(10)):,}",
    }
    prose = Path(__file__).with_name("compiler.md").read_text(encoding="utf-8")
    page = re.sub(r"@@(\w+)@@", lambda found: parts.pop(found[1]), prose)
    assert not parts, f"docs/site/compiler.md does not show {', '.join(parts)}"
    return page


def errors() -> str:
    """Every code with its explanation, a text that has it and one that has not."""
    out = ["# Errors", "", "Made of the compiler's own table; `stateir explain CODE` prints the same.", ""]
    for family, title in _FAMILIES.items():
        out += [f"## {title}", ""]
        for code in sorted(c for c in TABLE if c.startswith(family)):
            heading, *rest = explain(code).split("\n\n", 1)
            out += [f"### {heading}", "", *(_unindented(x) for x in rest), ""]
    return "\n".join(out)


def api() -> str:
    """Signatures and docstrings of what a user calls."""
    out = [
        "# Python",
        "",
        "Made of the code. Tensors are PyTorch's; shapes are in the order in which they are stored.",
        "",
    ]
    for module, names in PUBLIC.items():
        out += [f"## {module}", ""]
        for name in names:
            out += _documented(name, getattr(importlib.import_module(module), name))
    return "\n".join(out)


def _documented(name: str, thing: Any) -> list[str]:
    kind = "class " if inspect.isclass(thing) else ""
    out = [f"### {name}", "", _fence("python", f"{kind}{name}{_signature(thing)}"), "", _docstring(thing), ""]
    if inspect.isclass(thing):
        for method, value in vars(thing).items():
            documented = inspect.isfunction(value) and value.__doc__
            if documented and (method == "__call__" or not method.startswith("_")):
                out += [_fence("python", f"{name}.{method}{_signature(value)}"), "", _docstring(value), ""]
    return out


def _signature(thing: Any) -> str:
    try:
        # Annotations are strings here, and come in quotes.
        return re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(thing)))
    except ValueError:
        return ""


def _docstring(thing: Any) -> str:
    first, _, rest = (inspect.getdoc(thing) or "").partition("\n\n")
    return first if not rest else f"{first}\n\n{_fence('text', rest)}"


def _tree(node: Any, indent: int = 0, label: str = "") -> str:
    """A dataclass as an indented tree, without spans and defaults of no interest."""
    pad = "  " * indent
    if isinstance(node, tuple) and node and not isinstance(node[0], str):
        return "\n".join(_tree(x, indent, f"{label}[{i}]") for i, x in enumerate(node))
    if not hasattr(node, "__dataclass_fields__"):
        return f"{pad}{label} = {getattr(node, 'value', node)!r}"
    # Leaves such as a name or a number fit on their line.
    fields = [(n, getattr(node, n)) for n in node.__dataclass_fields__ if n not in ("span", "version", "index")]
    plain = [f"{n}={getattr(x, 'value', x)!r}" for n, x in fields if not _nested(x)]
    head = f"{pad}{label + ' = ' if label else ''}{type(node).__name__}({', '.join(plain)})"
    return "\n".join([head, *(_tree(x, indent + 1, n) for n, x in fields if _nested(x))])


def _nested(x: Any) -> bool:
    if isinstance(x, tuple):
        return bool(x) and not isinstance(x[0], str)
    return hasattr(x, "__dataclass_fields__")


def _have(rule: Any) -> dict[str, str | None]:
    return {name: backends.lacks(rule, name) for name in backends.NAMES}


def _kernels(text: str) -> list[str]:
    return re.findall(r"^@triton\.jit.*\ndef ([a-z]\w*)\(", text, re.MULTILINE)


def _fence(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def _unindented(text: str) -> str:
    """`explain` indents its examples, which Markdown takes as code; each becomes a fence with the rule's colours."""
    return re.sub(
        r"(?:^    .*\n?)+", lambda m: _fence("rule", re.sub(r"^    ", "", m[0], flags=re.M)) + "\n", text, flags=re.M
    )
