"""The training loop: determinism, resumption, checkpoints that know their rule, and what the rules learn."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import stateir
from stateir.models import checkpoint as checkpoints
from stateir.models.cli import app
from stateir.models.config import config_hash, from_dict, to_dict
from stateir.models.demo import EXPECTED, config_of, save
from stateir.models.mqar import MqarConfig
from stateir.models.train import _Run, evaluate, train
from stateir.models.train_config import TrainConfig, schedule
from stateir.models.zoo import ModelConfig

TINY = TrainConfig(
    task=MqarConfig(length=16, pairs=2, vocab=16, overwrites=2),
    model=ModelConfig(rule="qed", layers=2, hidden=8, heads=2, key_dim=4, value_dim=3),
    steps=12, batch=4, warmup=2, eval_every=4, eval_rows=16,
)  # fmt: skip


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_a_seed_fixes_a_run(tmp_path: Path) -> None:
    torch.manual_seed(1)
    a = train(TINY, tmp_path / "a")
    torch.manual_seed(2)
    b = train(TINY, tmp_path / "b")
    c = train(replace(TINY, seed=1))
    assert [r["loss"] for r in a.records] == [r["loss"] for r in b.records] != [r["loss"] for r in c.records]
    x, y = (load_file(tmp_path / run / "checkpoint.safetensors") for run in "ab")
    assert all(torch.equal(x[name], y[name]) for name in x)


def test_training_leaves_the_callers_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(replace(TINY, steps=2, warmup=0))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("interruption", [4, 7])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path, interruption: int) -> None:
    """Also when the interruption falls between two evaluations; log and weights are the same."""
    whole = train(TINY, tmp_path / "whole")
    first = train(TINY, tmp_path / "cut", stop_after=interruption)
    assert first.steps == interruption
    second = train(TINY, tmp_path / "cut", resume=True)
    assert [(r["step"], r["loss"], r["accuracy"]) for r in second.records] == [
        (r["step"], r["loss"], r["accuracy"]) for r in whole.records
    ]
    x, y = (load_file(tmp_path / run / "checkpoint.safetensors") for run in ("whole", "cut"))
    assert x.keys() == y.keys()
    assert all(torch.equal(x[name], y[name]) for name in x)
    assert [r.get("step") for r in lines(tmp_path / "cut")] == [None, 4, 8, 12]
    done = train(TINY, tmp_path / "cut", resume=True)
    assert (done.steps, done.final) == (12, whole.final)


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    train(replace(TINY, steps=4), tmp_path)
    with pytest.raises(ValueError, match="already holds a run; resume it"):
        train(replace(TINY, steps=4), tmp_path)
    with pytest.raises(ValueError, match=r"another configuration: lr 0.01 there, 0.02 here"):
        train(replace(TINY, steps=4, lr=0.02), tmp_path, resume=True)


def test_the_log_starts_with_the_configuration(tmp_path: Path) -> None:
    result = train(TINY, tmp_path)
    head, *evals = lines(tmp_path)
    assert from_dict(TrainConfig, head["config"]) == TINY  # type: ignore[arg-type]
    assert head["config_hash"] == config_hash(TINY)
    # 2 layers of 2 heads: S 4 x 3, and 3 tokens of q, k (4 each) and v (3); 4 bytes a number.
    assert head["state_bytes"] == 4 * 2 * 2 * (12 + 3 * 11)
    assert [e["step"] for e in evals] == [4, 8, 12]
    assert evals[-1]["accuracy"] == result.final
    assert all(e["config_hash"] == config_hash(TINY) for e in evals)
    assert evals[0]["plateau_knows_values_cannot_bind"] == 0.5


def test_early_stop() -> None:
    result = train(replace(TINY, steps=400, stop_at=0.05, eval_every=2))
    assert result.steps < 400
    assert result.best >= 0.05


def test_schedule() -> None:
    config = replace(TINY, steps=100, warmup=10)
    factors = [schedule(config, step) for step in range(100)]
    assert factors[0] == pytest.approx(0.1, rel=0.01)
    assert max(factors) == factors[9]
    assert factors[50] == pytest.approx(0.5)
    assert factors[-1] < 1e-3


def test_optimizer_groups() -> None:
    """Weight decay on projections and embeddings alone; the factor on the rule's scalar params alone."""
    run = _Run(replace(TINY, scalar_lr=10.0), stateir.load("qed"), "cpu")
    names = {id(p): name for name, p in run.model.named_parameters()}
    fast = [names[id(p)] for g in run.optimizer.param_groups if g["factor"] == 10 for p in g["params"]]
    decayed = {names[id(p)] for g in run.optimizer.param_groups if g["weight_decay"] > 0 for p in g["params"]}
    assert fast == ["blocks.0.mixer.params.param_lam.raw", "blocks.1.mixer.params.param_lam.raw"]
    assert {"embed.weight", "head.weight", "blocks.0.mixer.project.weight"} <= decayed
    assert not any("bias" in n or "A_log" in n or "norm" in n or "param_" in n or "conv" in n for n in decayed)
    assert sum(len(g["params"]) for g in run.optimizer.param_groups) == len(names)


def test_held_out_rows_are_no_training_rows() -> None:
    """A run sees other rows in training than those it is measured on, from the same seed."""
    from stateir.models.mqar import generate
    from stateir.models.rows import HELD_OUT, TRAIN

    held = generate(TINY.task, 4, (HELD_OUT, TINY.seed)).inputs
    assert all((generate(TINY.task, 4, (TRAIN, TINY.seed, step)).inputs != held).any() for step in range(20))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"lr": 0.0}, "lr must be positive"),
        ({"warmup": 13}, "warmup must be in 0 .. steps = 12, got 13"),
        ({"stop_at": 1.5}, "stop_at must be in"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_refused_configurations(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **fields)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ModelConfig has no field hiden"):
        from_dict(TrainConfig, {"model": {"hiden": 3}})


EDITED = """rule mine
input  q: key unit, k: key unit, v: value, beta: scalar in (0, 1)   # a comment
update S += outer(beta * k, v - k @ S)
read   o = q @ S / sqrt(dim(key))
"""


def test_a_checkpoint_refuses_an_edited_rule(tmp_path: Path) -> None:
    """Comments and layout do not count as an edit; a change of meaning does."""
    file = tmp_path / "mine.rule"
    file.write_text(EDITED)
    config = replace(TINY, steps=4, model=replace(TINY.model, rule=str(file)))
    train(config, tmp_path / "run")
    path = tmp_path / "run" / "checkpoint.safetensors"
    file.write_text(EDITED.replace("   # a comment", "").replace("rule mine", "rule mine\n"))
    same = checkpoints.load(path, stateir.load(str(file)))
    assert same.facts["step"] == 4
    file.write_text(EDITED.replace("(0, 1)", "[0, 2]"))
    edited = stateir.load(str(file))
    with pytest.raises(checkpoints.RuleChanged, match=r"was trained with mine .* but the rule given is mine"):
        checkpoints.load(path, edited)
    assert checkpoints.load(path, edited, allow_other_rule=True).rule == edited
    assert checkpoints.load(path).rule == stateir.parse(EDITED)
    run = CliRunner().invoke(app, ["eval", str(path), "--rows", "8"])
    assert run.exit_code == 1
    assert "was trained with mine" in run.output
    for option in ("--stored-rule", "--edited-rule"):
        assert CliRunner().invoke(app, ["eval", str(path), "--rows", "8", option]).exit_code == 0


def test_a_tampered_checkpoint_is_refused(tmp_path: Path) -> None:
    train(replace(TINY, steps=4), tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    assert "exp(g) * S" in metadata["rule"]
    save_file(load_file(path), path, metadata | {"rule": metadata["rule"].replace("exp(g)", "exp(2 * g)")})
    with pytest.raises(checkpoints.RuleChanged, match="the rule's text has hash"):
        checkpoints.load(path)
    save_file(load_file(path), path, {})
    with pytest.raises(ValueError, match="is not a checkpoint of this package"):
        checkpoints.load(path)


def test_array_constants_survive_a_checkpoint(tmp_path: Path) -> None:
    """The text in a checkpoint is that of the rule as it was compiled, replaced constants included."""
    rule = stateir.load("delta_product", n=3)
    config = replace(TINY, steps=4, model=replace(TINY.model, rule="delta_product"))
    train(config, tmp_path, rule=rule)
    assert checkpoints.load(tmp_path / "checkpoint.safetensors").rule == rule


def test_attention_trains_and_is_loaded_without_a_rule(tmp_path: Path) -> None:
    config = replace(TINY, model=replace(TINY.model, rule="attention"))
    train(config, tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    assert checkpoints.load(path).rule is None
    with pytest.raises(checkpoints.RuleChanged, match="holds an attention model"):
        checkpoints.load(path, stateir.load("delta"))


def test_commands(tmp_path: Path) -> None:
    """show, train and eval; the accuracy that eval prints is that of the run, beside its configuration."""
    shown = CliRunner().invoke(app, ["show", "--rows", "3", "--seed", "1"])
    assert shown.exit_code == 0
    assert shown.output.count("labels") == 3
    small = ["--length", "16", "--pairs", "2", "--vocab", "16", "--overwrites", "2", "--steps", "20", "--batch", "4"]
    out = ["--key-dim", "4", "--value-dim", "3", "--out", str(tmp_path)]
    trained = CliRunner().invoke(app, ["train", "delta", *small, *out])
    assert trained.exit_code == 0, trained.output
    result = lines(tmp_path)[-1]
    assert f"accuracy {result['accuracy']:.3f}" in trained.output
    assert f"hash {result['config_hash']}" in trained.output
    path = str(tmp_path / "checkpoint.safetensors")
    evaluated = CliRunner().invoke(app, ["eval", path, "--rows", "512"])
    assert f"accuracy {result['accuracy']:.3f} on 512 rows" in evaluated.output
    longer = CliRunner().invoke(app, ["eval", path, "--rows", "8", "--length", "32"])
    assert "evaluated on length 32" in longer.output
    refused = CliRunner().invoke(app, ["show", "--length", "9"])
    assert refused.exit_code == 1
    assert "length must be even" in refused.output
    again = CliRunner().invoke(app, ["train", "delta", *small, *out])
    assert again.exit_code == 1
    assert "already holds a run" in again.output


def test_the_demos_figure_and_its_data(tmp_path: Path) -> None:
    results = [train(TINY), train(replace(TINY, model=replace(TINY.model, rule="delta")))]
    save(results, tmp_path)
    assert (tmp_path / "overwriting.png").read_bytes()[:4] == b"\x89PNG"
    table = (tmp_path / "overwriting.csv").read_text().splitlines()
    assert table[0] == "series,lr,seed,x,accuracy,config_hash"
    assert table[1] == f"qed,0.01,0,4.0,{results[0].records[0]['accuracy']},{config_hash(TINY)}"
    assert len(table) == 1 + 2 * 3


def test_evaluation_is_of_the_model_and_does_not_depend_on_the_batch() -> None:
    run = _Run(TINY, stateir.load("qed"), "cpu")
    scores = {evaluate(run.model, TINY.task, 64, 0, batch) for batch in (7, 64)}
    assert len(scores) == 1
    with torch.no_grad():
        run.model.head.weight.zero_()
    assert evaluate(run.model, TINY.task, 64, 0) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["additive", "delta"])
def test_what_separates_the_rules(rule: str) -> None:
    """Overwriting, 600 steps: erasing the old value is learnt, a sum of both is not enough."""
    least, most = EXPECTED[rule]
    config = config_of(rule)
    assert (config.steps, to_dict(config.task)["overwrites"]) == (600, 8)
    assert least <= train(config).final <= most
