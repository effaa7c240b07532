"""Rules in notebooks: `%load_ext stateir.notebook`, then a cell that starts with `%%rule`. It needs IPython.

The cell's value is the compiled rule, an ordinary `stateir.ir.Rule`; `%%rule NAME` also binds it to NAME. Every rule
that a cell returns is shown with its equation, normal form, plan and warnings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .compile_text import compile_text
from .diagnostics import Diagnostic, RuleError
from .editor.html import findings_html, rule_html
from .ir import Rule
from .render import render_all

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

FILENAME = "<cell>"


class Findings:
    """The findings of a text, shown as HTML in a notebook and under carets in a terminal."""

    def __init__(self, found: list[Diagnostic], text: str) -> None:
        self.found = found
        self.text = text

    def __repr__(self) -> str:
        return render_all(self.found, self.text, FILENAME)

    def _repr_html_(self) -> str:
        return findings_html(self.found, self.text)


class CellError(RuleError):
    """A refused cell. Its findings are displayed already, so it ends the run with one line and no traceback."""

    def _render_traceback_(self) -> list[str]:
        count = len(self.diagnostics)
        return [f"RuleError: {count} error{'s' if count != 1 else ''} in the rule"]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Called by `%load_ext stateir.notebook`: the magic, and the display of rules."""

    def rule(line: str, cell: str) -> Rule:
        """%%rule [NAME]: compile the cell's rule, and bind it to NAME."""
        name = line.strip()
        if name and not name.isidentifier():
            raise ValueError(f"%%rule takes one name for the compiled rule or none; it got {name!r}")
        compiled = compile_cell(cell)
        if name:
            shell.user_ns[name] = compiled
        return compiled

    shell.magics_manager.register_function(rule, magic_kind="cell", magic_name="rule")
    formatters = _formatters(shell)
    formatters["text/html"].for_type(Rule, lambda r: rule_html(r, _warnings(r)))
    formatters["text/plain"].for_type(
        Rule, lambda r, printer, cycle: printer.text(f"rule {r.name}: {r.title}" if r.title else f"rule {r.name}")
    )


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Called by `%unload_ext stateir.notebook`."""
    del shell.magics_manager.magics["cell"]["rule"]
    for kind in ("text/html", "text/plain"):
        _formatters(shell)[kind].pop(Rule)


def _formatters(shell: InteractiveShell) -> Any:
    """A shell's formatters by MIME type; IPython types the first as optional and the others not at all."""
    assert shell.display_formatter is not None
    return shell.display_formatter.formatters


def compile_cell(cell: str) -> Rule:
    """The typed rule of a cell; a refused one displays its findings and raises."""
    compiled, found = compile_text(cell)
    if compiled is None:
        from IPython.display import display

        display(Findings(found, cell))  # type: ignore[no-untyped-call]
        raise CellError([d for d in found if not d.is_warning], cell, FILENAME)
    return compiled


def _warnings(rule: Rule) -> list[Diagnostic]:
    """What the compiler warns of in the text that `rule` was read from."""
    return compile_text(rule.text)[1] if rule.text else []
