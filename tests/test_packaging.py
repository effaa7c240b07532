"""The wheel, installed alone and used from an empty directory."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import wheelcheck

PACKAGES = {
    "stateir": "stateir",
    "codegen": "stateir/codegen",
    "recurrences": "stateir/recurrences",
    "models": "stateir/models",
}
SHIPPED = {".py", ".rule", ".lark", ".typed", ".json"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel, and a folder with it installed."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel = wheelcheck.build_wheel(wheelcheck.copy_sources(folder / "sources"), folder / "dist")
    return wheel, wheelcheck.install(wheel, folder / "site")


def run(site: Path, cwd: Path, *arguments: str) -> str:
    """Python with the installed wheel before everything else on its path, and with no checkout on it."""
    env = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=cwd, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_holds_every_file_of_the_four_folders_and_nothing_else(built: tuple[Path, Path]) -> None:
    expected = {
        f"{package}/{file.relative_to(wheelcheck.ROOT / folder)}"
        for folder, package in PACKAGES.items()
        for file in (wheelcheck.ROOT / folder).rglob("*")
        if file.suffix in SHIPPED or file.name == "py.typed"
    }
    names = {n for n in zipfile.ZipFile(built[0]).namelist() if ".dist-info/" not in n}
    assert names == expected


def test_it_loads_a_rule_of_the_library_without_torch(built: tuple[Path, Path], tmp_path: Path) -> None:
    code = (
        "import sys, json, stateir; rule = stateir.load('qed');"
        "print(json.dumps([stateir.__file__, rule.name, 'torch' in sys.modules, 'triton' in sys.modules]))"
    )
    file, name, torch, triton = json.loads(run(built[1], tmp_path, "-c", code))
    assert Path(file).is_relative_to(built[1])
    assert (name, torch, triton) == ("qed", False, False)


def test_the_command_line_checks_a_rule(built: tuple[Path, Path], tmp_path: Path) -> None:
    assert "qed" in run(built[1], tmp_path, "-m", "stateir", "check", "qed")
