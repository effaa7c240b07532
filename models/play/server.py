"""Serves the page on this machine alone. marimo's own launcher is not used: it may ask the network for updates."""

from __future__ import annotations

import secrets
import socket
import webbrowser
from pathlib import Path
from threading import Timer

import stateir

PORT = 2718
_opening = stateir.load("qed").text


def opening_text() -> str:
    """The rule that a new page starts with."""
    return _opening


def serve(text: str | None = None, port: int = PORT, browser: bool = True) -> None:
    """Serves the page on 127.0.0.1 until it is interrupted, and prints its address, which holds a secret of this run.

    text: the rule to start with, QED where None. port: 0 takes a free one.

    Raises:
        OSError: if the port is taken.
    """
    import uvicorn
    from marimo import create_asgi_app

    global _opening  # marimo runs a page's cells in this process, with no arguments of ours
    if text is not None:
        _opening = text
    token = secrets.token_urlsafe(16)
    page = Path(__file__).with_name("app.py")
    app = create_asgi_app(quiet=True, token=token).with_app(path="", root=str(page)).build()
    with socket.create_server(("127.0.0.1", port)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/?access_token={token}"
        print(f"{address}\nCtrl-C ends it.", flush=True)
        if browser:
            Timer(0.5, webbrowser.open, (address,)).start()
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="websockets-sansio"))
        server.run(sockets=[listener])
