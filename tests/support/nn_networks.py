"""Small networks of every kind, random batches for them, and what the reference makes of both."""

import numpy as np

from numbacaps.nn import CapsNet, Layer
from reference.network import network_loss_and_gradients

# name: (layers, input_shape)
NETWORKS = {
    "matrix": (
        (
            Layer(1, (1, 4), stride=2, capsule=(2, 2), squash=2),
            Layer(3, (2, 2), window=2, squash=4),
        ),
        (1, 5, 5, 1, 1),
    ),
    "odd": (  # rank-3 capsules, padding, dilation, no square window; one layer not squashed
        (
            Layer(
                2,
                (3, 2, 2),
                window=(2, 3),
                stride=(2, 1),
                padding=(1, 0),
                dilation=(1, 2),
                product="gab,gbc->gac",
                slope=0.3,
            ),
            Layer(2, (3, 2, 1), window=(3, 1), product="gab,gbc->gac", squash=3, slope=1.0),
        ),
        (2, 4, 5, 3, 1, 2),
    ),
    "transposed": (  # kernel capsules whose axes stand in another order
        (Layer(3, (3, 2), window=(2, 1), product="ab,cb->ac", squash=3),),
        (2, 2, 1, 2, 2),
    ),
}


def network(name, **how):
    """A network by name."""
    return CapsNet(*NETWORKS[name], **how)


def batch(net, N, rng):
    """Random images and labels."""
    x = rng.standard_normal((N, *net.input_shape)).astype(net.dtype)
    return x, rng.integers(0, net.classes, N)


def canonical(net, kernels):
    """Kernels in the layout (P, C, KH, KW, G, D2, D3), in float64."""
    return [
        layer.canonical(kernel).astype(np.float64) for layer, kernel in zip(net.layers, kernels)
    ]


def layers_of(net):
    """The network's layers, as the reference takes them."""
    return [
        {
            "input": (layer.geometry.G, layer.geometry.D1, layer.geometry.D2),
            "stride": layer.geometry.stride,
            "padding": layer.geometry.padding,
            "dilation": layer.geometry.dilation,
            "slope": layer.layer.slope,
            "squash": layer.layer.squash,
        }
        for layer in net.layers
    ]


def expected(net, x, labels):
    """The reference's loss, and its gradients in the layout (P, C, KH, KW, G, D2, D3)."""
    x = x.astype(np.float64)
    return network_loss_and_gradients(x, labels, canonical(net, net.kernels), layers_of(net))
