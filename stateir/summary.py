"""What `stateir check` finds out about one rule, gathered once for a terminal and for machines."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from .affine import normal_form
from .core import core
from .ir import Axis, Input, Interval, Param, Rule, State
from .notation import expression
from .plan import Plan, plan
from .proofs import Proof, prove_rule
from .stability import Fact, stability
from .unicode import normal_form as written
from .unicode import number, style


@dataclass(frozen=True)
class Name:
    """A declared name: its kind (input, param, state), axis, array size, claims and start value, as text."""

    name: str
    kind: str
    axis: str
    size: int | None
    claims: str
    start: str | None


@dataclass(frozen=True)
class Summary:
    """`normal_form` and `plan` are None for a rule with matrix states beside S, which has the step reference alone."""

    rule: str
    title: str
    names: tuple[Name, ...]
    normal_form: str | None
    proofs: tuple[Proof, ...]
    stability: tuple[Fact, ...]
    plan: Plan | None
    backends: dict[str, str | None]
    seconds: float

    @property
    def sound(self) -> bool:
        """Whether every proof went through."""
        return all(p.holds for p in self.proofs)

    def as_json(self) -> dict[str, Any]:
        """Plain data, with the axes as words."""

        def plain(x: Any) -> Any:
            if isinstance(x, dict):
                return {k: plain(v) for k, v in x.items()}
            if isinstance(x, list | tuple):
                return [plain(v) for v in x]
            return x.value if isinstance(x, Axis) else x

        out: dict[str, Any] = plain(asdict(self))
        return {**out, "sound": self.sound}


def summarise(rule: Rule, backends: dict[str, str | None]) -> Summary:
    """Checks a parsed rule. `backends`: by name None, or why the rule does not have it."""
    start = time.perf_counter()
    nf = normal_form(rule)
    form = None if nf is None else core(nf)
    proofs = () if nf is None or form is None else tuple(prove_rule(nf, form))
    return Summary(
        rule=rule.name,
        title=rule.title,
        names=tuple(_name(x) for x in rule.declared),
        normal_form=None if nf is None else written(nf),
        proofs=proofs,
        stability=tuple(stability(nf)) if nf is not None else (),
        plan=None if nf is None or form is None else plan(nf, form),
        backends=backends,
        seconds=time.perf_counter() - start,
    )


def _name(x: Input | Param | State) -> Name:
    start = None if isinstance(x, Input) or x.start is None else expression(x.start, style())
    claims = ["fixed"] if isinstance(x, Param) and x.fixed else []
    claims += ["unit"] if x.unit else []
    claims += [f"in {interval(x.range)}"] if x.range else []
    size = None if isinstance(x, State) else x.size
    return Name(x.name, type(x).__name__.lower(), x.axis.value, size, ", ".join(claims), start)


def interval(r: Interval) -> str:
    """A range with its open and closed ends."""
    left, right = "(" if r.lo_open else "[", ")" if r.hi_open else "]"
    return f"{left}{number(r.lo)}, {number(r.hi)}{right}"
