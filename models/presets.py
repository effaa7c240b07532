"""Experiments by name: the published protocols, and those of docs/results.md. `stateir mqar presets` lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from stateir.library import names

from .config import require
from .lab import Experiment
from .mqar import MqarConfig
from .rows import Draw
from .tasks.needle import NeedleConfig
from .tasks.palindrome import PalindromeConfig
from .tasks.parity import ParityConfig
from .tasks.stack import StackConfig
from .tasks.word_problem import WordProblemConfig
from .train_config import TrainConfig
from .zoo import ATTENTION, GATED_CONVOLUTION, SLIDING_WINDOW, ModelConfig, model_of_kind

FRONTIER_RULES = ("additive", "retention", "mamba2", "gla", "delta", "gated_delta", "kda", "gdn2", "qed", "rwkv7")
README_RATES = (1e-3, 3.2e-3, 1e-2, 3.2e-2)


def tiny() -> Experiment:
    """Additive against delta at three state sizes on a small overwriting task: minutes on two CPU cores."""
    task = MqarConfig(length=32, pairs=4, vocab=32, overwrites=4)
    base = TrainConfig(task=task, steps=250, warmup=25, batch=64, eval_every=50, eval_rows=512)
    models = [
        ModelConfig(rule=rule, key_dim=size, value_dim=size) for size in (16, 8, 4) for rule in ("additive", "delta")
    ]
    title = "Overwriting at three state sizes"
    return Experiment("tiny", title, _grid(base, models, (1e-2, 3.2e-2), (0, 1)), figures=("frontier", "lr", "steps"))


def readme(steps: int = 22_600) -> Experiment:
    """The frontier of the public README: a mix of five slices, tested on seven, two of them beyond training."""

    def part(length: int, pairs: int) -> MqarConfig:
        return MqarConfig(length, pairs, 8192, filler="random")

    mix = [part(64, 4), part(128, 8), part(256, 16), part(256, 32), part(256, 64)]
    tests = [(64, 4), (64, 8), (64, 16), (128, 32), (256, 64), (512, 128), (1024, 256)]
    base = TrainConfig(
        task=mix[0], mix=tuple(mix[1:]), weights=(100, 20, 20, 20, 20), tests=tuple(part(*t) for t in tests),
        steps=steps, warmup=steps // 10, batch=256, eval_every=max(1, steps // 4), eval_rows=1000, draw="device",
    )  # fmt: skip
    models = [_hybrid(rule, d) for d in (32, 64, 128) for rule in FRONTIER_RULES]
    models += [_hybrid(ATTENTION, d) for d in (32, 64)]
    models += [_hybrid(SLIDING_WINDOW, 64, window=w) for w in (16, 128)]
    figures = ("frontier", "pairs", "lr")
    return Experiment("readme", "Recall-memory frontier", _grid(base, models, README_RATES), (1, 2), figures)


def frontier() -> Experiment:
    """The README's frontier with a quarter of the steps, on fresh data."""
    return replace(readme(5_600), name="frontier")


def blog(steps: int = 5_000) -> Experiment:
    """The seed blog's plain stack: 64 pairs in 512 tokens, 2 layers and 2 heads, no MLP, fresh data."""
    task = MqarConfig(512, 64, 8192)
    base = TrainConfig(
        task=task, steps=steps, warmup=steps // 10, batch=64, eval_every=max(1, steps // 5), eval_rows=1000,
        draw="device",
    )  # fmt: skip
    sizes = [(ATTENTION, 64), *((rule, d) for rule in ("additive", "delta") for d in (64, 128, 256, 512))]
    models = [
        model_of_kind("plain", rule, hidden=d, heads=2, key_dim=d // 2, value_dim=d // 2, positions=512)
        for rule, d in sizes
    ]
    rates = (1e-4, 4.6e-4, 2.2e-3, 1e-2)
    return Experiment("blog", "Plain stack, 64 pairs in 512 tokens", _grid(base, models, rates), (1, 2),
                      ("frontier", "lr", "steps"))  # fmt: skip


def kimi(task: str, steps: int = 20_000) -> Experiment:
    """One of the three tasks of the Kimi report at lengths from 256 to 2,048: 2 layers, 2 heads of 128."""
    builds: dict[str, Callable[[int], Any]] = {
        "palindrome": lambda n: PalindromeConfig(length=n),
        "mqar": lambda n: MqarConfig(n, n // 8, 8192),
        "stack": lambda n: StackConfig(length=n, stacks=64),
    }
    draw: Draw = "device" if task == "mqar" else "host"
    rules = ("gated_delta", "kda", "mamba2")
    models = [ModelConfig(rule=r, layers=2, hidden=256, heads=2, key_dim=128, value_dim=128) for r in rules]
    configs = [
        c
        for length in (256, 512, 1024, 2048)
        for c in _grid(
            TrainConfig(
                task=builds[task](length), steps=steps, warmup=steps // 20, batch=64, eval_every=max(1, steps // 10),
                eval_rows=256, draw=draw,
            ), models, (3.2e-4, 1e-3, 3.2e-3),
        )
    ]  # fmt: skip
    return Experiment(f"kimi_{task}", f"{task}, by length", tuple(configs), (1, 2), ("length",))


def overwriting() -> Experiment:
    """Every rule of the library on overwriting, three seeds and three learning rates."""
    task = MqarConfig(length=64, pairs=8, vocab=128, overwrites=8)
    base = TrainConfig(task=task, steps=600, warmup=60, batch=64, eval_every=100, eval_rows=1000, draw="device")
    models = [ModelConfig(rule=rule) for rule in (*names(), ATTENTION)]
    title = "Overwriting: 8 keys, each written twice"
    configs = _grid(base, models, (1e-2, 3.2e-2, 1e-1), seeds=(0, 1, 2))
    return Experiment("overwriting", title, configs, figures=("frontier", "lr"))


PAST_RULES = ("gdn2", "qed", "qed_rand", "qed_nogate", "qed_noproj")


def past_window() -> Experiment:
    """Four needles of seven tokens in a cycle: trained to 512 tokens, tested to 16,384, five seeds."""
    tests = (256, 512, 1024, 2048, 4096, 8192, 16384)
    return _past("past_window", (256, 384, 512), tests, needles=4, value_tokens=7, layers=4, size=128, steps=2_000)


def past_window_iid() -> Experiment:
    """`past_window` in independent noise."""
    tests = (256, 512, 1024, 2048, 4096, 8192, 16384)
    return _past(
        "past_window_iid", (256, 384, 512), tests, needles=4, value_tokens=7, layers=4, size=128, steps=2_000,
        noise="iid",
    )  # fmt: skip


def past_window_small() -> Experiment:
    """One needle of three tokens: trained to 64 tokens, tested to 2,048, five seeds, two layers of width 32."""
    tests = (64, 128, 256, 512, 1024, 2048)
    return _past(
        "past_window_small", (24, 32, 48, 64), tests, needles=1, value_tokens=3, layers=2, size=32, steps=800,
        rates=(1e-2, 3.2e-2),
    )  # fmt: skip


def queries_single() -> Experiment:
    """One query, at the end: what a gated convolution can do."""
    return _queries("queries_single", num_queries=1, a=100.0)


def queries_many() -> Experiment:
    """The same rows with a query for each key at many places, by the same budget."""
    return _queries("queries_many", num_queries=None, a=1.0)


def distance() -> Experiment:
    """Accuracy against the distance knob: trained on all of its values, tested on each."""
    knobs = (0.01, 0.1, 1.0, 3.0, 10.0)
    slices = [MqarConfig(256, 16, 256, a=a, filler="random") for a in knobs]
    base = TrainConfig(
        task=slices[0], mix=tuple(slices[1:]), steps=2_000, warmup=200, batch=128, eval_every=500, eval_rows=1000,
        draw="device",
    )  # fmt: skip
    models = [_hybrid(rule, 32) for rule in ("additive", "mamba2", "delta", "gated_delta")]
    configs = _grid(base, models, (3.2e-3, 1e-2, 3.2e-2))
    return Experiment("distance", "Distance of the queries", configs, (1, 2), ("a", "lr"))


def parity() -> Experiment:
    """Parity with beta in [0, 2] against beta in (0, 1): trained to 64 bits, tested to 1,024."""
    slices = [ParityConfig(n) for n in (16, 32, 64)]
    base = TrainConfig(
        task=slices[0], mix=tuple(slices[1:]), tests=tuple(ParityConfig(n) for n in (64, 128, 256, 512, 1024)),
        steps=2_000, warmup=200, batch=128, eval_every=500, eval_rows=1000, draw="device",
    )  # fmt: skip
    models = [ModelConfig(rule=rule, layers=1) for rule in ("delta", "delta_negative")]
    configs = _grid(base, models, (1e-3, 3.2e-3, 1e-2), seeds=(0, 1, 2))
    return Experiment("parity", "Parity, trained to 64 bits", configs, figures=("length", "lr"))


def words(group: str) -> Experiment:
    """The word problem of a group that is not solvable, in one layer: trained to 32 elements, tested to 256.

    A rotation is two reflections, so two delta steps a token can keep A_5, and S_5 needs four (arXiv:2502.10297).
    """
    slices = [WordProblemConfig(n, group) for n in (4, 8, 16, 32)]
    base = TrainConfig(
        task=slices[0], mix=tuple(slices[1:]), tests=tuple(WordProblemConfig(n, group) for n in (8, 16, 32, 64, 128,
        256)), steps=6_000, warmup=600, batch=256, eval_every=2_000, eval_rows=1000, draw="device",
    )  # fmt: skip
    rules = ("delta_product", "delta_negative", "delta", "additive")
    models = [ModelConfig(rule=rule, layers=1, hidden=128, heads=4) for rule in rules]
    title = f"The word problem of {group[0].upper()}_{group[1:]}, trained to 32 elements"
    configs = _grid(base, models, (1e-3, 3.2e-3, 1e-2), seeds=(0, 1, 2))
    return Experiment(f"words_{group}", title, configs, figures=("length", "lr"))


PRESETS: dict[str, Callable[[], Experiment]] = {
    "tiny": tiny,
    "readme": readme,
    "frontier": frontier,
    "blog": blog,
    "kimi_palindrome": partial(kimi, "palindrome"),
    "kimi_mqar": partial(kimi, "mqar"),
    "kimi_stack": partial(kimi, "stack"),
    "overwriting": overwriting,
    "past_window": past_window,
    "past_window_iid": past_window_iid,
    "past_window_small": past_window_small,
    "queries_single": queries_single,
    "queries_many": queries_many,
    "distance": distance,
    "parity": parity,
    "words_a5": partial(words, "a5"),
    "words_s5": partial(words, "s5"),
}


def preset(
    name: str, *, steps: int | None = None, rules: Sequence[str] = (), rates: Sequence[float] = ()
) -> Experiment:
    """The preset of a name, with fewer steps (warmup and evaluations in proportion), rules or learning rates if given.

    Raises:
        ValueError: for an unknown name, or rules or rates that the preset does not have.
    """
    require(name in PRESETS, f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
    experiment = PRESETS[name]()
    configs = list(experiment.configs)
    there = list(dict.fromkeys(c.model.rule for c in configs))
    unknown = [r for r in rules if r not in there]
    require(not unknown, f"rules must be among {', '.join(there)} in {name}, got {', '.join(unknown)}")
    known = sorted({c.lr for c in configs})
    odd = [r for r in rates if r not in known]
    require(not odd, f"rates must be among {known} in {name}, got {odd}")
    configs = [c for c in configs if (not rules or c.model.rule in rules) and (not rates or c.lr in rates)]
    if steps is not None:
        configs = [_shortened(c, steps) for c in configs]
    return replace(experiment, configs=tuple(configs))


def as_run(name: str, configs: Sequence[TrainConfig]) -> Experiment:
    """The preset with the steps that most of these of its runs have, which may be fewer than its own."""
    steps = [c.steps for c in configs]
    return preset(name, steps=max(set(steps), key=steps.count))


def _shortened(config: TrainConfig, steps: int) -> TrainConfig:
    require(steps >= 1, f"steps must be at least 1, got {steps}")
    share = steps / config.steps
    return replace(
        config, steps=steps, warmup=min(steps, round(config.warmup * share)),
        eval_every=max(1, round(config.eval_every * share)),
    )  # fmt: skip


def _grid(
    base: TrainConfig, models: Iterable[ModelConfig], rates: Sequence[float], seeds: Sequence[int] = (0,)
) -> tuple[TrainConfig, ...]:
    """The runs in the order in which they are worth most: all seeds of the first learning rate come first."""
    return tuple(replace(base, model=m, lr=lr, seed=seed) for m in models for lr in rates for seed in seeds)


def _hybrid(rule: str, size: int, **fields: Any) -> ModelConfig:
    return model_of_kind("hybrid", rule, hidden=size, heads=1, key_dim=size, value_dim=size, **fields)


def _past(
    name: str, trained: Sequence[int], tests: Sequence[int], *, needles: int, value_tokens: int, layers: int,
    size: int, steps: int, rates: Sequence[float] = (3.2e-3, 1e-2), noise: str = "cycle",
) -> Experiment:  # fmt: skip
    def part(length: int) -> NeedleConfig:
        return NeedleConfig(length, noise=noise, needles=needles, value_tokens=value_tokens)  # type: ignore[arg-type]

    slices = [part(n) for n in trained]
    base = TrainConfig(
        task=slices[0], mix=tuple(slices[1:]), tests=tuple(part(n) for n in tests), steps=steps, warmup=steps // 10,
        batch=64, eval_every=max(1, steps // 4), eval_rows=256, scalar_lr=10.0, draw="device",
    )  # fmt: skip
    configs: list[TrainConfig] = []
    for rule in PAST_RULES:
        model = ModelConfig(rule=rule, layers=layers, hidden=size, heads=2, key_dim=size // 2, value_dim=size // 2)
        without = ("lam",) if rule == "qed" else ()
        configs += _grid(replace(base, at_lower=without), [model], rates, seeds=range(5))
    title = f"Past the training window of {max(trained)} tokens"
    return Experiment(name, title, tuple(configs), figures=("length", "steps"))


def _queries(name: str, num_queries: int | None, a: float) -> Experiment:
    task = MqarConfig(128, 16, 256, num_queries=num_queries, a=a, filler="random")
    base = TrainConfig(task=task, steps=2_000, warmup=200, batch=128, eval_every=200, eval_rows=1000, draw="device")
    models = [_hybrid(rule, 64) for rule in (ATTENTION, "additive", "delta")]
    models.append(_hybrid(GATED_CONVOLUTION, 64, window=128))
    title = "One query at the end" if num_queries == 1 else "A query for every key"
    return Experiment(name, title, _grid(base, models, (1e-3, 3.2e-3, 1e-2)), (1, 2), ("frontier", "lr", "steps"))
