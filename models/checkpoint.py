"""Checkpoints: one safetensors file with the tensors, and in its metadata the configuration and the rule's own text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import stateir
from stateir.ir import Rule
from stateir.printer import canonical, fingerprint


class RuleChanged(ValueError):
    """A checkpoint was trained with another rule than the one it is loaded with."""


@dataclass(frozen=True)
class Checkpoint:
    """tensors by name; `rule` is None for attention; `facts` are plain JSON values such as the configuration."""

    tensors: dict[str, Tensor]
    rule: Rule | None
    facts: dict[str, Any]


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Writes the file in one move, so that an interrupted run leaves the previous one whole."""
    metadata = {"facts": json.dumps(checkpoint.facts, sort_keys=True)}
    if checkpoint.rule is not None:
        metadata |= {"rule": canonical(checkpoint.rule), "rule_hash": fingerprint(checkpoint.rule)}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    save_file({name: t.detach().contiguous() for name, t in checkpoint.tensors.items()}, partial, metadata)
    partial.replace(path)


def facts(path: Path) -> dict[str, Any]:
    """The facts of a checkpoint alone, without its tensors and without a look at its rule.

    Raises:
        ValueError: if the file is not a checkpoint of this package.
    """
    with safe_open(path, "pt") as file:
        metadata = file.metadata() or {}
    if "facts" not in metadata:
        raise ValueError(f"{path} is not a checkpoint of this package: its metadata has no 'facts'")
    return dict(json.loads(metadata["facts"]))


def load(path: Path, rule: Rule | None = None, allow_other_rule: bool = False) -> Checkpoint:
    """Reads a checkpoint.

    Args:
        rule: the rule to go on with; None takes the text in the file.
        allow_other_rule: go on with `rule` even if it is not the one in the file.

    Raises:
        RuleChanged: if `rule` differs from the one in the file and that was not allowed, or if the text in the file
            does not have the hash beside it.
    """
    with safe_open(path, "pt") as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if "rule" not in metadata:
        if rule is not None:
            raise RuleChanged(f"{path} holds an attention model, but was loaded with the rule {rule.name}")
        return Checkpoint(tensors, None, facts(path))
    stored = stateir.parse(metadata["rule"], filename=f"{path}:rule")
    if fingerprint(stored) != metadata["rule_hash"]:
        raise RuleChanged(
            f"{path}: the rule's text has hash {fingerprint(stored)}, its metadata say {metadata['rule_hash']}"
        )
    if rule is not None and fingerprint(rule) != metadata["rule_hash"] and not allow_other_rule:
        raise RuleChanged(
            f"{path} was trained with {stored.name} (hash {metadata['rule_hash']}), but the rule given is {rule.name} "
            f"(hash {fingerprint(rule)}); load it without a rule to use its own text, or allow the other rule"
        )
    return Checkpoint(tensors, stored if rule is None else rule, facts(path))
