"""The file that `stateir emit --target triton` writes, run by a Python that has torch and triton but no stateir."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import stateir
from stateir.codegen.backends import lacks
from stateir.library import names

RULES = [n for n in names() if lacks(stateir.load(n), "triton") is None]

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")


def alone(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Without `site`, what pip installed in place (stateir) is not found; the packages' folders are named instead."""
    packages = os.pathsep.join(p for p in sys.path if Path(p).name == "site-packages")
    env = {**os.environ, "PYTHONPATH": packages}
    return subprocess.run([sys.executable, "-S", *arguments], cwd=cwd, env=env, capture_output=True, text=True)


def emitted(name: str, folder: Path) -> Path:
    out = folder / f"{name}_kernels.py"
    command = [sys.executable, "-m", "stateir", "emit", name, "--target", "triton", "-o", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    return out


def test_the_file_tests_itself(tmp_path: Path) -> None:
    assert "No module named 'stateir'" in alone("-c", "import stateir", cwd=tmp_path).stderr
    file = emitted("gdn2", tmp_path)
    text = file.read_text(encoding="utf-8")
    assert "stateir" not in text
    assert "u₀ = w ⊙ v − (b ⊙ k)·S" in text.split('"""')[1]
    assert "# gdn2.rule:6  update S += outer(k, w * v - (b * k) @ S)" in text
    done = alone(file.name, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\nok ") == 9 and "FAILED" not in done.stdout


@pytest.mark.slow
def test_a_wrong_file_fails(tmp_path: Path) -> None:
    file = emitted("gdn2", tmp_path)
    module, test = file.read_text(encoding="utf-8").split("def reference(")
    file.write_text(module + "def reference(" + test.replace("torch.exp(g)", "torch.exp(2 * g)"), encoding="utf-8")
    broken = alone(file.name, cwd=tmp_path)
    assert broken.returncode == 1 and "FAILED output" in broken.stdout, broken.stdout + broken.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_every_rule(name: str, tmp_path: Path) -> None:
    done = alone(emitted(name, tmp_path).name, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
