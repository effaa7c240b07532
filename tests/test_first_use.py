"""Kernels are checked on first use; a wrong configuration is passed over, and told of when none is right."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from triton.runtime import KernelInterface

import stateir
from stateir.codegen import backends, first_use, triton_config
from stateir.codegen.dry import Launch, compile_all, dry
from stateir.codegen.first_use import (
    CONFIGURATIONS,
    Configuration,
    KernelError,
    choose,
    configured,
    failing,
    measured,
    wanted,
)
from stateir.codegen.generated import load_source
from stateir.codegen.step import step_source

CPU = torch.device("cpu")
RULE = stateir.load("gla")
K, V = 5, 3


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Verdicts in a folder of the test's own; sequences of two small chunks."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs Triton's interpreter")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(triton_config, "chunk_size", lambda tiles: 16)
    monkeypatch.setattr(first_use, "TOKENS", 18)
    monkeypatch.setattr(first_use, "HEADS", 1)
    yield


def chosen(candidates: tuple[Configuration, ...] = CONFIGURATIONS) -> Configuration:
    source = backends.source(RULE, "triton", None)
    reference = load_source(step_source(RULE), "gla.step")
    return choose(RULE, source, "gla.triton", reference, K, V, torch.float32, CPU, candidates)


def files() -> list[Path]:
    return sorted((Path(os.environ["XDG_CACHE_HOME"]) / "stateir").glob("*"))


def break_kernels(
    monkeypatch: pytest.MonkeyPatch, *broken: Configuration, change: tuple[str, str]
) -> list[Configuration]:
    """Modules of these configurations get other text, as a compiler that is wrong for them would; the tried ones."""
    tried: list[Configuration] = []

    def altered(source: str, label: str, configuration: Configuration) -> ModuleType:
        tried.append(configuration)
        if configuration in broken:
            source = source.replace(*change)
        return configured(source, label, configuration)

    monkeypatch.setattr(first_use, "configured", altered)
    return tried


FORWARD = ("tl.exp(", "tl.exp2(")


def test_right_kernels_are_taken_and_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = break_kernels(monkeypatch, change=FORWARD)
    assert chosen() == Configuration() and tried == [Configuration()]
    (file,) = files()
    kept = json.loads(file.read_text())
    assert kept["K"] == K and kept["dtype"] == "float32" and kept["triton"]
    inputs = {f"gradient of {i.name}" for i in RULE.inputs}
    assert inputs | {"output", "last S", "gradient of initial S", "token's output"} <= set(kept["errors"])
    assert chosen() == Configuration() and len(tried) == 1


def test_a_wrong_configuration_is_passed_over_and_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = break_kernels(monkeypatch, Configuration(), change=FORWARD)
    assert chosen() == CONFIGURATIONS[1]
    assert tried == list(CONFIGURATIONS[:2]) and len(files()) == 2
    assert chosen() == CONFIGURATIONS[1] and len(tried) == 2


def test_a_wrong_gradient_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = break_kernels(monkeypatch, Configuration(), change=("grad_q.to(dtype)", "(1.5 * grad_q).to(dtype)"))
    assert chosen() == CONFIGURATIONS[1] and len(tried) == 2
    errors = [json.loads(f.read_text())["errors"] for f in files()]
    wrong = [failing(e, torch.float32) for e in errors]
    assert sorted(map(list, wrong)) == [[], ["gradient of q"]]


def test_with_none_left_the_message_says_where_and_what(monkeypatch: pytest.MonkeyPatch) -> None:
    only = CONFIGURATIONS[:2]
    break_kernels(monkeypatch, *only, change=FORWARD)
    with pytest.raises(KernelError, match=r"gla: no conf.* K = 5, V = 3, float32.*stages = 2: .* off by") as caught:
        chosen(only)
    assert "backend='chunked'" in str(caught.value) and "STATEIR_FIRST_USE=0" in str(caught.value)


def test_a_configuration_that_does_not_compile_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    break_kernels(monkeypatch, Configuration(), change=("tl.exp(", "tl.no_such_function("))
    assert chosen() == CONFIGURATIONS[1]
    assert len(files()) == 1  # it may compile another time


def test_nan_is_no_small_error() -> None:
    assert failing({"output": float("nan"), "last S": 1e-7}, torch.float32).keys() == {"output"}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"errors": {}}', '{"errors": {"output": "x"}}'])
def test_an_unreadable_verdict_is_found_anew(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(first_use, "measured", lambda *_: {"output": 0.0})
    chosen()
    (file,) = files()
    good = file.read_text()
    file.write_text(text)
    assert chosen() == Configuration() and file.read_text() == good


def test_a_folder_that_cannot_be_written_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "stateir").write_text("a file in its place")
    monkeypatch.setattr(first_use, "measured", lambda *_: {"output": 0.0})
    assert chosen() == Configuration()


def test_tiles_of_a_configuration() -> None:
    source = backends.source(RULE, "triton", None)
    plain = configured(source, "gla.triton", Configuration())
    other = configured(source, "gla.triton", Configuration(chunk=32, columns=16, stages=1))
    assert other.CHUNK == 32 and plain.CHUNK == 16
    sizes = 64, 64, torch.bfloat16, torch.device("cpu")
    assert other._launches(*sizes)["scan"] == {"BV": 16, "num_warps": 4, "num_stages": 1}
    assert plain._launches(*sizes)["scan"]["BV"] > 16 and plain._launches(*sizes)["scan"]["num_stages"] > 1
    assert configured(source, "gla.triton", Configuration(chunk=32, columns=16, stages=1)).CHUNK == 32


def test_dry_calls_have_the_launches_of_real_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kernel with its constants, forward, backward and decode; the real module launches none of them."""
    source, reference = backends.source(RULE, "triton", None), load_source(step_source(RULE), "gla.step")
    module, twin, real = (load_source(source, f"gla.{name}") for name in ("module", "twin", "real"))
    launches = dry(module, twin)
    measured(RULE, twin, reference, K, V, torch.float32, CPU)
    done: list[Launch] = []

    class Counted:
        def __init__(self, kernel: Any, own: Any) -> None:
            self.kernel, self.own = kernel, own

        def __getitem__(self, grid: Any) -> Any:
            def run(*arguments: Any, **options: Any) -> None:
                done.append(Launch(self.own, arguments, options))
                self.kernel[grid](*arguments, **options)

            return run

        def __call__(self, *arguments: Any, **options: Any) -> Any:
            return self.kernel(*arguments, **options)

    for name, kernel in list(vars(real).items()):
        if isinstance(kernel, KernelInterface):
            monkeypatch.setattr(real, name, Counted(kernel, getattr(module, name)))
    measured(RULE, real, reference, K, V, torch.float32, CPU)
    assert len(done) > 5 and {x.key for x in launches} == {x.key for x in done}


def test_kernels_compile_at_once_and_an_error_is_left_to_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device", lambda device: nullcontext())
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    tried: list[object] = []
    both = threading.Barrier(2, timeout=30)

    class Kernel:
        def warmup(self, *arguments: object, **options: object) -> None:
            both.wait()
            tried.append(self)
            raise RuntimeError("does not compile")

    first, second = Kernel(), Kernel()
    compile_all([Launch(first, (1,), {}), Launch(second, (1,), {}), Launch(second, (2,), {})], CPU)
    assert sorted(tried, key=id) == sorted((first, second), key=id)


def test_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wanted(torch.device("cuda")) and not wanted(CPU)
    monkeypatch.setenv("STATEIR_FIRST_USE", "0")
    assert not wanted(torch.device("cuda"))
    assert not stateir.compile(RULE, check_kernels=False).check_kernels


def test_the_operator_uses_what_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateir.codegen.operator.wanted", lambda device: True)
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
    calls = []

    def choice(*arguments: object) -> Configuration:
        calls.append(arguments)
        return CONFIGURATIONS[1]

    monkeypatch.setattr("stateir.codegen.operator.choose", choice)
    op = stateir.compile(RULE, "triton")
    x = {n: t.float() for n, t in stateir.codegen.samples.sample_arguments(RULE, B=1, T=3, H=1, K=K, V=V).items()}  # type: ignore[attr-defined]
    op(**x)
    op(**x)
    op.step(**{n: t[:, 0] for n, t in x.items()})
    assert len(calls) == 1 and list(op._modules) == [("triton", CONFIGURATIONS[1])]
    op(**{n: t.bfloat16() if n == "v" else t for n, t in x.items()} | {"v": torch.zeros(1, 0, 1, V).half()} | {
        n: t[:, :0] for n, t in x.items() if n != "v"})  # fmt: skip
    assert len(calls) == 2
    stateir.compile(RULE, "triton", check_kernels=False)(**x)
    assert len(calls) == 2
