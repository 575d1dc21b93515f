"""Routing in plain PyTorch, with its votes stored: for tensors on the CPU, and for votes that somebody else made.

Axes: votes V (N, L, I, P, E), parents (N, L, P, E), children (N, L, I), as in :mod:`numbacaps.routing.host`. PyTorch
differentiates; statistics are float32 at least.
"""

import math

import torch

from numbacaps.routing.host import capsules

_MOST_LOG = 80  # whose exp float32 holds


def votes(x, w, geometry, summed=False):
    """Votes of x (N, C, H, W, G, D1, D2) and w (P, C, KH, KW, G, D2, D3); of the whole window where they are summed."""
    g = geometry
    (SH, SW), (PH, PW), (DH, DW) = g.stride, g.padding, g.dilation
    x = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, 0, PW, PW, PH, PH))
    taps = [
        x[
            :,
            :,
            kh * DH : kh * DH + (g.OH - 1) * SH + 1 : SH,
            kw * DW : kw * DW + (g.OW - 1) * SW + 1 : SW,
        ]
        for kh in range(g.KH)
        for kw in range(g.KW)
    ]
    w = w.expand(g.P, g.C, *w.shape[2:]).flatten(2, 3)
    how = "nctyxgad,pctgde->nyxcpgae" if summed else "nctyxgad,pctgde->nyxctpgae"
    made = torch.einsum(how, torch.stack(taps, 2), w)
    return made.reshape(x.shape[0], g.L, g.C if summed else g.Q, g.P, g.E3)


def numbers_of(geometry, device):
    """Which capsule each child (L, I) is, -1 in the padding."""
    return torch.from_numpy(capsules(geometry)).to(device)


def children(activations, numbers):
    """Activations (N, C, H, W) of the children (N, L, I), 0 in the padding; ``numbers`` as :func:`numbers_of` has them."""
    of_children = activations.flatten(1)[:, numbers.clamp(min=0)]
    return torch.where(numbers >= 0, of_children, 0)


def squash(s):
    """s / (1 / |s| + |s|), 0 at 0. No power of |s| or of 1 / |s| overflows, in the gradient neither."""
    largest = s.detach().abs().amax(-1, keepdim=True)
    nothing = largest == 0
    scale = torch.where(nothing, 1, largest)
    scaled = torch.where(nothing, torch.ones_like(s), s) / scale
    length = (scaled**2).sum(-1, keepdim=True).sqrt()  # at least 1
    size = scale * length
    is_long = size > 1
    short, inverse = torch.where(is_long, 1, size), 1 / torch.where(is_long, size, 1)
    y = torch.where(is_long, scaled / length / (1 + inverse**2), s * (short / (1 + short**2)))
    return torch.where(nothing, torch.zeros_like(s), y)


def dynamic(V, logits=None, options=None):
    """Parents (N, L, P, E) by dynamic routing; ``logits`` (P, I) or None, ``options`` those of numbacaps.routing."""
    o, axis = options, 3 if options.softmax_over == "parents" else 2
    b = V.new_zeros(V.shape[:4])
    if logits is not None:
        b = b + logits.T.to(V.dtype)
    for t in range(o.iterations):
        last = t == o.iterations - 1
        seen = V.detach() if o.detach and not last else V
        if o.detach:
            b = b.detach()
        v = squash(torch.einsum("nlip,nlipe->nlpe", b.softmax(axis), seen))
        if not last:
            b = b + torch.einsum("nlipe,nlpe->nlip", seen, v)
    return v


def _assigned(log_p, numbers, count, options):
    """log R of log p (N, L, I, P)."""
    if options.normalise == "window":
        return log_p.log_softmax(-1)
    N, nowhere = log_p.shape[0], numbers < 0
    places = torch.where(nowhere, count, numbers).flatten().expand(N, -1)
    of_children = log_p.logsumexp(-1).flatten(1)
    top = of_children.new_full((N, count + 1), -math.inf)
    top = top.scatter_reduce(1, places, of_children.detach(), "amax")
    shifted = (of_children - top.gather(1, places)).exp()
    total = shifted.new_zeros(N, count + 1).scatter_add(1, places, shifted)
    norm = (top.gather(1, places) + total.gather(1, places).log()).reshape(N, *numbers.shape)
    return torch.where(nowhere[..., None], -math.inf, log_p - norm[..., None])


def em(V, a, beta_u, beta_a, options, numbers=None, count=0):
    """Means (N, L, P, E) and activations (N, L, P) of the parents by EM routing.

    ``a`` (N, L, I); betas (P,); ``numbers`` (L, I) says which of ``count`` capsules a child is, for normalise="all".
    """
    o, E = options, V.shape[-1]
    log_p, alive = V.new_zeros(V.shape[:4]), (a > 0)[..., None]
    for t, lam in enumerate(o.temperatures):
        log_R = _assigned(log_p, numbers, count, o)
        if o.detach:
            log_R = log_R.detach()
        seen = V.detach() if o.detach and t < o.iterations - 1 else V
        top = torch.where(alive, log_R.detach(), -math.inf).amax(2, keepdim=True)
        top = torch.where(top.isinf(), 0, top)
        # A child whose activation is 0 weighs nothing, but its gradient reads R. That may lie above all others': it is kept finite.
        shifted = (log_R - top).clamp(max=_MOST_LOG).exp()
        weights = shifted * a[..., None]
        total = weights.sum(2, keepdim=True)
        nothing = total == 0
        omega = weights / torch.where(nothing, 1, total)
        S = (total * top.exp())[:, :, 0]
        mu = torch.einsum("nlip,nlipe->nlpe", omega, seen)
        away = seen - mu[:, :, None]
        variance = torch.einsum("nlip,nlipe->nlpe", omega, away**2) + o.epsilon
        spread = 0.5 * variance.log().sum(-1)
        z = lam * (beta_a - S * (E * beta_u + spread))
        bias = torch.nn.functional.logsigmoid(z) - spread - 0.5 * E * math.log(2 * math.pi)
        log_p = bias[:, :, None] - 0.5 * (away**2 / variance[:, :, None]).sum(-1)
    return mu, z.sigmoid()
