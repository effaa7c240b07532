"""A key state that is a column of S: found where it is one and nowhere else, proved, and computed as one."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from kernel_cases import rms

import stateir
from stateir.affine import normal_form
from stateir.build import ONE, ZERO
from stateir.codegen import triton_config
from stateir.codegen.samples import sample_arguments
from stateir.codegen.verify import against_step, over_time
from stateir.column import VALUES, Column, column
from stateir.core import core
from stateir.ir import Rule
from stateir.normal import Core, NormalForm
from stateir.plan import describe, plan
from stateir.proofs import column_holds, prove_rule
from stateir.scans import scans
from stateir.symbolic import with_algebra

HEAD = """rule x
input q: key unit, k: key unit, k2: key unit, v: value, f: scalar in (-inf, 0], g: key in (-inf, 0]
input b: key in [0, 1], beta: scalar in [0, 1]
state z: key = 0.5
"""
READ = "read o = (q @ S) / (1 + abs(q @ z))\n"
COLUMNS = {
    "sum": "update S += outer(k, v)\nupdate z += k\n" + READ,
    "its line first": "update z = exp(f) * z + k\nupdate S = exp(f) * S\nupdate S += outer(k, v)\n" + READ,
    "key decay": "update S = exp(g) * S + outer(b * k, v)\nupdate z = exp(g) * z + b * k\n"
    "read o = (q @ S) / (1 + abs(q @ z)) + (q @ z) * v\n",
    "erases": "update S = exp(g) * S\nupdate S += outer(beta * k, v - k @ S)\nupdate z = exp(g) * z\n"
    "update z += beta * k * (1 - k @ z)\n" + READ,
    "erases and writes nothing": "update S += outer(beta * k, v - k @ S)\nupdate z -= beta * k * (k @ z)\n" + READ,
    "coupled rows": "update S += outer(k2, v)\nupdate S -= outer(b * k, k @ S)\nupdate z += k2\n"
    "update z -= b * k * (k @ z)\n" + READ,
    "fewer writes": "update S += outer(k, v)\nupdate S = exp(f) * S + outer(k2, v)\n"
    "update z = exp(f) * z + k2 / 2\n" + READ,
    "only it is written": "update S += outer(beta * k, v - k @ S) - outer(k2, 0 * v)\n"
    "update z += beta * k * (1 - k @ z)\n" + READ,
    "a let": "let p = exp(beta) * k\nupdate S += outer(p, v)\nupdate z += p\nlet n = q @ z\n"
    "read o = (q @ S) / max(abs(n), exp(-beta)) + n * (v + beta * v)\n",
    "read between": f"update S += outer(k, v)\nupdate z += k\n{READ}update z = exp(f) * z\nupdate S = exp(f) * S\n",
    "read above": READ + "update z = exp(f) * z + k\nupdate S = exp(f) * S + outer(k, v)\n",
}  # fmt: skip
OTHERS = {
    "another decay": "update S = exp(g) * S + outer(k, v)\nupdate z = exp(f) * z + k\n" + READ,
    "no decay": "update S = exp(g) * S + outer(k, v)\nupdate z += k\n" + READ,
    "without S's erase": "update S += outer(beta * k, v - k @ S)\nupdate z += beta * k\n" + READ,
    "another erase": "update S += outer(k, v - (b * k) @ S)\nupdate z += k * (1 - k @ z)\n" + READ,
    "another direction": "update S += outer(k, v)\nupdate z += k2\n" + READ,
    "another read": "update S += outer(k, v)\nupdate z += k\nread o = (q @ S) / (1 + abs(k2 @ z))\n",
    "two reads of it": "update S += outer(k, v)\nupdate z += k\nread o = (q @ S) / (1 + abs(k2 @ z) + abs(q @ z))\n",
    "older than S": "update S += outer(k, v)\n" + READ + "update z += k\n",
    "a let keeps the older": "let n = q @ z\nupdate S += outer(k, v)\nupdate z += k\n"
    "read o = (q @ S) / (1 + abs(n))\n",
    "used as a vector": "update S += outer(k, v)\nupdate z += k\nread o = (q @ S) / (1 + z @ z)\n",
    "written to S": "update S += outer(z, v)\nupdate z += k\n" + READ,
    "not affine": "update S += outer(k, v)\nupdate z = tanh(z + k)\n" + READ,
    "a number for every channel": "update S += outer(k, v)\nupdate z = z + beta\n" + READ,
    "overwritten": "update S += outer(k, v)\nupdate z = k\n" + READ,
    "wider order of rows": "update S -= outer(k, k @ S)\nupdate S += outer(k2, v)\nupdate z += k2\n"
    "update z -= k * (k @ z)\n" + READ,
    "never updated": "update S += outer(k, v)\n" + READ,
}  # fmt: skip


def forms(lines: str) -> tuple[Rule, NormalForm, Core, Column | None]:
    rule = stateir.parse(HEAD + lines)
    form = normal_form(rule)
    assert form is not None
    return rule, form, core(form), column(rule, core(form))


@pytest.mark.parametrize("name", COLUMNS)
def test_what_is_a_column_is_found_and_proved(name: str) -> None:
    _, form, c, found = forms(COLUMNS[name])
    assert found is not None and found.state == "z"
    assert [p.holds for p in prove_rule(form, c)] == [True] * 4
    made = plan(form, c)
    assert made.column == "z" and made.scans == ()
    assert "z: one more value column of S" in dict(describe(made))["column"]


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_none_is_not_taken_for_one(name: str) -> None:
    rule, form, c, found = forms(OTHERS[name])
    assert found is None
    assert plan(form, c).scans == scans(rule) and plan(form, c).column is None


@pytest.mark.parametrize("name", ["linear_attention", "mlstm"])
def test_normalisers_of_the_library(name: str) -> None:
    form = normal_form(stateir.load(name))
    assert form is not None
    assert plan(form, core(form)).column == "z"


def test_wrong_columns_are_refuted() -> None:
    _, form, c, found = forms(COLUMNS["erases"])
    assert found is not None
    wrong = [
        replace(found, values=(ONE,)), replace(found, values=(None,)), replace(found, output=VALUES),
        replace(found, read=ZERO),
    ]  # fmt: skip
    for x in wrong:
        assert not with_algebra(lambda a, x=x: column_holds(a, form, c, x))
    no_erase = replace(c, rows=(replace(c.rows[0], e=None),))
    assert not with_algebra(lambda a: column_holds(a, form, no_erase, found))
    above = replace(c, reads=(replace(c.reads[0], post=False, couplings=()),))
    assert not with_algebra(lambda a: column_holds(a, form, above, found))


@pytest.mark.parametrize("name", COLUMNS)
def test_chunked_equals_step_with_gradients_and_states(name: str) -> None:
    """The state before and after are S and the vector; a run may be split, decoded, and never sees the future."""
    rule = stateir.parse(HEAD + COLUMNS[name])
    for check in [*against_step(rule, (13,), (1, 5, 16), [0]), *over_time(rule, "chunked", 0, chunk_size=4)]:
        assert check.passed, f"{check.name}: {check.error:.1e} of {check.limit:.0e}"
    op = stateir.compile(rule, "chunked", chunk_size=8)
    arguments = sample_arguments(rule, B=2, T=21, H=2, K=6, V=5, seed=1)
    whole, last = op(**arguments, return_state=True)
    first, middle = op(**{n: x[:, :8] for n, x in arguments.items()}, return_state=True)
    second, end = op(**{n: x[:, 8:] for n, x in arguments.items()}, initial_state=middle, return_state=True)
    assert torch.equal(torch.cat((first, second), 1), whole)
    assert isinstance(last, dict) and isinstance(end, dict) and list(last) == ["S", "z"]
    assert last["S"].shape == (2, 2, 6, 5) and last["z"].shape == (2, 2, 6)
    assert all(torch.equal(last[n], end[n]) for n in last)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
@pytest.mark.parametrize("name", ["key decay", "erases", "fewer writes"])
def test_kernels_equal_the_step_with_gradients_and_states(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_config, "chunk_size", lambda tiles: 16)
    rule = stateir.parse(HEAD + COLUMNS[name])
    arguments = sample_arguments(rule, B=1, T=18, H=1, K=4, V=3, seed=2, ends=0.0)
    generator = torch.Generator().manual_seed(3)
    start = {"S": torch.randn(1, 1, 4, 3, generator=generator), "z": torch.randn(1, 1, 4, generator=generator)}
    weights = {n: torch.randn(x, generator=generator) for n, x in (("o", (1, 18, 1, 3)), ("S", (4, 3)), ("z", (4,)))}

    def run(backend: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        leaves = {n: x.to(dtype).requires_grad_() for n, x in arguments.items()}
        before = {n: x.to(dtype).requires_grad_() for n, x in start.items()}
        o, after = stateir.compile(rule, backend)(**leaves, initial_state=before, return_state=True)
        assert isinstance(after, dict)
        found = {"o": o, **after}
        loss = sum((found[n] * w.to(dtype)).sum() for n, w in weights.items())
        sources = leaves | {f"initial {n}": x for n, x in before.items()}
        grads = torch.autograd.grad(loss, list(sources.values()), allow_unused=True, materialize_grads=True)
        return found | dict(zip(sources, grads, strict=True))

    want, have = run("step", torch.float64), run("triton", torch.float32)
    for part, x in want.items():
        assert rms(have[part].detach() - x.detach()) <= 1e-5 * max(rms(x.detach()), 1e-2), part
