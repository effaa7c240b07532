"""What training and serving wait for, as data, on one GPU in under 4 minutes.

    python benchmarks/serving.py --out benchmarks/results [--seconds 230] [--parts cold,memory,decode,packed,peer]

Writes serving.json, after each measurement, each part with card, versions and date; parts that are not run are kept:

    cold     seconds of the first forward and backward of a rule: a fresh process, no compiled kernel, no verdict on
             disk; with the check of the kernels on first use, for one rule without; import and start of the GPU apart
    memory   milliseconds and peak MiB (beyond inputs and their gradients) of forward and backward, by `recompute`
    decode   microseconds of a step and GB/s (bytes of the state, read and written) by batch: eager and in a CUDA
             graph of ten steps; beside the card's copy bandwidth (small states stay in the card's cache, above it)
    packed   milliseconds of forward and backward of sequences of equal length, packed and one by one
    peer     cold seconds and peak MiB of flash-linear-attention (benchmarks/peer.py says how it is called), in the time
             that is left; what is not done by then is written with the seconds that were not enough

Cold starts run --at-once at a time, the peer's all at once, everything else alone. The peer tunes for minutes: give it
a run of its own, `--parts peer --seconds 400`, where its peak memory is wanted. `--device cpu --small` tries it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
COLD = ("gated_delta", "kda", "gdn2", "qed", "rwkv7", str(HERE.parent / "examples" / "two_erases.rule"))
TRAINED = ("kda", "gdn2", "qed")
UNCHECKED = ("gdn2",)
DECODED = ("kda", "gdn2")
PACKED = ("gdn2",)
PARTS = ("cold", "memory", "decode", "packed", "peer")
Record = dict[str, Any]


class Report:
    """serving.json, and the processes that fill it."""

    def __init__(self, options: argparse.Namespace) -> None:
        from gpu_report import environment

        self.options, self.file = options, options.out / "serving.json"
        self.deadline = time.monotonic() + options.seconds
        kept = json.loads(self.file.read_text()) if self.file.exists() else {}
        self.found: Record = kept
        shape = (
            "B1 T128 H1 K16 V16 float32; packed: T64"
            if options.small
            else "B8 T4096 H16 K128 V128 bfloat16; packed: B1 T16384"
        )
        self.where = {"environment": environment(), "shape": shape}
        self.lock = threading.Lock()
        self.folder = Path(tempfile.mkdtemp())

    def put(self, change: Callable[[Record], None]) -> None:
        with self.lock:
            change(self.found)
            self.file.write_text(json.dumps(self.found, indent=1) + "\n")

    def child(self, part: str, rule: str, side: str, put: Callable[[Record], None], fresh: str | None = None) -> None:
        """Run a child to its end or the deadline; every record goes to `put`, and why there are no more."""
        env = dict(os.environ)
        if fresh:
            env |= {"TRITON_CACHE_DIR": str(self.folder / fresh / "triton"), "XDG_CACHE_HOME": str(self.folder / fresh)}
        if side == "unchecked":
            env["STATEIR_FIRST_USE"] = "0"
        if side == "peer":
            env["FLA_CACHE_RESULTS"] = "0"
        command = [sys.executable, str(HERE / "serving_child.py"), part, rule, "peer" if side == "peer" else "ours"]
        command += ["--device", self.options.device, *(["--small"] if self.options.small else [])]
        left = self.deadline - time.monotonic()
        if left <= 0:
            self.put(lambda _: put({"error": "not begun: no time was left"}))
            return
        with (self.folder / f"{part}-{Path(rule).stem}-{side}.log").open("w+") as log:
            job = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=log, text=True)
            timer = threading.Timer(left, job.kill)
            timer.start()
            assert job.stdout is not None
            for line in job.stdout:
                if line.startswith("{"):
                    record = json.loads(line)
                    self.put(lambda _, record=record: put(record))  # type: ignore[misc]
            code = job.wait()
            timer.cancel()
            if code:
                log.seek(0)
                said = (log.read().strip().splitlines() or [""])[-1][:300]
                late = time.monotonic() >= self.deadline
                why = {"more_than_s": round(left)} if late else {"error": said or f"exit code {code}"}
                self.put(lambda _: put(why))

    def jobs(self) -> Iterator[tuple[int, list[tuple[str, Callable[[], None]]]]]:
        """Groups of jobs, and how many of a group run at a time."""
        parts, only = self.options.parts.split(","), self.options.rules

        def chosen(name: str) -> bool:
            return only is None or name in only.split(",")

        if "cold" in parts:
            cold: Record = {}
            self.found["cold"] = {**self.where, "at_once": self.options.at_once, "rules": cold}
            pairs = [(r, "checked") for r in COLD if chosen(r)] + [(r, "unchecked") for r in UNCHECKED if chosen(r)]
            yield self.options.at_once, [self._cold(cold, r, s) for r, s in pairs]
        if "memory" in parts:
            memory: Record = {}
            self.found["memory"] = {**self.where, "rules": memory}
            yield 1, [self._rows("memory", r, memory.setdefault(r, [])) for r in TRAINED if chosen(r)]
        if "decode" in parts:
            decode: list[Record] = []
            self.found["decode"] = {**self.where, "rows": decode}
            copies = [self._rows("copy", "additive", decode)] if self.options.device == "cuda" else []
            yield 1, copies + [self._rows("decode", r, decode) for r in DECODED if chosen(r)]
        if "packed" in parts:
            packed: Record = {}
            self.found["packed"] = {**self.where, "rules": packed}
            yield 1, [self._rows("packed", r, packed.setdefault(r, [])) for r in PACKED if chosen(r)]
        if "peer" in parts:
            names = [r for r in TRAINED if chosen(r)]
            peer: Record = {}
            self.found["peer"] = {**self.where, "at_once": len(names), "rules": peer}
            yield max(1, len(names)), [self._peer(peer, r) for r in names]

    def _cold(self, cold: Record, rule: str, side: str) -> tuple[str, Callable[[], None]]:
        mine = cold.setdefault(Path(rule).stem, {}).setdefault(side, {})
        return f"cold {Path(rule).stem} {side}", lambda: self.child(
            "cold", rule, side, mine.update, f"{Path(rule).stem}-{side}"
        )

    def _peer(self, peer: Record, rule: str) -> tuple[str, Callable[[], None]]:
        mine = peer.setdefault(rule, {})
        return f"peer {rule}", lambda: self.child("cold", rule, "peer", mine.update, f"{rule}-peer")

    def _rows(self, part: str, rule: str, rows: list[Record]) -> tuple[str, Callable[[], None]]:
        return f"{part} {rule}", lambda: self.child(part, rule, "ours", rows.append)

    def run(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = TextColumn("{task.description:<32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        with Progress(*columns, console=Console(stderr=True)) as progress:
            bar = progress.add_task("", total=0)
            for at_once, group in self.jobs():
                progress.update(bar, total=(progress.tasks[0].total or 0) + len(group), description=group[0][0])
                with ThreadPoolExecutor(at_once) as pool:
                    running = {pool.submit(job): name for name, job in group}
                    for done in as_completed(running):
                        done.result()
                        progress.update(bar, advance=1, description=running[done])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--seconds", type=float, default=230)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--rules", help="of those that each part has (default: all)")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    sys.path.insert(0, str(HERE))
    if unknown := set(options.parts.split(",")) - set(PARTS):
        parser.error(f"--parts: expected {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    options.out.mkdir(parents=True, exist_ok=True)
    Report(options).run()


if __name__ == "__main__":
    main()
