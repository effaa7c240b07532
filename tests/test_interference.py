"""The closed forms of `stateir.models.theory` against simulation, each within five standard errors of the mean."""

import numpy as np
import pytest
from numpy.typing import NDArray

import stateir
from stateir.ir import Interval
from stateir.library import names
from stateir.models import theory
from stateir.models.binding import open_gate, roles
from stateir.models.interference import BindingsConfig, Trace, draw_bindings, interference, write_bindings

ADDITIVE = stateir.load("additive")
DELTA = stateir.load("delta")
# Rounding of D ~ 100 writes of numbers around 1 in float64.
EXACT = 1e-13


def assert_mean(samples: NDArray[np.float64], expected: float | NDArray[np.float64]) -> None:
    """samples: [N, ...], independent along the first axis."""
    mean, standard_error = samples.mean(0), samples.std(0, ddof=1) / np.sqrt(len(samples))
    worst = np.max(np.abs(mean - expected) / standard_error)
    assert worst < 5, f"{worst:.1f} standard errors away: {mean} where {expected} was expected"


def run(rule: str, config: BindingsConfig, repetitions: int, seed: int = 0, **inputs: float) -> Trace:
    return interference(stateir.load(rule), config, repetitions=repetitions, seed=seed, inputs=inputs)


SPHERE = BindingsConfig(writes=64, key_dim=32, value_dim=8)


def test_the_published_table() -> None:
    error = theory.delta_error_by_age(64, 32, 1.0)
    assert np.round(error[[0, 1, 2, 4, 8, 32, 63]], 3).tolist() == [0, 0.059, 0.115, 0.223, 0.420, 1.194, 1.617]
    assert round(float(error.mean()), 3) == 1.058
    assert round(theory.additive_error(64, 32), 3) == 1.969


@pytest.mark.parametrize(("writes", "d"), [(64, 32), (6, 4)])
def test_additive_error_is_the_same_for_every_key(writes: int, d: int) -> None:
    trace = run("additive", BindingsConfig(writes=writes, key_dim=d, value_dim=8), 500)
    assert_mean(trace.error_by_age, theory.additive_error(writes, d))
    assert_mean(trace.error_by_age.mean(1), theory.additive_error(writes, d))
    # The first write's energy is no random number.
    assert_mean(trace.energy[:, 2:], np.array([theory.additive_energy(t) for t in range(2, writes + 1)]))


@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_delta_error_signal_and_energy(beta: float) -> None:
    trace = run("delta", SPHERE, 500, seed=1, beta=beta)
    error = theory.delta_error_by_age(64, 32, beta)
    ages = np.arange(1, 64)  # the newest key's error is no random number at beta = 1
    assert_mean(trace.error_by_age[:, ages], error[ages])
    assert_mean(trace.error_by_age.mean(1), float(error.mean()))
    signal = np.array([theory.delta_signal(age, 32, beta) for age in ages])
    assert_mean(trace.signal[:, -1, ::-1][:, ages], signal)
    assert_mean(trace.energy[:, 2:], np.array([theory.delta_energy(t, 32, beta) for t in range(2, 65)]))


def test_energy_and_forgotten_keys_reach_their_limits() -> None:
    for beta in (0.3, 1.0, 1.5):
        assert theory.delta_energy(3000, 8, beta) == pytest.approx(theory.delta_energy_limit(8, beta), rel=1e-12)
        assert theory.delta_error(3000, 3000, 8, beta) == pytest.approx(theory.delta_forgotten_error(beta), rel=1e-12)
    trace = run("delta", BindingsConfig(writes=80, key_dim=4, value_dim=3), 400, seed=2, beta=0.8)
    assert_mean(trace.error[:, -1, :10].mean(1), theory.delta_forgotten_error(0.8))
    assert_mean(trace.energy[:, -1], theory.delta_energy_limit(4, 0.8))


@pytest.mark.parametrize("beta", [1.0, 0.3, 0.0])
def test_one_delta_write(beta: float) -> None:
    trace = run("delta", BindingsConfig(writes=20, key_dim=6, value_dim=5), 3, beta=beta)
    k, v = trace.keys, trace.values
    for t in range(20):
        before, after = (np.einsum("nkv,nik->niv", trace.states[:, s], k) for s in (t, t + 1))
        newest = after[:, t] - v[:, t]
        assert np.abs(newest - theory.delta_newest_error(before[:, t] - v[:, t], beta)).max() < EXACT
        for n in range(3):
            for i in range(20):
                change = theory.delta_read_change(k[n, i], k[n, t], before[n, t] - v[n, t], beta)
                assert np.abs(after[n, i] - before[n, i] - change).max() < EXACT


def test_orthonormal_keys() -> None:
    config = BindingsConfig(writes=12, key_dim=12, value_dim=5, geometry="orthonormal")
    trace = run("additive", config, 3)
    assert np.abs(trace.keys @ trace.keys.swapaxes(1, 2) - np.eye(12)).max() < EXACT
    assert trace.error_by_age.max() < EXACT
    error = run("delta", config, 3, beta=0.7).error
    written = ~np.isnan(error)
    assert np.abs(error[written] - theory.orthonormal_error(True, 0.7)).max() < EXACT
    assert theory.orthonormal_error(False, 0.7) == 0
    # Each of the D writes stays as it was: an orthogonal key is untouched.
    assert written.sum() == 3 * 12 * 13 // 2


def test_one_key_many_times() -> None:
    config = BindingsConfig(writes=9, key_dim=6, value_dim=5, geometry="repeated", distinct=1)
    for beta in (1.0, 0.4):
        trace = run("delta", config, 2, beta=beta)
        for n in range(2):
            read = trace.states[n, -1].T @ trace.keys[n, 0]
            assert np.abs(read - theory.delta_repeated_read(trace.values[n], beta)).max() < EXACT
    trace = run("additive", config, 2)
    for n in range(2):
        read = trace.states[n, -1].T @ trace.keys[n, 0]
        assert np.abs(read - theory.additive_repeated_read(trace.values[n])).max() < EXACT


def test_passes_are_the_kaczmarz_iteration() -> None:
    keys, values = draw_bindings(BindingsConfig(writes=4, key_dim=9, value_dim=5), 1, seed=3)
    passes = 120
    trace = write_bindings(DELTA, np.tile(keys, (1, passes, 1)), np.tile(values, (1, passes, 1)))
    solution = theory.least_squares_map(keys[0], values[0])
    distance = np.linalg.norm(trace.states[0, ::4] - solution, axis=(1, 2))
    # A pass is one linear contraction towards the solution, so its norm bounds every pass.
    sweep = np.eye(9)
    for k in keys[0]:
        sweep = sweep - np.outer(k, k) @ sweep
    span = keys[0].T @ np.linalg.pinv(keys[0].T)
    rate = np.linalg.norm(sweep @ span, 2)
    assert rate < 0.95
    assert np.all(distance[1:] <= rate * distance[:-1] + EXACT)
    assert trace.error[0, -1, :4].max() < EXACT


@pytest.mark.parametrize("r", [0.0, 0.3, 0.8])
def test_correlated_keys(r: float) -> None:
    config = BindingsConfig(writes=24, key_dim=12, value_dim=5, geometry="correlated", r=r)
    trace = run("additive", config, 400, seed=4)
    assert np.abs(np.linalg.norm(trace.keys, axis=-1) - 1).max() < EXACT
    assert_mean(trace.keys[:, 0] @ np.ones(12), 0)
    assert_mean((trace.keys[:, 0] * trace.keys[:, 1]).sum(-1), r)
    assert_mean(trace.error_by_age.mean(1), theory.additive_error_correlated(24, 12, r))


def test_delta_beats_additive_where_keys_correlate() -> None:
    config = BindingsConfig(writes=24, key_dim=12, value_dim=5, geometry="correlated", r=0.8)
    delta, additive = (run(rule, config, 50).error_by_age.mean() for rule in ("delta", "additive"))
    assert delta < additive / 4


def test_values_scale_the_error() -> None:
    keys, values = draw_bindings(BindingsConfig(writes=8, key_dim=6, value_dim=5), 2, seed=0)
    one, two = write_bindings(DELTA, keys, values), write_bindings(DELTA, keys, 3 * values)
    assert np.nanmax(np.abs(two.error - 9 * one.error)) < 10 * EXACT
    for age in (0, 5):
        assert theory.delta_error(age, 3, 6, 0.5, s2=9) == pytest.approx(9 * theory.delta_error(age, 3, 6, 0.5))


def test_bindings_depend_on_the_seed_alone() -> None:
    config = BindingsConfig(writes=5, key_dim=6, value_dim=4)
    np.random.seed(0)
    one = draw_bindings(config, 2, seed=(1, 2))
    np.random.seed(1)
    two = draw_bindings(config, 2, seed=(1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert not np.array_equal(one[0], draw_bindings(config, 2, seed=(1, 3))[0])


@pytest.mark.parametrize("name", names())
def test_every_rule_of_the_library_writes(name: str) -> None:
    rule = stateir.load(name)
    config = BindingsConfig(writes=6, key_dim=6, value_dim=4)
    if not roles(rule).keys:
        with pytest.raises(ValueError, match=f"{name} has no key input"):
            interference(rule, config)
        return
    trace = interference(rule, config, repetitions=2)
    assert trace.states.shape == (2, 7, 6, 4) and trace.error.shape == (2, 6, 6)
    assert np.isfinite(trace.states).all() and trace.energy[:, -1].min() > 0
    assert np.array_equal(np.isnan(trace.error[0]), np.triu(np.ones((6, 6), bool), 1))


def test_roles_come_from_the_text() -> None:
    renamed = stateir.parse(
        "rule renamed\ninput a: key unit, b: key unit, c: value, d: scalar in (0, 1)\n"
        "let x = d * b\nupdate S += outer(x, c - b @ S)\nread o = a @ S\n"
    )
    role = roles(renamed)
    assert (role.queries, role.keys, role.values, role.gates) == (("a",), ("b",), ("c",), ("d",))
    config = BindingsConfig(writes=6, key_dim=5, value_dim=4)
    assert np.array_equal(interference(renamed, config).states, interference(DELTA, config).states)


def test_queries_and_arrays_reach_the_rule() -> None:
    config = BindingsConfig(writes=6, key_dim=5, value_dim=4)
    keys, values = draw_bindings(config, 2, seed=0)
    other = draw_bindings(config, 2, seed=1)[0]
    qed = stateir.load("qed")
    b = np.random.default_rng(0).random((2, 6, 5))
    own, asked = (write_bindings(qed, keys, values, queries=q, inputs={"b": b}) for q in (keys, other))
    assert np.abs(own.states - asked.states).max() > 1e-3
    # An array's first element is the binding; zero keys behind it store nothing.
    three = interference(stateir.load("delta_product", n=3), config)
    assert np.abs(three.states - interference(DELTA, config).states).max() < EXACT


def test_open_gates() -> None:
    inf = float("inf")
    ranges = [None, Interval(-inf, 0), Interval(0, 1, True, True), Interval(0, 2), Interval(0, 0.25), Interval(2, inf)]
    assert [open_gate(r) for r in ranges] == [0, 0, 1, 1, 0.25, 2]


def test_errors_name_the_argument() -> None:
    keys, values = np.ones((2, 3, 4)), np.ones((2, 3, 5))
    with pytest.raises(ValueError, match="delta has no input or param 'g'; it has q, k, v, beta"):
        write_bindings(DELTA, keys, values, inputs={"g": 0.0})
    with pytest.raises(ValueError, match=r"delta declares beta in \[0, 1\], got 2"):
        write_bindings(DELTA, keys, values, inputs={"beta": 2.0})
    with pytest.raises(
        ValueError, match=r"values must be \[N, D, V\] with \[N, D\] = \[2, 3\] of keys, got \[2, 2, 5\]"
    ):
        write_bindings(DELTA, keys, values[:, :2])
    with pytest.raises(ValueError, match=r"queries must have the shape of keys, \[2, 3, 4\], got \[2, 3, 5\]"):
        write_bindings(DELTA, keys, values, queries=values)
    with pytest.raises(ValueError, match=r"keys must be \[N, D, dim\] or \[D, dim\], got \[4\]"):
        write_bindings(DELTA, keys[0, 0], values)
    for field, bad in [("writes", 0), ("r", 1.5), ("geometry", "grid"), ("distinct", 0)]:
        with pytest.raises(ValueError, match=f"^{field} must be"):
            BindingsConfig(**{field: bad})
    with pytest.raises(ValueError, match="writes must be at most key_dim = 32 with orthonormal keys, got 64"):
        BindingsConfig(geometry="orthonormal")
