"""The type check of the installed package sees every folder: `make types` runs it on the code as it is."""

from pathlib import Path

import pytest
import wheelcheck


@pytest.mark.slow
def test_a_planted_error_is_found_in_each_folder(tmp_path: Path) -> None:
    sources = wheelcheck.copy_sources(tmp_path / "sources")
    for folder in wheelcheck.SOURCES:
        with (sources / folder / "__init__.py").open("a") as f:
            f.write("\n\nplanted: int = 'not a number'\n")
    target = wheelcheck.install(wheelcheck.build_wheel(sources, tmp_path / "dist"), tmp_path / "site")
    done = wheelcheck.check_types(target)
    assert done.returncode == 1
    found = [line for line in done.stdout.splitlines() if "not a number" in line or "[assignment]" in line]
    for package in ("stateir", "stateir/codegen", "stateir/recurrences", "stateir/models"):
        assert any(f"{package}/__init__.py" in line for line in found), (package, done.stdout)
