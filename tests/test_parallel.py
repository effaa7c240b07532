"""A sequence over several ranks against the step loop on one, in float64, with every gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch import Tensor

import stateir
from stateir.codegen.carried import comparable
from stateir.codegen.operator import BackendError
from stateir.codegen.parallel import SequenceParallel
from stateir.codegen.samples import sample_arguments
from stateir.codegen.verify import rms_ratio
from stateir.ir import Rule

H, K, V = 2, 6, 5

# Two levels of states beside S (one needs the other), two windows of different lengths, an angle.
LEVELS = (
    "rule r\ninput q: key, k: key unit, v: value, a: scalar in [0, 1], x: key, t: pair\n"
    "state m: scalar, z: key, p: pair\n"
    "update m = max(m - a, prev(a, 3))\nupdate z = exp(-m^2) * z + prev(x, 2)\nupdate p += t\n"
    "update S = a * S + outer(k, v - k @ S)\n"
    "read o = (q + z) @ S + (rotate(k, p) @ S) * m\n"
)
# Reads with factors of both axes, no erase, a key decay above 1 token's read.
FACTORS = (
    "rule r\ninput q: key, k: key, v: value, w: value, s: scalar, g: key in [-inf, 0]\n"
    "read o = w * (q @ S) + s * (k @ S) + v\nupdate S = exp(g) * S + outer(k, v)\n"
)


def rules(name: str) -> Rule:
    own = {"levels": LEVELS, "factors": FACTORS}
    return stateir.parse(own[name]) if name in own else stateir.load(name)


def leaves(rule: Rule, T: int, N: int, seed: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The arguments of N sequences of T tokens (packed: one) and a state before them."""
    x = sample_arguments(rule, B=N if N else 1, T=T, H=H, K=K, V=V, seed=seed)
    earlier = sample_arguments(rule, B=N or 1, T=4, H=H, K=K, V=V, seed=seed + 1)
    _, state = stateir.compile(rule, "step")(**earlier, return_state=True)
    parts = state if isinstance(state, dict) else {"S": state}
    return x, {n: t.detach().clone() for n, t in parts.items()}


def outcome(
    op: Any, rule: Rule, x: dict[str, Tensor], state: dict[str, Tensor], out: Tensor, whole: bool, **options: Any
) -> Any:
    """Outputs, states and gradients of a loss of both. `whole`: this process has the loss of the states after."""
    fixed = {p.name for p in rule.params if p.fixed}
    x = {n: t.clone().requires_grad_(n not in fixed) for n, t in x.items()}
    state = {n: t.clone().requires_grad_() for n, t in state.items()}
    carries = stateir.compile(rule).carries_dict
    o, after = op(**x, initial_state=state if carries else state["S"], return_state=True, **options)
    parts = comparable(rule, after if isinstance(after, dict) else {"S": after})
    loss = (o * out).sum() + sum(t.square().sum() for t in parts.values()) * float(whole)
    wanted = {n: t for n, t in (x | state).items() if t.requires_grad}
    gradients = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True, materialize_grads=True)
    found = {n: t.detach() for n, t in parts.items()}
    return o.detach(), found, {n: g for n, g in zip(wanted, gradients, strict=True)}


def one_case(name: str, T: int, offsets: list[int] | None) -> tuple[Any, Any, list[str]]:
    """This rank's outcome and, on the first, the step loop's over the tokens of all; the names of the inputs."""
    rank, count, rule = dist.get_rank(), dist.get_world_size(), rules(name)
    x, state = leaves(rule, T * count, 2 if offsets is None else 1, 5)
    options: dict[str, Any] = {}
    if offsets is not None:
        options = {"cu_seqlens": torch.tensor(offsets)}
        state = {n: torch.cat([t * (1 + i) for i in range(len(offsets) - 1)]) for n, t in state.items()}
    inputs = {i.name for i in rule.inputs}
    generator = torch.Generator().manual_seed(9)
    weight = torch.randn(2 if offsets is None else 1, T * count, H, V, dtype=torch.float64, generator=generator)
    mine = slice(rank * T, (rank + 1) * T)
    local = {n: t[:, mine] if n in inputs else t for n, t in x.items()}
    parallel = SequenceParallel(stateir.compile(rule, "chunked"))
    found = outcome(parallel, rule, local, state, weight[:, mine], rank == 0, **options)
    step = stateir.compile(rule, "step")
    expected = outcome(step, rule, x, state, weight, True, **options) if rank == 0 else None
    return found, expected, sorted(inputs)


def compare(name: str, every: list[tuple[Any, Any, list[str]]], limit: float) -> None:
    """The outcomes of all ranks, put together, against the step loop's."""
    (_, (o, after, gradients), inputs), *_ = every
    assert rms_ratio(torch.cat([x[0][0] for x in every], 1), o) <= limit, name
    for part, x in after.items():
        for found, _, _ in every:
            assert rms_ratio(found[1][part], x) <= limit, (name, part)
    for part, g in gradients.items():
        shares = [found[2][part] for found, _, _ in every]
        whole = torch.cat(shares, 1) if part in inputs else torch.stack(shares).sum(0)
        assert rms_ratio(whole, g) <= limit, (name, part)


RULES = ["gdn2", "qed", "gla", "retention", "additive", "rwkv7", "delta_product", "mlstm", "mamba3",
         "linear_attention", "precond_gated_delta", "levels", "factors"]  # fmt: skip
ON_FOUR = ["gdn2", "gla", "mlstm", "levels"]
PACKED = ["gdn2", "gla", "delta_product", "factors"]
# A sequence over three borders; ends and begins at a border; empty ones everywhere; none that goes on.
OFFSETS = [
    [0, 0, 5, 80, 80, 80, 84],
    [0, 21, 21, 42, 84],
    [0, 84],
    [0, 20, 22, 41, 43, 62, 64, 84, 84],
]


def on_two() -> list[Any]:
    return [*(one_case(name, 37, None) for name in RULES), traffic("gdn2"), traffic("gla"), refusals()]


def on_four() -> list[Any]:
    whole = [one_case(name, 21, None) for name in ON_FOUR]
    return [*whole, *(one_case(name, 21, offsets) for offsets in OFFSETS for name in PACKED)]


# Starting processes takes longer than what they do, so each count of them is started once.
@pytest.fixture(scope="module")
def two() -> list[Any]:
    return on_ranks(2, on_two)


@pytest.fixture(scope="module")
def four() -> list[Any]:
    return on_ranks(4, on_four)


@pytest.mark.parametrize("name", RULES)
def test_two_ranks_are_like_one(two: list[Any], name: str) -> None:
    compare(name, [x[RULES.index(name)] for x in two], 1e-11)


@pytest.mark.parametrize("name", ON_FOUR)
def test_four_ranks_are_like_one(four: list[Any], name: str) -> None:
    compare(name, [x[ON_FOUR.index(name)] for x in four], 1e-11)


@pytest.mark.parametrize("offsets", OFFSETS, ids=str)
def test_packed_sequences_go_on_over_borders(four: list[Any], offsets: list[int]) -> None:
    first = len(ON_FOUR) + OFFSETS.index(offsets) * len(PACKED)
    for n, name in enumerate(PACKED):
        compare(name, [x[first + n] for x in four], 1e-11)


def refusals() -> list[str]:
    said = []
    sequential = stateir.parse(
        "rule r\ninput q: key, k: key, v: value\nstate z: scalar\nupdate z = tanh(z + k @ k)\n"
        "update S += outer(k, v)\nread o = z * (q @ S)\n"
    )
    for rule, backend in ((sequential, "auto"), (stateir.load("gdn2"), "step")):
        try:
            SequenceParallel(stateir.compile(rule, backend))
        except BackendError as error:
            said.append(str(error))
    carried = stateir.load("mamba3")
    x = sample_arguments(carried, B=1, T=4, H=H, K=K, V=V)
    for options in ({"cu_seqlens": torch.tensor([0, 4])}, {}):
        try:
            tensors = x if options else {n: t[:, :0] if t.ndim > 2 and t.shape[1] == 4 else t for n, t in x.items()}
            SequenceParallel(stateir.compile(carried))(**tensors, **options)
        except ValueError as error:
            said.append(str(error))
    return said


def test_what_is_refused_says_why(two: list[Any]) -> None:
    for *_, said in two:
        assert "z does not compose" in said[0]
        assert "step backend" in said[1]
        assert "carry S alone" in said[2]
        assert "T = 0" in said[3]


def traffic(name: str) -> dict[str, int]:
    rule = stateir.load(name)
    op = SequenceParallel(stateir.compile(rule))
    x = {n: t.requires_grad_() for n, t in sample_arguments(rule, B=1, T=8, H=H, K=K, V=V).items()}
    op(**x)[0].sum().backward()
    return op.traffic.received


def test_the_bytes_are_those_of_one_turn_and_one_state(two: list[Any]) -> None:
    """Per head and other rank: forward turn and add, backward a gradient of a state. A turn without erase is K numbers."""
    for *_, whole, diagonal, _ in two:
        assert whole == {"forward": 8 * H * K * (K + V), "backward": 8 * H * K * V}
        assert diagonal == {"forward": 8 * H * K * (1 + V), "backward": 8 * H * K * V}
