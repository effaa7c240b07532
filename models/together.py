"""Several runs of one shape trained at once: seeds and learning rates stacked along a first dimension.

Small models leave a GPU idle. Here the weights of R runs are one matrix [R, P], a step is `torch.func.vmap` over its
rows of the very module that a single run trains, and a rule's operator sees the heads of all runs as heads of one call.
Runs do not mix: each has the numbers of its own `train`, up to the order of float sums. A step reads and writes
tensors in place and asks the host for nothing, so that on a GPU it is one CUDA graph (replay.py).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from . import checkpoint as checkpoints
from .config import config_hash, require, to_dict
from .replay import Replay
from .rows import HELD_OUT, TRAIN, Asked, draw, draw_on, seed_number
from .train import BETAS, EPS, Result, evaluation, groups, mean_score
from .train_config import TrainConfig, schedule, slice_at
from .zoo import Model, load_rule

# Of one part of an evaluation, over all runs: logits (0.5 GB in float32) and tokens.
MOST_LOGITS, MOST_TOKENS = 2**27, 2**19


def shape_of(config: TrainConfig) -> str:
    """The hash of what runs must share to be trained together: all but the seed and the learning rate."""
    return config_hash(replace(config, seed=0, lr=1.0))


class Together:
    """The runs of `configs` side by side on a device.

    Args:
        graph: whether a step on a GPU is recorded as a CUDA graph.

    Raises:
        ValueError: if the configurations differ in more than seed and learning rate, or stop early.
    """

    def __init__(
        self, configs: Sequence[TrainConfig], device: str | torch.device = "cpu", *, graph: bool = True
    ) -> None:
        require(len(configs) > 0, "configs must be at least one, got none")
        require(len({shape_of(c) for c in configs}) == 1, "configs must differ in seed and lr alone to train together")
        require(configs[0].stop_at is None, f"stop_at must be None to train together, got {configs[0].stop_at}")
        self.configs, self.device, first = tuple(configs), torch.device(device), configs[0]
        self.rule = load_rule(first.model)
        models = [_built(c, self.rule) for c in configs]
        self.calls = _Calls(models[0]).to(self.device)
        self.shapes = {f"model.{name}": p.shape for name, p in models[0].named_parameters()}
        flat = torch.stack([nn.utils.parameters_to_vector(m.parameters()).detach() for m in models])
        self.flat = flat.to(self.device).requires_grad_()
        self.mean, self.square = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        buffers = [dict(m.named_buffers()) for m in models]
        self.buffers = {f"model.{n}": torch.stack([b[n] for b in buffers]).to(self.device) for n in buffers[0]}
        self.decay, self.factor = (x.to(self.device) for x in _by_entry(models[0], first))
        self.lr = torch.tensor([[c.lr] for c in configs], device=self.device)
        self.losses = torch.zeros(len(configs), device=self.device)
        # By step: the schedule, and the shares of AdamW's means that have been seen by then.
        table = [[schedule(first, t), 1 - BETAS[0] ** (t + 1), 1 - BETAS[1] ** (t + 1)] for t in range(first.steps)]
        self._table = torch.tensor(table, device=self.device)
        self._at = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._seeds = list(dict.fromkeys(c.seed for c in configs))
        self._index = torch.tensor([self._seeds.index(c.seed) for c in configs], device=self.device)
        generators = [torch.Generator(self.device) for _ in self._seeds] if first.draw == "device" else []
        self.replay = Replay(self.device, graph, generators)
        self._kept: dict[Any, Asked] = {}
        self.step, self.elapsed = 0, 0.0
        self.records: list[list[dict[str, Any]]] = [[] for _ in configs]
        self._held_out: list[tuple[Any, Asked]] | None = None

    def advance(self) -> Tensor:
        """One step of every run; returns their losses [R], not waited for and overwritten by the next step."""
        first = self.configs[0]
        task = slice_at(first, self.step)
        if first.draw == "device":
            for seed, generator in zip(self._seeds, self.replay.generators, strict=True):
                generator.manual_seed(seed_number((TRAIN, seed, self.step)))
            self.replay(task, lambda: self._train(self._drawn(task)))
        else:
            rows = self._rows(task, first.batch, (TRAIN, self.step))
            key = task, rows.places.shape
            kept = self._kept.setdefault(key, rows)
            for to, new in zip(kept, rows, strict=True):
                to.copy_(new)
            self.replay(key, lambda: self._train(kept))
        self.step += 1
        return self.losses

    def _drawn(self, task: Any) -> Asked:
        """A step's rows, drawn where they are used."""
        batch = self.configs[0].batch
        return self._by_run([draw_on(task, batch, generator) for generator in self.replay.generators])

    def _train(self, data: Asked) -> None:
        losses = self._call("loss", self.flat, *data)
        (gradient,) = torch.autograd.grad(losses.sum(), self.flat)
        self._update(gradient)
        self.losses.copy_(losses.detach())
        self._at.add_(1)

    def evaluate(self, flat: Tensor | None = None) -> list[list[float]]:
        """For each run its accuracy on every test; of other weights [R, P] if given."""
        flat = self.flat.detach() if flat is None else flat
        first, runs = self.configs[0], len(self.configs)
        if self._held_out is None:
            self._held_out = [(task, self._rows(task, first.eval_rows, (HELD_OUT,))) for task in first.measured]
        scores: list[list[float]] = [[] for _ in self.configs]
        for task, data in self._held_out:
            part = max(1, MOST_LOGITS // (runs * data.places.shape[-1] * first.tokens))
            part = min(part, max(1, MOST_TOKENS // (runs * task.length)))
            with torch.no_grad():
                guesses = [
                    self._call("logits_at", flat, ids, places).argmax(-1)
                    for ids, places in zip(data.ids.split(part, 1), data.places.split(part, 1), strict=True)
                ]
            found, targets = torch.cat(guesses, 1).cpu(), data.targets.cpu()
            for run, own in enumerate(scores):
                own.append(mean_score(task, found[run], targets[run]))
        return scores

    def at_lower(self) -> list[list[float]]:
        """`evaluate` with the params of `at_lower` at the lower end of their range: the raw number -inf gives it."""
        flat, offset = self.flat.detach().clone(), 0
        ends = tuple(f".param_{name}.raw" for name in self.configs[0].at_lower)
        for name, shape in self.shapes.items():
            size = math.prod(shape)
            if name.endswith(ends):
                flat[:, offset : offset + size] = -math.inf
            offset += size
        return self.evaluate(flat)

    def _rows(self, task: Any, rows: int, seed: tuple[int, ...]) -> Asked:
        """Rows drawn by the host: runs of one seed see the same ones, those that a single run of this seed sees."""
        kind, *rest = seed
        return self._by_run([draw(task, rows, (kind, s, *rest), "host", self.device) for s in self._seeds])

    def _by_run(self, drawn: list[Asked]) -> Asked:
        """[R, rows, ...] of the rows of each seed."""
        most = max(d.places.shape[1] for d in drawn)
        every = (
            torch.stack([d.ids for d in drawn]),
            torch.stack([nn.functional.pad(d.places, (0, most - d.places.shape[1])) for d in drawn]),
            torch.stack([nn.functional.pad(d.targets, (0, most - d.targets.shape[1]), value=-100) for d in drawn]),
        )
        return Asked(*(x[self._index] for x in every))

    def _call(self, method: str, flat: Tensor, *data: Tensor) -> Tensor:
        parts = flat.split([math.prod(s) for s in self.shapes.values()], 1)
        parameters = {n: x.unflatten(1, s) for (n, s), x in zip(self.shapes.items(), parts, strict=True)}

        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], *own: Tensor) -> Tensor:
            result: Tensor = functional_call(self.calls, (parameters, buffers), (method, *own))
            return result

        result: Tensor = vmap(one)(parameters, self.buffers, *data)
        return result

    @torch.no_grad()
    def _update(self, gradient: Tensor) -> None:
        """AdamW with a learning rate and a gradient norm for each run."""
        clip = self.configs[0].clip
        # The bound and the 1e-6 are those of torch.nn.utils.clip_grad_norm_.
        gradient = gradient * (clip / (gradient.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1.0)
        self.mean.lerp_(gradient, 1 - BETAS[0])
        self.square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        factor, seen_mean, seen_square = self._table.index_select(0, self._at).unbind(1)
        rate = self.lr * factor * self.factor
        scale = (self.square / seen_square).sqrt_().add_(EPS)
        self.flat.mul_(1 - rate * self.decay).sub_(rate * self.mean / (scale * seen_mean))

    def checkpoint(self) -> checkpoints.Checkpoint:
        tensors = {"flat": self.flat, "mean": self.mean, "square": self.square}
        facts = {
            "configs": [to_dict(c) for c in self.configs],
            "hashes": [config_hash(c) for c in self.configs],
            "step": self.step,
            "seconds": self.elapsed,
            "records": self.records,
        }
        return checkpoints.Checkpoint(tensors, self.rule, facts)

    def restore(self, saved: checkpoints.Checkpoint) -> None:
        """Goes on where a checkpoint of the same runs was written."""
        own = [config_hash(c) for c in self.configs]
        require(saved.facts["hashes"] == own, f"the checkpoint must be of the runs {own}, got {saved.facts['hashes']}")
        with torch.no_grad():
            for name, tensor in (("flat", self.flat), ("mean", self.mean), ("square", self.square)):
                tensor.copy_(saved.tensors[name])
        self.step, self.records, self.elapsed = saved.facts["step"], saved.facts["records"], saved.facts["seconds"]
        self._at.fill_(self.step)


Report = Callable[[Together], None]


def train_together(
    configs: Sequence[TrainConfig], *, device: str | torch.device = "cpu", saved: Path | None = None,
    until: float = math.inf, report: Report | None = None, graph: bool = True,
) -> list[Result] | None:  # fmt: skip
    """Trains the runs of `configs` at once; their results in order, each of its own configuration.

    Args:
        saved: a checkpoint, written at every evaluation and on leaving early; it is gone on with if it is there.
        until: a time of `time.monotonic` after which the runs are left, with a checkpoint; the result is then None.
        report: called after every step. graph: as in `Together`.
    """
    runs = Together(configs, device, graph=graph)
    if saved is not None and saved.exists():
        runs.restore(checkpoints.load(saved, runs.rule))
    first, started = configs[0], time.monotonic() - runs.elapsed
    while runs.step < first.steps:
        if time.monotonic() > until:
            if saved is not None:
                checkpoints.save(saved, runs.checkpoint())
            return None
        losses = runs.advance()
        if runs.step % first.eval_every == 0 or runs.step == first.steps:
            scores = runs.evaluate()
            runs.elapsed = time.monotonic() - started
            for c, own, loss, found in zip(configs, runs.records, losses.tolist(), scores, strict=True):
                own.append(evaluation(c, runs.step, loss, found, runs.elapsed))
            if runs.step == first.steps and first.at_lower:
                for own, found in zip(runs.records, runs.at_lower(), strict=True):
                    own[-1]["tests_at_lower"] = found
            if saved is not None:
                checkpoints.save(saved, runs.checkpoint())
        if report is not None:
            report(runs)
    results = []
    for config, own in zip(configs, runs.records, strict=True):
        best = max(float(r["accuracy"]) for r in own)
        results.append(Result(config, float(own[-1]["accuracy"]), best, runs.step, runs.flat.shape[1], tuple(own)))
    return results


class _Calls(nn.Module):
    """A model whose methods `functional_call` reaches."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, method: str, *arguments: Tensor) -> Tensor:
        result: Tensor = getattr(self.model, method)(*arguments)
        return result


def _built(config: TrainConfig, rule: Any) -> Model:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return Model(config.model, rule, config.tokens, config.seed)


def _by_entry(model: Model, config: TrainConfig) -> tuple[Tensor, Tensor]:
    """The weight decay and the factor on the learning rate of each number of the flat weights, [P] each."""
    of = {id(p): key for key, ps in groups(model, config).items() for p in ps}
    decay, factor = (
        torch.cat([torch.full((p.numel(),), of[id(p)][which]) for p in model.parameters()]) for which in (0, 1)
    )
    return decay, factor
