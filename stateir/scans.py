"""How the scalar, key, value and pair states of a rule are computed for all tokens before S is touched.

No such state depends on S (language rule 12), so one token's map of a state has the form z -> f(z) with everything else
known. Two forms compose associatively and are scanned in parallel: affine, z -> a * z + b, and (max, +),
m -> max(m + a, b). Anything else runs token by token, which the plan says by name: so do many updates of one state
that would make too large a map when put into one another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .build import ZERO, div, mul, neg, plus
from .ir import Axis, Bin, Call, Expr, Let, Neg, Num, Ref, Rule, Update, children, rebuild, walk

Kind = Literal["affine", "max-plus", "sequential"]

# Of one token's map of a state, in terms of the state before the token. Two uses of the version before in each of n
# updates make 2^n nodes, where token by token they are n lines. Python nests 200 parentheses.
MAX_NODES, MAX_DEPTH = 500, 100


@dataclass(frozen=True)
class Scan:
    """The states that are computed together, in the order of their declarations: one, or several that need each other.

    For one state of a parallel kind, a token maps it to a * z + b or to max(z + a, b). `a` None is the identity (one,
    zero), `b` None is absent (zero, minus infinity). A state that each token overwrites is affine with an `a` of zero,
    which stands for the absence of z: z may be infinite. A sequential scan has neither and runs the rule's own lines.
    """

    states: tuple[str, ...]
    kind: Kind
    a: Expr | None = None
    b: Expr | None = None


def scans(rule: Rule) -> tuple[Scan, ...]:
    """The scans of a rule, each after those that it needs."""
    names = [s.name for s in rule.states if s.axis is not Axis.MATRIX]
    needs = {name: _needs(rule, name) for name in names}
    out: list[Scan] = []
    done: set[str] = set()
    while len(done) < len(names):
        group = _next_group(names, needs, done)
        out.append(_one(rule, group[0]) if len(group) == 1 else Scan(tuple(group), "sequential"))
        done |= set(group)
    return tuple(out)


def turning(rule: Rule) -> frozenset[str]:
    """The pair states that are running angles: sums that nothing but `rotate` uses.

    They are kept modulo 2 pi, or their digits would be lost as they grow.
    """
    out = set()
    for scan in scans(rule):
        (name, *others) = scan.states
        axis = next(s.axis for s in rule.states if s.name == name)
        if axis is Axis.PAIR and not others and scan.kind == "affine" and scan.a is None:
            lines = [x.value for x in rule.lines if not (isinstance(x, Update) and x.state == name)]
            if not any(_used_as_number(e, name) for e in lines):
                out.add(name)
    return frozenset(out)


def _used_as_number(e: Expr, name: str) -> bool:
    """Whether a state occurs in e other than as the angle of a rotation, or the angle's negative."""
    match e:
        case Ref(n):
            return n == name
        case Call("rotate", (x, angle)):
            angle = angle.x if isinstance(angle, Neg) else angle
            alone = isinstance(angle, Ref) and angle.name == name
            return _used_as_number(x, name) or (not alone and _used_as_number(angle, name))
    return any(_used_as_number(x, name) for x in children(e))


def _needs(rule: Rule, name: str) -> set[str]:
    """The other vector states that the updates of one refer to, through lets too."""
    states = {s.name for s in rule.states if s.axis is not Axis.MATRIX}
    found: set[str] = set()
    stack = [line.value for line in rule.lines if isinstance(line, Update) and line.state == name]
    lets = rule.lets
    while stack:
        for x in walk(stack.pop()):
            if isinstance(x, Ref) and x.name in lets:
                stack.append(lets[x.name])
            elif isinstance(x, Ref) and x.name in states and x.name != name:
                found.add(x.name)
    return found


def _next_group(names: list[str], needs: dict[str, set[str]], done: set[str]) -> list[str]:
    """The first state whose needs are met, or else the smallest set of states that need each other."""
    reach: dict[str, set[str]] = {}
    for name in names:
        seen: set[str] = set()
        stack = [name]
        while stack:
            for other in needs[stack.pop()] - done - seen:
                seen.add(other)
                stack.append(other)
        reach[name] = seen
    open_names = [n for n in names if n not in done]
    first = min(open_names, key=lambda n: (len(reach[n]), names.index(n)))
    return [n for n in open_names if n == first or n in reach[first]]


def _one(rule: Rule, name: str) -> Scan:
    state = next(s for s in rule.states if s.name == name)
    nodes, depth = _map_size(rule, name)
    if nodes > MAX_NODES or depth > MAX_DEPTH:
        return Scan((name,), "sequential")
    values: list[Expr] = [Ref(name, state.axis)]
    for line in rule.lines:
        if isinstance(line, Update) and line.state == name:
            values.append(_substitute(line.value, name, values, rule))
    value = values[-1]
    before = Ref(name, state.axis)
    affine = _affine(value, before)
    if affine is not None:
        a, b = affine[0] or ZERO, affine[1]
        return Scan((name,), "affine", None if a == Num(1.0) else a, b)
    tropical = _tropical(value, before)
    if tropical is not None:
        shift, floor = tropical
        return Scan((name,), "max-plus", shift if isinstance(shift, Expr) else None, floor)
    return Scan((name,), "sequential")


def _map_size(rule: Rule, name: str) -> tuple[int, int]:
    """The nodes and the depth of a token's map of a state once written in terms of version 0, without writing it."""
    versions = [(1, 1)]
    lets: dict[str, tuple[int, int]] = {}

    def size(e: Expr) -> tuple[int, int]:
        if isinstance(e, Ref):
            return versions[e.version] if e.name == name else lets.get(e.name, (1, 1))
        below = [size(x) for x in children(e)]
        return 1 + sum(n for n, _ in below), 1 + max((depth for _, depth in below), default=0)

    for line in rule.lines:
        if isinstance(line, Let) and _mentions(line.value, name, rule):
            lets[line.name] = size(line.value)
        elif isinstance(line, Update) and line.state == name:
            versions.append(size(line.value))
    return versions[-1]


def _substitute(e: Expr, name: str, values: list[Expr], rule: Rule) -> Expr:
    """e with every version of a state in terms of version 0, looking into the lets that use it."""
    match e:
        case Ref(n, _, _, version) if n == name:
            return values[version]
        case Ref(n) if n in rule.lets and _mentions(rule.lets[n], name, rule):
            return _substitute(rule.lets[n], name, values, rule)
    below = children(e)
    return rebuild(e, tuple(_substitute(x, name, values, rule) for x in below)) if below else e


def _mentions(e: Expr, name: str, rule: Rule) -> bool:
    return any(
        isinstance(x, Ref) and (x.name == name or (x.name in rule.lets and _mentions(rule.lets[x.name], name, rule)))
        for x in walk(e)
    )


def _affine(e: Expr, z: Ref) -> tuple[Expr | None, Expr | None] | None:
    """(a, b) with e = a * z + b, None for zero; None if e has no such form. Elementwise: a contraction has none."""
    if e == z:
        return Num(1.0), None
    if all(x != z for x in walk(e)):
        return None, e
    match e:
        case Neg(x):
            inner = _affine(x, z)
            return None if inner is None else (_neg(inner[0]), _neg(inner[1]))
        case Bin(("+" | "-") as op, x, y):
            left, right = _affine(x, z), _affine(y, z)
            if left is None or right is None:
                return None
            if op == "-":
                right = (_neg(right[0]), _neg(right[1]))
            return plus(left[0], right[0]), plus(left[1], right[1])
        case Bin("*", x, y):
            left, right = _affine(x, z), _affine(y, z)
            if left is None or right is None or (left[0] is not None and right[0] is not None):
                return None
            if left[0] is None:
                left, right = right, left
            factor = right[1]
            assert factor is not None
            return _times(left[0], factor), _times(left[1], factor)
        case Bin("/", x, y) if all(part != z for part in walk(y)):
            left = _affine(x, z)
            return None if left is None else (_over(left[0], y), _over(left[1], y))
    return None


_ABSENT = "minus infinity"
Tropical = tuple[Expr | str | None, Expr | None]


def _tropical(e: Expr, m: Ref) -> Tropical | None:
    """(a, b) with e = max(m + a, b): a None is zero, _ABSENT says that m does not occur; b None is minus infinity."""
    if e == m:
        return None, None
    if all(x != m for x in walk(e)):
        return _ABSENT, e
    match e:
        case Call("max", (x, y)):
            left, right = _tropical(x, m), _tropical(y, m)
            if left is None or right is None:
                return None
            if left[0] is not _ABSENT and right[0] is not _ABSENT and left[0] != right[0]:
                a: Expr | str | None = Call("max", (_or_zero(left[0]), _or_zero(right[0])), e.axis)
            else:
                a = right[0] if left[0] is _ABSENT else left[0]
            if left[1] is None or right[1] is None:
                return a, left[1] if right[1] is None else right[1]
            return a, Call("max", (left[1], right[1]), e.axis)
        case Bin("+", x, y):
            left, right = _tropical(x, m), _tropical(y, m)
            if left is None or right is None:
                return None
            if left[0] is _ABSENT:
                left, right = right, left
            return _shift(left, right[1]) if right[0] is _ABSENT else None
        case Bin("-", x, y) if all(part != m for part in walk(y)):
            left = _tropical(x, m)
            return None if left is None else _shift(left, neg(y))
    return None


def _shift(form: Tropical, by: Expr | None) -> Tropical:
    a, b = form
    assert not isinstance(a, str)
    return plus(a, by), None if b is None else plus(b, by)


def _or_zero(a: Expr | str | None) -> Expr:
    assert not isinstance(a, str)
    return Num(0.0) if a is None else a


def _neg(e: Expr | None) -> Expr | None:
    return None if e is None else neg(e)


def _over(e: Expr | None, by: Expr) -> Expr | None:
    return None if e is None else div(e, by)


def _times(e: Expr | None, factor: Expr) -> Expr | None:
    return None if e is None else mul(factor, e)
