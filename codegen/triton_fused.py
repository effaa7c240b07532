"""The host side of a rule whose prologue is kernels, as source text.

_prologue(arguments..., tile)   the packed rows, in order; a row that is an input is that input
_Run.apply(arguments..., S)     rows, scan and output as one function that autograd knows
run, step                       as `triton_module.triton_source` has them
"""

from __future__ import annotations

from stateir.ir import Axis, Rule

from .carried import run_source
from .expr import Scope, scope_of, torch_text
from .tape_rule import OUTPUT, READS, RuleTape
from .text import arguments_of, function, sizes
from .triton_launch import packed
from .triton_prologue import RowKernel, RowKernels, Target, handed
from .triton_text import Text
from .triton_tiles import Tiles

HELPERS = '''
def _row(x: Tensor, dtype: torch.dtype) -> Tensor:
    """An input as the one row of its tokens, [B, T, H, 1, ...]: itself, where it has the dtype."""
    return x.unsqueeze(3).to(dtype).contiguous()


def _rows(*sizes: int) -> int:
    """Rows of a program that computes the prologue, so that its widest tile has ELEMENTS numbers."""
    return max(1, ELEMENTS // triton.next_power_of_2(max(sizes)))
'''

ELEMENTS = "ELEMENTS = 1024  # of a tile of the prologue"


class Fused:
    """Writes the functions of one rule."""

    def __init__(self, rule: RuleTape, tiles: Tiles, kernels: RowKernels) -> None:
        self.rule, self.tiles, self.kernels = rule, tiles, kernels
        self.scope = scope_of(rule.rule)
        self.arguments = [self.scope.names[d.name] for d in arguments_of(rule.rule)]
        names = ("tile", "state", "save", "rows", "reads", "final", "saved", "do", "dfinal", "dinitial", "dreads", "R",
                 "parts")  # fmt: skip
        self.own = {name: self.scope.new(name) for name in names}
        self.packed = {name: self.scope.new(f"{name}_row") for name in packed(tiles)}
        self.cotangents = {name: self.scope.new(f"d{name}_row") for name in packed(tiles)}
        self.gradients = {d.name: self.scope.new(f"d{self.scope.names[d.name]}") for d in arguments_of(rule.rule)}
        self.output = self.scope.names[rule.rule.read.name]
        value = next((i.name for i in rule.rule.inputs if i.axis is Axis.VALUE), rule.rule.inputs[0].name)
        self.value = self.scope.names[value]

    @property
    def sources(self) -> list[str]:
        parts = [HELPERS.strip("\n"), self._prologue()]
        parts += [self._epilogue()] if self.kernels.epilogue else []
        return [ELEMENTS, *parts, self._function(), self._run(), self._step()]

    def _sizes(self, used: str = "HKV") -> list[str]:
        self.scope.used = set(used)
        return sizes(self.rule.rule, self.scope, ("B", "T", "H"))

    def _scale_sizes(self) -> list[str]:
        """The sizes that the constant factor of the output needs."""
        self.scope.used = set()
        return sizes(self.rule.rule, self.scope, ("B", "T", "H")) if self._scale else []

    def _size(self, name: str) -> str:
        return self.scope.fresh(name)

    def _shape(self, leading: list[str], count: int, axis: Axis) -> str:
        dims = {Axis.SCALAR: [], Axis.KEY: ["K"], Axis.VALUE: ["V"]}[axis]
        return ", ".join([*leading, str(count), *map(self._size, dims)])

    def _launch(self, text: Text, x: RowKernel, given: dict[str, str], outputs: list[str]) -> None:
        """The launch of a kernel; `given` has the tensors of its sources that are not arguments."""
        B, T, H, R = (*(self._size(name) for name in "BTH"), self.own["R"])
        dims = [self._size(c) for c in "KV" if c in x.kernel.constants]
        text(f"{R} = _rows({', '.join(dims) or '16'})")
        sources = [given.get(s) or self.scope.names[s] for s in x.sources]
        grid = f"triton.cdiv({B} * {T}, {R}) * {H}" if x.by_head else f"triton.cdiv({B} * {T} * {H}, {R})"
        constants = {"K": self._size("K"), "V": self._size("V"), "ROWS": R}
        constants |= {f"{c}P": f"triton.next_power_of_2({self._size(c)})" for c in "KV"}
        with text.block(f"with torch.cuda.device_of({self.arguments[0]}):"):
            text.call(
                f"{x.kernel.name}[({grid},)]",
                [*sources, *outputs, f"{B} * {T}", H, *(f"{c}={constants[c]}" for c in x.kernel.constants)],
            )

    def _prologue(self) -> str:
        tile, like = self.own["tile"], self.arguments[0]
        text = Text(1)
        text(*self._sizes())
        for name, row in self.packed.items():
            if source := self.rule.alias(name):
                input_ = self.scope.names[source]
                text(f"{row} = _row({input_}, {f'{input_}.dtype' if name == 'g' else tile})")
                continue
            assert self.kernels.prologue is not None
            target = next(t for t in self.kernels.prologue.targets if t.name == name)
            dtype = "torch.float32" if name in ("g", "c") else tile
            shape = self._shape([self._size(d) for d in "BTH"], len(target.entries), target.axis)
            text(f"{row} = {like}.new_empty({shape}, dtype={dtype})")
        if x := self.kernels.prologue:
            self._launch(text, x, {}, [self.packed[t.name] for t in x.targets])
        text(f"return {', '.join(self.packed.values())}{',' if len(self.packed) == 1 else ''}")
        docstring = "The rows that the scan takes, of contiguous inputs."
        arguments = [*(f"{x}: Tensor" for x in self.arguments), f"{tile}: torch.dtype"]
        return function("_prologue", arguments, "tuple[Tensor, ...]", docstring, _dedented(text))

    def _epilogue(self) -> str:
        x = self.kernels.epilogue
        assert x is not None
        reads = self.own["reads"]
        text = Text(1)
        text(*self._sizes())
        B, T, H, V = (self._size(name) for name in "BTHV")
        text(f"{self.output} = {self.value}.new_empty({B}, {T}, {H}, {V})")
        self._launch(text, x, {READS: reads}, [self.output])
        text(f"return {self.output}")
        arguments = [f"{reads}: Tensor", *(f"{x}: Tensor" for x in self.arguments)]
        return function("_epilogue", arguments, "Tensor", "The output, of contiguous inputs.", _dedented(text))

    @property
    def _scale(self) -> str:
        return "1.0" if self.rule.scale is None else torch_text(self.rule.scale, self.scope)

    def _function(self) -> str:
        own, text = self.own, Text()
        with text.block("class _Run(torch.autograd.Function):"):
            text('"""Rows, scan and output of sequences; its gradients are not differentiable again."""')
            text("", "@staticmethod")
            head = [*(f"{x}: Tensor" for x in self.arguments), f"{own['state']}: Tensor", f"{own['save']}: bool"]
            text.call("def forward", ["ctx", *head], " -> tuple[Tensor, Tensor]:")
            text.depth += 1
            self._forward(text)
            text.depth -= 1
            text("", "@staticmethod", "@_once")
            arguments = ["ctx", f"{own['do']}: Tensor", f"{own['dfinal']}: Tensor"]
            text.call("def backward", arguments, " -> tuple[Tensor | None, ...]:")
            text.depth += 1
            self._backward(text)
        return str(text)

    def _every(self) -> str:
        return ", ".join(self.arguments) + ("," if len(self.arguments) == 1 else "")

    def _saves_reads(self) -> bool:
        x = self.kernels.prologue_grad
        return x is not None and READS in x.sources

    def _forward(self, text: Text) -> None:
        own, each = self.own, self.scope.fresh("x")
        text(*self._scale_sizes())
        text(f"{self._every()} = ({each}.contiguous() for {each} in ({self._every()}))".replace(",) =", ", ="))
        text(f"{own['tile']} = torch.bfloat16 if {self.value}.dtype == torch.bfloat16 else torch.float32")
        text.call(f"{own['rows']} = _prologue", [*self.arguments, own["tile"]])
        dtype = f"{self.value}.dtype" if self.rule.direct else "torch.float32"
        text.call(
            f"{own['reads']}, {own['final']}, {own['saved']} = _scan_forward",
            [f"*{own['rows']}", own["state"], own["save"], dtype, self._scale],
        )
        kept = [*self.arguments, *([own["reads"]] if self._saves_reads() else []), f"*{own['saved']}"]
        text.call("ctx.save_for_backward", kept)
        if self.rule.direct:
            text(f"return {own['reads']}.squeeze(3), {own['final']}")
        else:
            text.call("return _epilogue", [own["reads"], *self.arguments], f", {own['final']}")

    def _backward(self, text: Text) -> None:
        own, kernels, rule = self.own, self.kernels, self.rule
        kept = [*self.arguments, *([own["reads"]] if self._saves_reads() else []), f"*{own['saved']}"]
        text.call("", kept, " = ctx.saved_tensors")
        text(*self._sizes(), f"{own['do']} = {own['do']}.contiguous()")
        if x := kernels.epilogue_grad:
            dtype = f"torch.bfloat16 if {self.value}.dtype == torch.bfloat16 else torch.float32"
            B, T, H, V = (self._size(name) for name in "BTHV")
            text(f"{own['dreads']} = {own['do']}.new_empty({B}, {T}, {H}, {len(rule.reads)}, {V}, dtype={dtype})")
            self._launch(text, x, {OUTPUT: own["do"]}, [own["dreads"]])
            dreads = own["dreads"]
        else:
            dreads = f"{own['do']}.unsqueeze(3)"
        found = ", ".join([*self.cotangents.values(), own["dinitial"]])
        text.call(f"{found} = _scan_backward", [own["saved"], dreads, own["dfinal"], self._scale])
        results = {d.name: "None" for d in arguments_of(rule.rule)}
        for name in results:
            if source := handed(rule, name):
                results[name] = f"{self.cotangents[source]}.squeeze(3).to({self.scope.names[name]}.dtype)"
        if x := kernels.prologue_grad:
            results |= {t.name: self.gradients[t.name] for t in x.targets}
            self._gradients(text, x)
        text.call("return ", [*results.values(), own["dinitial"], "None"])

    def _gradients(self, text: Text, x: RowKernel) -> None:
        given = {OUTPUT: self.own["do"], READS: self.own["reads"]}
        given |= {f"d {name}": variable for name, variable in self.cotangents.items()}
        order = [d.name for d in arguments_of(self.rule.rule)]
        places = ", ".join(str(order.index(t.name)) for t in x.targets) + ("," if len(x.targets) == 1 else "")
        n = self.scope.fresh("n")
        text(f"{' = '.join(self.gradients[t.name] for t in x.targets)} = None")
        with text.block(f"if any(ctx.needs_input_grad[{n}] for {n} in ({places})):"):
            for t in x.targets:
                text(self._empty(t))
            self._launch(text, x, given, [self.gradients[t.name] for t in x.targets])
            for t in x.targets:
                if t.sums:
                    variable, argument = self.gradients[t.name], self.scope.names[t.name]
                    text(f"{variable} = {variable}.sum(0).to({argument}.dtype)")

    def _empty(self, t: Target) -> str:
        variable, argument = self.gradients[t.name], self.scope.names[t.name]
        if not t.sums:
            return f"{variable} = torch.empty_like({argument})"
        x = self.kernels.prologue_grad
        assert x is not None
        dims = ", ".join(self._size(c) for c in "KV" if c in x.kernel.constants)
        programs = f"triton.cdiv({self._size('B')} * {self._size('T')}, _rows({dims or '16'}))"
        return f"{variable} = {argument}.new_empty({programs}, *{argument}.shape, dtype=torch.float32)"

    def _run(self) -> str:
        def body(rule: Rule, scope: Scope) -> list[str]:
            state, save, x = scope.fresh("state"), scope.fresh("save"), scope.fresh("x")
            output = scope.names[rule.read.name]
            every = ", ".join([*self.arguments, state])
            return [
                f"{state} = {state}.float().contiguous()",
                f"{save} = torch.is_grad_enabled() and any({x}.requires_grad for {x} in ({every}))",
                f"{output}, {state} = _Run.apply({every}, {save})",
            ]

        return run_source(self.rule.rule, body, cast=False)

    def _step(self) -> str:
        rule, scope, own = self.rule.rule, self.scope, self.own
        state, x, rows, reads = own["state"], scope.fresh("x"), own["rows"], own["reads"]
        inputs = self.arguments[: len(rule.inputs)]
        tokens = ", ".join(inputs) + ("," if len(inputs) == 1 else "")
        every = ", ".join(self.arguments)
        scaled = f"({reads} * ({self._scale}))" if self.rule.scale is not None else reads
        output = f"{scaled}.squeeze(3)" if self.rule.direct else f"_epilogue({scaled}, {every})"
        body = [
            f"if torch.is_grad_enabled() and any({x}.requires_grad for {x} in ({state}, {every})):",
            '    raise RuntimeError("decode has no gradient: call it under torch.no_grad()")',
            f"{tokens} = ({x}.unsqueeze(1).contiguous() for {x} in ({tokens}))",
            *self._scale_sizes(),
            f"{rows} = _prologue({every}, torch.float32)",
            f"{reads}, {state} = _decode(*{rows}, {state})",
            f"return {output}.squeeze(1), {state}",
        ]
        docstring = "One token, without gradients: inputs [B, H, ...]; the output [B, H, V] and the state after."
        arguments = [f"{state}: Tensor", *(f"{name}: Tensor" for name in self.arguments)]
        return function("step", arguments, "tuple[Tensor, Tensor]", docstring, body)


def _dedented(text: Text) -> list[str]:
    return [line.removeprefix("    ") for line in text.lines]


def fused_sources(rule: RuleTape, tiles: Tiles, kernels: RowKernels) -> list[str]:
    """The host functions, in the order in which they are to stand."""
    return Fused(rule, tiles, kernels).sources
