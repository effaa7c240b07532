"""Every block of bash and Python in the documentation is run: those of a page in their order, in one empty folder.

A block of bash under `<!-- slow -->` is run with the slow tests only. docs/recall.md is a doctest: test_recall_page.py.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"
BLOCK = re.compile(r"(<!-- slow -->\n)?^```(bash|python)\n(.*?)^```", re.DOTALL | re.MULTILINE)
PAGES = sorted(p for p in DOCS.rglob("*.md") if p.parent.name != "site" and BLOCK.search(p.read_text(encoding="utf-8")))
WITH_SLOW = [p for p in PAGES if "<!-- slow -->" in p.read_text(encoding="utf-8")]


def run_blocks(page: Path, folder: Path, slow: bool) -> int:
    """Runs the page's blocks and returns how many they were."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "TRITON_INTERPRET": "1"}
    names: dict[str, object] = {"__name__": "__main__"}
    count = 0
    for is_slow, language, code in BLOCK.findall(page.read_text(encoding="utf-8")):
        if is_slow and not slow:
            continue
        count += 1
        if language == "python":
            exec(compile(code, f"{page.name}, block {count}", "exec"), names)
            continue
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", code], cwd=folder, env=env, capture_output=True)
        assert done.returncode == 0, f"{code}\n{done.stdout.decode()}{done.stderr.decode()}"
    return count


def test_the_pages_with_blocks_are_found() -> None:
    assert {"tutorial.md", "editor.md", "vendoring.md"} <= {p.name for p in PAGES}
    assert [p.name for p in WITH_SLOW] == ["vendoring.md", "tutorial.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_blocks(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_blocks(page, tmp_path, slow=False) > 0


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_SLOW, ids=lambda p: p.stem)
def test_slow_blocks(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_blocks(page, tmp_path, slow=True) > 0
