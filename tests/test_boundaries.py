"""The house's walls: imports run one way, stateir <- codegen <- models, and the compiler knows no rule by name."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RULES = sorted(file.stem for file in (ROOT / "recurrences").glob("*.rule"))
# The two doors: `stateir.compile` and the command line reach down, from inside a function only.
DOORS = re.compile(r"stateir/(__init__|cli/\w+)\.py")
FORBIDDEN = {
    "stateir": ("torch", "triton", "stateir.codegen", "stateir.models"),
    "recurrences": ("torch", "triton", "stateir.codegen", "stateir.models"),
    "codegen": ("stateir.models",),
}


def imports(source: str, package: str) -> Iterator[tuple[str, bool]]:
    """Every module that `source`, a module of `package`, imports, and whether it does so on loading."""
    tree = ast.parse(source)
    inside = {id(n) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef | ast.Lambda) for n in ast.walk(f)}
    typing_only = {
        id(n)
        for i in ast.walk(tree)
        if isinstance(i, ast.If) and ast.unparse(i.test).endswith("TYPE_CHECKING")
        for n in ast.walk(i)
    }
    for node in ast.walk(tree):
        on_loading = id(node) not in inside | typing_only
        match node:
            case ast.Import(names):
                yield from ((alias.name, on_loading) for alias in names)
            case ast.ImportFrom(module, names, level):
                above = package.split(".")[: len(package.split(".")) - level + 1] if level else []
                base = ".".join([*above, *([module] if module else [])])
                yield from ((f"{base}.{alias.name}", on_loading) for alias in names)


def violations(file: str, source: str) -> list[str]:
    """What `file` (a path from the top of the repository) imports against the rules."""
    folder = file.split("/")[0]
    package = ".".join(file.split("/")[:-1]) if folder == "stateir" else f"stateir.{folder}"
    bad = []
    for module, on_loading in imports(source, package):
        for wall in FORBIDDEN.get(folder, ()):
            door = DOORS.fullmatch(file) is not None and not on_loading and wall.startswith("stateir.")
            if f"{module}.".startswith(f"{wall}.") and not door:
                bad.append(f"{file} imports {module}")
    return bad


def test_imports_run_one_way() -> None:
    files = [f for folder in FORBIDDEN for f in (ROOT / folder).rglob("*.py")]
    assert len(files) > 5
    assert [v for f in files for v in violations(str(f.relative_to(ROOT)), f.read_text())] == []


@pytest.mark.parametrize(
    ("file", "source", "bad"),
    [
        ("stateir/x.py", "import torch.nn", True),
        ("stateir/x.py", "def f():\n    from .codegen import y", True),
        ("stateir/cli/x.py", "def f():\n    from ..codegen import y", False),
        ("stateir/cli/x.py", "from .. import codegen", True),
        ("stateir/cli/x.py", "def f():\n    import torch", True),
        ("codegen/x.py", "from ..models import y", True),
        ("codegen/x.py", "from stateir.models.layer import y", True),
        ("codegen/x.py", "import torch\nfrom stateir.ir import Rule", False),
    ],
)
def test_the_walls_stand(file: str, source: str, bad: bool) -> None:
    assert bool(violations(file, source)) == bad


def test_the_compiler_names_no_rule() -> None:
    word = re.compile(rf"\b({'|'.join(RULES)})\b")
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in (ROOT / "codegen").rglob("*.py")
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if word.search(line)
    ]
    assert found == []


def test_importing_stateir_stays_light() -> None:
    code = (
        "import sys, stateir, stateir.cli;"
        "print(sorted({'torch', 'triton', 'sympy', 'lark', 'numpy', 'rich.console'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT / "tests")
    assert done.stdout.strip() == "[]"
