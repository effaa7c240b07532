"""Step loops written by hand from the papers' formulas: numpy, float64, one sequence and one head, S [K, V].

Each takes arrays over time (inputs [T, ...]) and constant params, and returns the outputs [T, V]. They are written in
transition form where the rule files use residuals, so that neither is the other's text again.
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray as A

exp, outer, sqrt = np.exp, np.outer, np.sqrt


def softplus(x: A) -> A:
    return np.logaddexp(0.0, x)


def erasing(transition, write, q: A, v: A) -> A:
    """S <- transition(t) S + write(t), read by q(t): the shape that most rules share."""
    K, V = q.shape[1], v.shape[1]
    S = np.zeros((K, V))
    out = []
    for t in range(len(q)):
        S = transition(t) @ S + write(t)
        out.append(S.T @ q[t])
    return np.stack(out)


def delta_step(q: A, k: A, v: A, step: A, decay: A | None = None) -> A:
    """(I - step k k^T) Diag(decay) S + step k v^T, read by q / sqrt(K)."""
    K = q.shape[1]
    eye = np.eye(K)
    d = np.ones_like(q) if decay is None else np.broadcast_to(decay.reshape(len(q), -1), q.shape)

    def transition(t: int) -> A:
        return (eye - step[t] * outer(k[t], k[t])) @ np.diag(d[t])

    return erasing(transition, lambda t: step[t] * outer(k[t], v[t]), q / sqrt(K), v)


def delta_negative(q, k, v, beta):
    return delta_step(q, k, v, beta)


def comba(q, k, v, g, beta, d, D):
    K = q.shape[1]

    def transition(t: int) -> A:
        return (np.eye(K) - beta[t] * d * outer(k[t], k[t])) * exp(g[t])

    return erasing(transition, lambda t: beta[t] * outer(k[t], v[t]), (q - D * k) / sqrt(K), v)


def dplr(q, k, v, a, b, g):
    K = q.shape[1]
    return erasing(lambda t: np.diag(exp(g[t])) + outer(b[t], a[t]), lambda t: outer(k[t], v[t]), q / sqrt(K), v)


def iplr(q, k, v, a, b):
    return dplr(q, k, v, a, b, np.zeros_like(q))


def exact_flow(k, beta):
    n = np.sum(k * k, axis=1)
    return -np.expm1(-beta * n) / np.maximum(n, 1e-6)


def efla(q, k, v, beta):
    return delta_step(q, k, v, exact_flow(k, beta))


def efla_kda(q, k, v, g, beta):
    return delta_step(q, k, v, exact_flow(k, beta), exp(g))


def kaczmarz(q, k, v, eta):
    return delta_step(q, k, v, eta / (np.sum(k * k, axis=1) + 1e-6))


def longhorn(q, k, v, beta):
    return delta_step(q, k, v, beta / (1 + beta * np.sum(k * k, axis=1)))


def hgrn2(q, v, g):
    K = q.shape[1]
    return erasing(lambda t: np.diag(exp(g[t])), lambda t: outer(-np.expm1(g[t]), v[t]), q / sqrt(K), v)


def retention(q, k, v, gamma):
    K = q.shape[1]
    return erasing(lambda t: gamma * np.eye(K), lambda t: outer(k[t], v[t]), q / sqrt(K), v)


def rodimus(q, k, x, a, tau, i, w):
    K = q.shape[1]
    g = softplus(a)
    o = erasing(lambda t: np.diag(exp(-g[t] * tau[t])), lambda t: outer(g[t] ** tau[t] * k[t], i[t] * x[t]), q, x)
    return o / sqrt(K) + w * x


def linear_attention(q, k, v):
    """Attention with phi = elu + 1: sum over s <= t of phi(q_t).phi(k_s) v_s, normalised."""

    def phi(x: A) -> A:
        return np.where(x > 0, x + 1, exp(np.minimum(x, 0)))

    weights = np.tril(phi(q) @ phi(k).T)
    return weights @ v / weights.sum(axis=1, keepdims=True)


def precond_gated_delta(q, k, v, g, beta, ga, b, c):
    K = q.shape[1]
    accumulated = np.zeros(K)
    S = np.zeros((K, v.shape[1]))
    out = []
    for t in range(len(q)):
        accumulated = exp(ga[t]) * accumulated + b[t] * k[t] ** 2
        r = np.log(accumulated + 1e-6) + c
        scaled = 1.5 ** (-r / (1 + np.abs(r))) * k[t]
        S = (np.eye(K) - beta[t] * outer(scaled, k[t])) @ (exp(g[t]) * S) + beta[t] * outer(scaled, v[t])
        out.append(S.T @ q[t] / sqrt(K))
    return np.stack(out)


def mamba3(C, B, x, dt, A, lam, th, D):
    """The direct form: the state itself is rotated by the token's angle, S <- e^{dt A} R(th) S."""
    K = C.shape[1]

    def rotation(angles: A) -> A:
        R = np.zeros((K, K))
        for i, a in enumerate(angles):
            c, s = np.cos(a), np.sin(a)
            R[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[c, -s], [s, c]]
        return R

    S = np.zeros((K, x.shape[1]))
    before = np.zeros((K, x.shape[1]))
    out = []
    for t in range(len(C)):
        R, decay, now = rotation(th[t]), exp(dt[t] * A[t]), outer(B[t], x[t])
        S = decay * (R @ S) + lam[t] * dt[t] * now + (1 - lam[t]) * dt[t] * decay * (R @ before)
        before = now
        out.append(S.T @ C[t] + D * x[t])
    return np.stack(out)


def mlstm(q, k, v, f, i):
    """The stabiliser starts at minus infinity here; the output does not depend on where it starts."""
    K = q.shape[1]
    S, n, m = np.zeros((K, v.shape[1])), np.zeros(K), -np.inf
    out = []
    for t in range(len(q)):
        new = max(f[t] + m, i[t])
        keep, write = exp(f[t] + m - new), exp(i[t] - new)
        S, n, m = keep * S + write * outer(k[t], v[t]), keep * n + write * k[t], new
        scaled = q[t] / sqrt(K)
        out.append(S.T @ scaled / max(abs(n @ scaled), exp(-m)))
    return np.stack(out)


def titans_linear(q, k, v, eta, theta, alpha):
    """Gradient descent with momentum and weight decay on |S^T k - v|^2 / 2."""
    K, V = q.shape[1], v.shape[1]
    S, momentum = np.zeros((K, V)), np.zeros((K, V))
    out = []
    for t in range(len(q)):
        gradient = outer(k[t], S.T @ k[t] - v[t])
        momentum = eta[t] * momentum - theta[t] * gradient
        S = (1 - alpha[t]) * S + momentum
        out.append(S.T @ q[t] / sqrt(K))
    return np.stack(out)
