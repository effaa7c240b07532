"""Random rules, as text: what the property tests and `stateir verify` try the compiler on.

Every rule is one that the checker accepts and whose state stays bounded for the lengths that tests use: directions are
unit vectors and the strength of every erase is at most 1.
"""

from __future__ import annotations

from collections.abc import Callable

from .random_parts import Draw, RandomDraw
from .random_states import States

__all__ = ["RandomDraw", "random_rule"]


def random_rule(draw: Draw, max_lines: int = 5) -> str:
    """The text of a random rule with 1 to `max_lines` update lines of S.

    Decays (none, scalar, key) before, between and after the writes, several erasing and pure terms a line, erases of
    the undecayed state, loops over arrays, shared directions, lets with contractions, a read anywhere, an epilogue;
    beside S, states of every axis and scan, several updates of one, look-back and rotation.
    """
    return _Writer(draw).rule(draw.integer(1, max_lines))


class _Writer(States):
    """Writes one rule; a name is declared where it is first used."""

    def rule(self, count: int) -> str:
        if self.draw.choice([False, False, False, False, False, True]):
            return self.text([*self.mirrored(count), self.normalised_read()])
        updates = [self.update() for _ in range(count)]
        if not any(kind.startswith("value") for kind in self.inputs.values()):
            updates.append("update S += " + self.write())
        body = updates
        read = self.read()
        for lines in [[read], *(lines for _, lines in self.states.values())]:
            places = sorted(self.draw.choice([len(body), *range(len(body))]) for _ in lines)
            for place, line in zip(reversed(places), reversed(lines), strict=True):
                body = [*body[:place], line, *body[place:]]
        return self.text(body)

    def text(self, body: list[str]) -> str:
        declared = [f"input {name}: {kind}" for name, kind in self.inputs.items()]
        declared += [f"param {name}: {kind}" for name, kind in self.params.items()]
        declared += [f"state {name}: {kind}" for name, (kind, _) in self.states.items()]
        lets = [f"let {name} = {value}" for name, value in self.lets.items()]
        return "\n".join(["rule random", *declared, *lets, *body]) + "\n"

    def mirrored(self, count: int) -> list[str]:
        """Lines of S, and of a key state the same with scalars for values: a column of S, if none differs."""
        pairs = [self.mirrored_line() for _ in range(count)]
        self.state("zc", "key")
        if self.draw.choice([False, True]):
            return [line for pair in pairs for line in pair]
        return [*(line for line, _ in pairs), *(line for _, line in pairs)]

    def mirrored_line(self) -> tuple[str, str]:
        key, value, strength, decay = self.key(), self.plain_value(), self.strength(), self.decay()
        forms = [
            (f"= {decay} * S + outer({strength} * {key}, {value})", f"= {decay} * zc + {strength} * {key}"),
            (f"= {decay} * S", f"= {decay} * zc"),
            (f"+= outer({key}, {value})", f"+= {key} / 2"),
            (f"+= outer({strength} * {key}, {value} - {key} @ S)", f"+= (1 - {key} @ zc) * {strength} * {key}"),
            (f"-= outer({key}, ({strength} * {key}) @ S)", f"-= {key} * (({strength} * {key}) @ zc)"),
            (f"+= outer({key}, {value})", f"= zc + {self.scalar_state()} * {key}"),
            (f"= S + outer({key}, {value})", f"= 0.5 * zc + {key}"),
        ]
        line, mirrored = self.draw.choice(forms)
        return f"update S {line}", f"update zc {mirrored}"

    def normalised_read(self) -> str:
        query = self.input("q", "key unit")
        return "read o = " + self.draw.choice([
            f"({query} @ S) / (1 + abs({query} @ zc))",
            f"({query} @ S) / max(abs({query} @ zc), exp(-{self.strength()})) + ({query} @ zc) * {self.plain_value()}",
        ])  # fmt: skip

    def update(self) -> str:
        forms: list[Callable[[], str]] = [self.terms, self.decay_line, self.decay_and_terms, self.loop]
        return "update S " + self.draw.choice(forms)()

    def decay_line(self) -> str:
        forms: list[Callable[[], str]] = [
            lambda: f"= {self.decay()} * S",
            lambda: f"-= {self.strength()} * S",
            lambda: f"= {self.stabilised()} * S",
        ]
        return self.draw.choice(forms)()

    def terms(self) -> str:
        if self.draw.choice([False, False, True]):
            return f"-= {self.erase()}"
        return "+= " + self.sum_of_terms()

    def decay_and_terms(self) -> str:
        return f"= {self.decay()} * S + {self.sum_of_terms()}"

    def loop(self) -> str:
        key, value = self.input("kk[2]", "key unit"), self.input("vv[2]", "value")
        strength = self.input("bb[2]", "scalar in [0, 1]")
        key, value, strength = (name.replace("[2]", "[i]") for name in (key, value, strength))
        return f"+= outer({strength} * {key}, {value} - {key} @ S) for i in 0..1"

    def sum_of_terms(self) -> str:
        terms = []
        for _ in range(self.draw.integer(1, 3)):
            forms: list[Callable[[], str]] = [self.write, self.erasing_write, self.erasing_write, self.bare]
            terms.append(self.draw.choice(forms)())
        return " + ".join(terms)

    def bare(self) -> str:
        """An erase that writes nothing: weak, since its two directions differ."""
        return f"0.2 * outer({self.key()}, {self.key()} @ S)"

    def erase(self) -> str:
        key = self.key()
        forms = [f"outer({self.strength()} * {key}, {key} @ S)", f"outer({self.gate()} * {key}, {key} @ S)"]
        return self.draw.choice(forms)

    def write(self) -> str:
        direction: list[Callable[[], str]] = [
            self.key,
            lambda: f"{self.strength()} * {self.key()}",
            lambda: f"(1 - exp({self.key_log_decay()})) * {self.key()}",
            lambda: self.param("u", "key in [0, 1]"),
            self.turned,
            self.key_state,
            lambda: f"{self.scalar_state()} * {self.key()}",
        ]
        return f"outer({self.draw.choice(direction)()}, {self.value()})"

    def erasing_write(self) -> str:
        key = self.key()
        forms: list[Callable[[], str]] = [
            lambda: f"outer({self.strength()} * {key}, {self.value()} - {key} @ S)",
            lambda: f"outer({key}, {self.value()} - ({self.gate()} * {key}) @ S)",
            lambda: f"outer({key}, {self.value()} - ({self.gate()} * {key} + {self.second(key)}) @ S)",
            lambda: f"outer({self.scalar_state()} * {key}, {self.value()} - {key} @ S)",
        ]
        return self.draw.choice(forms)()

    def second(self, key: str) -> str:
        """A second erase direction, orthogonal to the first."""
        query, lam = self.input("q", "key unit"), self.param("lam", "scalar in [0, 0.25]")
        if self.draw.choice([False, True]):
            name = f"d{key}"
            self.lets[name] = f"{query} - ({key} @ {query}) * {key}"
            return f"{lam} * {name}"
        return f"{lam} * ({query} - ({key} @ {query}) * {key})"

    def value(self) -> str:
        value = self.input(f"v{self.number()}", "value")
        forms: list[Callable[[], str]] = [
            lambda: value,
            lambda: value,
            lambda: f"{self.input('w', 'value in [0, 1]')} * {value}",
            lambda: f"prev({value}, {self.draw.integer(1, 2)})",
            self.value_state,
        ]
        return self.draw.choice(forms)()

    def read(self) -> str:
        query = self.input("q", "key unit")
        forms: list[Callable[[], str]] = [
            lambda: f"{query} @ S / sqrt(dim(key))",
            lambda: f"({query} @ S) / (1 + abs({query} @ {self.normaliser()}))",
            lambda: f"({query} - {self.param('D', 'scalar in [-1, 1]')} * {self.key()}) @ S",
            lambda: f"{self.input('w', 'value in [0, 1]')} * ({query} @ S) + {self.key()} @ S",
            lambda: f"{query} @ S + {self.param('D', 'scalar in [-1, 1]')} * {self.value()}",
            lambda: f"{query} @ S + ({query} @ ({self.param('u', 'key in [0, 1]')} * {self.key()})) * {self.value()}",
            lambda: f"{query} @ S + ({query} @ {self.key_state()}) * {self.value()}",
            lambda: f"rotate({query}, {self.pair_state()}) @ S + {self.scalar_state()} * {self.value_state()}",
        ]
        return "read o = " + self.draw.choice(forms)()
