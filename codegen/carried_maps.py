"""The maps of vector states over a segment as generated text: what their scans combine, token by token.

A state may need others that are scanned before it, so its maps are known only once theirs have been applied. Scans are
sorted into levels: those of a level need states of earlier levels alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

from stateir.ir import Axis, Ref, Rule, Update, walk
from stateir.scans import Scan, scans

from .expr import scope_of
from .generated import load_source
from .scan import LEADING, Demand
from .text import arguments_of, function, helpers, module, sizes
from .vector_scans import TORCH, VectorScan


@dataclass(frozen=True)
class Level:
    """States that are exchanged together: `maps` is the name of the function of their maps, `scans` by state."""

    maps: str
    scans: dict[str, VectorScan]


def sequential_states(rule: Rule) -> tuple[str, ...]:
    """The vector states whose token's map does not compose with the next token's."""
    return tuple(name for scan in scans(rule) if scan.kind == "sequential" for name in scan.states)


def carried_maps(rule: Rule) -> tuple[ModuleType, tuple[Level, ...]]:
    """A module with a function for each level, and the levels, of a rule without sequential states.

    `maps_n(inputs..., params..., state, chunk)` gives the a and b of each of the level's states over all tokens, as
    its scan takes them. `state` holds the look-back windows and the states of earlier levels, right for the segment.
    """
    texts, levels, definitions = [], [], []
    for n, scans_of_level in enumerate(_levels(rule)):
        name = f"maps_{n}"
        needed, text, kinds = _source(rule, name, scans_of_level)
        definitions += [x for x in needed if x not in definitions]
        texts.append(text)
        levels.append(Level(name, kinds))
    text = module(f"The maps of what {rule.name} carries beside S.", [*definitions, *texts])
    return load_source(text, f"{rule.name}.maps"), tuple(levels)


def _levels(rule: Rule) -> list[list[Scan]]:
    """The scans by level, in an order in which each finds what it needs in earlier ones."""
    level: dict[str, int] = {}
    out: list[list[Scan]] = []
    for scan in scans(rule):  # each comes after those that it needs
        (name,) = scan.states
        n = max((level[other] + 1 for other in _needs(rule, name)), default=0)
        level[name] = n
        out += [[]] * (n == len(out))
        out[n] = [*out[n], scan]
    return out


def _needs(rule: Rule, name: str) -> set[str]:
    """The other vector states that a state's updates refer to, directly or through lets."""
    states = {s.name for s in rule.states if s.axis is not Axis.MATRIX} - {name}
    stack = [x.value for x in rule.lines if isinstance(x, Update) and x.state == name]
    found: set[str] = set()
    while stack:
        for x in walk(stack.pop()):
            if isinstance(x, Ref) and x.name in rule.lets:
                stack.append(rule.lets[x.name])
            elif isinstance(x, Ref) and x.name in states:
                found.add(x.name)
    return found


def _source(rule: Rule, name: str, level: list[Scan]) -> tuple[list[str], str, dict[str, VectorScan]]:
    """The definitions that a level's function needs, its text, and the scan of each state."""
    scope = scope_of(rule)
    state, chunk = scope.new("state"), scope.new("chunk")
    demand = Demand(rule, scope, state, chunk)
    entries, kinds = [], {}
    for scan in level:
        kind, a, b = demand.operands(scan)
        kinds[scan.states[0]] = TORCH[kind]
        entries.append(f'    "{scan.states[0]}": ({a}, {b}),')
    body = [*sizes(rule, scope, LEADING), *demand.body, "return {", *entries, "}"]
    arguments = [f"{scope.names[d.name]}: Tensor" for d in arguments_of(rule)]
    arguments += [f"{state}: dict[str, Tensor]", f"{chunk}: int"]
    result = "dict[str, tuple[Tensor, Tensor]]"
    docstring = f"The maps of {', '.join(kinds)} over all tokens."
    scans_used = [x for kind in kinds.values() for x in kind.definitions]
    definitions = [*helpers(scope), *(x.strip("\n") for x in (*demand.helpers, *scans_used))]
    return definitions, function(name, arguments, result, docstring, body), kinds
