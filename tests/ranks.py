"""Processes of a gloo group for tests: `on_ranks` runs a function of this file's users in each and gives what it returns."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from typing import Any

import torch
import torch.distributed as dist


def on_ranks(count: int, job: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What job(*arguments) returns on each of `count` ranks. An exception in one is raised here."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = get_context("spawn")
    queue = context.SimpleQueue()
    workers = [context.Process(target=_work, args=(rank, count, port, queue, job, arguments)) for rank in range(count)]
    for worker in workers:
        worker.start()
    found: dict[int, Any] = {}
    try:
        for _ in workers:
            rank, result, error = queue.get()
            if error is not None:
                raise AssertionError(f"rank {rank}: {error}")
            found[rank] = pickle.loads(result)
    finally:
        for worker in workers:
            if len(found) < count:
                worker.terminate()
            worker.join()
    return [found[rank] for rank in range(count)]


def _work(rank: int, count: int, port: int, queue: Any, job: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    import traceback

    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(count)}
    try:
        dist.init_process_group("gloo", rank=rank, world_size=count, timeout=timedelta(seconds=60))
        # Plain bytes: a tensor in a queue is memory of a process that may have ended by the time it is read.
        queue.put((rank, pickle.dumps(job(*arguments)), None))
        dist.destroy_process_group()
    except Exception:
        queue.put((rank, None, traceback.format_exc()))
