"""Whether 32-bit arithmetic of compiled kernels can wrap: intervals of every integer in their TTIR, without a GPU.

    python tests/offsets.py RULE...        (not in Triton's interpreter)

Prints JSON: for each rule and kernel the 32-bit additions and products whose value may leave 32 bits, where a call has
at most LARGEST of each size, and the number of 64-bit products.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import ir, make_backend

import stateir
from stateir.codegen import backends, first_use
from stateir.codegen.dry import Launch, dry
from stateir.codegen.generated import load_source
from stateir.codegen.step import step_source

# Tokens of all sequences, heads, channels of a token, far past any GPU's memory; every other number is a stride.
LARGEST = {"T": 2**26, "H": 2**16, "N": 2**24, "D": 2**8}
STRIDE = 2**31 - 1
PROGRAMS = {"x": 2**31 - 1, "y": 2**16 - 1, "z": 2**16 - 1}
POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}
CPU = torch.device("cpu")
Interval = tuple[int, int]


def launches_of(rule: stateir.Rule, edit: Any = lambda text: text) -> list[Launch]:
    """One launch of each kernel of a rule in bfloat16, forward, backward and decode, with `edit` done to its text."""
    source = edit(backends.source(rule, "triton", None))
    module, twin = (load_source(source, f"{rule.name}{part}") for part in ("", ".dry"))
    launches = dry(module, twin)
    reference = load_source(step_source(rule), f"{rule.name}.step")
    first_use.measured(rule, twin, reference, 128, 128, torch.bfloat16, CPU)
    return list({launch.key: launch for launch in launches}.values())


def ttir(launch: Launch) -> str:
    """A launch's kernel as compiled for compute capability 9.0, as far as TTIR."""
    kernel, constants, signature = launch.kernel, {}, {}
    given = dict(zip(kernel.arg_names, launch.arguments, strict=False)) | launch.options
    for p in kernel.params:
        if p.is_constexpr:
            signature[p.name], constants[p.name] = "constexpr", given.pop(p.name)
        else:
            x = given.pop(p.name)
            signature[p.name] = POINTERS[x.dtype] if isinstance(x, torch.Tensor) else "i32"
    target = GPUTarget("cuda", 90, 32)
    backend = make_backend(target)
    options = backend.parse_options({n: v for n, v in given.items() if n in ("num_warps", "num_stages")})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    codegen = backend.get_codegen_implementation(options)
    source = ASTSource(kernel, signature, constants)
    module = source.make_ir(target, options, codegen, backend.get_module_map(), context)
    return str(backend.make_ttir(module, {}, options, 90))


def wrapping(text: str) -> tuple[list[str], int]:
    """The 32-bit additions and products of a kernel that may wrap, and how many 64-bit products it has."""
    known: dict[str, Interval] = {}
    found, wide = [], 0
    for line in text.splitlines():
        line = re.sub(r" loc\(.*$", "", line.strip())
        if line.startswith("tt.func"):
            for name in re.findall(r"(%\w+): i32", text[: text.index("{", text.index("tt.func"))]):
                known[name] = (0, LARGEST.get(name[1:], STRIDE))
        if loop := re.match(r".*scf\.for (%\w+) = (%\w+) to (%\w+) step", line):
            known[loop[1]] = (known[loop[2]][0], known[loop[3]][1])
        if not (op := re.match(r"(%\w+) = (\S+) (.*)", line)):
            continue
        name, kind, rest = op.groups()
        bits = 64 if re.search(r"i64>?$", rest) else 32
        x = _interval(kind, rest, known, bits)
        if kind in ("arith.muli", "arith.addi", "arith.shli") and bits == 32 and not -(2**31) <= x[0] <= x[1] < 2**31:
            found.append(line)
            x = (-(2**31), 2**31 - 1)
        wide += kind == "arith.muli" and bits == 64
        known[name] = x
    return found, wide


def _interval(kind: str, rest: str, known: dict[str, Interval], bits: int) -> Interval:
    """The values that an operation may have; everything for one that is not known."""
    everything = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if kind == "arith.constant":
        number = re.match(r"(?:dense<)?(-?\d+)>? : (?:tensor<[\dx]*)?i\d+", rest)
        return (int(number[1]), int(number[1])) if number else everything
    if kind == "tt.make_range":
        return (0, int(re.findall(r"end = (\d+)", rest)[0]) - 1)
    if kind == "tt.get_program_id":
        return (0, PROGRAMS[rest[0]])
    given = [known.get(x, everything) for x in re.findall(r"%\w+", rest)]
    if kind in ("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.trans", "arith.extsi", "arith.extui", "arith.trunci"):
        return given[0]
    if kind in ("arith.select", "arith.minsi", "arith.maxsi"):
        return (min(x[0] for x in given[-2:]), max(x[1] for x in given[-2:]))
    if len(given) != 2:
        return everything
    (a, b), (c, d) = given
    if kind == "arith.addi":
        return (a + c, b + d)
    if kind == "arith.subi":
        return (a - d, b - c)
    if kind == "arith.muli":
        products = [x * y for x in (a, b) for y in (c, d)]
        return (min(products), max(products))
    if kind == "arith.divsi" and d > 0:
        ends = [int(x / y) for x in (a, b) for y in (max(c, 1), d)]
        return (min(0, *ends), max(ends))
    if kind == "arith.remsi" and d > 0:
        return (0 if a >= 0 else -min(d - 1, -a), min(d - 1, max(b, 0)))
    if kind == "arith.shrsi" and a >= 0:
        return (0, b)
    if kind == "arith.andi" and min(a, c) >= 0:
        return (0, min(b, d))
    return everything


# Deliberate mistakes, for the test that this finds them.
MISTAKES = {
    "none": lambda text: text,
    "offsets in 32 bits": lambda text: text.replace(".to(tl.int64)", ""),
}


def main() -> None:
    mistake, *rules = sys.argv[1:]
    report: dict[str, Any] = {}
    for name in rules:
        kernels = report.setdefault(name, {})
        for launch in launches_of(stateir.load(name), MISTAKES[mistake]):
            found, wide = wrapping(ttir(launch))
            kernel = kernels.setdefault(launch.kernel.fn.__name__, {"wrapping": [], "wide": 0})
            kernel["wrapping"] += found
            kernel["wide"] += wide
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
