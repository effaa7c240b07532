"""The battery of calls: what is right passes, and a defect of each kind is found under its name."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import stateir
from stateir.codegen import operator, torch_ops
from stateir.codegen.operator import Operator
from stateir.codegen.verify import Check
from stateir.codegen.verify_calls import SUBJECTS, verify_calls

RULE = "gated_delta"


def wrong(rule: stateir.Rule, subject: str) -> list[str]:
    return [c.name for c in verify_calls(rule, "cpu", subjects=[subject]) if not c.passed]


# S alone; a scalar state and a normaliser; look-back and angles; two matrix states, on the step reference.
@pytest.mark.parametrize("name", ["gdn2", "mlstm", "mamba3", "titans_linear"])
def test_library_rules_pass(name: str) -> None:
    checks = verify_calls(stateir.load(name), "cpu")
    assert all(c.passed for c in checks), [c for c in checks if not c.passed]
    subjects = {c.name.split(":")[0] for c in checks}
    assert subjects == SUBJECTS.keys() - {"graphs", "configurations"}  # these need a GPU
    arguments = {i.name for i in stateir.load(name).inputs}
    assert {f"packed: gradient of {n}" for n in arguments} <= {c.name for c in checks}


def _written(monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument is written to."""
    plain = Operator.evaluate

    def evaluate(self: Operator, tensors: Any, *more: Any, **options: Any) -> Any:
        found = plain(self, tensors, *more, **options)
        if tensors["v"].is_contiguous():
            tensors["v"].data.mul_(2.0)
        return found

    monkeypatch.setattr(Operator, "evaluate", evaluate)


def _strided(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of the output is taken to be contiguous."""

    def taken(g: torch.Tensor) -> torch.Tensor:
        whole = g.untyped_storage().nbytes() >= g.nbytes
        return g.as_strided(g.shape, torch.empty(g.shape).stride()) if whole else g.contiguous()

    monkeypatch.setattr(operator, "_contiguous", taken)


def _packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token is given to the sequence before its own."""
    plain = operator.chunks_of
    monkeypatch.setattr(operator, "chunks_of", lambda cu, T, C: plain((cu - 1).clamp(min=0), T, C))


def _state(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state is returned as it was given, not in float32."""
    plain = operator._settled

    def settled(dtype: torch.dtype, parts: Any, o: Any, state: Any) -> Any:
        return plain(dtype, parts, o, state.bfloat16())

    monkeypatch.setattr(operator, "_settled", settled)


def _heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head of few is used by heads that are not its neighbours."""
    plain = Operator._prepared

    def prepared(self: Operator, tensors: Any, *more: Any) -> Any:
        return plain(self, {n: x.flip(2) if x.ndim > 3 and x.shape[2] == 2 else x for n, x in tensors.items()}, *more)

    monkeypatch.setattr(Operator, "_prepared", prepared)


def _slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sequences' rows are taken in another order."""
    plain = operator.check_slots
    monkeypatch.setattr(operator, "check_slots", lambda *given: plain(*given).flip(0))


def _random(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last bits are different each time."""
    plain = operator._settled

    def settled(dtype: torch.dtype, parts: Any, o: Any, state: Any) -> Any:
        return plain(dtype, parts, o * (1 + 1e-6 * torch.rand(())), state)

    monkeypatch.setattr(operator, "_settled", settled)


def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a call is traced its output has the strides of other dimensions."""
    plain = torch_ops._fake

    def fake(op: Operator) -> Any:
        def wrapped(*given: Any) -> Any:
            o, *after = plain(op)(*given)
            return [o.transpose(0, 1).contiguous().transpose(0, 1), *after]

        return wrapped

    monkeypatch.setattr(torch_ops, "_fake", fake)


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (_written, "strides: arguments after all calls = before, bits"),
        (_strided, "strides: sliced gradients = contiguous ones, bits"),
        (_packed, "packed: output"),
        (_state, "states: returned in another dtype than float32"),
        (_heads, "groups: output"),
        (_slots, "decode: slots = rows taken by hand, bits"),
        (_random, "checkpoints: not reentrant = none, bits"),
        (_random, "determinism: 3 times the same, bits"),
        (_random, "compile: T = 40, compiled = eager, bits"),
        (_fake, "compile: failures of opcheck"),
    ],
)
def test_defects_are_found(monkeypatch: pytest.MonkeyPatch, plant: Callable[..., None], found: str) -> None:
    text = stateir.load(RULE).text.replace("rule gated_delta", f"rule {plant.__name__[1:]}_planted")
    rule = stateir.parse(text)  # of its own name, since operators of PyTorch are registered once
    plant(monkeypatch)
    assert found in wrong(rule, found.split(":")[0])


def test_what_raises_is_a_check_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no kernel image\nand more")

    monkeypatch.setattr(operator, "run_packed", broken)
    failed = [c for c in verify_calls(stateir.load(RULE), "cpu", subjects=["packed"]) if not c.passed]
    assert failed == [Check("packed", float("inf"), 0.0, "RuntimeError: no kernel image")]


def test_report_as_data(tmp_path: Path) -> None:
    """What `gpu_report.py` writes on a GPU, in its CPU form."""
    script = Path(__file__).parents[1] / "benchmarks" / "gpu_report.py"
    options = ["--only", "full", "--device", "cpu", "--rules", RULE, "--workers", "1", "--out", str(tmp_path)]
    subprocess.run([sys.executable, str(script), *options], check=True, capture_output=True, timeout=300)
    kept = json.loads((tmp_path / "full.json").read_text())
    assert {"card", "torch", "triton", "date"} <= kept["environment"].keys()
    rule = kept["rules"][RULE]
    assert rule["failed"] == [] and rule["backend"] == "chunked"
    error, limit = rule["errors_and_limits"]["N = 7, float32"]["packed: gradient of k"]
    assert 0 < error <= limit == 1e-4
