"""The plumbing of benchmarks/serving.py, on a CPU at small sizes: records, errors and deadlines reach the file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "serving.py"


def run(out: Path, *options: str) -> Any:
    command = [sys.executable, str(SCRIPT), "--out", str(out), "--device", "cpu", "--small", *options]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return json.loads((out / "serving.json").read_text())


def test_memory_and_a_deadline(tmp_path: Path) -> None:
    found = run(tmp_path, "--rules", "gdn2", "--parts", "memory")["memory"]
    assert {"card", "torch", "triton", "date"} <= found["environment"].keys()
    levels = {row["recompute"]: row for row in found["rules"]["gdn2"]}
    assert levels.keys() == {None, 64} and all(row["fwdbwd_ms"] > 0 for row in levels.values())
    # no time is left for another part: this is said, and what was there is kept
    later = run(tmp_path, "--rules", "kda", "--parts", "decode", "--seconds", "0")
    assert later["decode"]["rows"] == [{"error": "not begun: no time was left"}]
    assert later["memory"] == found


@pytest.mark.slow
def test_every_part_is_kept(tmp_path: Path) -> None:
    found = run(tmp_path, "--rules", "gdn2")
    cold = found["cold"]["rules"]["gdn2"]
    assert all(cold[side]["first_s"] > 0 and cold[side]["import_s"] > 0 for side in ("checked", "unchecked"))
    modes = {(row["batch"], row["mode"]) for row in found["decode"]["rows"]}
    assert modes == {(B, mode) for B in (1, 2) for mode in ("new state", "in place", "slots in place")}
    lengths = {row["sequences"]: row["tokens"] for row in found["packed"]["rules"]["gdn2"]}
    assert lengths == {1: 64, 4: 16, 16: 4, 64: 1}
    peer = found["peer"]["rules"]["gdn2"]
    assert peer.get("first_s") or "fla" in peer["error"]
