"""A language model of at least 100M parameters trained on one GPU, and its speed beside the peer's kernels.

    python benchmarks/lm_gpu.py --out benchmarks/results [--rules gdn2,qed] [--steps 1000] [--seconds 200] [--no-peer]

Writes lm.json. For each rule: a training of `steps` steps in bfloat16 on the standard library's sources, left after
`seconds` (the steps done are written), with its losses, tokens per second and share of the card's peak flops; then the
same model with our kernels and with flash-linear-attention's (fla-core) as the mixers' operator, `beside` steps each in
the same process, one after the other.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import stateir
from stateir.ir import Rule
from stateir.models.lm import LMConfig
from stateir.models.lm_train import LMTrainConfig, Run, train

sys.path.insert(0, str(Path(__file__).parent))
from gpu_report import environment

MODEL = LMConfig(layers=12, hidden=768, heads=6, key_dim=128, value_dim=128, mlp=2048)
CONFIG = LMTrainConfig(MODEL, batch=16, length=2048, lr=1e-3, bf16=True, save_every=10**9)


class Peer(nn.Module):
    """The peer's op in the place of an operator: the same arguments, vectors in bfloat16."""

    def __init__(self, rule: Rule, call: Callable[[dict[str, Tensor]], Tensor]) -> None:
        super().__init__()
        self.inputs, self.call = {i.name for i in rule.inputs}, call

    def forward(self, initial_state: None = None, return_state: bool = False, **tensors: Tensor) -> tuple[Tensor, None]:
        return self.call({n: x.bfloat16() if n in self.inputs else x for n, x in tensors.items()}), None


def speed(config: LMTrainConfig, rule: Rule, device: str, steps: int, peer: bool) -> dict[str, Any]:
    """Tokens per second and losses of the first steps; the peer's with the same weights and rows."""
    run = Run(config, rule, device, None)
    if peer:
        from peer import _peer

        for layer in run.model.layers:
            layer.mixer.op = Peer(rule, _peer(rule.name)[1])
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(steps):
        run.advance()
    peak = torch.cuda.max_memory_allocated() / 2**30 if device != "cpu" else 0.0
    rate = run.tokens_per_second()
    return {"tokens_per_second": round(rate), "mfu": run.mfu(rate), "peak_gib": round(peak, 1), "losses": run.losses}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--rules", default="gdn2,qed")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=200, help="of each training")
    parser.add_argument("--beside", type=int, default=30, help="steps with our kernels and with the peer's")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a tiny model, to try the script")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    config = replace(CONFIG, steps=options.steps, warmup=options.steps // 10)
    if options.small:
        model = LMConfig(layers=2, hidden=16, heads=2, key_dim=8, value_dim=6, mlp=16)
        config = replace(config, model=model, batch=2, length=32)
    versions = environment() if options.device != "cpu" else {"card": "cpu", "torch": torch.__version__}
    report: dict[str, Any] = {"environment": versions, "config": asdict(config), "rules": {}}
    for name in options.rules.split(","):
        rule = stateir.load(name)
        own = replace(config, model=replace(config.model, rule=name))
        print(f"{name}: training", flush=True)
        done = train(own, rule=rule, device=options.device, seconds=options.seconds, report=_print)
        found = report["rules"][name] = {
            "parameters": done.parameters,
            "steps": len(done.losses),
            "tokens_per_second": round(done.tokens_per_second),
            "mfu": done.mfu,
            "held_out_nats_a_byte": done.held_out,
            "losses": [round(x, 4) for x in done.losses[:: max(1, len(done.losses) // 100)]],
        }
        found["ours"] = speed(own, rule, options.device, options.beside, False)
        if not options.no_peer:
            try:
                found["peer"] = speed(own, rule, options.device, options.beside, True)
            except Exception as error:
                found["peer"] = {"error": f"{type(error).__name__}: {error}"[:500]}
        beside = {side: found[side].get("tokens_per_second") for side in ("ours", "peer") if side in found}
        print(f"{name}: {len(done.losses)} steps, tokens per second {found['tokens_per_second']}; {beside}", flush=True)
        (options.out / "lm.json").write_text(json.dumps(report, indent=1) + "\n")


def _print(record: dict[str, Any]) -> None:
    if record["step"] % 100 == 0:
        print(f"  step {record['step']}  loss {record['loss']:.4f}  {record['tokens_per_second']:,.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
