"""The operator: a rule as a function of tensors, on one backend."""

from __future__ import annotations

import functools
import itertools
import operator
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import ModuleType

import torch
from torch import Tensor

from stateir.ir import Axis, Input, Param, Rule

from . import backends
from .arguments import (
    Sizes,
    State,
    check_arguments,
    check_cu_seqlens,
    check_offsets,
    check_slots,
    check_state,
    compute_dtype,
    signature,
)
from .chunked import default_chunk
from .first_use import DEFAULT, Configuration, choose, wanted
from .generated import load_source
from .packed import Chunked, Pieces, Prologue, by_kernels, chunk_size, chunks_of, run_packed, segment_size
from .recompute import by_segments
from .shape import Shape
from .start import start_value
from .step import step_source
from .text import arguments_of
from .torch_ops import name_of, through_op, transformed

# A rule's tensors are passed by name beside these; `state`, that of `step`, is a keyword of the language.
_OWN_ARGUMENTS = ("self", "initial_state", "return_state", "cu_seqlens", "inplace", "slots")


class BackendError(ValueError):
    """The rule does not have the backend that was asked for; the message says why and which ones it has."""


def compile(
    rule: Rule, backend: str = "auto", *, chunk_size: int | None = None, recompute: int | None = None,
    check_kernels: bool = True,
) -> Operator:  # fmt: skip
    """The operator of a rule.

    `backend` is "step" (every rule), "chunked", "triton" or "auto", which chooses at each call by the tensors' device
    among the backends that the rule has: on a CPU chunked, else step; on a GPU triton, else as on a CPU. A backend that
    the rule lacks is a BackendError; nothing falls back silently. `chunk_size` is that of the chunked backend.
    `recompute` is how much the backward pass computes again: None, nothing; N, all of it, N tokens at a time, from the
    arguments and the state before each N tokens, which is all that is kept between the passes (packed sequences: all
    at once). A multiple of 64 keeps the output's bits.
    `check_kernels` is whether compiled kernels are compared with the reference on their first use (first_use.py).
    """
    return Operator(rule, backend, chunk_size=chunk_size, recompute=recompute, check_kernels=check_kernels)


LONG = 128  # tokens of packed sequences, on average, above which a CPU runs them one by one
REMEMBERED = 256  # kinds of calls, and of constants, that an operator keeps


class Operator:
    """A compiled rule: call it with whole sequences, or `step` it one token at a time.

    `backends` maps the name of every backend to None if the rule has it, else to the reason why not. `carries_dict`
    says whether its state is a dict by name or the tensor S.
    """

    def __init__(
        self, rule: Rule, backend: str = "auto", *, chunk_size: int | None = None, recompute: int | None = None,
        check_kernels: bool = True,
    ) -> None:  # fmt: skip
        given: object = rule
        if not isinstance(given, Rule):
            hint = "; stateir.load(name) or stateir.parse(text) makes one" if isinstance(given, str) else ""
            raise TypeError(f"rule: expected a Rule, got {type(given).__name__}{hint}")
        for name, tokens in (("chunk_size", chunk_size), ("recompute", recompute)):
            if tokens is not None and (isinstance(tokens, bool) or not isinstance(tokens, int)):
                raise TypeError(f"{rule.name}: {name}: expected a whole number, got {type(tokens).__name__}")
            if tokens is not None and tokens < 1:
                raise ValueError(f"{rule.name}: {name} = {tokens}: expected at least 1")
        self.rule = rule
        self.backend = backend
        self.chunk_size = chunk_size
        self.recompute = recompute
        self.check_kernels = check_kernels
        self.backends = {name: backends.lacks(rule, name) for name in backends.NAMES}
        for d in arguments_of(rule):
            if d.name in _OWN_ARGUMENTS:
                kind = "input" if isinstance(d, Input) else "param"
                raise BackendError(f"{rule.name}: no {kind} can be called {d.name!r}, an argument of every operator")
        if not rule.inputs:
            raise BackendError(f"{rule.name} has no input, so it cannot be run over a sequence")
        for axis in (Axis.KEY, Axis.VALUE):
            if all(d.axis is not axis for d in arguments_of(rule)):
                raise BackendError(f"{rule.name}: no input or param has the {axis.value} axis, so its size is unknown")
        if backend != "auto":
            self._check_backend(backend)
        self.signature = signature(rule)
        self.carries_dict = self.signature.carries_dict
        self.registered_name = name_of(self)
        self.forced: Configuration | None = None  # of the kernels; set by what tries each of them
        self._arguments = arguments_of(rule)
        self._seen: dict[tuple[object, ...], Sizes] = {}
        self._constants: dict[tuple[object, ...], Tensor] = {}
        self._modules: dict[tuple[str, Configuration], ModuleType] = {}
        self._packed_modules: dict[tuple[str, Configuration], tuple[ModuleType, Shape]] = {}
        self._chosen: dict[tuple[int, int, torch.dtype, torch.device], Configuration] = {}
        self._reference = load_source(step_source(rule), f"{rule.name}.step")

    def __reduce__(self) -> tuple[Callable[..., Operator], tuple[Rule, str]]:
        """Copies and pickles hold what the operator was compiled from; modules are made anew."""
        options = {"chunk_size": self.chunk_size, "recompute": self.recompute, "check_kernels": self.check_kernels}
        return functools.partial(Operator, **options), (self.rule, self.backend)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"Operator({self.rule.name}, backend={self.backend!r})"

    def __call__(
        self, *, initial_state: State | None = None, return_state: bool = False, cu_seqlens: Tensor | None = None,
        **tensors: Tensor,
    ) -> tuple[Tensor, State | None]:  # fmt: skip
        """The outputs of a sequence and, if asked for, the state after it.

        tensors: every input [B, T, H, ...] and param [H, ...] of the rule by name; a fixed param with a start value may
            be left out. Vectors end in K or V (1 to 256 each), arrays of n have n before them. An input or param may
            have fewer heads, a divisor of the largest count H: each is then used by H / count neighbouring heads.
        initial_state: what `return_state` gives: S [B, H, K, V], or for a rule that carries more a dict of "S", its
            states by name and "prev.x" [B, n, H, ...] for its look-back windows. Default: the rule's start values.
        cu_seqlens: offsets [N + 1] (int32 or int64) of N sequences packed along T; B is 1, states are then [N, ...].
            Their values are checked on the CPU alone: on a GPU that would wait for it.

        Prologue, states and sums are in float32 (float64 if any argument is); the output [B, T, H, V] has the dtype of
        the rule's first value input, or that of autocast where it is on. Raises ValueError or TypeError, naming the
        argument, what was expected and what came.
        """
        if self._opaque():
            o, state = through_op(self, tensors, initial_state, cu_seqlens, False, self._output_dtype(tensors))
        else:
            o, state = self.evaluate(tensors, initial_state, cu_seqlens, False, after=return_state)
        return o, state if return_state else None

    def step(
        self, *, state: State | None = None, inplace: bool = False, slots: Tensor | None = None, **tensors: Tensor
    ) -> tuple[Tensor, State]:
        """One token: inputs [B, H, ...] without the time dimension; the output [B, H, V] and the state after it.

        inplace: the state after is written into `state`, in its own dtype, which is also what is returned. Without
            gradients alone.
        slots: [B] different whole numbers, for states of more sequences than those of this token: `state` is [M, ...],
            sequence b has its row slots[b], and the state after is all M rows. Checked on the CPU alone.
        """
        if not inplace and slots is None:
            return self._token(state, tensors)
        if state is None:
            raise ValueError(f"{self.rule.name}: argument 'state': inplace and slots need one, got None")
        if inplace and _differentiated([*tensors.values(), state]):
            raise ValueError(f"{self.rule.name}: argument 'inplace': has no gradient; call it under torch.no_grad()")
        if slots is None:
            o, after = self._token(state, tensors)
            return o, _pairwise(Tensor.copy_, state, after)
        rows = check_slots(self.signature, slots, state)
        o, after = self._token(_map(lambda x: x.index_select(0, rows), state), tensors)
        put = Tensor.index_copy_ if inplace else Tensor.index_copy
        return o, _pairwise(lambda every, x: put(every, 0, rows, x.to(every.dtype)), state, after)

    def _token(self, state: State | None, tensors: dict[str, Tensor]) -> tuple[Tensor, State]:
        if self._opaque():
            return through_op(self, tensors, state, None, True, self._output_dtype(tensors))
        return self.evaluate(tensors, state, None, True)

    def evaluate(
        self, tensors: dict[str, Tensor], state: State | None, cu_seqlens: Tensor | None, token: bool,
        output: torch.dtype | None = None, after: bool = True,
    ) -> tuple[Tensor, State]:  # fmt: skip
        """A call with everything checked, as it runs outside of any trace. `output` replaces the output's dtype.

        Without `after` the state after it need not be right.
        """
        sizes = self._checked(tensors, token)
        batch = sizes.B if cu_seqlens is None else check_cu_seqlens(self.signature, cu_seqlens, sizes)
        dtype, device = compute_dtype(tensors), next(iter(tensors.values())).device
        output = output or self._output_dtype(tensors)
        before = self._state(state, replace(sizes, B=batch), dtype, device, "state" if token else "initial_state")
        with torch.autocast(device.type, enabled=False):
            backend = self._backend(dtype, device)
            if token:
                kept: torch.dtype | None = dtype
                step = self._reference.step
                if backend == "triton" and not _differentiated([*tensors.values(), before]):
                    step, kept = self._functions("triton", self._configuration(sizes, output, device)).step, None
                args = self._prepared(tensors, sizes, kept, device, token)
                return _settled(output, self.signature.parts, *step(before, *args))
            fused = backend == "triton" and cu_seqlens is None
            args = self._prepared(tensors, sizes, None if fused else dtype, device)
            chosen = DEFAULT
            if backend == "triton":  # the value input's dtype decides how its products are taken, and is the output's
                args[self._value] = args[self._value].to(output)
                chosen = self._configuration(sizes, output, device)
            run = self._run(backend, chosen, sizes, cu_seqlens, after)
            if self.recompute is None or sizes.T == 0 or not _differentiated([*args, before]):
                result = run(*args, before)
            else:
                tokens = self.recompute if cu_seqlens is None else sizes.T
                result = by_segments(run, tokens, args, len(self.rule.inputs), before)
        return _settled(output, self.signature.parts, *result)

    def _checked(self, tensors: dict[str, Tensor], token: bool) -> Sizes:
        """The sizes of a call; arguments like those of an earlier one need no second look, which takes 0.1 ms."""
        if not all(isinstance(x, Tensor) for x in tensors.values()):
            return check_arguments(self.signature, tensors, token)
        key = (token, *((name, x.shape, x.dtype, x.device, x.layout) for name, x in tensors.items()))
        if key not in self._seen:
            if len(self._seen) >= REMEMBERED:
                self._seen.clear()
            self._seen[key] = check_arguments(self.signature, tensors, token)
        return self._seen[key]

    def _constant(self, param: Param, sizes: Sizes, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The start value of a param that was left out, made once."""
        key = param.name, sizes.H, sizes.K, sizes.V, dtype, device
        if key not in self._constants:
            if len(self._constants) >= REMEMBERED:
                self._constants.clear()
            with torch.inference_mode(False):  # or a later call could not take gradients with it
                self._constants[key] = start_value(param, sizes.H, sizes.K, sizes.V, dtype=dtype, device=device)
        return self._constants[key]

    def _opaque(self) -> bool:
        """Whether the call is to be one PyTorch operator: while it is traced or, but for the step loop, transformed."""
        if torch.compiler.is_compiling():
            return True
        plain = self.backend == "step" and self.recompute is None
        return not plain and self.backends["chunked"] is None and transformed()

    def source(self, target: str = "torch") -> str:
        """The generated text: of a backend by name, or with "torch" of the best PyTorch backend that the rule has."""
        if target == "torch":
            target = "step" if self.backend == "step" or self.backends["chunked"] else "chunked"
        self._check_backend(target)
        return backends.source(self.rule, target, self.chunk_size)

    def _check_backend(self, name: str) -> None:
        if name not in self.backends:
            raise BackendError(f"no backend {name!r}; expected auto, {', '.join(self.backends)}")
        if reason := self.backends[name]:
            has = ", ".join(n for n, lack in self.backends.items() if lack is None)
            raise BackendError(f"{self.rule.name} has no {name} backend: {reason}; it has {has}")

    def _backend(self, dtype: torch.dtype, device: torch.device) -> str:
        """The backend of a call. The kernels compute in float32 and need a GPU (or Triton's interpreter)."""
        double = dtype == torch.float64
        if self.backend == "auto":
            kernels = device.type == "cuda" and not double
            order = ("triton", "chunked", "step") if kernels else ("chunked", "step")
            return next(n for n in order if self.backends[n] is None)
        if self.backend == "triton" and double:
            raise ValueError(f"{self.rule.name}: the triton backend computes in float32; got a float64 argument")
        if self.backend == "triton" and device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            raise ValueError(f"{self.rule.name}: the triton backend needs CUDA tensors; got tensors on {device}")
        return self.backend

    def _functions(self, backend: str, configuration: Configuration = DEFAULT) -> ModuleType:
        """The backend's generated module, made once."""
        key = backend, configuration
        if key not in self._modules:
            self._modules[key] = backends.functions(self.rule, backend, self.chunk_size, configuration)
        return self._modules[key]

    def _configuration(self, sizes: Sizes, dtype: torch.dtype, device: torch.device) -> Configuration:
        """The tiles of the kernels, which were seen to compute the rule with these head sizes, here."""
        if self.forced is not None or not self.check_kernels or not wanted(device):
            return self.forced or DEFAULT
        key = sizes.K, sizes.V, dtype, device
        if key not in self._chosen:
            if torch.cuda.is_current_stream_capturing():
                raise RuntimeError(f"{self.rule.name}: the first call checks the kernels: make one before capture")
            source, label = backends.source(self.rule, "triton", None), backends.label(self.rule, "triton")
            self._chosen[key] = choose(self.rule, source, label, self._reference, sizes.K, sizes.V, dtype, device)
        return self._chosen[key]

    def _state(self, given: State | None, sizes: Sizes, dtype: torch.dtype, device: torch.device, name: str) -> State:
        if given is None:
            start: State = self._reference.start(sizes.B, sizes.H, sizes.K, sizes.V, dtype, device)
            return start
        return _map(lambda x: x.to(dtype).contiguous(), check_state(self.signature, given, sizes, device, name))

    def _prepared(
        self, tensors: dict[str, Tensor], sizes: Sizes, dtype: torch.dtype | None, device: torch.device,
        token: bool = False,
    ) -> list[Tensor]:  # fmt: skip
        """The arguments in the order of the generated functions with H heads each, in their own dtypes if None.

        They are contiguous: strides would otherwise choose the order of sums.
        """
        args = []
        layouts = self.signature.token if token else self.signature.sequence
        for d in self._arguments:
            if d.name not in tensors:
                assert isinstance(d, Param)
                args.append(self._constant(d, sizes, dtype or torch.float32, device))
                continue
            x = tensors[d.name] if dtype is None else tensors[d.name].to(dtype)
            dim = layouts[d.name].index("H")
            args.append(
                x.contiguous() if x.shape[dim] == sizes.H else x.repeat_interleave(sizes.H // x.shape[dim], dim)
            )
        return args

    def _run(
        self, backend: str, configuration: Configuration, sizes: Sizes, cu_seqlens: Tensor | None, after: bool
    ) -> Callable[..., tuple[Tensor, State]]:
        """What a call is run by, as a function of the prepared arguments and the state before."""
        if cu_seqlens is None and sizes.T == 0:
            return lambda *given: (given[0].new_zeros(sizes.B, 0, sizes.H, sizes.V), given[-1])
        if cu_seqlens is None:
            found: Callable[..., tuple[Tensor, State]] = self._functions(backend, configuration).run
            return found
        N = cu_seqlens.shape[0] - 1
        on_host = cu_seqlens.device.type == "cpu" and backend == "chunked" and sizes.T >= LONG * N
        if backend == "step" or on_host:
            return lambda *given: self._one_by_one(backend, [*given[:-1]], given[-1], sizes, cu_seqlens)
        return lambda *given: self._packed(backend, configuration, [*given[:-1]], given[-1], sizes, cu_seqlens, after)

    def _packed(
        self, backend: str, configuration: Configuration, args: list[Tensor], state: State, sizes: Sizes,
        cu_seqlens: Tensor, after: bool,
    ) -> tuple[Tensor, State]:  # fmt: skip
        """All packed sequences at once, by chunks; their offsets are read where they are."""
        if cu_seqlens.device.type == "cpu":
            check_offsets(self.signature, cu_seqlens.tolist(), sizes.T)
        N, names = cu_seqlens.shape[0] - 1, self.signature.inputs
        if N == 0 or sizes.T == 0:
            return args[0].new_zeros(1, sizes.T, sizes.H, sizes.V), state
        dtype = (state["S"] if isinstance(state, dict) else state).dtype
        prologue, chunked, shape = self._parts(backend, configuration, args[self._value].dtype)
        largest = self.chunk_size or default_chunk(shape)
        # The states beside S after a chunk are found token by token, so chunks stay short where these are wanted.
        size = segment_size if args[0].is_cuda and not (after and isinstance(state, dict)) else chunk_size
        chunks = chunks_of(cu_seqlens.to(args[0].device), sizes.T, size(sizes.T, N, largest))
        args = [x.to(dtype) for x in args]
        inputs, params = dict(zip(names, args, strict=False)), args[len(names) :]
        return run_packed(prologue, chunked, shape, inputs, params, state, chunks, largest, after)

    def pieces(self, tensors: dict[str, Tensor], state: State | None, cu_seqlens: Tensor | None = None) -> Pieces:
        """What the segments of a call are run by, for what joins them itself; the call is checked but for offsets."""
        sizes = self._checked(tensors, False)
        batch = sizes.B if cu_seqlens is None else check_cu_seqlens(self.signature, cu_seqlens, sizes)
        dtype, device = compute_dtype(tensors), next(iter(tensors.values())).device
        output, backend = self._output_dtype(tensors), self._backend(dtype, device)
        chosen = self._configuration(sizes, output, device) if backend == "triton" else DEFAULT
        prologue, chunked, shape = self._parts(backend, chosen, output)
        before = self._state(state, replace(sizes, B=batch), dtype, device, "initial_state")
        args = self._prepared(tensors, sizes, dtype, device)
        return Pieces(prologue, chunked, shape, self.chunk_size or default_chunk(shape), args, before)

    def _parts(
        self, backend: str, configuration: Configuration, output: torch.dtype
    ) -> tuple[Prologue, Chunked, Shape]:  # fmt: skip
        """The prologue, the scan of its tensors, and their shape."""
        key = backend, configuration
        if key not in self._packed_modules:
            self._packed_modules[key] = backends.packed_functions(self.rule, backend, configuration)
        module, shape = self._packed_modules[key]
        chunked = by_kernels(module._scan, shape, output) if backend == "triton" else module.chunked
        return module.prologue, chunked, shape

    def _one_by_one(
        self, backend: str, args: list[Tensor], state: State, sizes: Sizes, cu_seqlens: Tensor
    ) -> tuple[Tensor, State]:
        """Each packed sequence by itself; an empty one keeps its state. The offsets are read by the host."""
        if cu_seqlens.is_cuda and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"{self.rule.name}: argument 'cu_seqlens': the step backend reads it, which no graph can"
            )
        offsets: list[int] = cu_seqlens.tolist()
        check_offsets(self.signature, offsets, sizes.T)
        inputs, params = args[: len(self.rule.inputs)], args[len(self.rule.inputs) :]
        run = self._functions(backend).run
        outputs: list[Tensor] = []
        states: list[State] = []
        for n, (first, last) in enumerate(itertools.pairwise(offsets)):
            if first == last:
                states.append(_map(operator.itemgetter(slice(n, n + 1)), state))
                continue
            own = _map(operator.itemgetter(slice(n, n + 1)), state)
            o, after = run(*(x[:, first:last].contiguous() for x in inputs), *params, own)
            outputs.append(o)
            states.append(after)
        if not outputs:
            return args[0].new_zeros(1, 0, sizes.H, sizes.V), state
        return torch.cat(outputs, 1), _joined(states)

    @property
    def _value(self) -> int:
        """The place of the input that gives the output its dtype."""
        return next((n for n, i in enumerate(self.rule.inputs) if i.axis is Axis.VALUE), 0)

    def _output_dtype(self, tensors: dict[str, Tensor]) -> torch.dtype:
        x = tensors[self.rule.inputs[self._value].name]
        if x.dtype != torch.float64 and torch.is_autocast_enabled(x.device.type):
            return torch.get_autocast_dtype(x.device.type)
        return x.dtype


def _differentiated(args: list[Tensor | State]) -> bool:
    """Whether autograd would record an operation on these."""
    tensors = itertools.chain.from_iterable(x.values() if isinstance(x, dict) else (x,) for x in args)
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _settled(dtype: torch.dtype, parts: Iterable[str], o: Tensor, state: State) -> tuple[Tensor, State]:
    """What a call returns: contiguous, a dict in the order of `parts` (S alone where the rest was not asked for).

    Its gradients are contiguous too; their strides would otherwise choose the order of sums.
    """
    state = {name: state[name] for name in parts if name in state} if isinstance(state, dict) else state
    o, state = o.to(dtype).contiguous(), _map(Tensor.contiguous, state)
    if not transformed():
        for x in (o, *(state.values() if isinstance(state, dict) else (state,))):
            if x.requires_grad and not x.is_leaf:
                x.register_hook(_contiguous)
    return o, state


def _contiguous(gradient: Tensor | None) -> Tensor | None:
    return gradient if gradient is None else gradient.contiguous()


def _map(f: Callable[[Tensor], Tensor], state: State) -> State:
    """f applied to every tensor of a state."""
    return {key: f(x) for key, x in state.items()} if isinstance(state, dict) else f(state)


def _pairwise(f: Callable[[Tensor, Tensor], Tensor], a: State, b: State) -> State:
    """f applied to the tensors of two states, part by part."""
    if isinstance(a, dict) and isinstance(b, dict):
        return {key: f(x, b[key]) for key, x in a.items()}
    assert isinstance(a, Tensor) and isinstance(b, Tensor)
    return f(a, b)


def _joined(states: list[State]) -> State:
    """The states of several batches as those of one."""
    if isinstance(states[0], dict):
        return {key: torch.cat([s[key] for s in states]) for key in states[0]}  # type: ignore[index]
    return torch.cat(states)  # type: ignore[arg-type]
