"""Our kernels beside those of flash-linear-attention (fla-core), on one GPU, in one run.

    python benchmarks/peer.py --out benchmarks/results [--rules gdn2,kda] [--shapes 8x4096x16x128,...] [--no-peer]

Writes peer.json: for every rule and shape the median milliseconds of forward (no_grad) and of forward and backward,
the peak memory beyond inputs and gradients, and the time that the bytes of inputs and outputs alone would take at the
card's copy bandwidth. Each operator is first checked on a small input against the float64 step loop; nothing is timed
that fails. All kernels are compiled first in parallel processes; then one process tunes and times, one op at a time.

The peer refuses its gated backward on Hopper with Triton 3.4 to 3.7.0, where that gives wrong gradients; it is timed
with this check lifted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import stateir
from stateir.affine import normal_form
from stateir.codegen.operator import compile
from stateir.codegen.roofline import CARDS, Sizes, kernel_costs
from stateir.codegen.verify_device import LIMITS, relative
from stateir.core import core
from stateir.ir import Axis, Rule

sys.path.insert(0, str(Path(__file__).parent))
from gpu_report import environment

SHAPES = [
    (8, 4096, 16, 128), (1, 8192, 96, 128), (2, 16384, 16, 128), (4, 2048, 16, 128), (4, 4096, 64, 128),
    (8, 2048, 32, 256), (8, 1024, 8, 64), (1, 32768, 8, 128),
]  # fmt: skip
Arguments = dict[str, Tensor]
Call = Callable[[Arguments], Tensor]


def _peer(rule: str) -> tuple[str, Call]:
    """The peer's op for a rule, and its call with our arguments."""
    import fla.ops.common.chunk_o

    fla.ops.common.chunk_o.TRITON_ABOVE_3_7_1 = True
    from fla.ops.delta_rule import chunk_delta_rule
    from fla.ops.gated_delta_product import chunk_gated_delta_product
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from fla.ops.gdn2 import chunk_gdn2
    from fla.ops.generalized_delta_rule import chunk_dplr_delta_rule
    from fla.ops.gla import chunk_gla
    from fla.ops.kda import chunk_kda
    from fla.ops.linear_attn import chunk_linear_attn
    from fla.ops.retention import chunk_retention
    from fla.ops.rwkv7 import chunk_rwkv7

    def qed(x: Arguments) -> Tensor:
        lam = x["lam"][None, None, :, None]
        gated = x["b"] * x["q"]
        e = x["b"] * x["k"] + lam * (gated - (gated * x["k"]).sum(-1, keepdim=True) * x["k"])
        # The peer erases from the decayed state with its second vector: S = exp(g) S + b (a^T S) + k v^T.
        decayed = (-(e * x["g"].float().exp())).to(x["q"].dtype)
        return chunk_dplr_delta_rule(x["q"], x["k"], x["w"] * x["v"], decayed, x["k"], x["g"])[0]

    def product(x: Arguments) -> Tensor:
        def flat(y: Tensor) -> Tensor:
            return y.movedim(3, 2).flatten(1, 2).contiguous()

        n = x["k"].shape[3]
        return chunk_gated_delta_product(x["q"], flat(x["k"]), flat(x["v"]), x["g"], flat(x["beta"]), n)[0]

    def rwkv7(x: Arguments) -> Tensor:
        o = chunk_rwkv7(x["r"], x["w"], x["k"], x["v"], -x["kappa"], x["a"] * x["kappa"], safe_gate=True)[0]
        return o + (x["r"] * (x["u"] * x["k"])).sum(-1, keepdim=True) * x["v"]

    gates = {"safe_gate": True}
    calls: dict[str, tuple[str, Call]] = {
        "additive": ("linear_attn", lambda x: chunk_linear_attn(x["q"], x["k"], x["v"], normalize=False)[0]),
        "retention": ("retention", lambda x: chunk_retention(x["q"], x["k"], x["v"])[0]),
        "gla": ("gla", lambda x: chunk_gla(x["q"], x["k"], x["v"], x["g"])[0]),
        "delta": ("delta_rule", lambda x: chunk_delta_rule(x["q"], x["k"], x["v"], x["beta"])[0]),
        "gated_delta": (
            "gated_delta_rule",
            lambda x: chunk_gated_delta_rule(x["q"], x["k"], x["v"], x["g"], x["beta"])[0],
        ),
        "kda": ("kda (safe_gate)", lambda x: chunk_kda(x["q"], x["k"], x["v"], x["g"], x["beta"], **gates)[0]),
        "gdn2": ("gdn2 (safe_gate)", lambda x: chunk_gdn2(*(x[n] for n in "qkvgbw"), **gates)[0]),
        "qed": ("dplr_delta_rule", qed),
        "rwkv7": ("rwkv7 (safe_gate)", rwkv7),
        "delta_product": ("gated_delta_product", product),
    }
    return calls[rule]


RULES = ("additive", "retention", "gla", "delta", "gated_delta", "kda", "gdn2", "qed", "rwkv7", "delta_product")


def arguments(rule: Rule, B: int, T: int, H: int, D: int, seed: int = 0) -> Arguments:
    """Random arguments as a model gives them: log decays from -1 to 0 in bfloat16, params in float32."""
    generator = torch.Generator("cuda").manual_seed(seed)
    found = {}
    for d in (*rule.inputs, *rule.params):
        leading = (B, T, H) if d in rule.inputs else (H,)
        dims = {Axis.SCALAR: (), Axis.KEY: (D,), Axis.VALUE: (D,)}[d.axis]
        size = () if d.size is None else (d.size,)
        x = torch.randn(*leading, *size, *dims, generator=generator, device="cuda")
        if d in rule.inputs and d.unit:
            x = x / x.norm(dim=-1, keepdim=True)
        elif d.range is not None:
            lo, hi = d.range.lo, d.range.hi
            x = torch.sigmoid(x) * (hi - lo) + lo if math.isfinite(lo) else hi - torch.sigmoid(x)
        elif d.axis is Axis.KEY:
            x = x / D**0.5
        found[d.name] = x.to(torch.bfloat16 if d in rule.inputs else torch.float32)
    return found


def ours(rule: Rule) -> Call:
    op = compile(rule, backend="triton")
    fixed = {p.name for p in rule.params if p.fixed}
    return lambda x: op(**{n: v for n, v in x.items() if n not in fixed})[0]


def gradients(call: Call, x: Arguments, do: Tensor) -> None:
    o = call(x)
    torch.autograd.grad(o, [v for v in x.values() if v.requires_grad], do, allow_unused=True)


def differentiable(rule: Rule, x: Arguments) -> Arguments:
    fixed = {p.name for p in rule.params if p.fixed}
    return {n: v.detach().requires_grad_(n not in fixed) for n, v in x.items()}


def errors(rule: Rule, call: Call) -> dict[str, float]:
    """rms errors of the output and each gradient, relative to the float64 step loop on the same bfloat16 arguments."""
    x = arguments(rule, 1, 200, 2, 128)
    fixed = {p.name for p in rule.params if p.fixed}
    exact = {n: v.double().cpu().requires_grad_(n not in fixed) for n, v in x.items()}
    reference = compile(rule, backend="step")
    o = reference(**{n: v for n, v in exact.items() if n not in fixed})[0]
    do = torch.randn(o.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).bfloat16().double()
    names = [n for n in exact if n not in fixed]
    wanted = torch.autograd.grad(o, [exact[n] for n in names], do)
    given = differentiable(rule, x)
    found = call(given)
    got = torch.autograd.grad(found, [given[n] for n in names], do.to("cuda", found.dtype), allow_unused=True)
    all_errors = {"o": relative(found.cpu(), o)}
    for n, a, b in zip(names, got, wanted, strict=True):
        all_errors[f"d{n}"] = math.nan if a is None else relative(a.cpu(), b)
    return {n: float(f"{e:.2e}") for n, e in all_errors.items()}


def passes(rule: Rule, found: dict[str, float]) -> bool:
    output, gradient, decay, param = LIMITS[torch.bfloat16]
    params = {f"d{p.name}" for p in rule.params}
    decays = {f"d{i.name}" for i in rule.inputs if i.range and i.range.lo == -math.inf}
    return all(
        e <= (output if n == "o" else param if n in params else decay if n in decays else gradient)
        for n, e in found.items()
    )


def timed(rule: Rule, call: Call, B: int, T: int, H: int, D: int) -> dict[str, float]:
    from triton.testing import do_bench

    x = arguments(rule, B, T, H, D)
    with torch.no_grad():
        forward = do_bench(lambda: call(x), warmup=50, rep=200, return_mode="median")
        do = torch.randn_like(call(x))
    x = differentiable(rule, x)
    both = do_bench(lambda: gradients(call, x, do), warmup=50, rep=200, return_mode="median")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    gradients(call, x, do)
    torch.cuda.synchronize()
    given = sum(v.numel() * v.element_size() for v in x.values() if v.requires_grad)
    peak = (torch.cuda.max_memory_allocated() - before - given) / 2**20
    return {"fwd_ms": round(forward, 4), "fwdbwd_ms": round(both, 4), "peak_mib": round(peak, 1)}


def kernel_times(rule: Rule, call: Call, B: int, T: int, H: int, D: int, calls: int = 5) -> list[dict[str, Any]]:
    """Each kernel of forward and backward: the model's bytes, flops and least milliseconds, and the measured ones."""
    from torch.profiler import ProfilerActivity, profile

    x = differentiable(rule, arguments(rule, B, T, H, D))
    do = torch.randn_like(call(x)).detach()
    gradients(call, x, do)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(calls):
            gradients(call, x, do)
        torch.cuda.synchronize()
    spent = {e.key: e.self_device_time_total / calls / 1e3 for e in found.key_averages()}
    form = normal_form(rule)
    assert form is not None
    rows = []
    for c in kernel_costs(rule, core(form), Sizes(B, T, H, D, D)):
        least, took = c.seconds(CARDS["h200"]) * 1e3, spent.pop(c.name, math.nan)
        row = {"kernel": c.name, "bytes": c.bytes, "flops": c.flops, "least_ms": round(least, 4), "ms": round(took, 4)}
        if took > 0:
            row |= {"gb_per_s": round(c.bytes / took / 1e6), "tflop_per_s": round(c.flops / took / 1e9, 1)}
        rows.append(row)
    rest = sum(ms for ms in spent.values() if ms > 1e-3)
    return [*rows, {"kernel": "others", "ms": round(rest, 4)}]


def bandwidth() -> float:
    """Bytes a second of a copy on this card: read and written bytes together."""
    from triton.testing import do_bench

    x = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    return 2 * 2**30 / (do_bench(lambda: y.copy_(x), return_mode="median") / 1e3)


def floors(rule: Rule, B: int, T: int, H: int, D: int, rate: float) -> tuple[float, float]:
    """Milliseconds to read the inputs and write the output once; with the backward pass, inputs, gradients and do."""
    count = B * T * H
    inputs = sum((i.size or 1) * (1 if i.axis is Axis.SCALAR else D) for i in rule.inputs) * count * 2
    output = D * count * 2
    return (inputs + output) / rate * 1e3, (3 * inputs + 2 * output) / rate * 1e3


def warm(name: str, side: str, shapes: list[tuple[int, int, int, int]]) -> None:
    """Compile all kernels of one op."""
    rule = stateir.load(name)
    call = ours(rule) if side == "ours" else _peer(name)[1]
    for D in sorted({shape[3] for shape in shapes}):
        x = differentiable(rule, arguments(rule, 1, 512, 4, D))
        with torch.no_grad():
            do = torch.randn_like(call(x))
        gradients(call, x, do)
    torch.cuda.synchronize()


def warm_all(rules: list[str], sides: list[str], shapes: str, seconds: float) -> dict[str, float]:
    """Seconds until the first gradients of each op with nothing compiled before, all in parallel."""
    jobs = {}
    for name in rules:
        for side in sides:
            command = [sys.executable, __file__, "--warm", name, side, "--shapes", shapes]
            jobs[f"{name} {side}"] = subprocess.Popen(command, env={**os.environ, "FLA_CACHE_RESULTS": "0"})
    start, took = time.monotonic(), {}
    while len(took) < len(jobs) and time.monotonic() - start < seconds:
        for key, job in jobs.items():
            if key not in took and job.poll() is not None:
                took[key] = round(time.monotonic() - start, 1)
        time.sleep(0.1)
    for key, job in jobs.items():
        if key not in took:
            job.kill()
            took[key] = math.nan
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--rules", default=",".join(RULES))
    parser.add_argument("--shapes", default=",".join("x".join(map(str, s)) for s in SHAPES[:1]))
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--kernels", action="store_true", help="also time each kernel, beside what the model says")
    parser.add_argument("--warm", nargs=2, metavar=("RULE", "SIDE"))
    parser.add_argument("--warm-seconds", type=float, default=240)
    options = parser.parse_args()
    shapes = [tuple(map(int, s.split("x"))) for s in options.shapes.split(",")]
    if options.warm:
        warm(*options.warm, shapes)  # type: ignore[arg-type]
        return
    rules = options.rules.split(",")
    sides = ["ours"] if options.no_peer else ["ours", "peer"]
    options.out.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"card": environment()["card"], "versions": environment(), "rows": [], "errors": {}}
    report["date"] = report["versions"].pop("date")
    report["seconds_to_first_gradients_all_in_parallel"] = warm_all(rules, sides, options.shapes, options.warm_seconds)
    rate = bandwidth()
    report["copy_gb_per_s"] = round(rate / 1e9)
    for name in rules:
        rule = stateir.load(name)
        calls = {"ours": ours(rule)} | ({} if options.no_peer else {"peer": _peer(name)[1]})
        for side, call in calls.items():
            try:
                found = errors(rule, call)
            except Exception as error:
                found = {type(error).__name__: math.nan}
                print(f"{name} {side}: {str(error)[:300]}", flush=True)
            report["errors"].setdefault(name, {})[side] = found
            if side == "ours" and not passes(rule, found):
                print(f"{name}: not timed, its check fails: {found}", flush=True)
                calls = {}
        for B, T, H, D in shapes if calls else []:
            row = {"rule": name, "peer_op": None if options.no_peer else _peer(name)[0], "B": B, "T": T, "H": H}
            row |= {"K": D, "V": D, "dtype": "bfloat16"}
            forward, both = floors(rule, B, T, H, D, rate)
            for side, call in calls.items():
                prefix = "" if side == "ours" else "peer_"
                try:
                    row |= {prefix + k: v for k, v in timed(rule, call, B, T, H, D).items()}
                except Exception as error:
                    print(f"{name} {side} {B}x{T}x{H}x{D}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                torch.cuda.empty_cache()
            row |= {"floor_fwd_ms": round(forward, 4), "floor_fwdbwd_ms": round(both, 4)}
            report["rows"].append(row)
            ratios = [
                row.get(f"peer_{k}", math.nan) / row.get(k, math.nan) for k in ("fwd_ms", "fwdbwd_ms", "peak_mib")
            ]
            times = f"{row.get('fwd_ms')} {row.get('fwdbwd_ms')} ms, {row.get('peak_mib')} MiB"
            print(f"{name:<14}{B}x{T}x{H}x{D}  {times}; peer / ours {[f'{r:.2f}' for r in ratios]}", flush=True)
            if options.kernels:
                row["kernels"] = kernel_times(rule, calls["ours"], B, T, H, D)
                for k in row["kernels"]:
                    print(
                        f"    {k['kernel']:<16}{k['ms']:8.3f} ms, least {k.get('least_ms', math.nan):.3f}", flush=True
                    )
            (options.out / "peer.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
