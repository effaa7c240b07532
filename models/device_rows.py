"""Rows drawn on a device: the laws of the tasks' `generate` in PyTorch operations, with no copy and no wait.

Each function takes (config, rows, generator) and gives (ids [rows, L], places [rows, N], the answers there), int64 on
the generator's device. They draw from another stream of random numbers than `generate`, so the law is the same and the
rows are not. All shapes depend on (config, rows) alone: a CUDA graph can hold a draw.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .draw import gap_law
from .mqar import MqarConfig
from .tasks.needle import NeedleConfig
from .tasks.parity import ParityConfig
from .tasks.word_problem import WordProblemConfig, table


def draw_mqar(config: MqarConfig, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """N is the queries; places are in the order of the keys' last writes."""
    device, half, D = generator.device, config.vocab // 2, config.pairs
    keys = 1 + _distinct(rows, half - 1, D, generator)
    values = half + _distinct(rows, half, D + config.overwrites, generator)
    order, last = _writes(config, rows, generator)
    answers = values.gather(1, last)
    chosen = torch.arange(D, device=device).expand(rows, D)
    if config.queries < D:
        chosen = _distinct(rows, D, config.queries, generator).sort(1).values
    places = config.context + 2 * _gaps(config, rows, generator)

    ids = torch.zeros(rows, config.length, dtype=torch.int64, device=device)
    ids[:, 0 : config.context : 2] = keys.gather(1, order)
    ids[:, 1 : config.context : 2] = values
    ids.scatter_(1, places, keys.gather(1, chosen))
    return _fill(ids, keys, values, config, generator), places, answers.gather(1, chosen)


def draw_needle(config: NeedleConfig, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """N is the tokens of a value."""
    device, size, needles = generator.device, config.noise_tokens, config.needles
    draw = functools.partial(torch.randint, generator=generator, device=device)
    steps = torch.arange(size, device=device)
    if config.noise == "cycle":
        noise = (draw(config.noise_vocab, (rows, 1)) + steps) % config.noise_vocab
    else:
        noise = draw(config.noise_vocab, (rows, size))
    codes = _distinct(rows, config.key_vocab**config.key_tokens, needles, generator)
    digits = [codes // config.key_vocab**place % config.key_vocab for place in reversed(range(config.key_tokens))]
    values = draw(config.value_vocab, (rows, needles, config.value_tokens))
    points = draw(size + 1, (rows, needles))
    if config.depth is not None:
        points[:, 0].fill_(round(config.depth * size))

    first = config.noise_vocab + 2
    texts = torch.cat([torch.stack(digits, -1) + first, values + first + config.key_vocab], -1)
    order = points.argsort(dim=1, stable=True)
    before = points.gather(1, order)
    starts = before + config.needle_tokens * torch.arange(needles, device=device)
    # What no scatter below writes to is the marker before each needle, and the Q of the question.
    ids = torch.full((rows, config.length), config.noise_vocab, device=device)
    passed = (before[:, :, None] <= steps).sum(1)
    ids.scatter_(1, steps + config.needle_tokens * passed, noise)
    tokens = torch.arange(1, config.needle_tokens, device=device)
    in_order = texts.gather(1, order[:, :, None].expand_as(texts))
    ids.scatter_(1, (starts[:, :, None] + tokens).flatten(1), in_order.flatten(1))
    end = config.length - config.question_tokens
    ids[:, end].fill_(config.noise_vocab + 1)
    ids[:, end + 1 :] = texts[:, 0, :-1]
    places = torch.arange(config.length - config.value_tokens, config.length, device=device).expand(rows, -1)
    return ids, places, texts[:, 0, config.key_tokens :]


def draw_parity(config: ParityConfig, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """N is the length."""
    bits = torch.randint(2, (rows, config.length), generator=generator, device=generator.device)
    return bits, _everywhere(bits), bits.cumsum(1) % 2


def draw_word_problem(
    config: WordProblemConfig, rows: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """N is the length. The products are a parallel prefix of log2(length) steps."""
    order = config.tokens
    elements = torch.randint(order, (rows, config.length), generator=generator, device=generator.device)
    flat = _group(config.group, generator.device)
    products, apart = elements, 1
    while apart < config.length:
        joined = flat[products[:, apart:] * order + products[:, :-apart]]
        products, apart = torch.cat([products[:, :apart], joined], 1), 2 * apart
    return elements, _everywhere(elements), products


DRAWS: dict[type[Any], Callable[[Any, int, torch.Generator], tuple[Tensor, Tensor, Tensor]]] = {
    MqarConfig: draw_mqar,
    NeedleConfig: draw_needle,
    ParityConfig: draw_parity,
    WordProblemConfig: draw_word_problem,
}


def _everywhere(ids: Tensor) -> Tensor:
    return torch.arange(ids.shape[1], device=ids.device).expand_as(ids)


@functools.cache
def _group(group: str, device: torch.device) -> Tensor:
    """The group's table as one row, made once as `_log_law` is."""
    return torch.from_numpy(table(group)).flatten().to(device)


def _distinct(rows: int, ids: int, count: int, generator: torch.Generator) -> Tensor:
    """[rows, count] of 0 .. ids-1, without repetition in a row, every ordered choice equally likely."""
    # float64: equal draws, which would favour low ids, do not happen.
    noise = torch.rand(rows, ids, generator=generator, device=generator.device, dtype=torch.float64)
    return noise.topk(count, dim=1).indices


def _gaps(config: MqarConfig, rows: int, generator: torch.Generator) -> Tensor:
    """[rows, queries] gaps by their law, as if drawn one after the other: log p + Gumbel noise, largest first."""
    uniform = torch.rand(rows, config.space, generator=generator, device=generator.device, dtype=torch.float64)
    noise = -torch.log(-torch.log(uniform.clamp_min(torch.finfo(torch.float64).tiny)))
    return (_log_law(config.space, config.a, generator.device) + noise).topk(config.queries, dim=1).indices


@functools.cache
def _log_law(space: int, a: float, device: torch.device) -> Tensor:
    """Made once: a copy to the device at every step would wait for it."""
    return torch.log(torch.from_numpy(gap_law(space, a))).to(device)


def _writes(config: MqarConfig, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The key of each write [rows, D+U], and the last write of each key [rows, D]; keys are numbered by the latter."""
    D, writes, device = config.pairs, config.pairs + config.overwrites, generator.device
    index = torch.arange(writes, device=device).expand(rows, writes)
    if config.overwrites == 0:
        return index, index
    order = (index % D).gather(1, _distinct(rows, writes, writes, generator))
    last = torch.zeros(rows, D, dtype=torch.int64, device=device).scatter_reduce_(1, order, index, "amax")
    rank = last.argsort(1).argsort(1)
    return rank.gather(1, order), last.sort(1).values


def _fill(ids: Tensor, keys: Tensor, values: Tensor, config: MqarConfig, generator: torch.Generator) -> Tensor:
    if config.filler == "zero":
        return ids
    if config.filler == "token":
        return torch.where(ids == 0, config.vocab, ids)
    used = torch.cat([keys, values], 1).sort(1).values
    free = config.vocab - (used.shape[1] if config.filler == "random" else 0)
    drawn = torch.randint(free, ids.shape, generator=generator, device=ids.device)
    if config.filler == "random":
        # The r-th free id is r plus the number of used ids at or below it.
        below = used - torch.arange(used.shape[1], device=ids.device)
        drawn = drawn + torch.searchsorted(below.contiguous(), drawn, right=True)
    return torch.where(ids == 0, drawn, ids)
