"""What the emitters of the chunked PyTorch form know of a shape, and how they write its pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap

from .shape import Shape
from .text import WIDTH

# How far a method's statements are indented.
METHOD = 8


@dataclass(frozen=True)
class Own:
    """Within a token, covector `reader` sees direction `writer` (places among all of them); `name`: by that tensor."""

    reader: int
    writer: int
    name: str | None


@dataclass(frozen=True)
class Plan:
    """The rows of a shape in the order of the tensors: erases before reads, erasing rows before pure writes."""

    shape: Shape
    covectors: tuple[str, ...]
    posts: tuple[bool, ...]
    directions: tuple[str, ...]
    own: tuple[Own, ...]
    inputs: tuple[str, ...]

    @property
    def erases(self) -> int:
        return len(self.shape.erasing)

    @property
    def writes(self) -> int:
        return len(self.shape.writing)

    @property
    def reads(self) -> int:
        return len(self.shape.reads)

    @property
    def decay(self) -> bool:
        return self.shape.decay != "none"

    @property
    def written(self) -> str:
        """The name of what the directions write."""
        return "UW" if self.erases and self.writes else "U" if self.erases else "W"

    @property
    def matrices(self) -> dict[str, str]:
        """Texts for those matrices of the algebra that this shape has, by their names."""
        e, r, w = self.erases, len(self.covectors), len(self.directions)
        erases, reads = member_slice(0, e, r), member_slice(e, r, r)
        rows, writes = member_slice(0, e, w), member_slice(e, w, w)
        start, end = ("at_start", "at_end") if self.decay else ("covectors", "directions")
        found = {"A": part("pairs", erases, rows), "C": part("pairs", erases, writes), "E": part(start, erases)}
        found |= {"M": part("pairs", reads, rows), "N": part("pairs", reads, writes), "Q": part(start, reads)}
        found |= {"P": part(end, rows), "R": part(end, writes)}
        missing = "ACEMP" * (not e) + "CNR" * (not self.writes) + "MNQ" * (not self.reads)
        return {name: f"matrix({text})" for name, text in found.items() if name not in missing}


def plan_of(shape: Shape) -> Plan:
    """The plan of a shape."""
    rows, erasing = shape.rows, shape.erasing
    if any(not (row.erases or row.has_y) for row in rows):
        raise ValueError("a row must erase or write: one without e and y does nothing")
    order = [*erasing, *shape.writing]
    seen = [(f"c{j}", rows[j].couplings) for j in erasing] + [(f"m{r}", x.couplings) for r, x in enumerate(shape.reads)]
    own = [
        Own(place, order.index(c.row), f"{prefix}_{c.row}" if c.explicit else None)
        for place, (prefix, couplings) in enumerate(seen)
        for c in couplings
    ]
    return Plan(
        shape,
        covectors=(*(f"e{j}" for j in erasing), *(f"q{r}" for r in range(len(shape.reads)))),
        posts=(*(rows[j].post for j in erasing), *(read.post for read in shape.reads)),
        directions=tuple(f"p{rows[i].p_same}" for i in order),
        own=tuple(own),
        inputs=tuple(name for name, _ in shape.tensors() if name[0] != "f" and name != "rest"),
    )


def saved(plan: Plan) -> list[str]:
    """The tensors that the forward pass leaves to the backward pass."""
    names = ["covectors", "directions", "pairs", plan.written, "S_start"]
    if plan.decay:
        names += ["at_start", "at_end", "decay", "D"]
    if plan.erases:
        names.append("solve")
    return names


def named(plan: Plan, names: str) -> Iterator[str]:
    """Statements that give the matrices of these names, as far as the shape has them."""
    found = [name for name in names if name in plan.matrices]
    if found:
        yield f"{', '.join(found)} = {', '.join(plan.matrices[name] for name in found)}"


def steps(items: dict[str, str], *, reverse: bool = False) -> Iterator[str]:
    """The head of a loop over chunks, with a name in it for each of these texts."""
    sources = [f"by_chunk({text}, n)" for text in items.values()]
    if len(items) > 1:
        yield enclosed("steps = zip(", [*sources, "strict=True"], ")")
        yield f"for {', '.join(items)} in {'reversed(list(steps))' if reverse else 'steps'}:"
    elif items:
        yield f"for {next(iter(items))} in {f'reversed({sources[0]})' if reverse else sources[0]}:"
    else:
        yield "for _ in range(n):"


def unpacked(names: Sequence[str], source: str) -> str:
    """`names = source`, the names in brackets where they need several lines."""
    line = f"{', '.join(names)} = {source}"
    return line if len(line) + METHOD <= WIDTH else enclosed("(", names, f") = {source}")


def enclosed(head: str, items: Sequence[str], tail: str) -> str:
    """`head items tail`, where head ends and tail begins with a bracket; too long a list is broken between items."""
    line = f"{head}{', '.join(items)}{tail}"
    if len(line) + METHOD <= WIDTH:
        return line
    whole = (item.replace(" ", "\0") for item in items)
    lines = wrap(f"{', '.join(whole)},", WIDTH - METHOD - 4, break_long_words=False, break_on_hyphens=False)
    return "\n".join([head, *(f"    {line}".replace("\0", " ") for line in lines), tail.removeprefix(",")])


def tuple_text(items: Sequence[object]) -> str:
    """A tuple's text."""
    return f"({', '.join(map(str, items))}{',' if len(items) == 1 else ''})"


def member_slice(start: int, stop: int, count: int) -> str:
    """start:stop, with no end where all `count` are taken."""
    return f"{start or ''}:{'' if stop == count else stop}"


def part(name: str, members: str, others: str = ":") -> str:
    """Some members of each token, in `pairs` with some others."""
    index = [members] if others == ":" else [members, ":", others]
    return name if index == [":"] else f"{name}[{', '.join([':', ':', *index])}]"
