"""The README's code is run as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def shell(script: str, cwd: Path) -> str:
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-e", "-c", script], capture_output=True, text=True, cwd=cwd, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_first_thing_one_sees_is_the_rule_of_the_library() -> None:
    first = re.search(r"^```\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    assert first is not None
    assert first.group(1) == (ROOT / "recurrences" / "qed.rule").read_text()


@pytest.mark.parametrize("code", blocks("python"))
def test_python(code: str) -> None:
    names: dict[str, object] = {}
    exec(code, names)
    assert tuple(names["o"].shape) == (2, 3, 24)  # type: ignore[attr-defined]


@pytest.mark.slow
def test_the_five_minutes(tmp_path: Path) -> None:
    (tour,) = (block for block in blocks("bash") if "mine.rule" in block)
    out = shell(tour, tmp_path)
    assert "0.1" in (tmp_path / "mine.rule").read_text()
    assert "accuracy" in out


def test_the_proofs(tmp_path: Path) -> None:
    (proofs,) = (block for block in blocks("bash") if "stateir prove" in block)
    out = shell(proofs, tmp_path)
    assert out.count("proved: ") == 3
    assert "refuted: kda" in out
    assert out.splitlines()[-1] == "refuted, with numbers to paste"


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_make_targets_exist(target: str) -> None:
    assert f"make {target}" in "".join(blocks("sh"))
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
