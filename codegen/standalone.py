"""A rule's kernels as a file that stands alone and tests itself: `stateir emit RULE --target triton`."""

from __future__ import annotations

import math
from textwrap import indent

from stateir.ir import Axis, Input, Param, Rule

from .expr import Scope, scope_of, torch_text
from .step import step_function
from .text import arguments_of, helpers

# Sizes of the self-test: a chunk and a tail, K and V apart, small enough for Triton's interpreter.
SIZES = {"B": 1, "T": "CHUNK + 3", "H": 2, "K": 6, "V": 5}
_DIMS = {Axis.SCALAR: [], Axis.KEY: ["K"], Axis.VALUE: ["V"], Axis.PAIR: ["K // 2"]}


def standalone(rule: Rule, source: str) -> str:
    """`source`, a rule's module, with a test of itself for when it is run as a program.

    The test compares `run`, each gradient and `step` with the rule's own lines, token by token in float64.
    """
    scope = scope_of(rule)
    step = step_function(rule, scope)
    definitions = indent("\n\n".join([*helpers(scope), step]), "    ")
    names = ", ".join(f'"{d.name}"' for d in arguments_of(rule))
    inputs = len(rule.inputs)
    text = _TEST.format(
        definitions=definitions,
        rule=rule.name,
        names=names + ("," if len(arguments_of(rule)) == 1 else ""),
        inputs=inputs,
        sizes=", ".join(SIZES),
        values=", ".join(str(x) for x in SIZES.values()),
        samples="\n".join(f"        {_sample(d)}," for d in arguments_of(rule)),
    )
    needs_f = "" if "\nimport torch.nn.functional as F\n" in source else "import torch.nn.functional as F\n"
    source = source.replace("import torch\n", f"import torch\n{needs_f}", 1)
    if "math." in text and "\nimport math\n" not in source:
        source = source.replace("import torch\n", "import math\n\nimport torch\n", 1)
    return f"{source.rstrip()}\n\n\n{text}"


def _sample(d: Input | Param) -> str:
    """Text that draws a value which keeps d's claims. What it calls stands in `_TEST`."""
    leading = ["H"] if isinstance(d, Param) else ["B", "T", "H"]
    shape = ", ".join([*leading, *([] if d.size is None else [str(d.size)]), *_DIMS[d.axis]])
    if isinstance(d, Param) and d.fixed and d.start is not None:
        own = ", ".join(["H", *["1"] * (shape.count(","))])
        return f"({torch_text(d.start, Scope({}))} + 0 * head).reshape({own}).expand({shape}).clone()"
    if d.unit:
        return f"F.normalize(normal({shape}), dim=-1)"
    if d.range is None:
        return f"normal({shape})" if d.axis is Axis.SCALAR else f"F.normalize(normal({shape}), dim=-1)"
    low, high = d.range.lo, d.range.hi
    if math.isfinite(low) and math.isfinite(high):
        return f"{low!r} + {high - low!r} * (0.05 + 0.9 * uniform({shape}))"
    if math.isfinite(high):
        return f"{high!r} - 0.01 - uniform({shape})"
    if math.isfinite(low):
        return f"{low!r} + 0.01 + uniform({shape})"
    return f"normal({shape})"


_TEST = '''\
def reference(*tensors: Tensor) -> tuple[Tensor, "Tensor | dict[str, Tensor]"]:
    """The rule's own lines, token by token: the output [B, T, H, V] and the state after the last token."""

{definitions}

    {sizes} = {values}
    state = start(B, H, K, V, dtype=tensors[0].dtype, device=tensors[0].device)
    outputs = []
    for t in range(T):
        token = [x[:, t] if i < {inputs} else x for i, x in enumerate(tensors)]
        o, state = step(state, *token)
        outputs.append(o)
    return torch.stack(outputs, 1), state


def self_test() -> bool:
    """Compares run, each gradient and step with the reference on random arguments, and prints each error."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    {sizes} = {values}
    generator = torch.Generator().manual_seed(0)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def parts(state: "Tensor | dict[str, Tensor]") -> "dict[str, Tensor]":
        return state if isinstance(state, dict) else {{"S": state}}

    head = torch.arange(H, dtype=torch.float64)
    names = ({names})
    exact = [
{samples}
    ]
    exact = [x.to(device).requires_grad_() for x in exact]
    given = [x.detach().float().requires_grad_() for x in exact]
    (want, want_state), (o, state) = reference(*exact), run(*given)
    found = {{"output": (o, want)}}
    found |= {{f"state {{n}}": (x, parts(want_state)[n]) for n, x in parts(state).items()}}

    def loss(o: Tensor, state: "Tensor | dict[str, Tensor]") -> Tensor:
        return o.double().sin().sum() + sum(x.double().sin().sum() for x in parts(state).values())

    wanted = torch.autograd.grad(loss(want, want_state), exact, allow_unused=True, materialize_grads=True)
    grads = torch.autograd.grad(loss(o, state), given, allow_unused=True, materialize_grads=True)
    found |= {{f"gradient {{n}}": pair for n, pair in zip(names, zip(grads, wanted))}}
    with torch.no_grad():
        decoded = start(B, H, K, V, device=device)
        for t in range(T):
            last, decoded = step(decoded, *(x[:, t] if i < {inputs} else x for i, x in enumerate(given)))
    found["decoded output"] = (last, want[:, -1])

    passed = True
    for name, (x, exactly) in found.items():
        error = (x.double() - exactly).norm() / (exactly.norm() + 1e-6 * exactly.numel() ** 0.5)
        good = bool(error < 2e-3)
        passed &= good
        print(f"{{'ok' if good else 'FAILED':<6}} {{name:<24}} relative error {{error:.1e}}")
    return passed


if __name__ == "__main__":
    print("{rule}: the kernels against the rule's lines in float64")
    raise SystemExit(not self_test())
'''
