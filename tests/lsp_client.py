"""A small LSP client: a server process, JSON-RPC frames over its standard input and output, every wait bounded."""

from __future__ import annotations

import itertools
import json
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

# Starting loads the compiler (about 2 s on an idle machine); the suite runs beside others.
SECONDS = 60.0
URI = "file:///mine.rule"


class Client:
    def __init__(self, folder: Path, encodings: list[str] | None = None) -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", "stateir", "lsp"]
        self.log = (folder / "server.log").open("wb+")
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self.log, cwd=folder)
        self.ids = itertools.count(1)
        self.version = itertools.count(1)
        self.replies: queue.Queue[dict[str, Any]] = queue.Queue()
        self.notes: queue.Queue[dict[str, Any]] = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        general = {} if encodings is None else {"general": {"positionEncodings": encodings}}
        root = {"processId": None, "rootUri": None, "capabilities": general}
        self.capabilities = self.request("initialize", root)["capabilities"]
        self.notify("initialized", {})

    def request(self, method: str, params: object) -> Any:
        """The result of a request; an error reply fails the test."""
        number = next(self.ids)
        self._send({"id": number, "method": method, "params": params})
        reply = self.replies.get(timeout=SECONDS)
        assert reply["id"] == number
        assert "error" not in reply, reply["error"]
        return reply["result"]

    def notify(self, method: str, params: object) -> None:
        self._send({"method": method, "params": params})

    def open(self, text: str) -> list[dict[str, Any]]:
        """Opens the document and returns its diagnostics."""
        item = {"uri": URI, "languageId": "stateir", "version": next(self.version), "text": text}
        self.notify("textDocument/didOpen", {"textDocument": item})
        return self.diagnostics()

    def change(self, text: str) -> list[dict[str, Any]]:
        """Replaces the text and returns its diagnostics."""
        document = {"uri": URI, "version": next(self.version)}
        self.notify("textDocument/didChange", {"textDocument": document, "contentChanges": [{"text": text}]})
        return self.diagnostics()

    def diagnostics(self) -> list[dict[str, Any]]:
        note = self.notes.get(timeout=SECONDS)
        assert note["method"] == "textDocument/publishDiagnostics", note
        assert note["params"]["uri"] == URI
        found: list[dict[str, Any]] = note["params"]["diagnostics"]
        return found

    def at(self, method: str, line: int, character: int) -> Any:
        """A request of textDocument/`method` about a place, both from 0."""
        place = {"textDocument": {"uri": URI}, "position": {"line": line, "character": character}}
        return self.request(f"textDocument/{method}", place)

    def leave(self) -> int:
        """The protocol's own end; returns the server's exit code."""
        self.request("shutdown", None)
        self.notify("exit", None)
        return self.process.wait(SECONDS)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(SECONDS)
        self.reader.join(SECONDS)
        for pipe in (self.process.stdin, self.process.stdout, self.log):
            assert pipe is not None
            pipe.close()

    def _send(self, message: dict[str, object]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.process.stdin.flush()

    def _read(self) -> None:
        out = self.process.stdout
        assert out is not None
        while (message := _frame(out)) is not None:
            (self.replies if "id" in message and "method" not in message else self.notes).put(message)


def _frame(out: IO[bytes]) -> dict[str, Any] | None:
    """The next message, None at the end of the stream."""
    length = None
    while (line := out.readline()).strip():
        key, _, value = line.partition(b":")
        if key.lower() == b"content-length":
            length = int(value)
    if length is None:
        return None
    message: dict[str, Any] = json.loads(out.read(length))
    return message
