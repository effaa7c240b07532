"""Rows as training wants them: ids, the places that are asked, and the answers there, drawn anew for every step."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from .config import require
from .device_rows import DRAWS
from .mqar import IGNORE, Rows
from .tasks import TASKS, task_of

# The first number of every data seed, so that held-out rows are never training rows.
TRAIN, HELD_OUT = 0, 1
Draw: TypeAlias = Literal["host", "device"]


class Asked(NamedTuple):
    """ids [B, T]; places and targets [B, N] int64, N the most that is asked in a row; -100 fills shorter rows."""

    ids: Tensor
    places: Tensor
    targets: Tensor


def asked(rows: Rows) -> Asked:
    """The places of a row's labels and the labels there."""
    labelled = rows.labels != IGNORE
    count = max(1, int(labelled.sum(axis=1).max()))
    # A stable sort of "not asked" brings the asked places to the front and keeps their order.
    places = np.argsort(~labelled, axis=1, kind="stable")[:, :count]
    targets = np.take_along_axis(rows.labels, places, axis=1)
    return Asked(torch.from_numpy(rows.inputs), torch.from_numpy(places), torch.from_numpy(targets))


def seed_number(seed: tuple[int, ...]) -> int:
    """What a generator on a device is seeded with for a data seed."""
    return int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1)


def draw_on(task: Any, rows: int, generator: torch.Generator) -> Asked:
    """Rows drawn on the generator's device; a CUDA graph can hold the draw."""
    require(type(task) in DRAWS, f"draw 'device' is there for {', '.join(task_of(t()) for t in DRAWS)}, got "
            f"{task_of(task)}; use 'host'")  # fmt: skip
    return Asked(*DRAWS[type(task)](task, rows, generator))


def draw(task: Any, rows: int, seed: tuple[int, ...], where: Draw, device: torch.device) -> Asked:
    """Rows of a task's configuration on `device`.

    where: "host" draws with numpy, the same bytes on every machine; "device" on the device itself, where a seed fixes
        the rows for one kind of device and PyTorch version.
    """
    if where == "device":
        return draw_on(task, rows, torch.Generator(device).manual_seed(seed_number(seed)))
    found = asked(TASKS[task_of(task)].generate(task, rows, seed))
    if device.type == "cuda":
        return Asked(*(x.pin_memory().to(device, non_blocking=True) for x in found))
    return found
