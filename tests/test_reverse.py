"""Derivatives on a tape, in float64, against PyTorch's own: every function, its kinks, and whole random rules."""

from __future__ import annotations

import math

import pytest
import torch
from test_expr import DECLARED, REST
from torch import Tensor

import stateir
from stateir.affine import normal_form
from stateir.codegen.expr import HELPERS, scope_of, torch_text
from stateir.codegen.generated import load_source
from stateir.codegen.prologue import prologue_source
from stateir.codegen.random_rules import RandomDraw, random_rule
from stateir.codegen.reverse import reverse
from stateir.codegen.samples import sample_arguments
from stateir.codegen.shape import shape_of
from stateir.codegen.tape import Level, Lowering, Tape
from stateir.codegen.tape_rule import OUTPUT, READS, RuleTape, tape_of
from stateir.codegen.tape_text import Dialect, Writer
from stateir.codegen.text import module
from stateir.codegen.triton_launch import packed
from stateir.codegen.triton_tiles import tiles_of
from stateir.core import core
from stateir.ir import Axis, Rule
from stateir.plan import unfused

K, V = 4, 3


def _other(tape: Tape, n: int, operands: list[str]) -> str:
    entry = tape[n]
    match entry.op:
        case "dim":
            return f"torch.tensor({float(K if entry.data is Axis.KEY else V)}, dtype=torch.float64)"
        case "tiny":
            return "torch.finfo(torch.float64).tiny"
        case "spread":
            x = f"torch.as_tensor({operands[0]}, dtype=torch.float64)"
            return f"{x}.expand(*{x}.shape[:-1], {K if entry.data is Axis.KEY else V})"
        case "sum":
            return f"({operands[0]}).sum(-1, keepdim=True)"
        case "rows":
            return f"({operands[0]}).sum((0, 1), keepdim=True)"
    raise ValueError(entry.op)


# Scalars are [..., 1]; what depends on the head alone is [1, 1, H, D].
TORCH = Dialect(
    {
        **{f: f"torch.{f}({{}})" for f in ("exp", "expm1", "log", "sqrt", "rsqrt", "sigmoid", "tanh", "abs", "sign")},
        "softplus": "F.softplus({}, threshold=40)", "logsigmoid": "F.logsigmoid({})",
        "log_softplus": "log_softplus({})", "max": "torch.maximum({}, {})", "min": "torch.minimum({}, {})",
        "at_least": "torch.clamp({}, min={})", "at_most": "torch.clamp({}, max={})",
        "pass_ge": "torch.where({1} >= {2}, {0}, 0.0)", "pass_le": "torch.where({1} <= {2}, {0}, 0.0)",
        "share": "torch.where({1} > {2}, {0}, torch.where({1} == {2}, {0} / 2, 0.0))",
    },
    _other,
)  # fmt: skip


def evaluate(tape: Tape, roots: list[int], values: dict[tuple[str, int | None], Tensor]) -> list[Tensor]:
    """The roots' values from those of the leaves."""
    count = iter(range(10**6))
    writer = Writer(tape, TORCH, {}, lambda: f"x{next(count)}")
    leaves = writer.leaves(roots)
    writer.names.update({n: f"leaf{i}" for i, n in enumerate(leaves)})
    lines = [statement for _, statement in writer.statements(roots) if statement]
    arguments = ", ".join(writer.names[n] for n in leaves)
    body = [f"def f({arguments}):", *(f"    {line}" for line in lines)]
    body.append(f"    return [{', '.join(f'torch.as_tensor({writer.text(x)}, dtype=torch.float64)' for x in roots)}]")
    source = module("", [HELPERS["log_softplus"], "import torch.nn.functional as F", "\n".join(body)])
    found: list[Tensor] = load_source(source, "tape").f(*(values[tape[n].data] for n in leaves))
    return found


EXPRESSIONS = [
    "c * k + d * q", "k * q - u", "k / (1 + t)", "c / t", "x / t", "(k @ q) * k", "k @ (u * q)", "unit(k)",
    "-k * p", "exp(k)", "1 - exp(k)", "exp(c) - 1", "log(x)", "log(t)", "sqrt(t)", "sqrt(k @ k)", "rsqrt(t)",
    "sigmoid(k)", "1 - sigmoid(k)", "log(sigmoid(c))", "softplus(k)", "log(softplus(k))", "tanh(k)", "abs(k)",
    "max(k, 0)", "min(c, 0.5)", "max(k, q)", "min(k, c)", "max(k, p)", "k^2", "k^3", "k^0", "t^(-2)", "t^c",
    "x^0.5", "2^c", "kk[1] + cc[0] * k", "k / sqrt(dim(key))", "exp(u) * k + p", "(u @ u) * k",
    "k - (k @ (u * k)) / max(k @ k, 1e-6) * k", "max(c, p)", "w * v + c * w", "log(1 + exp(c)) * k",
    "sqrt(softplus(c)) * k", "(v @ w) * u", "c + 0 * p", "dim(key) * k + dim(value) * q",
]  # fmt: skip


def leaves_of(rule: Rule, seed: int, special: bool) -> dict[str, Tensor]:
    """Arguments with ties, zeros and range ends among them."""
    arguments = sample_arguments(rule, B=2, T=5, H=2, K=K, V=V, seed=seed, ends=0.2)
    if special:
        for name in ("k", "q", "c", "d", "u", "p"):
            x = arguments[name]
            arguments[name] = torch.where(torch.arange(x.numel()).reshape(x.shape) % 3 == 0, 0.0, x)
        arguments["q"] = torch.where(arguments["q"] > 0.2, arguments["k"], arguments["q"])
    return {name: x.requires_grad_() for name, x in arguments.items()}


def tile(x: Tensor, axis: Axis, head: bool) -> Tensor:
    x = x if axis is not Axis.SCALAR else x[..., None]
    return x[None, None] if head else x


def tape_values(rule: Rule, arguments: dict[str, Tensor]) -> dict[tuple[str, int | None], Tensor]:
    params = {p.name for p in rule.params}
    found: dict[tuple[str, int | None], Tensor] = {}
    for d in rule.arguments:
        x = arguments[d.name].detach()
        for i in [None] if d.size is None else range(d.size):
            one = x if i is None else x.select(-1 if d.axis is Axis.SCALAR else -2, i)
            found[d.name, i] = tile(one, d.axis, d.name in params)
    return found


def check_gradients(rule: Rule, have: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    for d in rule.arguments:
        expected = want[d.name]
        torch.testing.assert_close(have[d.name].reshape(expected.shape), expected, rtol=1e-10, atol=1e-12, msg=d.name)


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("text", EXPRESSIONS)
def test_functions(text: str, special: bool) -> None:
    rule = stateir.parse(f"{DECLARED}let y = {text}\n{REST}")
    e, scope = rule.lets["y"], scope_of(rule)
    arguments = leaves_of(rule, 3, special)
    names: dict[str, object] = {
        "math": math,
        "torch": torch,
        "F": torch.nn.functional,
        "Tensor": Tensor,
        "K": K,
        "V": V,
    }
    names |= {"tiny": torch.finfo(torch.float64).tiny, **arguments}
    written = torch_text(e, scope)
    for helper in scope.used & HELPERS.keys():
        exec(HELPERS[helper], names)
    y = torch.as_tensor(eval(written, names), dtype=torch.float64)
    y = tile(y, e.axis, False).expand(2, 5, 2, {Axis.KEY: K, Axis.VALUE: V}.get(e.axis, 1))

    lowering = Lowering(rule)
    root = lowering.lower(e)
    tape = lowering.tape
    d = tape.leaf("dy", e.axis, Level.TOKEN)
    leaves = {
        (a.name, i): tape.leaf(a.name, a.axis, Level.TOKEN if a in rule.inputs else Level.HEAD, i)
        for a in rule.arguments if a.axis is not Axis.PAIR
        for i in ([None] if a.size is None else range(a.size))
    }  # fmt: skip
    found = reverse(tape, {root: [d]}, list(leaves.values()))
    dy = torch.randn(y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    values = tape_values(rule, arguments) | {("dy", None): dy}
    (have,) = evaluate(tape, [root], values)
    torch.testing.assert_close(have.expand(y.shape), y.detach(), rtol=1e-12, atol=1e-14)

    sources = list(arguments.values())
    wanted = torch.autograd.grad(y, sources, dy, allow_unused=True) if y.requires_grad else [None] * len(sources)
    for name, want in zip(arguments, wanted, strict=True):
        entries = [x for (n, _), x in leaves.items() if n == name]
        if want is None or not want.any():
            roots = [found[x] for x in entries if found[x] is not None]
            assert not any(x.any() for x in evaluate(tape, roots, values)), name  # type: ignore[arg-type]
            continue
        parts = [
            gradient(tape, found[x], tape[x].axis, want, values, name in {p.name for p in rule.params}) for x in entries
        ]
        declared = next(a for a in rule.arguments if a.name == name)
        have = parts[0] if declared.size is None else torch.stack(parts, -1 if declared.axis is Axis.SCALAR else -2)
        torch.testing.assert_close(have.reshape(want.shape), want, rtol=1e-10, atol=1e-12, equal_nan=False, msg=name)


def gradient(
    tape: Tape, entry: int | None, axis: Axis, like: Tensor, values: dict[tuple[str, int | None], Tensor], head: bool
) -> Tensor:
    size = {Axis.KEY: K, Axis.VALUE: V}.get(axis, 1)
    shape = (1, 1, 2, size) if head else (2, 5, 2, size)
    x = torch.zeros(shape, dtype=like.dtype) if entry is None else evaluate(tape, [entry], values)[0].expand(shape)
    return x[..., 0] if axis is Axis.SCALAR else x


def rule_tape(text: str) -> tuple[Rule, RuleTape] | None:
    rule = stateir.parse(text)
    form = normal_form(rule)
    assert form is not None
    made = core(form)
    if unfused(rule, made):
        return None
    return rule, tape_of(rule, made, tiles_of(shape_of(made)))


TEXTS = [
    pytest.param(random_rule(RandomDraw(seed)), marks=[] if seed < 20 else pytest.mark.slow, id=f"random{seed}")
    for seed in range(100)
]
LIBRARY = ["comba", "delta_product", "dplr", "efla_kda", "gdn2", "hgrn2", "kaczmarz", "longhorn", "mamba2", "qed",
           "qed_rand", "retention", "rodimus", "rwkv6", "rwkv7"]  # fmt: skip


@pytest.mark.parametrize("text", [*TEXTS, *(pytest.param(stateir.load(n).text, id=n) for n in LIBRARY)])
def test_rules(text: str) -> None:
    """All that a rule computes beside S, with its output, against the PyTorch prologue."""
    made = rule_tape(text)
    if made is None:
        pytest.skip("its prologue is PyTorch")
    rule, tape = made
    arguments = {n: x.requires_grad_() for n, x in sample_arguments(rule, B=2, T=5, H=2, K=K, V=V, ends=0).items()}
    form = normal_form(rule)
    assert form is not None
    own = core(form)
    tensors = load_source(module("", [prologue_source(rule, own)]), "prologue").prologue(*arguments.values())
    generator = torch.Generator().manual_seed(2)
    values = tape_values(rule, arguments)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    loss = torch.zeros((), dtype=torch.float64)
    for name, keys in packed(tiles_of(shape_of(own))).items():
        for i, key in enumerate(keys):
            if key:
                x = tensors[key]
                entry = tape.packed[name][i]
                assert entry is not None
                x = tile(x, tape.tape[entry].axis, False)
                d = normal(*x.shape)
                values[f"d {name}", i if len(keys) > 1 else None] = d
                loss = loss + (x * d).sum()
                (have,) = evaluate(tape.tape, [entry], values)
                torch.testing.assert_close(have.expand(x.shape), x.detach(), rtol=1e-12, atol=1e-14)
    reads = [normal(2, 5, 2, V).requires_grad_() for _ in tape.reads]
    output = torch.zeros(2, 5, 2, V, dtype=torch.float64)
    for r, read in enumerate(reads):
        values[READS, r if len(reads) > 1 else None] = read.detach()
        one = torch.ones(1, dtype=torch.float64)
        factor = one if tape.scale is not None else tensors.get(f"f{r}", one)
        output = output + (factor if factor.ndim in (1, 4) else factor[..., None]) * read
    output = output + tensors.get("rest", 0.0)
    do = normal(*output.shape)
    values[OUTPUT, None] = do
    (have,) = evaluate(tape.tape, [tape.output], values)
    torch.testing.assert_close(have, output.detach(), rtol=1e-12, atol=1e-14)
    want_reads = torch.autograd.grad(output, reads, do, retain_graph=True)
    for d, want in zip(tape.read_gradients, want_reads, strict=True):
        torch.testing.assert_close(evaluate(tape.tape, [d], values)[0], want)
    if tape.direct:
        output = output * 0
    grads = torch.autograd.grad(loss + (output * do).sum(), list(arguments.values()), allow_unused=True)
    for (name, x), want in zip(arguments.items(), grads, strict=True):
        if want is None:
            assert not any(x is not None for x in tape.gradients[name])
            continue
        declared = tape.argument(name)
        head = declared in rule.params
        parts = [gradient(tape.tape, d, declared.axis, want, values, head) for d in tape.gradients[name]]
        if declared.size is not None:
            parts = [torch.stack(parts, -1 if declared.axis is Axis.SCALAR else -2)]
        torch.testing.assert_close(parts[0].reshape(x.shape), want, rtol=1e-9, atol=1e-11, msg=name)


def test_what_is_equal_is_written_once() -> None:
    made = rule_tape(stateir.load("qed").text)
    assert made is not None
    _, tape = made
    roots = [x for each in tape.gradients.values() for x in each if x is not None]
    names = iter(range(10**6))
    writer = Writer(tape.tape, TORCH, {}, lambda: f"x{next(names)}")
    writer.names.update({n: f"leaf{n}" for n in writer.leaves(roots)})
    text = "\n".join(statement for _, statement in writer.statements(roots))
    b, q = (tape.tape.leaf(n, Axis.KEY, Level.TOKEN) for n in "bq")
    assert text.count(f"leaf{b} * leaf{q}") == 1
