"""Routing on the host, vectorised in NumPy: for machines without a GPU. All is float64 inside; votes are kept.

Axes: votes V and their gradients (N, L, I, P, E), parents (N, L, P, E), couplings (N, L, I, P), children (N, L, I).
"""

import numpy as np

from numbacaps.algorithms.host import votes as host_votes
from numbacaps.algorithms.host import votes_backward as host_votes_backward


def make_votes(geometry, x, w, kind):
    """The votes of an input and a kernel in the kernels' layout."""
    g = geometry
    found = np.empty(g.votes_shape)
    wide = np.asarray(x, np.float64), np.ascontiguousarray(w, np.float64)
    host_votes(g, *wide, found, stream=0, workspace=None)
    found = found.reshape(g.N, g.P, g.L, g.C, g.KH * g.KW, g.E3)
    if kind == "sum":
        found = found.sum(4, keepdims=True)
    return np.moveaxis(found.reshape(g.N, g.P, g.L, -1, g.E3), 1, 3)


def votes_backward(geometry, x, w, dV, kind):
    """dx and dw, in float64, of the votes' gradient."""
    g = geometry
    wide = (np.ascontiguousarray(one, np.float64) for one in (x, w, np.moveaxis(dV, 3, 1)))
    dx, dw = np.empty(g.input_shape), np.empty(g.kernel_shape)
    how = {"stream": 0, "workspace": None, "sum_window": kind == "sum"}
    host_votes_backward(g, *wide, dx, dw, **how)
    return dx, dw


def capsules(geometry):
    """(L, I): the number of each child in its image; -1 in the padding."""
    g = geometry
    steps = zip(g.stride, g.padding, g.dilation)
    of_axes = zip((g.OH, g.OW), (g.KH, g.KW), (g.H, g.W), steps)
    # Outside is outside, so that numbers stay small however large the steps are.
    row, column = (
        np.array(
            [[min(max(o * S + k * D - P, -1), size) for k in range(window)] for o in range(outputs)]
        )
        for outputs, window, size, (S, P, D) in of_axes
    )
    row, column = row[:, None, None, :, None], column[None, :, None, None, :]
    channel = np.arange(g.C)[None, None, :, None, None]
    inside = (0 <= row) & (row < g.H) & (0 <= column) & (column < g.W)
    return np.where(inside, (channel * g.H + row) * g.W + column, -1).reshape(g.L, g.Q)


# ---- dynamic routing


def squash(s):
    """s / (1 / |s| + |s|), 0 at 0."""
    return s * _shrunk(_length(s))


def squash_backward(s, dv):
    """f dv + unit (unit . dv) (1 / |s| - |s|) f^2."""
    size = _length(s)
    f, away = _shrunk(size), np.divide(1, size, out=np.zeros_like(size), where=size != 0)
    unit = s * away
    along = (unit * dv).sum(-1, keepdims=True) * ((away - size) * f * f)
    return f * dv + unit * along


def _length(s):
    largest = np.abs(s).max(-1, keepdims=True)
    scale = np.where((largest == 0) | ~np.isfinite(largest), 1, largest)
    return scale * np.sqrt(((s / scale) ** 2).sum(-1, keepdims=True))


def _shrunk(size):
    safe = np.where(size == 0, 1, size)
    return np.where(size == 0, 0, 1 / (1 / safe + safe))


def softmax(b, axis):
    """exp(b) / sum of exp(b)."""
    e = np.exp(b - b.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def _route(V, logits, options):
    """(c, s, v) of every iteration."""
    axis = 3 if options.softmax_over == "parents" else 2
    b = np.zeros(V.shape[:4]) + (0 if logits is None else logits.T)
    history = []
    for _ in range(options.iterations):
        c = softmax(b, axis)
        s = np.einsum("nlip,nlipe->nlpe", c, V, optimize=True)
        v = squash(s)
        history.append((c, s, v))
        b = b + np.einsum("nlipe,nlpe->nlip", V, v, optimize=True)
    return history


def dynamic(V, logits, options):
    """v and the last couplings; ``logits`` (P, I) or None."""
    c, _, v = _route(V, logits, options)[-1]
    return v, c


def dynamic_backward(V, logits, dv, options):
    """dV and the gradient of the logits, (P, I)."""
    axis = 3 if options.softmax_over == "parents" else 2
    history = _route(V, logits, options)
    dV, db, later = np.zeros_like(V), np.zeros(V.shape[:4]), dv
    for t in reversed(range(options.iterations)):
        c, s, v = history[t]
        if t < options.iterations - 1:
            dV += db[..., None] * v[:, :, None]
            later = np.einsum("nlip,nlipe->nlpe", db, V, optimize=True)
        ds = squash_backward(s, later)
        dV += c[..., None] * ds[:, :, None]
        if options.detach:
            break
        dc = np.einsum("nlipe,nlpe->nlip", V, ds, optimize=True)
        db = db + c * (dc - (c * dc).sum(axis, keepdims=True))
    return dV, db.sum((0, 1)).T


# ---- EM routing


def _log_sigmoid(z):
    return np.minimum(z, 0) - np.log1p(np.exp(-np.abs(z)))


class _Groups:
    """Which children are normalised together: those of a position, or all of a capsule."""

    def __init__(self, numbers, size, options):
        self._numbers, self._size = numbers, size + 1  # the last place is the padding's
        self._overlaps = options.normalise == "all"

    def _together(self, of_children, function, start):
        """What a ufunc makes of a number of each child, (N, L, I), for all children of a capsule; again a child each."""
        if not self._overlaps:
            return of_children
        found = np.full((len(of_children), self._size), start)
        for image, numbers in zip(found, of_children):
            function.at(image, self._numbers, numbers)
        return found[:, self._numbers]

    def assigned(self, log_p):
        """R, and log_p less the logarithm of what it is divided by."""
        top = self._together(log_p.max(-1), np.maximum, -np.inf)[..., None]
        total = self.sum(np.exp(log_p - top).sum(-1))[..., None]
        found = log_p - top - np.log(total)
        if self._overlaps:  # padding is no child's
            found[:, self._numbers < 0] = -np.inf
        return found

    def sum(self, of_children):
        """Of a number of each child."""
        return self._together(of_children, np.add, 0.0)


def _em(V, a, betas, options, groups):
    """(log R, omega, S, mu, variance, z) of every iteration."""
    E, (beta_u, beta_a) = V.shape[-1], betas
    log_p, history = np.zeros(V.shape[:4]), []
    with np.errstate(divide="ignore"):
        log_a = np.log(a)[..., None]
    for lam in options.temperatures:
        log_R = groups.assigned(log_p)
        weights = log_R + log_a
        top = weights.max(2, keepdims=True)
        top = np.where(np.isneginf(top), 0, top)
        omega = np.exp(weights - top)
        S = omega.sum(2, keepdims=True)
        omega = np.divide(omega, S, out=np.zeros_like(omega), where=S != 0)
        log_S = np.where(S == 0, np.inf, top + np.log(np.where(S == 0, 1, S)))
        mu = np.einsum("nlip,nlipe->nlpe", omega, V, optimize=True)
        away = V - mu[:, :, None]
        variance = np.einsum("nlip,nlipe->nlpe", omega, away**2, optimize=True) + options.epsilon
        S = np.where(np.isinf(log_S), 0, np.exp(np.where(np.isinf(log_S), 0, log_S)))[:, :, 0]
        spread = 0.5 * np.log(variance).sum(-1)
        z = lam * (beta_a - S * (E * beta_u + spread))
        history.append((log_R, omega, log_S, S, mu, variance, z))
        constant = _log_sigmoid(z) - spread - 0.5 * E * np.log(2 * np.pi)
        log_p = constant[:, :, None] - 0.5 * (away**2 / variance[:, :, None]).sum(-1)
    return history


def em(V, a, betas, options, numbers, size):
    """mu, activations and the last assignments.

    ``a`` (N, L, I); ``numbers`` (L, I) says which of ``size`` capsules a child is.
    """
    found = _em(V, a, betas, options, _Groups(numbers, size, options))[-1]
    return found[4], np.exp(_log_sigmoid(found[6])), np.exp(found[0])


def em_backward(V, a, betas, d_mu, d_out, options, numbers, size):
    """dV, da, and the gradients of beta_u and beta_a, (2, P)."""
    groups, E = _Groups(numbers, size, options), V.shape[-1]
    history = _em(V, a, betas, options, groups)
    dV, da, d_betas = np.zeros_like(V), np.zeros_like(a), np.zeros((2, V.shape[3]))
    z = history[-1][6]
    dz, d_variance = d_out * np.exp(_log_sigmoid(z) + _log_sigmoid(-z)), np.zeros_like(d_mu)
    for t in reversed(range(options.iterations)):
        log_R, omega, log_S, S, mu, variance, _ = history[t]
        d_cost = -options.temperatures[t] * dz
        d_betas += np.array([(d_cost * S).sum((0, 1)) * E, -d_cost.sum((0, 1))])
        d_variance = d_variance + (d_cost * S)[..., None] * 0.5 / variance
        gamma = S * d_cost * (E * betas[0] + 0.5 * np.log(variance).sum(-1))
        gamma = gamma - (d_variance * (variance - options.epsilon)).sum(-1)
        away = V - mu[:, :, None]
        pull = d_mu[:, :, None] + d_variance[:, :, None] * away
        D = gamma[:, :, None] + (away * pull).sum(-1)
        dV += omega[..., None] * (pull + d_variance[:, :, None] * away)
        da += (np.exp(log_R - log_S) * D).sum(-1)
        if options.detach or t == 0:
            break
        q = groups.sum((omega * D).sum(-1))[..., None]
        d_log = omega * D - np.exp(log_R) * q
        _, _, _, _, mu, variance, z = history[t - 1]
        away = (V - mu[:, :, None]) / variance[:, :, None]
        dV -= d_log[..., None] * away
        d_mu = np.einsum("nlip,nlipe->nlpe", d_log, away, optimize=True)
        d_variance = 0.5 * np.einsum(
            "nlip,nlipe->nlpe", d_log, away**2 - 1 / variance[:, :, None], optimize=True
        )
        dz = d_log.sum(2) * np.exp(_log_sigmoid(-z))
    return dV, da, d_betas
