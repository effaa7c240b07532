"""The chunked form against an independent loop over tokens, for random core forms."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stateir.codegen.bench import compare
from stateir.codegen.chunked import chunked_source, default_chunk
from stateir.codegen.generated import load_source
from stateir.codegen.shape import Coupling, ReadShape, RowShape, Shape, shape_of
from stateir.codegen.text import module
from stateir.ir import Axis, Ref
from stateir.normal import Core, CoreRead, CoreRow

torch.set_num_threads(1)
Tensors = dict[str, Tensor]
K, V = 5, 3


def step_loop(shape: Shape, x: Tensors, state: Tensor) -> tuple[Tensor, Tensor]:
    """Each row reads the state before its token, decayed if `post`, and the earlier rows that it sees."""
    out = []
    steps = x["g"].shape[1] if "g" in x else x["q0"].shape[1]
    for t in range(steps):
        now = {name: value[:, t] for name, value in x.items()}
        decayed = state
        if shape.decay != "none":
            g = now["g"] if shape.decay == "key" else now["g"][..., None]
            decayed = g.exp()[..., None] * state
        p = [now[f"p{row.p_same}"] for row in shape.rows]

        def coupling(c: Coupling, covector: Tensor, name: str, p: list[Tensor] = p, now: Tensors = now) -> Tensor:
            return now[name] if c.explicit else (covector * p[c.row]).sum(-1)

        u: list[Tensor] = []
        for j, row in enumerate(shape.rows):
            u_j = now[f"y{j}"] if row.has_y else torch.zeros_like(state[..., 0, :])
            if row.erases:
                e = now[f"e{j}"]
                u_j = u_j - torch.einsum("bhk,bhkv->bhv", e, decayed if row.post else state)
                for c in row.couplings:
                    u_j = u_j - coupling(c, e, f"c{j}_{c.row}")[..., None] * u[c.row]
            u.append(u_j)
        o = now["rest"] if shape.rest else 0.0
        for r, read in enumerate(shape.reads):
            q = now[f"q{r}"]
            value = torch.einsum("bhk,bhkv->bhv", q, decayed if read.post else state)
            for c in read.couplings:
                value = value + coupling(c, q, f"m{r}_{c.row}")[..., None] * u[c.row]
            if read.factor != "none":
                value = value * (now[f"f{r}"] if read.factor == "value" else now[f"f{r}"][..., None])
            o = o + value
        state = decayed
        for p_j, u_j in zip(p, u, strict=True):
            state = state + p_j[..., :, None] * u_j[..., None, :]
        out.append(o)
    if not out:
        return state.new_zeros(*state.shape[:1], 0, state.shape[1], state.shape[-1]), state
    return torch.stack(out, 1), state


def make(
    shape: Shape, T: int, *, B: int = 1, H: int = 2, seed: int = 0, decays: str = "mixed"
) -> tuple[Tensors, Tensor]:
    """Random tensors of a shape in float64. Erase factors are small enough that no state explodes."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    x: Tensors = {}
    for name, axis in shape.tensors():
        tail = {"scalar": (), "key": (K,), "value": (V,)}[axis]
        value = normal(B, T, H, *tail)
        if name == "g":
            strength = {"mild": [0.1], "mixed": [0.0, 0.1, 8.0, 1e4], "strong": [8.0, 0.01]}.get(decays, [0.1])
            pick = torch.randint(len(strength), value.shape, generator=generator)
            value = -value.abs() * torch.tensor(strength, dtype=torch.float64)[pick]
            if decays == "growing":
                value = value.clamp(-1, 0) + 0.0953
        elif name[0] in "pecm":
            value = 0.4 * value
        x[name] = value
    return x, normal(B, H, K, V)


def compiled(shape: Shape, edit: Callable[[str], str] = lambda text: text) -> Callable[..., tuple[Tensor, Tensor]]:
    return load_source(edit(module("", [chunked_source(shape)])), "chunked").chunked  # type: ignore[no-any-return]


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    decay = draw(st.sampled_from(["none", "scalar", "key"]))
    rows: list[RowShape] = []
    for j in range(draw(st.integers(0, 3))):
        erases = draw(st.booleans())
        seen = [i for i in range(j) if draw(st.booleans())] if erases else []
        firsts = [i for i in range(j) if rows[i].p_same == i]
        rows.append(
            RowShape(
                erases=erases,
                has_y=not erases or draw(st.booleans()),
                post=draw(st.booleans()),
                couplings=tuple(Coupling(i, draw(st.booleans())) for i in seen),
                p_same=draw(st.sampled_from([*firsts, j])),
            )
        )
    reads = []
    for _ in range(draw(st.integers(1, 2))):
        seen = [i for i in range(len(rows)) if draw(st.booleans())]
        couplings = tuple(Coupling(i, draw(st.booleans())) for i in seen)
        reads.append(ReadShape(draw(st.sampled_from(["none", "scalar", "value"])), draw(st.booleans()), couplings))
    return Shape(decay, tuple(rows), tuple(reads), draw(st.booleans()))


def outcome(run: Callable[[Tensors, Tensor], tuple[Tensor, Tensor]], x: Tensors, state: Tensor) -> list[Tensor]:
    """Output, last state and the gradients of everything for fixed weights of both."""
    leaves = {name: value.clone().requires_grad_() for name, value in x.items()}
    start = state.clone().requires_grad_()
    o, last = run(leaves, start)
    weights = torch.linspace(-1, 1, o.numel(), dtype=o.dtype).view(o.shape).cos()
    loss = (o * weights).sum() + (last * torch.linspace(0, 2, last.numel(), dtype=o.dtype).view(last.shape)).sum()
    inputs = [*leaves.values(), start]
    grads = torch.autograd.grad(loss, inputs, allow_unused=True)
    return [
        o.detach(),
        last.detach(),
        *(torch.zeros_like(i) if g is None else g for g, i in zip(grads, inputs, strict=True)),
    ]


def error(shape: Shape, x: Tensors, state: Tensor, chunk: int, edit: Callable[[str], str] = lambda text: text) -> float:
    """The largest error of any result, relative to 1 + its largest entry."""
    form = compiled(shape, edit)
    got = outcome(lambda leaves, start: form(leaves, start, chunk), x, state)
    want = outcome(lambda leaves, start: step_loop(shape, leaves, start), x, state)
    worst = 0.0
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        assert torch.isfinite(a).all()
        if a.numel():
            worst = max(worst, float((a - b).abs().max() / (1 + b.abs().max())))
    return worst


C = Coupling
DELTA = Shape("key", (RowShape(True, True, True, (), 0),), (ReadShape("none", True, (C(0, False),)),), False)
WRITE = Shape("key", (RowShape(False, True, True, (), 0),), (ReadShape("none", True, (C(0, False),)),), False)
TWO = Shape(
    "key",
    (
        RowShape(True, False, False, (), 0),
        RowShape(False, True, True, (), 1),
        RowShape(True, True, True, (C(0, False), C(1, True)), 2),
    ),
    (ReadShape("value", True, (C(0, False), C(1, True))), ReadShape("scalar", False, (C(2, True),))),
    True,
)
NAMED = {
    f"{name}-{decay}": Shape(decay, shape.rows, shape.reads, shape.rest)  # type: ignore[arg-type]
    for name, shape in {"delta": DELTA, "write": WRITE, "two": TWO}.items()
    for decay in ("none", "scalar", "key")
}
each = pytest.mark.parametrize("shape", NAMED.values(), ids=NAMED.keys())

# The rounding of float64 through some hundred products and a solve.
TOLERANCE = 2e-13


@settings(max_examples=60, deadline=None, derandomize=True)
@given(shape=shapes(), T=st.integers(0, 13), chunk=st.integers(1, 9), seed=st.integers(0, 99))
def test_random_shapes(shape: Shape, T: int, chunk: int, seed: int) -> None:
    x, state = make(shape, T, seed=seed)
    assert error(shape, x, state, chunk) < TOLERANCE


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(shape=shapes(), T=st.integers(0, 40), chunk=st.integers(1, 20), seed=st.integers(0, 9999))
def test_many_random_shapes(shape: Shape, T: int, chunk: int, seed: int) -> None:
    x, state = make(shape, T, seed=seed)
    assert error(shape, x, state, chunk) < 10 * TOLERANCE


@each
@pytest.mark.parametrize("decays", ["mild", "strong", "growing"])
def test_decays(shape: Shape, decays: str) -> None:
    x, state = make(shape, 37, B=2, decays=decays)
    assert error(shape, x, state, 16) < TOLERANCE


@each
def test_reset_is_exact(shape: Shape) -> None:
    """A log decay of -1e4 or -inf forgets everything before it, and has no gradient."""
    if shape.decay == "none":
        pytest.skip("nothing decays")
    for log in (-1e4, -torch.inf):
        x, state = make(shape, 12, decays="mild")
        x["g"][:, 5] = log
        results = outcome(lambda leaves, start: compiled(shape)(leaves, start, 8), x, state)
        assert all(torch.isfinite(r).all() for r in results)
        assert not results[2 + list(x).index("g")][:, 5].any()


@each
def test_future_changes_no_bit(shape: Shape) -> None:
    form = compiled(shape)
    x, state = make(shape, 41)
    other = {name: value.clone() for name, value in x.items()}
    for name, value in other.items():
        value[:, 22:] = -3.0 if name == "g" else 50 * value[:, 22:] + 1
    o, _ = form(x, state, 16)
    changed, _ = form(other, state, 16)
    assert torch.equal(o[:, :22], changed[:, :22])
    assert not torch.equal(o[:, 22:], changed[:, 22:])


@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_split_is_whole(shape: Shape, dtype: torch.dtype) -> None:
    form = compiled(shape)
    x, state = make(shape, 75, B=2)
    x, state = {name: value.to(dtype) for name, value in x.items()}, state.to(dtype)
    whole, last = form(x, state, 16)
    for cut in (16, 48, 64):
        first, middle = form({name: value[:, :cut] for name, value in x.items()}, state, 16)
        second, end = form({name: value[:, cut:] for name, value in x.items()}, middle, 16)
        assert torch.equal(torch.cat((first, second), 1), whole)
        assert torch.equal(end, last)


@each
def test_split_is_whole_at_odd_sizes(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices of 17 x 33 stand at other alignments in a shorter batch; that must not show in the bits."""
    monkeypatch.setattr(f"{__name__}.K", 17)
    monkeypatch.setattr(f"{__name__}.V", 33)
    form = compiled(shape)
    x, state = make(shape, 300, decays="mild")
    x = {name: 0.2 * value if name[0] in "pe" else value for name, value in x.items()}
    whole, last = form(x, state, 64)
    first, middle = form({name: value[:, :192] for name, value in x.items()}, state, 64)
    second, end = form({name: value[:, 192:] for name, value in x.items()}, middle, 64)
    assert torch.equal(torch.cat((first, second), 1), whole)
    assert torch.equal(end, last)


@each
def test_no_token(shape: Shape) -> None:
    x, state = make(shape, 0)
    o, last = compiled(shape)(x, state, 16)
    assert o.shape == (1, 0, 2, V)
    assert torch.equal(last, state)


@pytest.mark.parametrize("loss", [Tensor.sum, lambda o: o.square().sum()], ids=["constant", "own"])
def test_a_second_derivative_is_refused(loss: Callable[[Tensor], Tensor]) -> None:
    """Where the incoming gradient is a constant, PyTorch's own decorator would give zero."""
    x, state = make(DELTA, 5)
    state.requires_grad_()
    o, _ = compiled(DELTA)(x, state, 4)
    with pytest.raises(RuntimeError, match="cannot differentiate twice"):
        torch.autograd.grad(loss(o), state, create_graph=True)


def test_repeated_keys() -> None:
    """Erasing the same direction again and again: a power series would diverge, substitution does not."""
    x, state = make(DELTA, 64, decays="mild")
    x["p0"] = torch.ones_like(x["p0"]) / K**0.5
    x["e0"] = x["p0"].clone()
    assert error(DELTA, x, state, 64) < TOLERANCE


SCALAR = NAMED["delta-scalar"]
PLANTED = {
    "same-token coupling of rows dropped": (TWO, r"        own\(pairs, 1, 0\)\.copy_\(.*\)\n", ""),
    "same-token coupling of the read dropped": (DELTA, r"        own\(pairs, .*\n", ""),
    "decayed read at the undecayed level": (DELTA, r"\(True, True\)", "(False, True)"),
    "undecayed read at the decayed level": (TWO, r"\(False, True, True, False\)", "(True, True, True, False)"),
    "directions not scaled by later decays": (DELTA, r" lower \*= second", " pass"),
    "scalar decay at the wrong level": (SCALAR, r"decay, \(True, True\)", "decay, (False, True)"),
    "scalar decay left out of the directions": (SCALAR, r"P \* until\n", "P\n"),
    "a read always last": (TWO, r"own\(pairs, 3, 1\)", "own(pairs, 3, 0)"),
    "pure writes hidden from the erases": (TWO, r"Y - C @ matrix\(W\)", "Y"),
    "no gradient through the couplings of rows": (DELTA, r"torch\.cat\(\(-dY, dO\), 2\)", "torch.cat((0 * dY, dO), 2)"),
    "no gradient through the couplings within a token": (DELTA, r"ddirections\[:, :, 0\]\.addcmul_.*", "pass"),
    "no gradient through the decays between blocks": (DELTA, r"\(upper \* dupper\)", "(0 * upper * dupper)"),
    "no gradient through the decay of the whole chunk": (DELTA, r"dlogD = D \*", "dlogD = 0 *"),
    "no gradient through a token's own decay": (DELTA, r"out\[:, :, 0\]\.addcmul_\(.*", "pass"),
    "scalar decay's gradient a token late": (SCALAR, r"tril\(-1\)\.sum\(1\)\[:, :-1\]", "tril(-1).sum(1)[:, 1:]"),
    "state's gradient not passed on": (WRITE, r"torch\.addcmul\(ds, d, dS\)", "ds"),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bug_shows(bug: str) -> None:
    """The comparison itself notices the mistakes that are easy to make here."""
    shape, pattern, replacement = PLANTED[bug]

    def edit(text: str) -> str:
        wrong, count = re.subn(pattern, replacement, text)
        assert count, f"nothing to break: {pattern}"
        return wrong

    x, state = make(shape, 21, decays="mild")
    assert error(shape, x, state, 8) < TOLERANCE
    assert error(shape, x, state, 8, edit) > 1e-6


@pytest.mark.slow
def test_speed() -> None:
    """Against a good loop over tokens (fp32, two threads); guards, for a busy machine, below the aim of 6 and 20."""
    shape, form = DELTA, compiled(DELTA)
    B, T, H, size = 1, 4096, 4, 64
    normal = torch.Generator().manual_seed(0)
    x = {name: torch.randn(B, T, H, size, generator=normal) for name, _ in shape.tensors()}
    x["g"] = -0.1 * x["g"].abs()
    x["p0"] = torch.nn.functional.normalize(x["p0"], dim=-1)
    x["e0"] = x["p0"] * torch.rand(B, T, H, size, generator=normal)

    def loop(x: Tensors, state: Tensor) -> tuple[Tensor, Tensor]:
        out = []
        for g, p, e, y, q in zip(*(x[name].unbind(1) for name in ("g", "p0", "e0", "y0", "q0")), strict=True):
            state = g.exp()[..., None] * state
            state = state + p[..., None] * (y - (e[..., None, :] @ state)[..., 0, :])[..., None, :]
            out.append((q[..., None, :] @ state)[..., 0, :])
        return torch.stack(out, 1), state

    def chunked(x: Tensors, state: Tensor) -> tuple[Tensor, Tensor]:
        return form(x, state, default_chunk(shape))

    start = torch.zeros(B, H, size, size)
    for a, b in zip(loop(x, start), chunked(x, start), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        result = compare({"loop": loop, "chunked": chunked}, x, start, repeats=3)
    finally:
        torch.set_num_threads(threads)
    forward, both = result.speedup("chunked")
    assert forward >= 5, str(result)
    assert both >= 10, str(result)


def test_source_has_only_what_the_shape_needs() -> None:
    assert "solve" not in chunked_source(WRITE)
    assert "exp" not in chunked_source(NAMED["two-none"]).replace("expand", "")
    assert "merges" not in chunked_source(NAMED["two-scalar"])
    assert max(len(line) for shape in NAMED.values() for line in chunked_source(shape).splitlines()) <= 120


def test_a_row_that_does_nothing_is_refused() -> None:
    shape = Shape("none", (RowShape(False, False, True, (), 0),), (), True)
    with pytest.raises(ValueError, match="must erase or write"):
        chunked_source(shape)


def test_default_chunk_is_a_power_of_two() -> None:
    """Other sizes work, but with key-wise decays they are padded to one inside."""
    assert all(default_chunk(shape).bit_count() == 1 for shape in NAMED.values())


def test_shape_of_core() -> None:
    k, v, c = (Ref(name, axis) for name, axis in (("k", Axis.KEY), ("v", Axis.VALUE), ("c", Axis.SCALAR)))
    core = Core(
        g=k,
        rows=(CoreRow(k, v, None, True, (), 0), CoreRow(k, None, k, False, ((0, c),), 0)),
        reads=(CoreRead(k, v, True, ((0, None), (1, c))), CoreRead(k, c, False, ())),
        rest=v,
    )
    shape = shape_of(core)
    assert shape == Shape(
        "key",
        (RowShape(False, True, True, (), 0), RowShape(True, False, False, (C(0, True),), 0)),
        (ReadShape("value", True, (C(0, False), C(1, True))), ReadShape("scalar", False, ())),
        True,
    )
    assert [name for name, _ in shape.tensors()] == [
        "g",
        "p0",
        "y0",
        "e1",
        "c1_0",
        "q0",
        "f0",
        "m0_1",
        "q1",
        "f1",
        "rest",
    ]
