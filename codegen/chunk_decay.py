"""Fixed pieces of the chunked PyTorch form: couplings between tokens through the decays, and their gradients.

A pair of functions for each kind of decay, alike in what they mean. X [Z, C, r, K] are r covectors for each of C
tokens, P [Z, C, w, K] are w directions. `coupled` gives their products with the decays between them, [Z, C, r, C, w],
for the directions of earlier tokens, else 0. Where there are decays, it also gives X moved to the start of the chunk
and P moved to its end. `coupled_backward` takes the gradients of these and gives those of X, P and the log decays.

A gradient of a log decay is a sum of products that each have this decay as a factor. Nothing is subtracted, so behind a
decay of 0 it is exactly 0.
"""

from __future__ import annotations

NONE = '''
def earlier(X: Tensor) -> Tensor:
    """1 where a direction's token comes before the covector's, else 0: [C, 1, C, 1]."""
    C = X.shape[1]
    return torch.ones(C, C, dtype=X.dtype, device=X.device).tril(-1)[:, None, :, None]


def coupled(X: Tensor, P: Tensor) -> Tensor:
    """Products of covectors [Z, C, r, K] with directions [Z, C, w, K] of earlier tokens, else 0: [Z, C, r, C, w]."""
    return (matrix(X) @ matrix(P).mT).view(*X.shape[:3], *P.shape[1:3]) * earlier(X)


def coupled_backward(X: Tensor, P: Tensor, dpairs: Tensor, dX: Tensor, dP: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of X and P: dX and dP, which they have already, and what comes through their products."""
    dproduct = matrix(dpairs * earlier(X))
    return dX + (dproduct @ matrix(P)).view(X.shape), dP + (dproduct.mT @ matrix(X)).view(P.shape)
'''

SCALAR = '''
def between(g: Tensor) -> Tensor:
    """[Z, C] to [Z, C + 1, C + 1]: entry (i, j) is exp(g_j + ... + g_(i - 1)) for i >= j, else 0.

    That is the decay from level j to level i; level i is where the state stands after i tokens of the chunk. Each entry
    sums its own terms, so no difference of large sums occurs, and the mask comes before the exponential.
    """
    C = g.shape[1]
    later = torch.ones(C + 1, C + 1, dtype=torch.bool, device=g.device).tril(-1)
    steps = F.pad(g, (1, 0))[:, :, None].expand(-1, -1, C + 1).masked_fill(~later, 0.0)
    return torch.exp(steps.cumsum(1).masked_fill(later.mT, -torch.inf))


def factors(decays: Tensor, posts: Sequence[bool]) -> tuple[Tensor, Tensor, Tensor]:
    """The decays from directions of earlier tokens to covectors [Z, C, r, C, 1], and from the start, and to the end.

    `posts` says which covectors read the state after the decay of their own token.
    """
    to_covectors = torch.stack([decays[:, 1:] if post else decays[:, :-1] for post in posts], 2)
    since, until = to_covectors[..., :1], decays[:, -1, 1:, None, None]
    C = until.shape[1]
    strict = torch.ones(C, C, dtype=decays.dtype, device=decays.device).tril(-1)[:, None]
    return (to_covectors[..., 1:] * strict)[..., None], since, until


def coupled(X: Tensor, P: Tensor, decays: Tensor, posts: Sequence[bool]) -> tuple[Tensor, Tensor, Tensor]:
    """Products of covectors X [Z, C, r, K] with the directions P [Z, C, w, K] of earlier tokens, and X and P moved.

    The products, [Z, C, r, C, w], have the decays between them as factors. X is moved to the start of the chunk, P to
    its end.
    """
    inside, since, until = factors(decays, posts)
    pairs = (matrix(X) @ matrix(P).mT).view(*X.shape[:3], *P.shape[1:3]) * inside
    return pairs, X * since, P * until


def coupled_backward(
    X: Tensor, P: Tensor, decays: Tensor, posts: Sequence[bool], pairs: Tensor,
    dpairs: Tensor, dX: Tensor, dP: Tensor, dD: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of X, P and g, from those of what `coupled` returns and of the log of the chunk's decay [Z, 1, 1].

    The gradient of log decays[i, j] goes to g_j, ..., g_(i - 1).
    """
    inside, since, until = factors(decays, posts)
    dproduct = matrix(dpairs * inside)
    dX_pairs, dP_pairs = (dproduct @ matrix(P)).view(X.shape), (dproduct.mT @ matrix(X)).view(P.shape)
    dX, dP = dX * since, dP * until
    dlog = torch.zeros_like(decays)
    for j, post in enumerate(posts):
        levels = dlog[:, 1:] if post else dlog[:, :-1]
        levels[..., 1:] += (dpairs * pairs)[:, :, j].sum(-1).tril(-1)
        levels[..., 0] += (X * dX)[:, :, j].sum(-1)
    dlog[:, -1, 1:] += (P * dP).sum((2, 3))
    dlog[:, -1, 0] += dD[:, 0, 0]
    dg = dlog.cumsum(2).tril(-1).sum(1)[:, :-1]
    return dX + dX_pairs, dP + dP_pairs, dg
'''

KEY = '''
TOGETHER = 4096  # tokens: what is computed for these stays in a CPU's cache


def coupled(X: Tensor, P: Tensor, decay: Tensor, posts: Sequence[bool]) -> tuple[Tensor, Tensor, Tensor]:
    """Products of covectors X [Z, C, r, K] with the directions P [Z, C, w, K] of earlier tokens, and X and P moved.

    `decay` is [Z, C, 1, K]. A product, for token t of the covector and s < t of the direction, is

        pairs[z, t, j, s, i] = sum_k x_tj decay_(s+1) ... decay_(t-1) p_si,     and decay_t too where posts[j],

    X is moved to the start of the chunk by the decays above it, P to its end by those below.
    """
    Z, C, r, _ = X.shape
    X, P = before_decay(X, decay, posts), P.clone()
    pairs = X.new_zeros(Z, C, r, C, P.shape[2])
    for x, p, d, m in zip(*(t.split(max(1, TOGETHER // C)) for t in (X, P, decay, pairs))):
        for size, upper, lower, _ in merges(x, p, d):
            block = below_diagonal(m, size)
            block.copy_(product(upper, lower).view(block.shape))
    return pairs, X, P


def before_decay(X: Tensor, decay: Tensor, posts: Sequence[bool]) -> Tensor:
    """A new tensor of covectors that all stand before the decay of their own token."""
    if all(posts):
        return X * decay
    return torch.stack([x * decay[:, :, 0] if post else x for x, post in zip(X.unbind(2), posts)], 2)


def merges(X: Tensor, P: Tensor, decay: Tensor) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    """Neighbouring blocks of tokens merge into blocks of twice their size until one is left; moves X and P in place.

    Between t in the upper and s in the lower block the decay splits at their border: x_t has been moved to it from
    above, p_s from below, so one matrix product serves all their pairs. Yields before each merge the blocks' size, the
    upper covectors [N, size * r, K], the lower directions [N, size * w, K] and the decays of all blocks. Only products
    of decays occur: no division, no difference of sums, no reference after t.
    """
    C, size = X.shape[1], 1
    while size < C:
        upper, lower, first, second = halves(X, P, decay, size)
        yield size, upper, lower, decay
        upper *= first
        lower *= second
        decay = first * second
        size *= 2


def halves(X: Tensor, P: Tensor, decay: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Views for pairs of blocks: the upper covectors, the lower directions, the lower and the upper block's decay."""
    Z, C, r, K = X.shape
    N, w = Z * C // (2 * size), P.shape[2]
    return X.view(N, 2, size * r, K)[:, 1], P.view(N, 2, size * w, K)[:, 0], *decay.view(N, 2, 1, K).unbind(1)


def below_diagonal(pairs: Tensor, size: int) -> Tensor:
    """View of what leads from lower to upper blocks: [Z, C, r, C, w] to [Z, C / (2 * size), size, r, size, w]."""
    Z, C, r, _, w = pairs.shape
    N = C // (2 * size)
    return pairs.view(Z, N, 2, size, r, N, 2, size, w)[:, :, 1, :, :, :, 0].diagonal(0, 1, 4).movedim(-1, 1)


def product(x: Tensor, p: Tensor) -> Tensor:
    """x @ p.mT, for the smallest matrices by elements."""
    return (x[:, :, None] * p[:, None]).sum(-1) if x.shape[1] * p.shape[1] <= 8 else x @ p.mT


def add_product(out: Tensor, a: Tensor, b: Tensor) -> None:
    """out += a @ b, for the thinnest matrices by columns."""
    if a.shape[2] > 2:
        out += a @ b
    else:
        for i in range(a.shape[2]):
            out.addcmul_(a[:, :, i, None], b[:, i, None])


def coupled_backward(
    X: Tensor, P: Tensor, decay: Tensor, posts: Sequence[bool],
    dpairs: Tensor, dX: Tensor, dP: Tensor, dD: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of X, P and g, from those of what `coupled` returns and of the log of the chunk's decay [Z, K, 1].

    The blocks are split again in the order opposite to their merging; dX and dP are used up. The log of a block's decay
    gets the gradient of the block that it merged into, and what its decay did to the other block's rows.
    """
    dg = torch.empty_like(decay)
    count = max(1, TOGETHER // X.shape[1])
    parts = (t.split(count) for t in (X, P, decay, dpairs, dX, dP, dD, dg))
    for x, p, d, dm, dx, dp, dd, out in zip(*parts):
        moves = merges(before_decay(x, d, posts), p.clone(), d)
        levels = [(size, upper.clone(), lower.clone(), decays) for size, upper, lower, decays in moves]
        for size, upper, lower, decays in reversed(levels):
            dupper, dlower, first, second = halves(dx, dp, decays, size)
            dupper *= first
            dlower *= second
            dd = torch.stack(((upper * dupper).sum(1), (lower * dlower).sum(1)), 1) + dd.view(-1, 1, x.shape[-1])
            block = below_diagonal(dm, size).reshape(len(upper), upper.shape[1], lower.shape[1])
            add_product(dupper, block, lower)
            add_product(dlower, block.mT, upper)
        out.copy_(dd.view(out.shape))
        for j, post in enumerate(posts):
            if post:
                dx[:, :, j] *= d[:, :, 0]
                out[:, :, 0].addcmul_(x[:, :, j], dx[:, :, j])
    return dX, dP, dg[:, :, 0]
'''
