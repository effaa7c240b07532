"""The language server: `stateir lsp` on standard input and output. It needs pygls (extra `lsp`).

It only translates: what it says comes from the pure functions beside it. LSP counts lines and characters from 0, in
UTF-16 units unless the client offers better; spans count from 1, in code points.
"""

from __future__ import annotations

from importlib.metadata import version

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer
from pygls.workspace import PositionCodec

from stateir.diagnostics import Diagnostic, RuleError
from stateir.fmt import format_text
from stateir.ir import Span
from stateir.render import steps

from .complete import What, complete
from .document import Document, document
from .hover import hover

KINDS: dict[What, lsp.CompletionItemKind] = {
    "keyword": lsp.CompletionItemKind.Keyword,
    "axis": lsp.CompletionItemKind.TypeParameter,
    "function": lsp.CompletionItemKind.Function,
    "constant": lsp.CompletionItemKind.Constant,
    "input": lsp.CompletionItemKind.Variable,
    "param": lsp.CompletionItemKind.Property,
    "state": lsp.CompletionItemKind.Field,
    "let": lsp.CompletionItemKind.Variable,
    "for": lsp.CompletionItemKind.Variable,
}


class View:
    """A document as one client sees it: its places in the client's units."""

    def __init__(self, ls: LanguageServer, uri: str) -> None:
        source = ls.workspace.get_text_document(uri)
        self.uri = uri
        self.version = source.version
        self.document: Document = document(source.source)
        self.codec: PositionCodec = ls.workspace.position_codec
        # The codec cuts nothing: lines end where the compiler's do.
        self.lines = self.document.text.split("\n")

    def range(self, span: Span) -> lsp.Range:
        start, end = (lsp.Position(span.line - 1, column - 1) for column in (span.column, span.end))
        return self.codec.range_to_client_units(self.lines, lsp.Range(start, end))

    def place(self, position: lsp.Position) -> tuple[int, int]:
        """Line and column, from 1."""
        at = self.codec.position_from_client_units(self.lines, position)
        return at.line + 1, at.character + 1

    def diagnostic(self, d: Diagnostic) -> lsp.Diagnostic:
        more = [f"help: {d.help}"] if d.help else []
        more += steps(d, self.lines)
        return lsp.Diagnostic(
            range=self.range(d.span),
            message="\n".join([d.message, *more]),
            severity=lsp.DiagnosticSeverity.Warning if d.is_warning else lsp.DiagnosticSeverity.Error,
            code=d.code,
            source="stateir",
        )


server = LanguageServer("stateir", version("stateir"), text_document_sync_kind=lsp.TextDocumentSyncKind.Full)


@server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
def did_open(ls: LanguageServer, params: lsp.DidOpenTextDocumentParams) -> None:
    _publish(ls, params.text_document.uri)


@server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
def did_change(ls: LanguageServer, params: lsp.DidChangeTextDocumentParams) -> None:
    _publish(ls, params.text_document.uri)


@server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
def did_close(ls: LanguageServer, params: lsp.DidCloseTextDocumentParams) -> None:
    """A closed document has no findings: an editor would keep the last ones."""
    ls.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(params.text_document.uri, []))


def _publish(ls: LanguageServer, uri: str) -> None:
    view = View(ls, uri)
    found = [view.diagnostic(d) for d in view.document.found]
    ls.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, found, view.version))


@server.feature(lsp.TEXT_DOCUMENT_HOVER)
def on_hover(ls: LanguageServer, params: lsp.HoverParams) -> lsp.Hover | None:
    view = View(ls, params.text_document.uri)
    said = hover(view.document, *view.place(params.position))
    if said is None:
        return None
    text, span = said
    return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, text), view.range(span))


@server.feature(lsp.TEXT_DOCUMENT_DEFINITION)
def on_definition(ls: LanguageServer, params: lsp.DefinitionParams) -> lsp.Location | None:
    view = View(ls, params.text_document.uri)
    word = view.document.word(*view.place(params.position))
    found = None if word is None else view.document.definition(word)
    return None if found is None else lsp.Location(view.uri, view.range(found.span))


@server.feature(lsp.TEXT_DOCUMENT_COMPLETION, lsp.CompletionOptions(trigger_characters=[":", "("]))
def on_completion(ls: LanguageServer, params: lsp.CompletionParams) -> list[lsp.CompletionItem]:
    view = View(ls, params.text_document.uri)
    return [
        lsp.CompletionItem(i.text, kind=KINDS[i.what], detail=i.what, documentation=i.doc)
        for i in complete(view.document, *view.place(params.position))
    ]


@server.feature(lsp.TEXT_DOCUMENT_FORMATTING)
def on_formatting(ls: LanguageServer, params: lsp.DocumentFormattingParams) -> list[lsp.TextEdit] | None:
    """One edit of the whole text; none while it does not parse, which its diagnostics say."""
    view = View(ls, params.text_document.uri)
    try:
        formatted = format_text(view.document.text)
    except RuleError:
        return None
    if formatted == view.document.text:
        return []
    return [lsp.TextEdit(lsp.Range(lsp.Position(0, 0), lsp.Position(len(view.lines), 0)), formatted)]


@server.feature(lsp.TEXT_DOCUMENT_CODE_ACTION, lsp.CodeActionOptions([lsp.CodeActionKind.QuickFix]))
def on_code_action(ls: LanguageServer, params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
    """The compiler's own rewrites: each was tried and leaves fewer errors."""
    view = View(ls, params.text_document.uri)
    actions = []
    for d in view.document.found:
        place = view.range(d.span)
        touches = params.range.start <= place.end and place.start <= params.range.end
        if d.rewrite and touches:
            edits = [lsp.TextEdit(view.range(edit.span), edit.text) for edit in d.rewrite]
            title = "; ".join(step.partition(": ")[2] for step in steps(d, view.lines))
            edit = lsp.WorkspaceEdit({view.uri: edits})
            actions.append(lsp.CodeAction(title, lsp.CodeActionKind.QuickFix, [view.diagnostic(d)], edit=edit))
    return actions


def serve() -> None:
    """Serves one client on standard input and output until it leaves."""
    server.start_io()
