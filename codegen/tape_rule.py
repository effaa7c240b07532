"""What a rule computes beside S, as one tape: the rows that the kernels scan, the output, and their derivatives."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from stateir.ir import Axis, Expr, Input, Let, Line, Param, Ref, Rule
from stateir.normal import Core

from .prologue import LOWEST_LOG_DECAY, core_tensors, needed_lets
from .reverse import reverse
from .tape import Level, Lowering, Tape
from .triton_launch import packed
from .triton_tiles import Tiles

# Names of leaves that no rule can have: what the scan read, and the cotangents of the output and of packed rows.
READS, OUTPUT = "the reads", "d of the output"


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

    `output` is the entry of the output, made of the leaves `reads`; a constant factor of a single read is left to the
    scan as its `scale` (None: there is none). `lets` and `rows` name entries.
    """

    rule: Rule
    tape: Tape
    packed: dict[str, tuple[int | None, ...]]
    output: int
    reads: tuple[int, ...]
    scale: Expr | None
    lets: dict[int, str]
    rows: dict[int, str]
    sections: tuple[Section, ...]

    def alias(self, name: str) -> str | None:
        """The input that a packed tensor is, if it is one."""
        (member, *others) = self.packed[name]
        if member is None or others:
            return None
        entry = self.tape[member]
        alone = entry.op == "leaf" and entry.level is Level.TOKEN and entry.key[1] is None
        return entry.key[0] if alone else None

    @property
    def direct(self) -> bool:
        """Whether the output is what the scan reads, as it is."""
        return self.reads == (self.output,)

    def argument(self, name: str) -> Input | Param:
        return next(d for d in self.rule.arguments if d.name == name)

    def given(self, entry: int) -> Given:
        """Where a leaf comes from."""
        name, _ = self.tape[entry].key
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
        found = reverse(self.tape, {self.output: [self.output_cotangent]}, self.reads)
        assert all(d is not None for d in found.values())
        return tuple(d for d in found.values() if d is not None)

    @cached_property
    def gradients(self) -> dict[str, tuple[int | None, ...]]:
        """The cotangents of every argument, one for each element of an array; None for what nothing depends on."""
        tape = self.tape
        cotangents: dict[int, list[int]] = {} if self.direct else {self.output: [self.output_cotangent]}
        for name, members in self.packed.items():
            for i, entry in enumerate(members):
                if entry is not None:
                    d = tape.leaf(f"d {name}", tape[entry].axis, Level.TOKEN, i if len(members) > 1 else None)
                    cotangents.setdefault(entry, []).append(d)
        leaves: dict[str, list[int]] = {}
        for x in self.rule.arguments:
            level = Level.TOKEN if isinstance(x, Input) else Level.HEAD
            indices = [None] if x.size is None else list(range(x.size))
            leaves[x.name] = [tape.leaf(x.name, x.axis, level, i) for i in indices]
        found = reverse(tape, cotangents, [n for each in leaves.values() for n in each])
        return {name: tuple(found[n] for n in each) for name, each in leaves.items()}

    @cached_property
    def output_cotangent(self) -> int:
        return self.tape.leaf(OUTPUT, Axis.VALUE, Level.TOKEN)


def tape_of(rule: Rule, core: Core, tiles: Tiles) -> RuleTape:
    """The tape of a rule that `stateir.plan.unfused` has nothing against."""
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
    factors = {r: tensors[f"f{r}"] for r in range(len(reads)) if f"f{r}" in tensors}
    scale = None
    if len(reads) == 1 and 0 in factors and tape[factors[0]].level is Level.CONSTANT:
        scale = core.reads[0].factor
        del factors[0]
    terms = [tape.op("mul", factors[r], x) if r in factors else x for r, x in enumerate(reads)]
    terms += [tensors["rest"]] if "rest" in tensors else []
    output = terms[0]
    for term in terms[1:]:
        output = tape.op("add", output, term)
    members = {
        name: tuple(tensors[key] if key else None for key in keys) for name, keys in packed(tiles).items()
    }  # fmt: skip
    return RuleTape(rule, tape, members, output, reads, scale, lets, rows, tuple(sections))
