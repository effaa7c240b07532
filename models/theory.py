"""Closed forms for what writes do to each other in a linear state.

Setting: D writes of unit keys k_i in R^d with values E|v_i|^2 = s2, independent of the keys and with mean zero; d is
the key dimension K. The state S is K x V, a key is read as S^T k, its error is e_i = S^T k_i - v_i. "Additive" writes
k v^T, "delta" writes beta k (v - S^T k)^T. The keys are independent and uniform on the sphere unless said otherwise.
Errors are expectations of |e_i|^2, in the unit of s2.

A smaller squared error is not more recall: with random keys and nearest-value decoding additive recalls as much as
delta or more. Delta wins where keys correlate or repeat.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]


def additive_error(writes: int, d: int, s2: float = 1.0) -> float:
    """(D-1)/d * s2, for every one of the D keys: each other write adds the square of a random cosine, 1/d."""
    return (writes - 1) / d * s2


def additive_error_correlated(writes: int, d: int, r: float, s2: float = 1.0) -> float:
    """(D-1) (r^2 + (1-r)^2/(d-1)) * s2, for keys sqrt(r) u + sqrt(1-r) w_i with w_i uniform on the unit sphere around 0
    within the complement of the common unit vector u."""
    return (writes - 1) * (r**2 + (1 - r) ** 2 / (d - 1)) * s2


def additive_energy(writes: int, s2: float = 1.0) -> float:
    """E|S|^2 after so many writes: t * s2."""
    return writes * s2


def delta_newest_error(error_before: Array, beta: float) -> Array:
    """The error vector S^T k - v of a key right after it is written, from that before, for any unit keys."""
    return (1 - beta) * error_before


def delta_read_change(key: Array, written: Array, error_before: Array, beta: float) -> Array:
    """How a write moves the read of `key`: -beta (k_t . k_i) (S^T k_t - v_t), so an orthogonal key is untouched.

    key, written: k_i and k_t [K]. error_before: S^T k_t - v_t [V], before the write.
    """
    return -beta * float(written @ key) * error_before


def delta_energy(writes: int, d: int, beta: float, s2: float = 1.0) -> float:
    """E|S|^2 after so many writes: F_t = rho F_{t-1} + beta^2 s2 with rho = 1 - beta (2 - beta)/d, F_0 = 0."""
    rho = 1 - beta * (2 - beta) / d
    energy = 0.0
    for _ in range(writes):
        energy = rho * energy + beta**2 * s2
    return energy


def delta_energy_limit(d: int, beta: float, s2: float = 1.0) -> float:
    """The limit of `delta_energy` after many writes, beta d s2/(2 - beta)."""
    return beta * d * s2 / (2 - beta)


def delta_signal(age: int, d: int, beta: float, s2: float = 1.0) -> float:
    """E<v_i, S^T k_i> when `age` other keys were written since: beta (1 - beta/d)^age s2."""
    return beta * (1 - beta / d) ** age * s2


def delta_error(age: int, write: int, d: int, beta: float, s2: float = 1.0) -> float:
    """The error of the key of the `write`-th write (from 1), when `age` other keys were written since.

    It is P - 2 * signal + s2, where P = E|S^T k_i|^2 starts as (1-beta)^2 F/d + beta^2 s2 and each later write makes it
    P (1 - 2 beta/d + 2 beta^2/(d (d+2))) + beta^2 s2/d + beta^2 F/(d (d+2)), F being the energy before that write.
    """
    energy = delta_energy(write - 1, d, beta, s2)
    power = (1 - beta) ** 2 * energy / d + beta**2 * s2
    rho = 1 - beta * (2 - beta) / d
    for _ in range(age):
        energy = rho * energy + beta**2 * s2
        kept = 1 - 2 * beta / d + 2 * beta**2 / (d * (d + 2))
        power = kept * power + beta**2 * s2 / d + beta**2 * energy / (d * (d + 2))
    return power - 2 * delta_signal(age, d, beta, s2) + s2


def delta_error_by_age(writes: int, d: int, beta: float, s2: float = 1.0) -> Array:
    """[D]: the error after D writes of the key written `age` writes before the last one, age 0 .. D-1."""
    return np.array([delta_error(age, writes - age, d, beta, s2) for age in range(writes)])


def delta_forgotten_error(beta: float, s2: float = 1.0) -> float:
    """The limit of the error at a great age, 2/(2 - beta) * s2; to return zero would cost s2."""
    return 2 / (2 - beta) * s2


def orthonormal_error(rule_is_delta: bool, beta: float = 1.0, s2: float = 1.0) -> float:
    """With orthonormal keys: additive is exact, delta leaves (1-beta)^2 s2 of every key, whatever its age."""
    return (1 - beta) ** 2 * s2 if rule_is_delta else 0.0


def delta_repeated_read(values: Array, beta: float) -> Array:
    """What one unit key written m times reads: sum_j beta (1-beta)^(m-j) v_j. values: [m, V], oldest first."""
    ages = np.arange(len(values))[::-1]
    return np.asarray(beta * (1 - beta) ** ages @ values)


def additive_repeated_read(values: Array) -> Array:
    """What one unit key written m times reads under the additive rule: the plain sum."""
    return np.asarray(values.sum(axis=0))


def least_squares_map(keys: Array, values: Array) -> Array:
    """The map S [K, V] of least norm with S^T k_i = v_i in the sense of least squares.

    Repeated passes of delta writes with beta = 1 over fewer than d independent keys are the Kaczmarz iteration and
    converge to it from S = 0.
    """
    return np.asarray(np.linalg.lstsq(keys, values, rcond=None)[0])
