"""Generated source text as a live module."""

from __future__ import annotations

import functools
import hashlib
import linecache
import types


@functools.lru_cache(maxsize=256)
def load_source(source: str, label: str) -> types.ModuleType:
    """The module that `source` defines. Tracebacks and debuggers show its lines under `label`."""
    name = f"{label}-{hashlib.sha256(source.encode()).hexdigest()[:8]}"
    filename = f"<stateir {name}>"
    # No modification time: linecache then never looks for the file on disk.
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    module = types.ModuleType(f"stateir_generated.{name}")
    module.__file__ = filename
    exec(compile(source, filename, "exec"), module.__dict__)
    return module
