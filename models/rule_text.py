"""A rule's canonical text, and its hash: what a checkpoint remembers of the rule it was trained with."""

from __future__ import annotations

import hashlib

from stateir.ir import Rule


def canonical_text(rule: Rule) -> str:
    """The text that every spelling of the rule has in common: no comments, one layout."""
    return rule.text


def rule_hash(rule: Rule) -> str:
    """Sixteen hex digits of the canonical text's SHA-256."""
    return hashlib.sha256(canonical_text(rule).encode()).hexdigest()[:16]
