"""Builds the wheel and checks the types of the installed package; `python tests/wheelcheck.py` does both.

Inside a checkout ./stateir shadows the mapping of folders to packages, so both building and checking happen in a
directory elsewhere, from a copy: a build in place could also pick up what an earlier build left behind.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("stateir", "codegen", "recurrences", "models")
FILES = ("pyproject.toml", "README.md", "LICENSE")


def copy_sources(to: Path) -> Path:
    """What a wheel is built from, copied to the new folder `to`."""
    to.mkdir(parents=True)
    for folder in SOURCES:
        shutil.copytree(ROOT / folder, to / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, to / name)
    return to


def build_wheel(sources: Path, out: Path) -> Path:
    """Builds the wheel of `sources` into `out` with the setuptools that is installed."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(sources)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=out.parent)
    if done.returncode:
        raise RuntimeError(f"the wheel does not build:\n{done.stdout}{done.stderr}")
    (wheel,) = out.glob("*.whl")
    return wheel


def install(wheel: Path, target: Path) -> Path:
    """Installs the wheel alone, without its dependencies, into the folder `target`."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run(command, check=True, cwd=target.parent)
    return target


def check_types(target: Path) -> subprocess.CompletedProcess[str]:
    """Runs mypy on every module of the package that is installed in `target`."""
    config, cache = ROOT / "pyproject.toml", ROOT / ".mypy_cache" / "wheel"
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), "--cache-dir", str(cache), "-p", "stateir"]
    env = {**os.environ, "MYPYPATH": str(target)}
    return subprocess.run(command, capture_output=True, text=True, cwd=target.parent, env=env)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="stateir-types-") as folder:
        work = Path(folder)
        target = install(build_wheel(copy_sources(work / "sources"), work / "dist"), work / "site")
        done = check_types(target)
    print("types:", done.stdout.replace(str(target), "").strip() + done.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
