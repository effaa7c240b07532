"""The battery itself: that it passes what is right, names what it measures, and fails what is wrong."""

from __future__ import annotations

import math
import runpy
from pathlib import Path

import pytest
import torch

import stateir
from stateir.codegen import generated
from stateir.codegen.samples import sample_arguments
from stateir.codegen.verify import Check, against_step, over_time, verify


@pytest.mark.parametrize("name", ["qed", "mamba3", "titans_linear"])
def test_library_rules_pass(name: str) -> None:
    checks = verify(stateir.load(name))
    assert all(c.passed for c in checks), [c for c in checks if not c.passed]


def test_every_result_is_measured_by_itself() -> None:
    names = {c.name for c in verify(stateir.load("rwkv7"))}
    for argument in ("r", "k", "kappa", "v", "w", "a", "u", "initial S"):
        assert f"chunked = step: gradient of {argument}" in names
        assert f"float32: gradient of {argument}" in names
    assert {"chunked = step: output", "chunked = step: state S", "chunked, decoding = whole"} <= names


def test_nan_does_not_pass() -> None:
    assert not Check("x", math.nan, 1.0).passed
    assert not Check("x", 2.0, 1.0).passed and Check("x", 1.0, 1.0).passed


def test_arguments_reach_the_ends_of_their_ranges() -> None:
    """Gates of exactly 0 and 1, log decays of 0, -1e4 and -inf, and zero keys among unit ones and plain ones."""
    rule = stateir.parse(
        "rule x\ninput q: key, k: key unit, v: value, b: key in [0, 1], g: key in (-inf, 0]\n"
        "update S = exp(g) * S + outer(b * k, v)\nread o = q @ S\n"
    )
    t = sample_arguments(rule, T=40, ends=1.0, resets=True)
    assert {0.0, 1.0} <= set(t["b"].unique().tolist())
    assert {0.0, -1e4, -math.inf} <= set(t["g"].unique().tolist())
    for name in ("q", "k"):
        zero = (t[name] == 0).all(-1)
        assert 0.1 < zero.double().mean() < 0.4 and not (t[name] == 0)[~zero].any()
    assert not (sample_arguments(rule, T=40, ends=0.0)["k"] == 0).any()


def planted(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """Generated code of the chunked backend, with a defect."""
    from stateir.codegen import backends

    def load(source: str, label: str) -> object:
        assert old in source or not label.endswith("chunked")
        return generated.load_source(source.replace(old, new) if label.endswith("chunked") else source, label)

    monkeypatch.setattr(backends, "load_source", load)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"y0": w * v,', '"y0": v,'),
        ('"e0": b * k', '"e0": k'),
        ("(q, k, v, g, b, w), state,", "(q, k, v, g, b, w), 0.99 * state,"),
        ('"p0": k,', '"p0": k.detach(),'),
    ],
)
def test_defects_are_found(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    planted(monkeypatch, old, new)
    checks = against_step(stateir.load("gdn2"), (9,), (4,), [0])
    assert not all(c.passed for c in checks)


def test_a_look_into_the_future_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, '"y0": w * v,', '"y0": w * (v + 1e-9 * v.sum(1, keepdim=True)),')
    checks = {c.name: c for c in over_time(stateir.load("gdn2"), "chunked", 0, chunk_size=4)}
    assert not checks["chunked, first 8 outputs under another future, bits"].passed


def test_example(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(Path(__file__).parent.parent / "examples" / "my_first_rule.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "careful_delta: 6 inputs, 1 param, 4 lines" in said and "token 100 decoded: [1, 2, 8]" in said
    held, total = said.split("verified: ")[1].split(" checks")[0].split(" of ")
    assert held == total
    assert torch.get_default_dtype() == torch.float32
