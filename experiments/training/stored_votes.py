"""Routing as most code does it: every vote is stored, and every iteration reads all of them.

Plain PyTorch, nothing of numbacaps, and written as the papers are. It is what networks of :mod:`numbacaps.torch` are
held against: the layers have the names and shapes of parameters of :class:`numbacaps.torch.RoutedCapsuleConv2d` and
:class:`numbacaps.torch.RoutedCapsuleLinear`, so each side loads the other's weights.

Axes of votes V: (N, P, OH, OW, I, E). For every image, parent and position there are I = C * KH * KW children, and a vote
has E elements. A matrix capsule network's first routed layer has 21 MB of votes an image; autograd keeps several tensors
of this size for every iteration.
"""

import math

from experiments.measuring import opponents

torch = opponents.torch()
nn = torch.nn


def votes(x, w, stride=1):
    """What every child of every window votes for every parent.

    Parameters
    ----------
    x : Tensor (N, C, H, W, D1, D2)
    w : Tensor (P, C, KH, KW, D2, D3)
    stride : int

    Returns
    -------
    Tensor (N, P, OH, OW, C * KH * KW, D1 * D3)
    """
    KH, KW = w.shape[2:4]
    windows = x.unfold(2, KH, stride).unfold(3, KW, stride)  # (N, C, OH, OW, D1, D2, KH, KW)
    made = torch.einsum("ncyxabhw,pchwbd->npyxchwad", windows, w)
    return made.flatten(4, 6).flatten(5)


def of_children(activations, window, stride=1):
    """Activations (N, C, H, W) of the children of every window: (N, 1, OH, OW, I)."""
    KH, KW = window
    windows = activations.unfold(2, KH, stride).unfold(3, KW, stride)  # (N, C, OH, OW, KH, KW)
    return windows.movedim(1, 3).flatten(3)[:, None]


def squash(s):
    """|s|^2 / (1 + |s|^2) * s / |s| over the last axis."""
    length = torch.linalg.vector_norm(s, dim=-1, keepdim=True)
    return s * (length / (1 + length**2))


def dynamic(V, iterations=3):
    """Parents (N, P, OH, OW, E) by routing by agreement (Sabour et al. 2017, procedure 1)."""
    b = V.new_zeros(V.shape[:-1])
    for t in range(iterations):
        c = b.softmax(1)  # over the parents
        v = squash(torch.einsum("npyxi,npyxie->npyxe", c, V))
        if t < iterations - 1:
            b = b + torch.einsum("npyxie,npyxe->npyxi", V, v)
    return v


def em(V, a, beta_u, beta_a, iterations=3, lam=0.01, epsilon=1e-6):
    """Means and activations of the parents by EM routing (Hinton et al. 2018, procedure 1).

    Parameters
    ----------
    V : Tensor (N, P, OH, OW, I, E)
    a : Tensor (N, 1, OH, OW, I)
        Activations of the children.
    beta_u, beta_a : Tensors (P,)
        Costs of describing a child's element, and of not being active.
    iterations : int
    lam : float
        What the inverse temperature grows to.
    epsilon : float
        Added to variances.

    Returns
    -------
    mu : Tensor (N, P, OH, OW, E)
    a_out : Tensor (N, P, OH, OW)
    """
    P, E = V.shape[1], V.shape[-1]
    beta_u, beta_a = (beta[:, None, None] for beta in (beta_u, beta_a))
    R = V.new_full(V.shape[:-1], 1 / P)
    for t in range(iterations):
        weights = R * a  # M: a Gaussian for every parent
        S = weights.sum(-1)
        share = weights / S.clamp_min(torch.finfo(V.dtype).tiny)[..., None]
        mu = torch.einsum("npyxi,npyxie->npyxe", share, V)
        away = (V - mu[..., None, :]) ** 2
        variance = torch.einsum("npyxi,npyxie->npyxe", share, away) + epsilon
        log_sigma = 0.5 * variance.log().sum(-1)
        cost = (E * beta_u + log_sigma) * S
        z = lam * (1 - 0.95 ** (t + 1)) * (beta_a - cost)
        if t < iterations - 1:  # E: each child's share of every parent
            log_p = -0.5 * (away / variance[..., None, :]).sum(-1) - log_sigma[..., None]
            log_p = log_p - 0.5 * E * math.log(2 * math.pi)
            R = (nn.functional.logsigmoid(z)[..., None] + log_p).softmax(1)
    return mu, z.sigmoid()


class StoredConv2d(nn.Module):
    """A convolution of capsules whose sum is routing of stored votes.

    Parameters
    ----------
    in_channels, out_channels, kernel_size : int
    in_capsule, out_capsule : pair of int
        (D1, D2) and (D1, D3).
    stride : int
    routing : str
        "dynamic" or "em".

    Attributes
    ----------
    weight : Parameter (out_channels, in_channels, KH, KW, D2, D3)
        Not set: it begins with another network's.
    beta_u, beta_a : Parameters (out_channels,) of EM routing, None else
    """

    def __init__(
        self, in_channels, out_channels, kernel_size, in_capsule=(4, 4), out_capsule=(4, 4),
        stride=1, routing="dynamic",
    ):  # fmt: skip
        super().__init__()
        self.stride, self.out_capsule = stride, tuple(out_capsule)
        shape = out_channels, in_channels, kernel_size, kernel_size, in_capsule[1], out_capsule[1]
        self.weight = nn.Parameter(torch.empty(shape))
        for name in ("beta_u", "beta_a"):
            beta = nn.Parameter(torch.zeros(out_channels)) if routing == "em" else None
            self.register_parameter(name, beta)

    def forward(self, x, activations=None):
        """Parents (N, P, OH, OW, *out_capsule), of EM routing with activations (N, P, OH, OW)."""
        V = votes(x, self.weight, self.stride)
        if self.beta_u is None:
            return dynamic(V).unflatten(-1, self.out_capsule)
        a = of_children(activations, self.weight.shape[2:4], self.stride)
        mu, a_out = em(V, a, self.beta_u, self.beta_a)
        return mu.unflatten(-1, self.out_capsule), a_out


class StoredLinear(nn.Module):
    """A kernel for every child and parent, by dynamic routing of stored votes.

    Parameters
    ----------
    in_capsules, out_capsules : int
    in_capsule, out_capsule : pair of int
        (D1, D2) and (D1, D3).

    Attributes
    ----------
    weight : Parameter (out_capsules, in_capsules, D2, D3)
        Not set, as that of :class:`StoredConv2d`.
    """

    def __init__(self, in_capsules, out_capsules, in_capsule=(1, 8), out_capsule=(1, 16)):
        super().__init__()
        self.out_capsule = tuple(out_capsule)
        shape = out_capsules, in_capsules, in_capsule[1], out_capsule[1]
        self.weight = nn.Parameter(torch.empty(shape))

    def forward(self, x):
        """Parents (N, out_capsules, *out_capsule) of x (N, in_capsules, *in_capsule)."""
        V = votes(x[:, :, None, None], self.weight[:, :, None, None])
        return dynamic(V)[:, :, 0, 0].unflatten(-1, self.out_capsule)
