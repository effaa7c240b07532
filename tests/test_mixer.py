"""The layer derived from declarations: ranges, start values, decode, and the bytes that it carries."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import stateir
from stateir.ir import Axis, Input, Interval
from stateir.library import names
from stateir.models.activation import FASTEST, SLOWEST, RangeActivation
from stateir.models.attention import Attention
from stateir.models.conv import ShortConvolution
from stateir.models.gated_convolution import GatedConvolution
from stateir.models.mixer import Mixer, is_content
from stateir.models.parameters import RuleParameter
from stateir.models.state_size import carried_bytes, state_bytes, state_elements, with_state_bytes
from stateir.models.zoo import BASELINES, Model, ModelConfig, load_rule, model_of_kind

K, V, H, HIDDEN = 6, 5, 3, 16


def mixer(name: str, **constants: float) -> Mixer:
    torch.manual_seed(0)
    return Mixer(stateir.load(name, **constants), HIDDEN, H, K, V)


def rule_of(declaration: str) -> stateir.ir.Rule:
    """A rule with one more declaration, which nothing reads."""
    return stateir.parse(
        f"rule r\ninput q: key, k: key, v: value\n{declaration}\nupdate S += outer(k, v)\nread o = q @ S\n"
    )


def inside(x: torch.Tensor, interval: Interval | None) -> bool:
    if interval is None:
        return True
    over = (x > interval.lo) if interval.lo_open else (x >= interval.lo)
    under = (x < interval.hi) if interval.hi_open else (x <= interval.hi)
    return bool((over & under).all())


@pytest.mark.parametrize("name", names())
def test_every_rule_of_the_library_keeps_its_claims(name: str) -> None:
    """Every input and param that the layer makes lies where the rule says and has the operator's shape."""
    layer = mixer(name)
    tensors, _ = layer.arguments(3 * torch.randn(2, 7, HIDDEN))
    dims = {Axis.SCALAR: (), Axis.KEY: (K,), Axis.VALUE: (V,), Axis.PAIR: (K // 2,)}
    for d in (*layer.rule.inputs, *layer.rule.params):
        x = tensors[d.name]
        size = () if d.size is None else (d.size,)
        lead = (2, 7, H) if isinstance(d, Input) else (H,)
        assert x.shape == (*lead, *size, *dims[d.axis]), d.name
        assert inside(x, d.range), d.name
        if d.unit:
            assert ((x.norm(dim=-1) - 1).abs() < 1e-3).all(), d.name
    assert set(tensors) == {d.name for d in (*layer.rule.inputs, *layer.rule.params)}


@pytest.mark.parametrize("name", names())
def test_every_rule_of_the_library_runs_and_learns(name: str) -> None:
    """Output and gradients of all trained numbers are finite; nothing is left out of the graph."""
    layer = mixer(name)
    y, cache = layer(torch.randn(2, 9, HIDDEN))
    assert y.shape == (2, 9, HIDDEN)
    assert cache is None
    y.square().sum().backward()
    for parameter_name, p in layer.named_parameters():
        assert p.grad is not None, parameter_name
        assert p.grad.isfinite().all(), parameter_name


@pytest.mark.parametrize(
    ("declared", "interval"),
    [
        ("in [0, 1]", Interval(0, 1)),
        ("in (0, 1)", Interval(0, 1, True, True)),
        ("in [0, 2]", Interval(0, 2)),
        ("in [-2, 3]", Interval(-2, 3)),
        ("in [-4, 0]", Interval(-4, 0)),
        ("in (-inf, 0]", Interval(-math.inf, 0, True)),
        ("in [0, inf)", Interval(0, math.inf, False, True)),
        ("in [1, inf)", Interval(1, math.inf, False, True)),
        ("in (-inf, 2]", Interval(-math.inf, 2, True)),
    ],
)
def test_activation_fills_its_range(declared: str, interval: Interval) -> None:
    """The whole of a range is reached (half lines: far out), and nothing outside of it."""
    declaration = rule_of(f"input g: key {declared}").inputs[-1]
    assert (declaration.range.lo, declaration.range.hi) == (interval.lo, interval.hi)  # type: ignore[union-attr]
    activation = RangeActivation(declaration, H, (K,)).double()
    x = torch.linspace(-40, 40, 4001, dtype=torch.float64)[:, None, None].expand(-1, H, K)
    y = activation(x)
    assert ((y >= interval.lo) & (y <= interval.hi)).all()
    lo = -30 if interval.lo == -math.inf else interval.lo
    hi = 30 if interval.hi == math.inf else interval.hi
    assert y.min() <= lo + 1e-6
    assert y.max() >= hi - 1e-6


def test_decays_start_near_one() -> None:
    """At a zero projection log decays lie evenly, on a log scale, between -0.001 and -0.1; one alone is -0.01."""
    zero = torch.zeros(1, H, K)
    for text in ("in (-inf, 0]", "in [-5, 0]"):
        g = RangeActivation(rule_of(f"input g: key {text}").inputs[-1], H, (K,))(zero)
        expected = torch.exp(torch.linspace(math.log(SLOWEST), math.log(FASTEST), H * K)).reshape(1, H, K)
        torch.testing.assert_close(-g, expected, rtol=1e-5, atol=0)
    alone = RangeActivation(rule_of("input g: scalar in (-inf, 0]").inputs[-1], 1, ())(torch.zeros(1, 1))
    torch.testing.assert_close(alone, torch.full((1, 1), -0.01))


@pytest.mark.parametrize(
    ("declaration", "expected"),
    [
        ("param a: scalar in [0, 0.25] = 0.25 * sigmoid(-2)", [0.25 / (1 + math.exp(2))] * H),
        ("param a: scalar in (0, 1) = 1 - 2^(-5 - head)", [1 - 2.0 ** (-5 - h) for h in range(H)]),
        ("param a: scalar fixed in (0, 1) = 1 - 2^(-5 - head)", [1 - 2.0 ** (-5 - h) for h in range(H)]),
        ("param a: scalar = 0.02", [0.02] * H),
        ("param a: scalar = -1 / sqrt(dim(key))", [-1 / math.sqrt(K)] * H),
        ("param a: scalar in (-inf, 0) = -(head + 1)", [-1.0, -2.0, -3.0]),
        ("param a: scalar in [2, inf) = 2.5", [2.5] * H),
        ("param a: scalar in [-1, 3] = exp(0) * max(0, 2)", [2.0] * H),
        ("param a: scalar in [0, 1]", [0.5] * H),
    ],
)
def test_params_start_where_the_rule_says(declaration: str, expected: list[float]) -> None:
    param = rule_of(declaration).params[0]
    dims = {Axis.SCALAR: 1, Axis.KEY: K, Axis.VALUE: V, Axis.PAIR: K // 2}
    module = RuleParameter(param, H, dims, torch.Generator().manual_seed(0))
    # fp32: the raw number and the value are each rounded once.
    torch.testing.assert_close(module().detach(), torch.tensor(expected), rtol=1e-6, atol=1e-7)
    assert len(list(module.parameters())) == (0 if param.fixed else 1)


@pytest.mark.parametrize("text", ["in [0, 1]", "in [0, inf)", "in (-inf, 0]", "unit"])
def test_trained_params_stay_in_range(text: str) -> None:
    """However far an optimiser pushes the raw numbers."""
    param = rule_of(f"param a: key {text}").params[0]
    dims = {Axis.SCALAR: 1, Axis.KEY: K, Axis.VALUE: V, Axis.PAIR: K // 2}
    module = RuleParameter(param, H, dims, torch.Generator().manual_seed(0))
    for shift in (-30.0, 30.0):
        with torch.no_grad():
            module.raw += shift
        assert inside(module(), param.range)
        if param.unit:
            torch.testing.assert_close(module().norm(dim=-1), torch.ones(H), rtol=1e-4, atol=0)


def test_fixed_unit_params_come_from_the_seed() -> None:
    rule = stateir.load("qed_rand")
    a, b, c = (Mixer(rule, HIDDEN, H, K, V, seed=seed).params["param_u"]().clone() for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    torch.testing.assert_close(a.norm(dim=-1), torch.ones(H))
    assert "params.param_u.raw" in Mixer(rule, HIDDEN, H, K, V).state_dict()
    assert "params.param_u.raw" not in dict(Mixer(rule, HIDDEN, H, K, V).named_parameters())


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        ("param a: scalar in [0, 1] = 0", "param a starts at 0 .. 0; a trained param must start strictly inside"),
        ("param a: scalar fixed in [0, 1]", "param a is fixed, not unit, and has no start value"),
        ("input a: key unit in [0, 0.5]", "input a: no activation keeps a unit vector in"),
    ],
)
def test_what_has_no_layer_is_refused(declaration: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mixer(rule_of(declaration), HIDDEN, H, K, V)


def test_unit_matches_the_language_at_zero() -> None:
    """A zero vector stays zero with a finite gradient: the eps stands inside the root."""
    declared = rule_of("input a: key unit").inputs[-1]
    x = torch.zeros(1, H, K, requires_grad=True)
    y = RangeActivation(declared, H, (K,))(x)
    y.sum().backward()
    assert torch.equal(y, torch.zeros_like(y))
    torch.testing.assert_close(x.grad, torch.full_like(x, 1e3))


def test_no_branch_on_a_rules_name() -> None:
    """A rule renamed, declarations and all, gives the same layer."""
    rule = stateir.load("qed")
    torch.manual_seed(0)
    a = Mixer(rule, HIDDEN, H, K, V)
    torch.manual_seed(0)
    b = Mixer(replace(rule, name="anything", title=""), HIDDEN, H, K, V)
    x = torch.randn(2, 5, HIDDEN)
    assert torch.equal(a(x)[0], b(x)[0])


def test_content_is_what_has_no_range() -> None:
    content = {
        name: [i.name for i in stateir.load(name).inputs if is_content(i)] for name in ("qed", "rwkv7", "mamba2")
    }
    assert content == {"qed": ["q", "k", "v"], "rwkv7": ["r", "k", "kappa", "v"], "mamba2": ["C", "B", "x"]}


def test_convolution_is_causal_and_matches_torch() -> None:
    conv = ShortConvolution(7, 4).double()
    x = torch.randn(2, 11, 7, dtype=torch.float64)
    y, window = conv(x)
    reference = torch.nn.functional.conv1d(
        torch.nn.functional.pad(x.transpose(1, 2), (3, 0)), conv.weight[:, None], groups=7
    )
    torch.testing.assert_close(y, torch.nn.functional.silu(reference.transpose(1, 2)), rtol=1e-13, atol=1e-13)
    assert torch.equal(window, x[:, -3:])


def _layer(name: str) -> Mixer | Attention:
    torch.manual_seed(0)
    return (Attention(HIDDEN, H, K, V) if name == "attention" else mixer(name)).double()


@pytest.mark.parametrize("name", ["attention", *names()])
def test_decode_equals_the_full_pass(name: str) -> None:
    """Token by token, and in pieces of 1, 3 and 7 tokens, the outputs are those of the whole sequence."""
    layer, x = _layer(name), torch.randn(2, 11, HIDDEN, dtype=torch.float64)
    whole, end = layer(x, return_cache=True)
    cache, pieces = None, []
    for t in range(11):
        y, cache = layer.step(x[:, t], cache)
        pieces.append(y)
    # float64; a state of norm up to about 10 over 11 tokens, and the per-head norm divides by what is left of it.
    torch.testing.assert_close(torch.stack(pieces, 1), whole, rtol=1e-9, atol=1e-9)
    for a, b in zip(cache.tensors(), end.tensors(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    cache, pieces = None, []
    for part in x.split([1, 3, 7], 1):
        y, cache = layer(part, cache, return_cache=True)
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-9, atol=1e-9)


def test_steps_leave_the_cache_they_were_given() -> None:
    layer, x = mixer("qed"), torch.randn(2, 4, HIDDEN)
    _, cache = layer(x, return_cache=True)
    before = [t.clone() for t in cache.tensors()]
    layer.step(x[:, 0], cache)
    assert all(torch.equal(a, b) for a, b in zip(before, cache.tensors(), strict=True))


def _model(name: str, **fields: Any) -> Model:
    torch.manual_seed(0)
    window = {"sliding_window": 4, "gated_convolution": 20}.get(name, 0)
    config = ModelConfig(
        rule=name, layers=2, hidden=HIDDEN, heads=H, key_dim=K, value_dim=V, window=window, **fields
    )  # fmt: skip
    return Model(config, load_rule(config), 20)


@pytest.mark.parametrize("fields", [{}, {"conv": 1, "gate": "none", "gated_conv": 3}], ids=["zoo", "hybrid"])
@pytest.mark.parametrize("name", [*BASELINES, *names()])
def test_state_bytes_are_what_is_carried(name: str, fields: dict[str, Any]) -> None:
    model = _model(name, **fields)
    _, cache = model(torch.randint(20, (3, 9)), return_cache=True)
    assert carried_bytes(cache) == state_bytes(model.config, model.rule, 9)


def test_a_window_that_is_not_full_is_counted_as_it_is() -> None:
    model = _model("sliding_window")
    _, cache = model(torch.randint(20, (3, 2)), return_cache=True)
    assert carried_bytes(cache) == state_bytes(model.config, None, 2) < state_bytes(model.config, None, 9)


@pytest.mark.parametrize("name", ["attention", "sliding_window", "gated_convolution", "delta", "mamba2"])
def test_state_within_a_budget(name: str) -> None:
    """The largest that fits: it carries no more than the budget, and a little more would not fit."""
    model = _model(name)
    budget = 7_000 if model.config.window else 12_000
    found = with_state_bytes(model.config, model.rule, 64, budget)
    names = ["window"] if model.config.window else ["key_dim", "value_dim"]
    wider = replace(found, **{name: getattr(found, name) + 2 for name in names})
    assert state_bytes(found, model.rule, 64) <= budget < state_bytes(wider, model.rule, 64)
    with pytest.raises(ValueError, match="budget must be at least"):
        with_state_bytes(model.config, model.rule, 64, -1)


def test_a_sliding_window_sees_its_window_alone() -> None:
    """The output depends on the last `window` tokens alone, and is attention's while the row is shorter."""
    torch.manual_seed(0)
    layer = Attention(HIDDEN, H, K, V, conv=1, window=4).double()
    x = torch.randn(1, 12, HIDDEN, dtype=torch.float64)
    other = torch.cat([torch.randn(1, 6, HIDDEN, dtype=torch.float64), x[:, 6:]], 1)
    a, b = layer(x)[0], layer(other)[0]
    torch.testing.assert_close(a[:, 9:], b[:, 9:], rtol=1e-12, atol=1e-12)
    assert (a[:, 8] - b[:, 8]).abs().max() > 1e-6
    full = Attention(HIDDEN, H, K, V, conv=1).double()
    full.load_state_dict(layer.state_dict())
    torch.testing.assert_close(full(x[:, :4])[0], layer(x[:, :4])[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("width", [1, 3, 20])
def test_gated_convolution_is_the_sum_it_says(width: int) -> None:
    """Both ways of convolving, the sum and the transform, against the definition."""
    torch.manual_seed(0)
    layer = GatedConvolution(5, width).double()
    x = torch.randn(2, 9, 5, dtype=torch.float64)
    expected = torch.zeros_like(x)
    for t in range(9):
        for i in range(width):
            if t - i >= 0:
                expected[:, t] += layer.weight[:, width - 1 - i] * x[:, t - i]
    expected = layer.project(x) * (expected + layer.bias)
    torch.testing.assert_close(layer(x)[0], expected, rtol=1e-12, atol=1e-12)


def test_model_kinds() -> None:
    hybrid = model_of_kind("hybrid", "delta", hidden=8)
    assert (hybrid.layers, hybrid.gated_conv, hybrid.conv, hybrid.gate) == (2, 3, 1, "none")
    assert model_of_kind("zoo", "delta") == ModelConfig(rule="delta")
    for kind, fields, message in [
        ("plain", {}, "positions must be positive in a plain model, got 0"),
        ("other", {}, "kind must be one of"),
        ("zoo", {"window": 3}, "window must be 0 with delta, got 3"),
    ]:
        with pytest.raises(ValueError, match=message):
            model_of_kind(kind, "delta", **fields)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="window must be at least 1 with sliding_window"):
        ModelConfig(rule="sliding_window")


def test_state_elements_of_a_known_model() -> None:
    """DeltaNet, 2 layers of width 32: 2 (32^2 + 3 * 96) numbers, S apart from the three convolution windows."""
    elements = state_elements(ModelConfig(rule="delta", layers=2), stateir.load("delta"), 64)
    assert elements == {"state": 2 * 32 * 32, "convolution": 2 * 3 * 96}


@pytest.mark.parametrize("fields", [{"mlp": 8}, {"conv": 1, "gate": "none", "gated_conv": 3, "positions": 8}])
@pytest.mark.parametrize("name", [*BASELINES, "qed"])
def test_model_step_equals_forward(name: str, fields: dict[str, Any]) -> None:
    model = _model(name, **fields).double()
    ids = torch.randint(20, (2, 8))
    whole, _ = model(ids)
    cache, logits = None, []
    for t in range(8):
        y, cache = model.step(ids[:, t], cache, position=t)
        logits.append(y)
    torch.testing.assert_close(torch.stack(logits, 1), whole, rtol=1e-9, atol=1e-9)
    first, cache = model(ids[:, :5], return_cache=True)
    second, _ = model(ids[:, 5:], cache, start=5)
    torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=1e-9, atol=1e-9)


def test_a_row_beyond_the_learned_positions_is_refused() -> None:
    with pytest.raises(ValueError, match="ids must end before position 8"):
        _model("delta", positions=8)(torch.zeros(1, 9, dtype=torch.int64))


@pytest.mark.parametrize("name", ["attention", "qed", "rwkv6"])
def test_the_future_does_not_reach_back(name: str) -> None:
    layer, x = _layer(name), torch.randn(2, 9, HIDDEN, dtype=torch.float64)
    other = torch.cat([x[:, :5], torch.randn(2, 4, HIDDEN, dtype=torch.float64)], 1)
    torch.testing.assert_close(layer(x)[0][:, :5], layer(other)[0][:, :5], rtol=1e-12, atol=1e-12)


def test_array_constants_reach_the_layer() -> None:
    layer = mixer("delta_product", n=3)
    tensors, _ = layer.arguments(torch.randn(1, 4, HIDDEN))
    assert tensors["k"].shape == (1, 4, H, 3, K)
    assert tensors["beta"].shape == (1, 4, H, 3)
