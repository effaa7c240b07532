"""The backward pass of the chunked PyTorch form (docs/design.md, the algebra of a chunk), in the opposite order."""

from __future__ import annotations

from collections.abc import Iterator

from .chunk_plan import Plan, enclosed, member_slice, named, part, saved, steps, tuple_text, unpacked


def backward(plan: Plan) -> list[Iterator[str]]:
    """The sections of the method `backward`."""
    return [_outputs(plan), _scan(plan), _products(plan), _inputs(plan)]


def _outputs(plan: Plan) -> Iterator[str]:
    yield "B, T, H, keys, values, n, chunk = ctx.sizes"
    yield unpacked(saved(plan), "ctx.saved_tensors")
    yield from named(plan, "EQ")
    yield from named(plan, "PR")
    yield "dS = to_state(dlast)"
    if plan.reads:
        yield "dO = to_chunks(douts, n, chunk)"
        yield "dS_read = Q.mT @ matrix(dO)"
    if plan.reads and plan.erases:
        yield from named(plan, "M")
        yield "dU_read = M.mT @ matrix(dO)"


def _scan(plan: Plan) -> Iterator[str]:
    items = {"ds": "dS_read"} if plan.reads else {}
    items |= {"d": "D"} if plan.decay else {}
    kept = {"dsd": "torch.addcmul(ds, d, dS)", "d": "d * dS", "ds": "ds + dS", "": "dS"}["".join(items)]
    if plan.erases:
        yield "# From chunk to chunk, the last one first: dY = (I + A)^-T dU."
        yield "dS_ends, dYs = [], []"
        items |= {"du": "dU_read"} if plan.reads else {}
        yield from steps(items | {"e": "E", "s": "solve", "p": "P"}, reverse=True)
        yield "    dS_ends.append(dS)"
        yield f"    dy = s.mT @ {'torch.baddbmm(du, p, dS)' if plan.reads else '(p @ dS)'}"
        yield "    dYs.append(dy)"
        yield f"    dS = torch.baddbmm({kept}, e.mT, dy, alpha=-1)"
        yield f"dY = torch.stack(dYs[::-1], 1).view(B * H * n, chunk, {plan.erases}, -1)"
    else:
        yield "# From chunk to chunk, the last one first."
        yield "dS_ends = []"
        yield from steps(items, reverse=True)
        yield "    dS_ends.append(dS)"
        yield f"    dS = {kept}"
    yield "dS_end = torch.stack(dS_ends[::-1], 1).flatten(0, 1)"


def _products(plan: Plan) -> Iterator[str]:
    """Gradients of the couplings, of the moved rows, of the pure writes and of the log of a chunk's decay."""
    yield "# Gradients of what the covectors have read, hence of covectors, directions and their couplings."
    match bool(plan.erases), bool(plan.reads):
        case True, True:
            yield "dread = torch.cat((-dY, dO), 2)"
        case True, False:
            yield "dread = -dY"
        case False, True:
            yield "dread = dO"
        case _:
            yield "dread = S_start.new_zeros(B * H * n, chunk, 0, S_start.shape[2])"
    yield f"dpairs = (matrix(dread) @ matrix({plan.written}).mT).view(pairs.shape)"
    yield "dcovectors = (matrix(dread) @ S_start.mT).view(covectors.shape)"
    yield f"ddirections = (matrix({plan.written}) @ dS_end.mT).view(directions.shape)"
    if plan.writes:
        CN = part("pairs", ":", member_slice(plan.erases, len(plan.directions), len(plan.directions)))
        yield f"dW = (matrix({CN}).mT @ matrix(dread) + R @ dS_end).view(B * H * n, chunk, {plan.writes}, -1)"
    if plan.decay:
        axes = "(1, 2), keepdim=True" if plan.shape.decay == "scalar" else "2, keepdim=True"
        yield f"dlogD = D * (S_start * dS_end).sum({axes})"


def _inputs(plan: Plan) -> Iterator[str]:
    gradients = ["dpairs", "dcovectors", "ddirections", *["dlogD"] * plan.decay]
    decay = ["decay", tuple_text(plan.posts)] if plan.decay else []
    pairs = ["pairs"] if plan.shape.decay == "scalar" else []
    target = f"dcovectors, ddirections{', dg' * plan.decay}"
    yield enclosed(f"{target} = coupled_backward(", ["covectors", "directions", *decay, *pairs, *gradients], ")")
    for c in plan.own:
        if not c.name:
            yield f"c = own(dpairs, {c.reader}, {c.writer})[..., None]"
            yield f"dcovectors[:, :, {c.reader}].addcmul_(c, directions[:, :, {c.writer}])"
            yield f"ddirections[:, :, {c.writer}].addcmul_(c, covectors[:, :, {c.reader}])"
    yield "return ("
    yield "    from_state(dS, B, keys, values),"
    yield "    None,"
    yield from (f"    {_gradient(plan, name)}," for name in plan.inputs)
    yield ")"


def _gradient(plan: Plan, name: str) -> str:
    """Text for the gradient of an input."""
    erasing, writing = plan.shape.erasing, plan.shape.writing
    explicit = {c.name: c for c in plan.own}
    size = "keys"
    if name in explicit:
        x, size = f"own(dpairs, {explicit[name].reader}, {explicit[name].writer})", ""
    elif name == "g":
        x, size = "dg", size if plan.shape.decay == "key" else ""
    elif name[0] == "p":
        x = " + ".join(f"ddirections[:, :, {i}]" for i, p in enumerate(plan.directions) if p == name)
    elif name[0] == "y":
        i, size = int(name[1:]), "values"
        x = f"dY[:, :, {erasing.index(i)}]" if i in erasing else f"dW[:, :, {writing.index(i)}]"
    else:
        x = f"dcovectors[:, :, {plan.covectors.index(name)}]"
    return f"from_chunks({x}, B, T, H, {size})" if size else f"from_chunks({x}[..., None], B, T, H, 1)[..., 0]"
