"""The standard library of rules, one .rule file each."""

from importlib.resources import files
from importlib.resources.abc import Traversable


def library() -> dict[str, Traversable]:
    """Name -> rule file, sorted by name."""
    found = [f for f in files(__name__).iterdir() if f.name.endswith(".rule")]
    return {f.name.removesuffix(".rule"): f for f in sorted(found, key=lambda f: f.name)}
