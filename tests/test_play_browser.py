"""The playground as its users meet it: `stateir play` in a headless Chromium, whose path is in STATEIR_CHROMIUM."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

import stateir
from stateir.models.interference import BindingsConfig
from stateir.models.play.memory import watch

CHROMIUM = os.environ.get("STATEIR_CHROMIUM")
FIGURES = Path(__file__).resolve().parent.parent / "docs" / "figures"
# Chromium looks up hosts of its own at every start; the page must not need any.
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
# A loaded machine of two cores takes its time.
PATIENCE = 90_000

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="STATEIR_CHROMIUM names no Chromium")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    command = [sys.executable, "-m", "stateir", "play", "--port", "0", "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
    finally:
        server.terminate()
        server.wait(timeout=30)


def test_the_page_is_for_its_owner_alone(address: str) -> None:
    stranger = address.split("?")[0]
    with urlopen(stranger) as answer:
        assert "/auth/login" in answer.url


def test_load_change_a_control_break_the_rule_and_mend_it(address: str, request: pytest.FixtureRequest) -> None:
    from playwright.sync_api import expect, sync_playwright

    def picture(name: str) -> None:
        if request.config.getoption("--update-screenshots"):
            page.screenshot(path=FIGURES / f"{name}.png")

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 2250})
        page.set_default_timeout(PATIENCE)
        expect.set_options(timeout=PATIENCE)
        asked: set[str] = set()
        page.on("request", lambda r: asked.add(urlsplit(r.url).hostname or "data"))
        page.on("websocket", lambda w: asked.add(urlsplit(w.url).hostname or ""))
        page.goto(address)

        verdict = page.locator("#verdict")
        expect(verdict).to_have_text("compiles: 4 lines")
        expect(page.locator(".katex").first).to_be_visible()
        expect(page.get_by_text("dyadic levels and a solve from the same masks")).to_be_visible()
        expect(page.locator("img[alt='memory of additive, delta, qed after 12 writes']")).to_be_visible()

        page.locator("marimo-button", has_text="query for this key").get_by_role("button").click()
        answer = page.locator("marimo-table")
        bindings = BindingsConfig(12, 16, 12, "correlated", 0.5)
        for name, given in {"additive": {}, "delta": {"beta": 1.0}, "qed": {"lam": 0.03}}.items():
            trace = watch(stateir.load(name), bindings, 0, "random", given)
            expect(answer.get_by_role("row").filter(has_text=name)).to_contain_text(f"{trace.error[0, -1, 0]:.6f}")
        picture("playground")

        time = page.locator("marimo-slider[data-label*='writes so far']").get_by_role("slider")
        time.focus()
        page.keyboard.press("ArrowLeft")
        expect(page.locator("img[alt='memory of additive, delta, qed after 11 writes']")).to_be_visible()

        editor = page.locator(".cm-content")
        editor.click()
        page.keyboard.press("Control+A")
        page.keyboard.insert_text(stateir.load("delta").text.replace("v - k @ S", "v - (q @ S) * (k @ S)"))
        expect(verdict).to_have_text("refused")
        expect(page.locator(".stateir-findings")).to_contain_text("E302")
        expect(page.locator(".stateir-findings mark")).to_have_text("(q @ S) * (k @ S)")
        picture("playground_error")

        editor.click()
        page.keyboard.press("Control+A")
        page.keyboard.insert_text(stateir.load("gated_delta").text)
        expect(verdict).to_have_text(f"compiles: {len(stateir.load('gated_delta').lines)} lines")
        expect(page.locator(".stateir-findings mark")).to_have_count(0)
        expect(page.locator("img[alt^='memory of additive, delta, gated_delta']")).to_be_visible()
        browser.close()
    assert asked <= {"127.0.0.1", "data"}
