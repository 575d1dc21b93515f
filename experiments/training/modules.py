"""The trained networks as modules of PyTorch, of numbacaps.torch's layers; and one's twin of torch.nn's alone.

- :class:`PublishedNet`: the paper's five layers, or any other network of :mod:`numbacaps.nn`. Its twin is
  :class:`experiments.training.torch_network.TorchNet`.
- :class:`SabourNet`: Conv1 and PrimaryCaps of Sabour et al. 2017. There is no routing here: the class capsules are
  the sum of all votes, each of the same weight, as in the first of the paper's iterations; the weight itself
  is left to the kernel. :class:`SabourTwin` computes the same by ``torch.nn.Conv2d`` and an einsum.

All take images (N, 1, H, W, 1, 1) and return class capsules (N, classes, ...), whose lengths say the class.
"""

import math
from itertools import chain

from experiments.measuring import opponents
from numbacaps.product import parse_product

torch = opponents.torch()
import numbacaps.torch as nt  # noqa: E402  (where torch is)

nn = torch.nn
_EPSILON = 1e-7  # the published regulariser of a squared length
PRIMARY, CLASS = 8, 16  # elements of a capsule, in Sabour et al.


def _layer(placed, in_capsule):
    """A layer of :mod:`numbacaps.nn` as modules: a capsule convolution and its activation."""
    layer, g = placed.layer, placed.geometry
    out_capsule = parse_product(layer.product).y_capsule(in_capsule, placed.kernel_shape[4:])
    yield nt.CapsuleConv2d(
        g.C,
        g.P,
        (g.KH, g.KW),
        in_capsule=tuple(in_capsule),
        out_capsule=tuple(out_capsule),
        stride=g.stride,
        padding=g.padding,
        dilation=g.dilation,
        product=layer.product,
        precision=layer.precision,
    )
    yield (
        nt.ExponentialSquash(layer.squash, layer.slope)
        if layer.squash
        else nn.LeakyReLU(layer.slope)
    )


class PublishedNet(nt.CapsuleSequential):
    """A network of :mod:`numbacaps.nn`, such as the published one, as a module.

    Parameters
    ----------
    network : numbacaps.nn.CapsNet
        Its layers and weights are taken over; it is not changed.
    """

    def __init__(self, network):
        layers = network.layers
        shapes = [network.input_shape, *(placed.output_shape for placed in layers)]
        parts = [_layer(placed, shape[3:]) for placed, shape in zip(layers, shapes)]
        super().__init__(*chain.from_iterable(parts), capsule=shapes[-1][3:])
        self.to(getattr(torch, str(network.dtype)))
        with torch.no_grad():
            for weight, kernel in zip(self.parameters(), network.kernels):
                weight.copy_(torch.from_numpy(kernel))

    def forward(self, x):
        """Class capsules (N, classes, *capsule)."""
        return super().forward(x).flatten(1, 3)


class SabourNet(nn.Module):
    """Conv1 and PrimaryCaps of Sabour et al. 2017, and a class capsule that adds all votes up.

    Parameters
    ----------
    side : int
        Rows and columns of an image.
    filters, capsules, window : int
        Of Conv1, of PrimaryCaps, and of both.
    classes : int
    """

    def __init__(self, side=28, filters=256, capsules=32, window=9, classes=10):
        super().__init__()
        grid = primary_grid(side, window)
        self.conv1 = nn.Conv2d(1, filters, window)
        self.primary = nt.CapsuleConv2d(
            filters,
            capsules,
            window,
            in_capsule=(1, 1),
            out_capsule=(1, PRIMARY),
            stride=2,
            bias=True,
        )
        shapes = {"in_capsule": (1, PRIMARY), "out_capsule": (1, CLASS)}
        self.votes = nt.CapsuleConv2d(capsules, classes, grid, **shapes)
        self.squash = nt.Squash((-2, -1))

    def forward(self, x):
        """Class capsules (N, classes, 1, 16)."""
        u = self.capsules(self.conv1(x[..., 0, 0]).relu())
        return self.squash(self.votes(u)).flatten(1, 3)

    def capsules(self, features):
        """PrimaryCaps: capsules (N, capsules, H, W, 1, 8) of Conv1's features (N, filters, H, W)."""
        return self.squash(self.primary(features[..., None, None]))


class SabourTwin(nn.Module):
    """The same of ``torch.nn`` alone; it begins with the weights of a :class:`SabourNet`.

    Parameters
    ----------
    of : SabourNet
        It is not changed.
    """

    def __init__(self, of):
        super().__init__()
        filters, window = of.conv1.out_channels, of.conv1.kernel_size
        self.conv1 = nn.Conv2d(1, filters, window)
        self.primary = nn.Conv2d(filters, of.primary.out_channels * PRIMARY, window, stride=2)
        self.votes = nn.Parameter(of.votes.weight.detach().squeeze(-2).squeeze(4).clone())
        with torch.no_grad():
            self.conv1.load_state_dict(of.conv1.state_dict())
            self.primary.weight.copy_(folded(of.primary.weight))
            self.primary.bias.copy_(of.primary.bias.flatten())

    def forward(self, x):
        """Class capsules (N, classes, 16)."""
        u = self.capsules(self.conv1(x[..., 0, 0]).relu())
        return _squash(torch.einsum("nchwd,pchwde->npe", u, self.votes))

    def capsules(self, features):
        """PrimaryCaps: capsules (N, capsules, H, W, 8) of Conv1's features (N, filters, H, W)."""
        return _squash(self.primary(features).unflatten(1, (-1, PRIMARY)).movedim(2, -1))


def folded(kernel):
    """PrimaryCaps' kernel (capsules, filters, KH, KW, 1, 8) as ``torch.nn.Conv2d`` has it."""
    return kernel.permute(0, 5, 4, 1, 2, 3).flatten(0, 2)


def _squash(x):
    """|x|^2 / (1 + |x|^2) * x / |x| over the last axis."""
    square = x.square().sum(-1, keepdim=True)
    return x * square / (1 + square) / (square + _EPSILON).sqrt()


def primary_grid(side, window):
    """Rows of PrimaryCaps; ValueError where there are none."""
    rows = (side - 2 * (window - 1) - 1) // 2 + 1
    if rows < 1:
        raise ValueError(f"side is {side}; windows of {window} take {2 * window - 1} or more")
    return rows


def lengths(capsules):
    """Lengths (N, classes) of class capsules."""
    return torch.linalg.vector_norm(capsules.flatten(2), dim=2)


def init_like_he(module, seed):
    """Give a module's convolutions He's initial weights, and biases 0, by a seed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.Conv2d):
                fan = math.prod(part.weight.shape[1:])
            elif isinstance(part, nt.CapsuleConv2d):
                fan = math.prod(part.weight.shape[1:-1])
            else:
                continue
            part.weight.normal_(std=math.sqrt(2 / fan), generator=generator)
            if part.bias is not None:
                part.bias.zero_()
    return module
