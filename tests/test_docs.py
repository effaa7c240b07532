"""The documentation names files that exist and commands that the command line has."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *(p for p in sorted((ROOT / "docs").rglob("*.md")) if p.name != "rules.md"),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    folders = ("stateir", "codegen", "models", "recurrences", "tests", "docs", "examples")
    text = page.read_text()
    for path in re.findall(rf"\b((?:{'|'.join(folders)})/[\w/]+\.(?:py|md|rule|lark|json))\b", text):
        assert (ROOT / path).is_file(), f"{page.name} names {path}"


def test_every_file_of_the_map_exists() -> None:
    """In the map a bare file name stands in the folder that its line names."""
    text = (ROOT / "docs/design.md").read_text()
    start = text.index("## The data's way through the house")
    lines = text[start:].split("\n\n")[1].splitlines()
    assert len(lines) > 15
    for line in lines:
        folder = re.search(r"(stateir|codegen|models)/", line)
        for name in re.findall(r"(?<![\w/])(\w+\.(?:py|lark))\b", line):
            assert folder is not None, line
            assert (ROOT / folder.group(1) / name).is_file(), line


def test_every_command_that_a_page_names_exists() -> None:
    done = subprocess.run([sys.executable, "-m", "stateir", "--help"], capture_output=True, text=True, check=True)
    commands = set(re.findall(r"^  (\w+)  ", done.stdout.split("Commands:")[1], re.MULTILINE))
    text = "\n".join(page.read_text() for page in PAGES)
    fenced = "\n".join(re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    named = {*re.findall(r"(?:`|^    )stateir (\w+)", text, re.MULTILINE)}
    named |= {*re.findall(r"^stateir (\w+)", fenced, re.MULTILINE)}
    assert len(named) > 3
    assert named - commands == set()


def test_the_catalogue_is_fresh() -> None:
    """docs/rules.md is what docs/generate.py makes of the rule files, and every reduction of it is proved."""
    script = Path(__file__).parent.parent / "docs" / "generate.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
