"""Every example runs as the script that it is; where it would take long, with smaller numbers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
# script -> its arguments, and what it must say
RUNS = {
    "qed_vs_gdn2": ([], "qed with lam = 0 is gdn2: proved"),
    "custom_layer_in_your_model": (["5"], "of the repetition right"),
    "vendored_kernel": ([], "ok     decoded output"),
    "sweep_frontier": (
        ["--sizes", "4", "8", "--lrs", "0.01", "--steps", "3", "--out", "out/frontier"],
        "written: out/frontier.png",
    ),
    "playground": (["--numbers"], "two_hands    error of key 0 after each write: 0.000"),
}


def test_every_example_is_run() -> None:
    others = {"my_first_rule"}  # by test_verify.py
    assert set(RUNS) | others == {p.stem for p in EXAMPLES.glob("*.py")}


@pytest.mark.parametrize("name", RUNS)
def test_example(name: str, tmp_path: Path) -> None:
    arguments, said = RUNS[name]
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert said in done.stdout
