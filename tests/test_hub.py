"""The language model through transformers: saved with its rule, loaded by the Auto classes, generating with its state."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import stateir
from stateir.models.checkpoint import RuleChanged
from stateir.printer import fingerprint

transformers = pytest.importorskip("transformers")

from stateir.models.hub import StateirConfig, StateirForCausalLM  # noqa: E402

TEXT = "rule mine\ninput q: key, k: key unit, v: value, b: scalar in [0, 1]\nupdate S += outer(k, b * (v - k @ S))\nread o = q @ S\n"
SHAPE = dict(pattern="ra", tokens=32, layers=2, hidden=16, heads=2, key_dim=6, value_dim=5, mlp=24)


@pytest.fixture
def rule_file(tmp_path: Path) -> Path:
    file = tmp_path / "mine.rule"
    file.write_text(TEXT)
    return file


@pytest.fixture
def saved(rule_file: Path, tmp_path: Path) -> tuple[StateirForCausalLM, Path]:
    torch.manual_seed(0)
    model = StateirForCausalLM(StateirConfig(rule=str(rule_file), **SHAPE)).eval()
    model.save_pretrained(tmp_path / "saved")
    return model, tmp_path / "saved"


def ids() -> torch.Tensor:
    return torch.randint(32, (2, 7), generator=torch.Generator().manual_seed(0))


def test_the_auto_classes_load_what_was_saved(saved: tuple[StateirForCausalLM, Path], rule_file: Path) -> None:
    model, folder = saved
    facts = json.loads((folder / "config.json").read_text())
    assert facts["rule_hash"] == fingerprint(stateir.load(str(rule_file)))
    assert "update S" in facts["rule_text"]
    again = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert isinstance(again, StateirForCausalLM)
    assert torch.equal(again(ids()).logits, model(ids()).logits)
    rule_file.unlink()  # the text goes with the model
    again = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(again(ids()).logits, model(ids()).logits)


def test_an_edited_rule_is_refused_unless_told(saved: tuple[StateirForCausalLM, Path], rule_file: Path) -> None:
    model, folder = saved
    rule_file.write_text(TEXT.replace("v - k @ S", "v - 2 * (k @ S)"))
    with pytest.raises(RuleChanged, match="allow_other_rule=True"):
        transformers.AutoModelForCausalLM.from_pretrained(folder)
    again = transformers.AutoModelForCausalLM.from_pretrained(folder, allow_other_rule=True)
    assert torch.equal(again(ids()).logits, model(ids()).logits)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rule_hash": "0" * 16}))
    with pytest.raises(RuleChanged, match="has hash"):
        transformers.AutoConfig.from_pretrained(folder)


def test_generate_carries_the_state(saved: tuple[StateirForCausalLM, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy tokens are those of full forwards, and after the prompt one token is given at a time."""
    model, _ = saved
    lengths = []
    forward = type(model.model).forward
    monkeypatch.setattr(
        type(model.model), "forward", lambda self, x, *a, **k: (lengths.append(x.shape[1]), forward(self, x, *a, **k))[1]
    )
    found = model.generate(ids(), max_new_tokens=6, do_sample=False)
    assert lengths == [7, 1, 1, 1, 1, 1]
    for n in range(7, 13):
        assert torch.equal(model(found[:, :n]).logits[:, -1].argmax(-1), found[:, n])
    assert torch.equal(found, model.generate(ids(), max_new_tokens=6, do_sample=False, use_cache=False))


def test_loss_and_padding(saved: tuple[StateirForCausalLM, Path]) -> None:
    model, _ = saved
    x = ids()
    want, _ = model.model(x[:, :-1], labels=x[:, 1:])
    torch.testing.assert_close(model(x, labels=x).loss, want)
    with pytest.raises(ValueError, match="expected ones alone"):
        model(x, attention_mask=torch.tensor([[0] + [1] * 6] * 2))
