"""Random states beside S, look-back and rotation: the parts of random rules that do not depend on S.

Every form returns an expression of the state's axis. Between them they have every axis, every kind of scan, several
updates of one state, states that need each other, older values kept by a `let`, and ranges proved by induction. Keys,
values and scalars stay of order one for as many tokens as tests take.
"""

from __future__ import annotations

from collections.abc import Callable

from .random_parts import Parts

Form = Callable[[], str]


class States(Parts):
    """Forms that declare a state; asked for again, a form gives the same state."""

    def state(self, name: str, kind: str, *lines: str) -> str:
        """The state's name. Its lines, lets among them, are written in this order."""
        if name not in self.states:
            self.states[name] = (kind, list(lines))
        return name

    def plain_value(self) -> str:
        return self.input(f"v{self.number()}", "value")

    def angle(self) -> str:
        return self.input("th", "pair")

    def gate_input(self) -> str:
        """A scalar without a range."""
        return self.input(f"i{self.draw.integer(0, 1)}", "scalar")

    def key_state(self) -> str:
        forms: list[Form] = [
            self.normaliser, self.filtered_key, self.bent_key, self.turned_sum, self.coupled_keys, self.largest_key,
            self.overwritten_key,
        ]  # fmt: skip
        return self.draw.choice(forms)()

    def normaliser(self) -> str:
        """A decayed sum of keys."""
        return self.state("z", "key", f"update z = exp({self.log_decay()}) * z + {self.key()}")

    def filtered_key(self) -> str:
        """Affine, in three lines with an older value between them."""
        return self.state(
            "zf", "key = 0.1", f"update zf = {self.gate()} * zf + prev({self.key()})", "let zold = zf",
            f"update zf = (zf + {self.strength()}) / 2", "update zf -= zold / 4",
        )  # fmt: skip

    def bent_key(self) -> str:
        """Nonlinear in itself, through a contraction or elementwise, in one or two lines."""
        key = self.key()
        lines = self.draw.choice([
            [f"update s = tanh(s + {key})"],
            [f"update s = {key} * (s @ {self.key()}) / 2 + {key}"],
            [f"let sold = s @ {key}", f"update s = s / (1 + s @ s) + {key}", "update s = tanh(s - sold * s)"],
            [f"update s = min(s / 2 + {key}, {self.gate()})"],
        ])  # fmt: skip
        return self.state("s", "key", *lines)

    def turned_sum(self) -> str:
        """A sum that turns as it decays."""
        return self.state("r", "key", f"update r = rotate(r, {self.angle()}) / 2 + {self.key()}")

    def coupled_keys(self) -> str:
        """Two states of which each needs the other."""
        self.state("x", "key", f"update x = x / 2 + tanh(y) / 4 + {self.key()}")
        self.state("y", "key", "update y = y / 2 - x / 4", f"update y += {self.strength()} * {self.key()}")
        return self.draw.choice(["x", "y"])

    def largest_key(self) -> str:
        """(max, +) in a range that is proved by induction; a scalar moves every entry."""
        self.state("km", "key in [0, 1]", f"update km = max(km + {self.scalar_log_decay()}, {self.gate()})")
        return "km"

    def overwritten_key(self) -> str:
        """A state of the token before alone."""
        return self.state("kp", "key", f"update kp = {self.strength()} * {self.key()}")

    def value_state(self) -> str:
        value = self.plain_value()
        forms: list[list[str]] = [
            [f"update vs = exp({self.scalar_log_decay()}) * vs / 2 + {value}"],
            [f"update vs = {self.gate_of_value()} * vs / 2 + prev({value}, 2)", f"update vs = vs - {value} / 2"],
            [f"update vs = max(vs - 0.1, {value})"],
            [f"update vs = tanh(vs + {value})"],
            [f"update vs = {value} * (vs @ {value}) / 4 + {value}"],
        ]
        return self.state("vs", "value", *self.draw.choice(forms))

    def gate_of_value(self) -> str:
        return self.input("w", "value in [0, 1]")

    def scalar_state(self) -> str:
        """In [0, 1], proved by induction."""
        strength = self.strength()
        forms: list[list[str]] = [
            [f"update c = {strength} * c"],
            [f"update c = max(c - 0.1, {strength})"],
            [f"update c = max(c + {self.scalar_log_decay()}, {strength} / 2)"],
            [f"update c = min(c / 2 + {strength}, 1)"],
            [f"update c = c * c / 2 + {strength} / 2", f"update c = sqrt(c * {self.strength()})"],
            [f"update c = sigmoid({self.gate_input()} - c)"],
        ]
        return self.state("c", "scalar in [0, 1] = 0.5", *self.draw.choice(forms))

    def stabilised(self) -> str:
        """A decay kept in check by a running maximum."""
        forget, gate = self.scalar_log_decay(), self.gate_input()
        lines = self.draw.choice([
            [f"update m = max({forget} + m, {gate})"],
            [f"update m = max({forget} + m, {gate})", f"update m = max(m - 0.5, {self.gate_input()} / 2)"],
            [f"update m = max({gate}, m) + {forget}"],
        ])  # fmt: skip
        self.state("m", "scalar", *lines)
        return self.draw.choice([f"exp(min({forget} + m - {gate}, 0))", "exp(min(m, 0))", "sigmoid(-m)"])

    def turned(self) -> str:
        """A key, or the key before it, turned by a state of angles."""
        key = self.key()
        key = f"prev({key})" if self.draw.choice([False, True]) else key
        return f"rotate({key}, {self.draw.choice(['', '-'])}{self.pair_state()})"

    def pair_state(self) -> str:
        angle = self.angle()
        forms: list[Form] = [
            lambda: self.state("a", "pair", f"update a += {angle}"),
            lambda: self.state("a", "pair", f"update a += {angle}", f"update a -= {self.strength()}"),
            lambda: self.state("ad", "pair = 0.3", f"update ad = exp({self.scalar_log_decay()}) * ad + {angle}"),
            lambda: self.state("am", "pair", f"update am = max(am - 0.2, {angle})"),
            lambda: self.state("at", "pair", f"update at = tanh(2 * at + {angle})"),
        ]
        return self.draw.choice(forms)()
