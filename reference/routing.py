"""Routing between capsules, dynamic and EM, by loops, and the gradients of both.

Children vote, parents agree. A vote is one small product of the capsule convolution, before its sum:

    u[i,j] = x[i] @ w[i,j]        child i, parent j, E = G * D1 * D3 elements

At an output position the children are the capsules under the window, i = (c, kh, kw), and the parents the output
channels. In the kind "sum" a child is a whole channel, i = c, whose vote is the sum over its window.

The letters are the papers': Sabour, Frosst and Hinton, 2017, procedure 1, for dynamic routing; Hinton, Sabour and
Frosst, 2018, procedure 1, for EM routing. Functions take the votes of one image, (L, I, J, E), L its positions.
All sums are in the dtype of the votes.
"""

import math

import numpy as np

from .window import ieee, output_size, window_step, zero_pad

KINDS = ("children", "sum")  # votes of a child each, or summed over the window


@ieee
def routing_votes(x, w, stride=1, padding=0, dilation=1, kind="children"):
    """The votes of every child for every parent, and which input capsule each child is.

    Parameters
    ----------
    x : ndarray, (N, C, H, W, G, D1, D2)
    w : ndarray, (P, C, KH, KW, G, D2, D3)
        In the kind "sum" also (P, 1, KH, KW, G, D2, D3): all channels share it.
    stride, padding, dilation : int or pair of int
    kind : str
        "children" or "sum".

    Returns
    -------
    votes : ndarray, (N, L, I, P, E)
    capsule : ndarray of int, (L, I)
        Number (c * H + h) * W + w of the child in its image; -1 in the padding. In the kind "sum" all -1.
    """
    stride, padding, dilation = window_step(stride, padding, dilation)
    N, C, H, W, G, D1, _ = x.shape
    P, _, KH, KW, _, _, D3 = w.shape
    OH, OW = output_size((H, W), (KH, KW), stride, padding, dilation, name="w")
    w = np.broadcast_to(w, (P, C, *w.shape[2:]))
    padded = zero_pad(x, padding)
    votes = np.zeros((N, OH * OW, C, KH * KW, P, G, D1, D3), x.dtype)
    capsule = np.full((OH * OW, C, KH * KW), -1)
    for n, oh, ow, c, kh, kw in np.ndindex(N, OH, OW, C, KH, KW):
        position, tap = oh * OW + ow, kh * KW + kw
        row, column = oh * stride[0] + kh * dilation[0], ow * stride[1] + kw * dilation[1]
        for p in range(P):
            for g in range(G):
                votes[n, position, c, tap, p, g] = padded[n, c, row, column, g] @ w[p, c, kh, kw, g]
        row, column = row - padding[0], column - padding[1]
        if 0 <= row < H and 0 <= column < W:
            capsule[position, c, tap] = (c * H + row) * W + column
    if kind == "sum":
        return votes.sum(3).reshape(N, OH * OW, C, P, -1), np.full((OH * OW, C), -1)
    shape = (OH * OW, C * KH * KW)
    return votes.reshape(N, *shape, P, -1), capsule.reshape(shape)


@ieee
def routing_votes_backward(x, w, d_votes, stride=1, padding=0, dilation=1, kind="children"):
    """The gradients of x and w from that of the votes, (N, L, I, P, E)."""
    stride, padding, dilation = window_step(stride, padding, dilation)
    N, C, H, W, G, D1, _ = x.shape
    P, own, KH, KW, _, _, D3 = w.shape
    OH, OW = output_size((H, W), (KH, KW), stride, padding, dilation, name="w")
    padded = zero_pad(x, padding)
    d_padded, dw = np.zeros_like(padded), np.zeros_like(w)
    taps = 1 if kind == "sum" else KH * KW
    d_votes = d_votes.reshape(N, OH * OW, C, taps, P, G, D1, D3)
    for n, oh, ow, c, kh, kw in np.ndindex(N, OH, OW, C, KH, KW):
        row, column = oh * stride[0] + kh * dilation[0], ow * stride[1] + kw * dilation[1]
        of_child = d_votes[n, oh * OW + ow, c, 0 if kind == "sum" else kh * KW + kw]
        for p in range(P):
            for g in range(G):
                kernel = w[p, c % own, kh, kw, g]
                d_padded[n, c, row, column, g] += of_child[p, g] @ kernel.T
                dw[p, c % own, kh, kw, g] += padded[n, c, row, column, g].T @ of_child[p, g]
    rows, columns = slice(padding[0], padding[0] + H), slice(padding[1], padding[1] + W)
    return np.ascontiguousarray(d_padded[:, :, rows, columns]), dw


# ---- dynamic routing


def squash(s):
    """v = |s|^2 / (1 + |s|^2) * s / |s|, which is s / (1 / |s| + |s|); 0 at 0."""
    size = _length(s)
    return s * _shrunk(size)


def squash_backward(s, dv):
    """The gradient that reaches s: f dv + s (s . dv) f' / |s|, with f = |s| / (1 + |s|^2); 0 at 0."""
    size = _length(s)
    if size == 0:
        return np.zeros_like(s)
    unit = s / size
    f = _shrunk(size)
    along = (1 / size - size) * f * f  # f' |s|, where f' = (1 - |s|^2) / (1 + |s|^2)^2
    return f * dv + unit * ((unit @ dv) * along)


def _length(s):
    largest = np.max(np.abs(s))
    if largest == 0 or not np.isfinite(largest):
        return largest
    return largest * math.sqrt(np.sum((s / largest) ** 2))


def _shrunk(size):
    return size * 0 if size == 0 else 1 / (1 / size + size)


def softmax(b):
    """exp(b) / sum of exp(b), along the last axis."""
    e = np.exp(b - b.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def couplings_of(b, softmax_over):
    """The couplings c[i,j] of logits b[i,j]: every child's add up to 1 ("parents"), or every parent's ("children")."""
    return softmax(b) if softmax_over == "parents" else softmax(b.T).T


@ieee
def dynamic_routing(u, iterations=3, logits=0, softmax_over="parents"):
    """Procedure 1 of Sabour et al. at every position of an image.

    Parameters
    ----------
    u : ndarray, (L, I, J, E)
        Votes.
    iterations : int
    logits : ndarray (I, J), or 0
        The b that the first iteration begins with.
    softmax_over : str
        "parents", as in the paper, or "children".

    Returns
    -------
    v : ndarray, (L, J, E)
    c : ndarray, (L, I, J)
        The last iteration's couplings.
    """
    L, I, J, E = u.shape
    v, couplings = np.zeros((L, J, E), u.dtype), np.zeros((L, I, J), u.dtype)
    for position in range(L):
        history = _route(u[position], iterations, logits, softmax_over)
        v[position], couplings[position] = history[-1][2], history[-1][0]
    return v, couplings


def _route(u, iterations, logits, softmax_over):
    """(c, s, v) of every iteration at one position."""
    I, J, E = u.shape
    b = np.zeros((I, J), u.dtype) + logits
    history = []
    for _ in range(iterations):
        c = couplings_of(b, softmax_over)
        s = np.zeros((J, E), u.dtype)
        for i in range(I):
            for j in range(J):
                s[j] += c[i, j] * u[i, j]
        v = np.array([squash(s[j]) for j in range(J)])
        history.append((c, s, v))
        for i in range(I):
            for j in range(J):
                b[i, j] += u[i, j] @ v[j]
    return history


@ieee
def dynamic_routing_backward(u, dv, iterations=3, logits=0, softmax_over="parents", detach=False):
    """The gradients of the votes and of the logits that routing begins with.

    Parameters
    ----------
    u, iterations, logits, softmax_over
        As `dynamic_routing`.
    dv : ndarray, (L, J, E)
    detach : bool
        The logits count as constants, as where votes are detached in all iterations but the last.

    Returns
    -------
    du : ndarray, (L, I, J, E)
    d_logits : ndarray, (I, J)
    """
    L, I, J, E = u.shape
    du, d_logits = np.zeros_like(u), np.zeros((I, J), u.dtype)
    for position in range(L):
        votes, gradient = u[position], du[position]
        history = _route(votes, iterations, logits, softmax_over)
        d_v = [np.zeros((J, E), u.dtype) for _ in range(iterations)]
        d_v[-1] += dv[position]
        db = np.zeros((I, J), u.dtype)  # of the logits of the iteration at hand
        for t in reversed(range(iterations)):
            c, s, _ = history[t]
            for i in range(I):  # b of iteration t + 1 is b of t plus <u, v>
                for j in range(J):
                    gradient[i, j] += db[i, j] * history[t][2][j]
                    d_v[t][j] += db[i, j] * votes[i, j]
            ds = np.array([squash_backward(s[j], d_v[t][j]) for j in range(J)])
            dc = np.zeros((I, J), u.dtype)
            for i in range(I):
                for j in range(J):
                    gradient[i, j] += c[i, j] * ds[j]
                    dc[i, j] = votes[i, j] @ ds[j]
            if detach:
                break
            axis = 1 if softmax_over == "parents" else 0
            db = db + c * (dc - np.sum(c * dc, axis, keepdims=True))
        d_logits += db
    return du, d_logits


# ---- EM routing


def inverse_temperature(lam, t):
    """lambda of iteration t, which grows towards ``lam``."""
    return lam * (1 - 0.95 ** (t + 1))


def _assigned(log_weights, capsule, normalise):
    """R: exp(log_weights) (L, I, J), normalised over the parents of a position, or over all parents of a capsule."""
    R = np.zeros_like(log_weights)
    for rows in _groups(capsule, normalise):
        R[rows] = softmax(log_weights[rows].reshape(-1)).reshape(-1, log_weights.shape[-1])
    return R


def _groups(capsule, normalise):
    """Of each child, or of each capsule, the places (l, i) where it votes; two arrays each."""
    L, I = capsule.shape
    found = {}
    for l in range(L):
        for i in range(I):
            if normalise == "window" or capsule[l, i] >= 0:  # padding is nobody's capsule
                key = (l, i) if normalise == "window" else int(capsule[l, i])
                found.setdefault(key, []).append((l, i))
    return [tuple(np.array(places).T) for places in found.values()]


def _m_step(V, w, epsilon):
    """(S, mu, var + epsilon) of one position's parents, from the weights w[i,j]; zeros for a parent without weight."""
    I, J, E = V.shape
    S = np.zeros(J, V.dtype)
    mu, var = np.zeros((J, E), V.dtype), np.zeros((J, E), V.dtype)
    for j in range(J):
        for i in range(I):
            S[j] += w[i, j]
        if S[j] == 0:
            continue
        for i in range(I):
            mu[j] += w[i, j] * V[i, j] / S[j]
        for i in range(I):
            var[j] += w[i, j] * (V[i, j] - mu[j]) ** 2 / S[j]
    return S, mu, var + V.dtype.type(epsilon)


def _log_p(V, mu, variance):
    """log p[i,j] of votes under the parents' Gaussians, at one position."""
    return -0.5 * np.sum((V - mu) ** 2 / variance + np.log(2 * math.pi * variance), -1)


def _log_sigmoid(z):
    return np.minimum(z, 0) - np.log1p(np.exp(-np.abs(z)))


def _em(V, a, beta_u, beta_a, iterations, lam, normalise, capsule, epsilon):
    """(R, S, mu, variance, z) of every iteration; a_out is sigmoid(z)."""
    L, I, J, E = V.shape
    log_weights, history = np.zeros((L, I, J), V.dtype), []
    for t in range(iterations):
        R = _assigned(log_weights, capsule, normalise)
        found = [_m_step(V[l], R[l] * a[l][:, None], epsilon) for l in range(L)]
        S, mu, variance = (np.array(part) for part in zip(*found))
        cost = S * (E * beta_u + 0.5 * np.sum(np.log(variance), -1))
        z = inverse_temperature(lam, t) * (beta_a - cost)
        history.append((R, S, mu, variance, z))
        log_weights = np.array(
            [_log_sigmoid(z[l]) + _log_p(V[l], mu[l], variance[l]) for l in range(L)]
        )
    return history


@ieee
def em_routing(
    V, a, beta_u, beta_a, iterations=3, lam=0.01, normalise="window", capsule=None, epsilon=1e-6
):
    """Procedure 1 of Hinton et al. on the positions of an image.

    Parameters
    ----------
    V : ndarray, (L, I, J, E)
        Votes.
    a : ndarray, (L, I)
        The children's activations.
    beta_u, beta_a : ndarray, (J,)
    iterations : int
    lam : float
        What the inverse temperature grows to.
    normalise : str
        Each child's assignments add up to 1 over the parents of a position ("window"), or over all parents that the
        capsule votes for ("all").
    capsule : ndarray of int, (L, I), optional
        Which input capsule each child is; "all" takes it.
    epsilon : float
        Added to every variance.

    Returns
    -------
    mu : ndarray, (L, J, E)
    a_out : ndarray, (L, J)
    R : ndarray, (L, I, J)
        The last iteration's assignments.
    """
    capsule = np.full(a.shape, -1) if capsule is None else capsule
    how = iterations, lam, normalise, capsule, epsilon
    R, _, mu, _, z = _em(V, a, beta_u, beta_a, *how)[-1]
    return mu, np.exp(_log_sigmoid(z)), R


@ieee
def em_routing_backward(
    V,
    a,
    beta_u,
    beta_a,
    d_mu,
    d_out,
    iterations=3,
    lam=0.01,
    normalise="window",
    capsule=None,
    epsilon=1e-6,
    detach=False,
):
    """The gradients of `em_routing`'s first four arguments, from those of its first two results.

    With ``detach`` the last iteration's assignments count as constants.
    """
    L, I, J, E = V.shape
    capsule = np.full(a.shape, -1) if capsule is None else capsule
    history = _em(V, a, beta_u, beta_a, iterations, lam, normalise, capsule, epsilon)
    dV, da = np.zeros_like(V), np.zeros_like(a)
    d_beta_u, d_beta_a = np.zeros_like(beta_u), np.zeros_like(beta_a)
    out = np.exp(_log_sigmoid(history[-1][4]))
    d_mu, d_variance, dz = d_mu.copy(), np.zeros_like(d_mu), d_out * out * (1 - out)
    for t in reversed(range(iterations)):
        R, S, mu, variance, _ = history[t]
        # z = lambda (beta_a - cost),  cost = S (E beta_u + 1/2 sum of log variance)
        d_cost = -inverse_temperature(lam, t) * dz
        d_beta_a -= d_cost.sum(0)
        d_beta_u += (d_cost * S).sum(0) * E
        dS = d_cost * (E * beta_u + 0.5 * np.sum(np.log(variance), -1))
        d_variance = d_variance + (d_cost * S)[..., None] * 0.5 / variance
        dw = np.zeros((L, I, J), V.dtype)
        for l in range(L):
            for i in range(I):
                for j in range(J):
                    if S[l, j] == 0:
                        continue
                    away = V[l, i, j] - mu[l, j]
                    spread = away**2 - (variance[l, j] - epsilon)
                    inner = d_mu[l, j] @ away + d_variance[l, j] @ spread
                    dw[l, i, j] = dS[l, j] + inner / S[l, j]
                    w = R[l, i, j] * a[l, i]
                    dV[l, i, j] += w / S[l, j] * (d_mu[l, j] + 2 * d_variance[l, j] * away)
                    da[l, i] += dw[l, i, j] * R[l, i, j]
        if detach or t == 0:
            break
        dR = dw * a[..., None]
        d_log = np.zeros_like(R)
        for rows in _groups(capsule, normalise):
            d_log[rows] = R[rows] * (dR[rows] - np.sum(R[rows] * dR[rows]))
        _, _, mu, variance, z = history[t - 1]
        d_mu, d_variance = np.zeros_like(mu), np.zeros_like(mu)
        for l in range(L):
            for i in range(I):
                for j in range(J):
                    away = (V[l, i, j] - mu[l, j]) / variance[l, j]
                    dV[l, i, j] -= d_log[l, i, j] * away
                    d_mu[l, j] += d_log[l, i, j] * away
                    d_variance[l, j] += d_log[l, i, j] * 0.5 * (away**2 - 1 / variance[l, j])
        dz = d_log.sum(1) * np.exp(_log_sigmoid(-z))
    return dV, da, d_beta_u, d_beta_a
