"""The documentation site builds without a warning, from the code as it is, and needs no other host."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_generated_pages_are_of_the_code(site: Path) -> None:
    thinks = (site / "compiler" / "index.html").read_text(encoding="utf-8")
    assert "<math" in thinks and "gated_delta.rule:5" in thinks and "reverse_scan\n" in thinks
    assert "proved: the lines of a token compose to the core form" in thinks
    assert "E302: " in (site / "errors" / "index.html").read_text(encoding="utf-8")
    assert "write_bindings" in (site / "api" / "index.html").read_text(encoding="utf-8")


def test_a_page_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 15
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img)[^>]*src="([^"]*)"', text) + re.findall(r'<link[^>]*href="([^"]*)"', text)
        assert [x for x in loaded if x.startswith(("http:", "https:", "//"))] == [], page
