"""What a capsule network computes beside its convolutions, in a few lines of NumPy each.

Everything is in the dtype of the inputs; in float64 it is the oracle. Groups and capsules are runs
of consecutive elements.
"""

import numpy as np


def leaky_relu(x, slope):
    """x where it is positive, slope * x elsewhere."""
    return np.where(x > 0, x, slope * x)


def leaky_relu_backward(x, dy, slope):
    """The gradient that reaches x."""
    return np.where(x > 0, dy, slope * dy)


def squash(x, group):
    """a * (1 - exp(-n)) / n over each group a of x, with n = sqrt(|a|^2 + 1e-7)."""
    a = x.reshape(-1, group)
    n, _ = _regularised_length(a)
    return (a * (-np.expm1(-n) / n)).reshape(x.shape)


def _regularised_length(a):
    """(n, overflows) of groups (..., E), each (..., 1): an |a|^2 that overflows counts as float32's largest number."""
    with np.errstate(over="ignore"):
        square = np.sum(a * a, axis=-1, keepdims=True) + a.dtype.type(1e-7)
    overflows = np.isinf(square)
    return np.sqrt(np.where(overflows, np.finfo(np.float32).max, square)), overflows


def squash_jacobian(a):
    """d squash(a)[i] / d a[j] of groups (..., E): f on the diagonal, a[i] * a[j] * f'(n) / n everywhere.

    With f(n) = (1 - exp(-n)) / n is f'(n) = (n * exp(-n) + exp(-n) - 1) / n^2; 0 where |a|^2 overflows.
    """
    n, overflows = (part[..., None] for part in _regularised_length(a))
    f = -np.expm1(-n) / n
    slope = (n * np.exp(-n) + np.expm1(-n)) / n  # f'(n) * n
    unit = np.where(overflows, 0, a[..., None] / n)
    return f * np.eye(a.shape[-1], dtype=a.dtype) + unit * np.swapaxes(unit, -1, -2) * slope


def squash_backward(x, dy, group):
    """The gradient that reaches x: the transposed Jacobian of each group times its part of dy."""
    jacobians = squash_jacobian(x.reshape(-1, group))
    return np.einsum("gji,gj->gi", jacobians, dy.reshape(-1, group)).reshape(x.shape)


def capsule_length(x, size):
    """Length of each run of so many elements."""
    return np.sqrt(np.sum(x.reshape(-1, size) ** 2, axis=1))


def capsule_length_backward(x, d_lengths, size):
    """The gradient that reaches x: d_length * x / length, 0 where the length is 0."""
    lengths = capsule_length(x, size)[:, None]
    directions = np.divide(
        x.reshape(-1, size), lengths, out=np.zeros_like(x).reshape(-1, size), where=lengths > 0
    )
    return (d_lengths.reshape(-1, 1) * directions).reshape(x.shape)


def margin_loss(lengths, labels):
    """Mean over images of max(0, 0.5 - v)^2 for the label and 0.5 * max(0, v - 0.1)^2 elsewhere.

    Parameters
    ----------
    lengths : ndarray (N, P)
    labels : ndarray (N,) of int
    """
    present = np.arange(lengths.shape[1]) == labels[:, None]
    terms = np.where(
        present, np.maximum(0, 0.5 - lengths) ** 2, 0.5 * np.maximum(0, lengths - 0.1) ** 2
    )
    return terms.sum() / len(lengths)


def margin_loss_backward(lengths, labels):
    """The gradient that reaches the lengths."""
    present = np.arange(lengths.shape[1]) == labels[:, None]
    terms = np.where(present, -2 * np.maximum(0, 0.5 - lengths), np.maximum(0, lengths - 0.1))
    return terms / len(lengths)


def hits(lengths, labels):
    """How many images have their label's capsule longest, the first of those that tie; none with a length of NaN."""
    known = ~np.isnan(lengths).any(axis=1)
    return int(np.sum(known & (np.argmax(lengths, axis=1) == labels)))


def adam(step, gradient, first, second, weight, rate=1e-2, beta1=0.9, beta2=0.999, epsilon=1e-8):
    """Adam's step number ``step``, counted from 1; the rate is halved every 4,000 steps.

    Returns
    -------
    first, second, weight : ndarray
    """
    rate = rate * 0.5 ** ((step - 1) // 4000)
    first = beta1 * first + (1 - beta1) * gradient
    second = beta2 * second + (1 - beta2) * gradient**2
    mean, square = first / (1 - beta1**step), second / (1 - beta2**step)
    return first, second, weight - rate * mean / (np.sqrt(square) + epsilon)


def philox(counter, key):
    """Philox 4x32-10 in Python's integers: four words for a counter of four and a key of two."""
    c, k = list(counter), list(key)
    for _ in range(10):
        low, high = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [
            high >> 32 ^ c[1] ^ k[0],
            high & 0xFFFFFFFF,
            low >> 32 ^ c[3] ^ k[1],
            low & 0xFFFFFFFF,
        ]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def he_normal(count, terms, seed, layer):
    """Normal numbers of variance 2 / terms by the polar method, in float64.

    Number i takes the first point (a, b) within the unit circle, of Philox's counters
    (i, attempt, layer, 0) with the seed as key, 24 bits a coordinate.
    """
    return np.sqrt(2 / terms) * np.array([_normal(i, seed, layer) for i in range(count)])


def _normal(i, seed, layer):
    attempt, s = 0, 0.0
    while not 0 < s < 1:
        words = philox((i, attempt, layer, 0), (seed & 0xFFFFFFFF, seed >> 32))
        a, b = ((word >> 8) / 2**23 - 1 for word in words[:2])
        s = a * a + b * b
        attempt += 1
    return a * np.sqrt(-2 * np.log(s) / s)
