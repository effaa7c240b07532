"""A compiled rule as PyTorch operators, for what traces or transforms a call: torch.compile, export, torch.func.

Each operator has the namespace `stateir` and the fingerprint of its rule, backend and chunk size:

    stateir::NAME(str names, Tensor[] tensors, str parts, Tensor[] state, Tensor? cu_seqlens, bool token,
                  ScalarType dtype) -> Tensor[]                    the output, then the state after, part by part
    stateir::NAME_backward(..., bool[] needs, bool[] given, Tensor[] grads) -> Tensor[]    the gradients that are needed

To PyTorch both are opaque, so a graph does not depend on the number of chunks. The backward pass runs the forward pass
again: only what was given is kept between the two.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

import torch
from torch import Tensor

from stateir.printer import fingerprint as rule_fingerprint

from .arguments import State, check_arguments, check_cu_seqlens, check_state, compute_dtype, state_shapes
from .start import start_value

if TYPE_CHECKING:
    from .operator import Operator

_SCHEMA = "(str names, Tensor[] tensors, str parts, Tensor[] state, Tensor? cu_seqlens, bool token, ScalarType dtype"
_lock = threading.Lock()
_known: set[str] = set()


def operator_name(op: Operator) -> str:
    """The name of an operator's PyTorch operators: equal for operators that compute the same."""
    what = f"{rule_fingerprint(op.rule)} {op.backend} {op.chunk_size} {op.recompute} {op.check_kernels}"
    return f"{op.rule.name}_{op.backend}_{hashlib.sha256(what.encode()).hexdigest()[:12]}"


def name_of(op: Operator) -> Callable[[], str]:
    """`registered` for a traced call: without an argument, since to torch.compile an operator is no constant."""
    this = ref(op)

    def name() -> str:
        found = this()
        assert found is not None
        return registered(found)

    return cast(Callable[[], str], torch.compiler.assume_constant_result(name))


def registered(op: Operator) -> str:
    """The name of the forward operator, which is registered once a process and fingerprint."""
    name = operator_name(op)
    with _lock:
        if name not in _known:
            _register(op, name)
            _known.add(name)
    return name


def transformed() -> bool:
    """Whether torch.func transforms what is being called."""
    return torch._C._are_functorch_transforms_active()


def through_op(
    op: Operator, tensors: dict[str, Tensor], state: State | None, cu_seqlens: Tensor | None, token: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, State]:  # fmt: skip
    """A call as one operator. It says nothing about its arguments that the operator itself would not say."""
    name, parts = op.registered_name(), state if isinstance(state, dict) else {} if state is None else {"S": state}
    names, given = ",".join(tensors), list(tensors.values())
    which, before = ",".join(parts), list(parts.values())
    if torch.compiler.is_compiling():
        o, *after = getattr(torch.ops.stateir, name).default(names, given, which, before, cu_seqlens, token, dtype)
    else:
        static = name, names, which, token, dtype, len(given)
        o, *after = _Transformed.apply(static, cu_seqlens, *given, *before)  # type: ignore[no-untyped-call]
    return o, dict(zip(op.signature.parts, after, strict=True)) if op.carries_dict else after[0]


def _register(op: Operator, name: str) -> None:
    forward = torch.library.custom_op(
        f"stateir::{name}", _implementation(op), mutates_args=(), schema=f"{_SCHEMA}) -> Tensor[]"
    )
    backward = torch.library.custom_op(
        f"stateir::{name}_backward",
        _backward_implementation(op),
        mutates_args=(),
        schema=f"{_SCHEMA}, bool[] needs, bool[] given, Tensor[] grads) -> Tensor[]",
    )
    forward.register_fake(_fake(op))
    backward.register_fake(_backward_fake)
    forward.register_autograd(_formula(backward), setup_context=_setup_context)
    forward.register_vmap(_forward_vmap(op, forward))
    backward.register_vmap(_backward_vmap(op, backward))


def _run(
    op: Operator, names: str, tensors: Sequence[Tensor], parts: str, state: Sequence[Tensor],
    cu_seqlens: Tensor | None, token: bool, dtype: torch.dtype,
) -> list[Tensor]:  # fmt: skip
    """The call itself: the output and the parts of the state after it."""
    arguments = dict(zip(names.split(","), tensors, strict=True))
    o, after = op.evaluate(arguments, _state(op, parts, state), cu_seqlens, token, dtype)
    return [o, *(after.values() if isinstance(after, dict) else (after,))]


def _state(op: Operator, parts: str, state: Sequence[Tensor]) -> State | None:
    if not parts:
        return None
    given = dict(zip(parts.split(","), state, strict=True))
    return given if op.carries_dict or list(given) != ["S"] else given["S"]


def _implementation(op: Operator) -> Any:
    def forward(
        names: str, tensors: Sequence[Tensor], parts: str, state: Sequence[Tensor], cu_seqlens: Tensor | None,
        token: bool, dtype: torch.dtype,
    ) -> list[Tensor]:  # fmt: skip
        found = _run(op, names, tensors, parts, state, cu_seqlens, token, dtype)
        return _owned(found, [*tensors, *state])

    return forward


def _backward_implementation(op: Operator) -> Any:
    def backward(
        names: str, tensors: Sequence[Tensor], parts: str, state: Sequence[Tensor], cu_seqlens: Tensor | None,
        token: bool, dtype: torch.dtype, needs: Sequence[bool], given: Sequence[bool], grads: Sequence[Tensor],
    ) -> list[Tensor]:  # fmt: skip
        with recording():
            leaves = [x.detach().requires_grad_(n) for x, n in zip([*tensors, *state], needs, strict=True)]
            own, before = leaves[: len(tensors)], leaves[len(tensors) :]
            found = _run(op, names, own, parts, before, cu_seqlens, token, dtype)
            results = [x for x, there in zip(found, given, strict=True) if there]
            wanted = [x for x in leaves if x.requires_grad]
            pairs = [(x, g.contiguous()) for x, g in zip(results, grads, strict=True) if x.requires_grad]
            if not pairs:
                return [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in wanted]
            gradients = torch.autograd.grad(
                [x for x, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True, materialize_grads=True
            )
        return _owned([g.to(x.dtype) for g, x in zip(gradients, wanted, strict=True)], [*tensors, *state, *grads])

    return backward


@contextmanager
def recording() -> Iterator[None]:
    """Autograd within an operator's own code, below which PyTorch turns it off."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in (torch._C.DispatchKey.AutogradCPU, torch._C.DispatchKey.AutogradCUDA):
        excluded = excluded.remove(key)
    included = torch._C._dispatch_tls_local_include_set()
    with torch._C._ForceDispatchKeyGuard(included, excluded), torch.enable_grad():
        yield


def _owned(results: list[Tensor], others: Sequence[Tensor]) -> list[Tensor]:
    """The results as contiguous tensors with memory of their own, as PyTorch wants of an operator."""
    taken = {x.untyped_storage().data_ptr() for x in others if x.numel()}
    owned = []
    for x in results:
        x = x.detach().contiguous()
        place = x.untyped_storage().data_ptr()
        x = x.clone() if x.storage_offset() or (x.numel() and place in taken) else x
        taken.add(x.untyped_storage().data_ptr())
        owned.append(x)
    return owned


def _fake(op: Operator) -> Any:
    def fake(
        names: str, tensors: Sequence[Tensor], parts: str, state: Sequence[Tensor], cu_seqlens: Tensor | None,
        token: bool, dtype: torch.dtype,
    ) -> list[Tensor]:  # fmt: skip
        arguments = dict(zip(names.split(","), tensors, strict=True))
        sizes = check_arguments(op.signature, arguments, token)
        if cu_seqlens is not None:
            sizes = replace(sizes, B=check_cu_seqlens(op.signature, cu_seqlens, sizes))
        before, name = _state(op, parts, state), "state" if token else "initial_state"
        if before is not None:
            check_state(op.signature, before, sizes, tensors[0].device, name)
        kind, like = compute_dtype(arguments), tensors[0]
        batch = sizes.B if cu_seqlens is None else 1
        shape = (batch, sizes.H, sizes.V) if token else (batch, sizes.T, sizes.H, sizes.V)
        o = like.new_empty(shape, dtype=dtype)
        return [o, *(like.new_empty(s, dtype=kind) for s in state_shapes(op.signature, sizes).values())]

    return fake


def _backward_fake(
    names: str, tensors: Sequence[Tensor], parts: str, state: Sequence[Tensor], cu_seqlens: Tensor | None,
    token: bool, dtype: torch.dtype, needs: Sequence[bool], given: Sequence[bool], grads: Sequence[Tensor],
) -> list[Tensor]:  # fmt: skip
    return [x.new_empty(x.shape) for x, n in zip([*tensors, *state], needs, strict=True) if n]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    names, tensors, parts, state, cu_seqlens, token, dtype = inputs
    ctx.set_materialize_grads(False)
    ctx.static = names, len(tensors), parts, len(state), token, dtype
    ctx.save_for_backward(*tensors, *state, cu_seqlens)


def _formula(backward: Any) -> Any:
    def formula(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
        names, T, parts, S, token, dtype = ctx.static
        *saved, cu_seqlens = ctx.saved_tensors
        needs = [bool(n) for n in (*ctx.needs_input_grad[1], *ctx.needs_input_grad[3])]
        given = [g is not None for g in grads]
        there = [g for g in grads if g is not None]
        found = iter(backward(names, saved[:T], parts, saved[T:], cu_seqlens, token, dtype, needs, given, there))
        every = [next(found) if n else None for n in needs]
        return None, every[:T], None, every[T : T + S], None, None, None

    return formula


class _Transformed(torch.autograd.Function):
    """The same pair of operators for torch.func, which does not take the formula of an operator with lists."""

    generate_vmap_rule = True

    @staticmethod
    def forward(static: tuple[Any, ...], cu_seqlens: Tensor | None, *tensors: Tensor) -> tuple[Tensor, ...]:
        name, names, parts, token, dtype, own = static
        call = getattr(torch.ops.stateir, name).default
        return tuple(call(names, [*tensors[:own]], parts, [*tensors[own:]], cu_seqlens, token, dtype))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.static, cu_seqlens, *tensors = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, cu_seqlens)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        name, names, parts, token, dtype, own = ctx.static
        *saved, cu_seqlens = ctx.saved_tensors
        needs, there = [*ctx.needs_input_grad[2:]], [g for g in grads if g is not None]
        given = [g is not None for g in grads]
        call = getattr(torch.ops.stateir, f"{name}_backward").default
        found = iter(call(names, saved[:own], parts, saved[own:], cu_seqlens, token, dtype, needs, given, there))
        return None, None, *(next(found) if n else None for n in needs)


class _Heads:
    """Independent calls as more heads of one call: nothing in a rule joins two heads. For vmap."""

    def __init__(self, op: Operator, count: int, token: bool) -> None:
        self.rule, self.signature, self.count, self.token = op.rule, op.signature, count, token
        layouts = op.signature.token if token else op.signature.sequence
        self.dims = {name: layout.index("H") for name, layout in layouts.items()}
        self.parts = {name: layout.index("H") for name, layout in op.signature.parts.items()}
        self.results = [1 if token else 2, *self.parts.values()]

    def arguments(self, names: str, tensors: list[Tensor], dims: Sequence[int | None]) -> dict[str, Tensor]:
        """The arguments with the heads of every call; a param that was left out depends on the head within its call."""
        given = dict(zip(names.split(","), tensors, strict=True))
        one = {n: x if d is None else x.select(d, 0) for (n, x), d in zip(given.items(), dims, strict=True)}
        sizes = check_arguments(self.signature, one, self.token)
        for p in self.rule.params:
            if p.name not in given:
                x = tensors[0]
                given[p.name] = start_value(p, sizes.H, sizes.K, sizes.V, dtype=x.dtype, device=x.device)
        every = (*dims, *(None for _ in range(len(given) - len(tensors))))
        return {n: self.joined(x, d, self.dims[n]) for (n, x), d in zip(given.items(), every, strict=True)}

    def state(self, parts: str, state: list[Tensor], dims: Sequence[int | None]) -> list[Tensor]:
        places = [self.parts[part] for part in parts.split(",")] if parts else []
        return [self.joined(x, d, place) for x, d, place in zip(state, dims, places, strict=True)]

    def joined(self, x: Tensor, dim: int | None, head: int) -> Tensor:
        """x with the calls, along `dim` or the same for all, before its own heads."""
        x = x.unsqueeze(0).expand(self.count, *x.shape) if dim is None else x.movedim(dim, 0)
        joined: Tensor = x.movedim(0, head).flatten(head, head + 1)
        return joined

    def split(self, x: Tensor, head: int) -> Tensor:
        """The inverse of `joined`: the calls along the first dimension."""
        return x.unflatten(head, (self.count, -1)).movedim(head, 0)  # type: ignore[no-any-return]


def _forward_vmap(op: Operator, forward: Any) -> Any:
    def rule(
        info: Any, in_dims: tuple[Any, ...], names: str, tensors: list[Tensor], parts: str, state: list[Tensor],
        cu_seqlens: Tensor | None, token: bool, dtype: torch.dtype,
    ) -> tuple[list[Tensor], list[int]]:  # fmt: skip
        _refuse_offsets(op, in_dims[4])
        heads = _Heads(op, info.batch_size, token)
        arguments = heads.arguments(names, tensors, in_dims[1])
        before = heads.state(parts, state, in_dims[3])
        found = forward(",".join(arguments), [*arguments.values()], parts, before, cu_seqlens, token, dtype)
        return [heads.split(x, d) for x, d in zip(found, heads.results, strict=True)], [0] * len(found)

    return rule


def _backward_vmap(op: Operator, backward: Any) -> Any:
    def rule(
        info: Any, in_dims: tuple[Any, ...], names: str, tensors: list[Tensor], parts: str, state: list[Tensor],
        cu_seqlens: Tensor | None, token: bool, dtype: torch.dtype, needs: list[bool], given: list[bool],
        grads: list[Tensor],
    ) -> tuple[list[Tensor], list[int]]:  # fmt: skip
        _refuse_offsets(op, in_dims[4])
        heads = _Heads(op, info.batch_size, token)
        arguments = heads.arguments(names, tensors, in_dims[1])
        before = heads.state(parts, state, in_dims[3])
        own, more = len(tensors), len(arguments) - len(tensors)
        every = [*needs[:own], *[False] * more, *needs[own:]]
        places = [place for place, there in zip(heads.results, given, strict=True) if there]
        wide = [heads.joined(x, d, place) for x, d, place in zip(grads, in_dims[9], places, strict=True)]
        found = backward(
            ",".join(arguments), [*arguments.values()], parts, before, cu_seqlens, token, dtype, every, given, wide
        )
        dims = [*(heads.dims[n] for n in arguments), *(heads.parts[part] for part in parts.split(",") if part)]
        wanted = [d for d, n in zip(dims, every, strict=True) if n]
        return [heads.split(x, d) for x, d in zip(found, wanted, strict=True)], [0] * len(found)

    return rule


def _refuse_offsets(op: Operator, dim: int | None) -> None:
    if dim is not None:
        raise ValueError(f"{op.rule.name}: argument 'cu_seqlens': vmap needs the same offsets for every call")
