"""Configurations: frozen dataclasses that go to JSON and back, refuse what they do not know, and have a hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T")


def to_dict(config: Any) -> dict[str, Any]:
    """The configuration as plain JSON values."""
    return asdict(config)


def from_dict(cls: type[T], data: Mapping[str, Any]) -> T:
    """Builds `cls`, nested dataclasses included.

    Raises:
        ValueError: for a field that `cls` does not have, naming it and the fields there are.
    """
    hints = get_type_hints(cls)
    known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise ValueError(f"{cls.__name__} has no field {', '.join(unknown)}; its fields are {', '.join(known)}")
    values = {
        name: from_dict(hints[name], value) if is_dataclass(hints[name]) and isinstance(value, Mapping) else value
        for name, value in data.items()
    }
    return cls(**values)


def config_hash(config: Any) -> str:
    """Twelve hex digits that name the configuration; equal configurations have equal hashes on every machine."""
    text = json.dumps(to_dict(config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def require(condition: bool, message: str) -> None:
    """Raises ValueError(message) unless the condition holds."""
    if not condition:
        raise ValueError(message)
