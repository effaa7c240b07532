"""What a rule computes beside S, as one tape: the rows that the kernels scan, the output, and their derivatives."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from stateir.ir import Axis, Expr, Input, Let, Line, Param, Prev, Ref, Rule, walk
from stateir.normal import Core

from .carried import carries_s_alone
from .prologue import LOWEST_LOG_DECAY, core_tensors, needed_lets
from .reverse import reverse
from .tape import Level, Lowering, Tape
from .triton_launch import packed
from .triton_tiles import Tiles

# Names of leaves that no rule can have: what the scan read, and the cotangents of the output and of packed rows.
READS, OUTPUT = "the reads", "d of the output"


def fused_lacks(rule: Rule, core: Core) -> str | None:
    """Why a rule's prologue is not written as kernels; None if it is."""
    if not carries_s_alone(rule):
        return "the rule carries more than S"
    roots = [e for e, _ in core_tensors(core).values()]
    for e in [*roots, *(rule.lets[name] for name in needed_lets(rule, roots))]:
        for x in walk(e):
            if isinstance(x, Prev):
                return "it looks back in time"
            if x.axis not in (Axis.SCALAR, Axis.KEY, Axis.VALUE):
                return f"it has a {x.axis.value}"
    return None


@dataclass(frozen=True)
class Section:
    """The entries from `first` to before `last`, which a line of the rule made."""

    line: Line
    first: int
    last: int


@dataclass(frozen=True)
class Given:
    """A leaf of a rule's tape as the kernels find it: `count` values a token (or a head) lie beside each other."""

    name: str
    count: int
    level: Level


@dataclass(frozen=True)
class RuleTape:
    """`packed` has the entries of each packed tensor's members, None where a row has no value.

    `output` is the entry of the output, made of the leaves `reads`. It is the one read times `scale` (None: as it is)
    where the rule is `direct`, so that the scan writes it. `lets` and `rows` name entries.
    """

    rule: Rule
    tape: Tape
    packed: dict[str, tuple[int | None, ...]]
    output: int
    reads: tuple[int, ...]
    direct: bool
    scale: Expr | None
    lets: dict[int, str]
    rows: dict[int, str]
    sections: tuple[Section, ...]

    def alias(self, name: str) -> str | None:
        """The input that a packed tensor is, if it is one."""
        if len(self.packed[name]) != 1 or self.packed[name][0] is None:
            return None
        entry = self.tape[self.packed[name][0]]
        if entry.op != "leaf" or entry.level is not Level.TOKEN or self.argument(entry.data[0]).size is not None:  # type: ignore[index]
            return None
        return str(entry.data[0])  # type: ignore[index]

    def argument(self, name: str) -> Input | Param:
        return next(d for d in self.rule.arguments if d.name == name)

    def given(self, entry: int) -> Given:
        """Where a leaf comes from."""
        name = str(self.tape[entry].data[0])  # type: ignore[index]
        if name == READS:
            return Given(name, len(self.reads), Level.TOKEN)
        if name == OUTPUT:
            return Given(name, 1, Level.TOKEN)
        if name.startswith("d "):
            return Given(name, len(self.packed[name[2:]]), Level.TOKEN)
        d = self.argument(name)
        return Given(name, d.size or 1, Level.TOKEN if isinstance(d, Input) else Level.HEAD)

    @cached_property
    def read_gradients(self) -> tuple[int, ...]:
        """The cotangents of the reads, from that of the output."""
        found = reverse(self.tape, {self.output: [self._output_cotangent]}, self.reads)
        assert all(d is not None for d in found.values())
        return tuple(d for d in found.values() if d is not None)

    @cached_property
    def gradients(self) -> dict[str, tuple[int | None, ...]]:
        """The cotangents of every argument, one for each element of an array; None for what nothing depends on."""
        tape = self.tape
        cotangents: dict[int, list[int]] = {} if self.direct else {self.output: [self._output_cotangent]}
        for name, members in self.packed.items():
            for i, entry in enumerate(members):
                if entry is not None:
                    d = tape.leaf(f"d {name}", tape[entry].axis, Level.TOKEN, i if len(members) > 1 else None)
                    cotangents.setdefault(entry, []).append(d)
        leaves: dict[str, list[int]] = {}
        for d in self.rule.arguments:
            level = Level.TOKEN if isinstance(d, Input) else Level.HEAD
            indices = [None] if d.size is None else list(range(d.size))
            leaves[d.name] = [tape.leaf(d.name, d.axis, level, i) for i in indices]
        found = reverse(tape, cotangents, [x for each in leaves.values() for x in each])
        return {name: tuple(found[x] for x in each) for name, each in leaves.items()}

    @property
    def _output_cotangent(self) -> int:
        return self.tape.leaf(OUTPUT, Axis.VALUE, Level.TOKEN)


def tape_of(rule: Rule, core: Core, tiles: Tiles) -> RuleTape:
    """The tape of a rule that `fused_lacks` nothing."""
    lowering = Lowering(rule)
    tape = lowering.tape
    sections: list[Section] = []
    lets: dict[int, str] = {}
    rows: dict[int, str] = {}
    wanted = core_tensors(core)
    needed = needed_lets(rule, [e for e, _ in wanted.values()])
    for line in rule.lines:
        if isinstance(line, Let) and line.name in needed:
            first = len(tape.entries)
            lets.setdefault(lowering.lower(Ref(line.name, line.value.axis)), line.name)
            sections.append(Section(line, first, len(tape.entries)))
    tensors: dict[str, int] = {}
    for key, (e, axis) in wanted.items():
        entry = tape.spread(lowering.lower(e), axis)
        if key == "g" and tape[entry].op != "leaf":  # of an input as it is, the kernels bound what they load
            entry = tape.op("at_least", entry, tape.number(LOWEST_LOG_DECAY))
        tensors[key] = entry
        rows.setdefault(entry, key)
    reads = tuple(
        tape.leaf(READS, Axis.VALUE, Level.TOKEN, r if len(core.reads) > 1 else None) for r in range(len(core.reads))
    )
    terms = [tape.op("mul", tensors[f"f{r}"], x) if f"f{r}" in tensors else x for r, x in enumerate(reads)]
    terms += [tensors["rest"]] if "rest" in tensors else []
    output = terms[0]
    for term in terms[1:]:
        output = tape.op("add", output, term)
    members = {
        name: tuple(tensors[key] if key else None for key in keys) for name, keys in packed(tiles).items()
    }  # fmt: skip
    constant = "f0" not in tensors or tape[tensors["f0"]].level is Level.CONSTANT
    direct = len(reads) == 1 and "rest" not in tensors and constant
    scale = core.reads[0].factor if direct else None
    return RuleTape(rule, tape, members, output, reads, direct, scale, lets, rows, tuple(sections))
