"""The one table of errors. E0xx syntax, E1xx names, E2xx axes, time and loops, E3xx algebra of S, E4xx ranges,
E5xx backends, Wxxx warnings. Every row's bad example gives its code and its good example compiles: a test says so."""

from __future__ import annotations

from .algebra import ALGEBRA
from .axes import AXES
from .backends import BACKENDS
from .ranges import RANGES, WARNINGS
from .row import Row as Row
from .syntax import NAMES, SYNTAX

TABLE: dict[str, Row] = SYNTAX | NAMES | AXES | ALGEBRA | RANGES | BACKENDS | WARNINGS
