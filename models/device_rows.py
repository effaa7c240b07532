"""Associative recall drawn on a device: the law of `mqar.generate` in PyTorch operations, with no copy and no wait."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from .draw import gap_law
from .mqar import MqarConfig


def draw_mqar(config: MqarConfig, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """(ids [rows, L], places [rows, queries] and the answers there), int64 on the generator's device.

    The same law as `mqar.generate`, from another stream of random numbers. Places are in the order of the keys' last
    writes.
    """
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
