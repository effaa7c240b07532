"""The language model: carried state, hybrid layers, training by DDP and FSDP2, kill and resume."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import on_ranks
from typer.testing import CliRunner

import stateir
from stateir.models import checkpoint as checkpoints
from stateir.models.lm import LanguageModel, LMConfig
from stateir.models.lm_cli import app
from stateir.models.lm_text import rows, text
from stateir.models.lm_train import LMTrainConfig, load_model, train

MODEL = LMConfig(rule="qed", pattern="ra", layers=3, hidden=16, heads=2, key_dim=6, value_dim=5, mlp=24)


@pytest.fixture
def config(tmp_path: Path) -> LMTrainConfig:
    file = tmp_path / "text.txt"
    file.write_bytes(bytes(itertools.islice(itertools.cycle(b"abcabdabe\n"), 4000)))
    return LMTrainConfig(MODEL, str(file), steps=8, batch=4, length=24, warmup=2, save_every=3)


@pytest.mark.parametrize("rule", ["gdn2", "mlstm", "mamba3"])
def test_generation_with_carried_state_is_the_full_forward(rule: str) -> None:
    """Greedy tokens, and the logits of each, in float64."""
    model = LanguageModel(replace(MODEL, rule=rule), stateir.load(rule), seed=3).double()
    ids = torch.randint(256, (2, 7), generator=torch.Generator().manual_seed(0))
    found = model.generate(ids, 6)
    assert torch.equal(found[:, :7], ids)
    for n in range(7, 13):
        logits, _ = model(found[:, :n])
        assert torch.equal(logits[:, -1].argmax(-1), found[:, n])
    whole, _ = model(found)
    _, cache = model(found[:, :7], return_cache=True)
    for n in range(7, 13):
        one, cache = model(found[:, n : n + 1], cache=cache, token=True)
        torch.testing.assert_close(one[:, 0], whole[:, n], rtol=1e-9, atol=1e-11)


def test_the_pattern_places_attention_and_the_head_is_tied() -> None:
    model = LanguageModel(MODEL, stateir.load("qed"))
    assert [type(layer.mixer).__name__ for layer in model.layers] == ["Mixer", "Attention", "Mixer"]
    assert "head.weight" not in model.state_dict()
    with pytest.raises(ValueError, match="pattern must be letters"):
        replace(MODEL, pattern="rx")


def test_gradient_checkpointing_changes_nothing() -> None:
    ids, labels = torch.randint(256, (2, 2, 20), generator=torch.Generator().manual_seed(0))
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = LanguageModel(MODEL, stateir.load("qed"))
        model.checkpointing = checkpointing
        model(ids, labels=labels)[0].backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_it_learns_a_text_and_is_fixed_by_its_seed(config: LMTrainConfig) -> None:
    config = replace(config, steps=40, lr=1e-2)
    a, b = train(config), train(config)
    assert a.losses == b.losses
    assert a.held_out < 2.5 < 5 < a.losses[0]


def test_the_standard_library_is_a_text() -> None:
    library = text()
    assert b"class OrderedDict(" in library and len(library) > 1_000_000
    x, y = rows("python", 50, 3, (0, 1))
    assert torch.equal(x[:, 1:], y[:, :-1]) and torch.equal(x, rows("python", 50, 3, (0, 1))[0])


def test_bf16_trains(config: LMTrainConfig) -> None:
    wide, narrow = train(config), train(replace(config, bf16=True))
    assert wide.losses != narrow.losses
    torch.testing.assert_close(wide.losses[-1], narrow.losses[-1], rtol=0.02, atol=0)


def test_a_stopped_run_goes_on_to_the_same_losses(config: LMTrainConfig, tmp_path: Path) -> None:
    whole = train(config)
    train(config, tmp_path / "run", stop_after=5)
    assert train(config, tmp_path / "run", resume=True).losses == whole.losses
    with pytest.raises(ValueError, match="another configuration"):
        train(replace(config, lr=1.0), tmp_path / "run", resume=True)
    Path(config.text).write_bytes(b"another text" * 100)
    text.cache_clear()
    with pytest.raises(ValueError, match="its bytes have changed"):
        train(config, tmp_path / "run", resume=True)


def test_a_killed_process_goes_on_to_the_same_losses(config: LMTrainConfig, tmp_path: Path) -> None:
    """kill -9 while it runs; then the same command with --resume."""
    m = config.model
    command = [sys.executable, "-m", "stateir", "lm", "train", m.rule, "--out", str(tmp_path / "run"), "--text"]
    command += [config.text, "--steps", "60", "--batch", "4", "--length", "24", "--save-every", "5"]
    command += ["--layers", "1", "--hidden", "16", "--mlp", "24", "--key-dim", "6", "--value-dim", "5"]
    saved = tmp_path / "run" / "checkpoint.safetensors"
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
    for _ in range(1200):
        if saved.exists():
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    at = checkpoints.facts(saved)["step"]
    assert 0 < at < 60
    subprocess.run([*command, "--resume"], env=env, check=True, stdout=subprocess.DEVNULL)
    facts = checkpoints.facts(saved)
    shape = replace(m, pattern="r", layers=1, hidden=16, mlp=24)
    want = train(replace(config, model=shape, steps=60, warmup=6, save_every=5))
    assert facts["step"] == 60
    assert facts["losses"] == list(want.losses)


def spread(config: LMTrainConfig, folder: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in ("ddp", "fsdp"):
        result = train(config, parallel=kind)  # type: ignore[arg-type]
        found[kind] = (result.losses, result.held_out)
    train(config, Path(folder) / "run", parallel="fsdp", stop_after=5)
    found["resumed"] = train(config, Path(folder) / "run", parallel="fsdp", resume=True).losses
    return found


def test_ddp_and_fsdp_on_two_processes_have_the_losses_of_one(config: LMTrainConfig, tmp_path: Path) -> None:
    one = train(config)
    for found in on_ranks(2, spread, config, str(tmp_path)):
        for kind in ("ddp", "fsdp"):
            torch.testing.assert_close(found[kind][0], one.losses, rtol=2e-5, atol=0)
            torch.testing.assert_close(found[kind][1], one.held_out, rtol=2e-5, atol=0)
        assert found["resumed"] == found["fsdp"][0]
    # What FSDP2 saved is a checkpoint of one process too.
    loaded = load_model(tmp_path / "run" / "checkpoint.safetensors")
    assert sum(p.numel() for p in loaded.parameters()) == one.parameters


def test_the_command_line_generates(config: LMTrainConfig, tmp_path: Path) -> None:
    train(config, tmp_path / "run")
    saved = str(tmp_path / "run" / "checkpoint.safetensors")
    done = CliRunner().invoke(app, ["generate", saved, "--prompt", "abc", "--count", "5", "--temperature", "0"])
    assert done.exit_code == 0 and done.output.startswith("abc")
    done = CliRunner().invoke(app, ["train", "gdn2", "--out", str(tmp_path / "x"), "--parallel", "ddp"])
    assert done.exit_code == 1 and "torchrun" in done.output
