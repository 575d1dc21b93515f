"""Networks whose passes can be one kernel each: some by name, others drawn."""

from dataclasses import replace

import numpy as np

from numbacaps.nn import CapsNet, Layer
from numbacaps.nn.layer import chain

_FLOAT32 = np.dtype(np.float32)
_MATRIX = {"capsule": (4, 4), "squash": 4}
# name: (layers, input_shape); every layer takes a precision besides.
NETWORKS = {
    "published": (
        (
            Layer(1, (1, 32), stride=2, capsule=(4, 8), squash=8),
            Layer(4, (8, 16), squash=8),
            Layer(8, (16, 8), stride=2, squash=8),
            Layer(4, (8, 16), squash=8),
            Layer(10, (16, 8), squash=32),
        ),
        (1, 28, 28, 1, 1),
    ),
    "uneven": (  # unequal strides, dilation, columns that fill no tile, a share of the sum for each warpgroup
        (
            Layer(2, (1, 16), stride=2, **_MATRIX),
            Layer(6, (4, 4), window=(3, 2), stride=(2, 1), dilation=(1, 2), squash=16),
            Layer(5, (4, 2), window=(4, 7), squash=8, slope=0.3),
        ),
        (1, 20, 20, 1, 1),
    ),
    "cores": (  # capsules of 4 x 8 and a small kernel behind them, rows in two goes, taps side by side
        (
            Layer(2, (1, 32), window=(2, 3), capsule=(4, 8), squash=8),
            Layer(5, (8, 8), window=(2, 3), stride=(2, 1), dilation=(1, 2), squash=16),
            Layer(3, (8, 4), window=(6, 16), squash=8),
        ),
        (1, 14, 22, 1, 1),
    ),
    "primes": (  # columns that fill no tile, one share of a sum
        (
            Layer(2, (1, 48), window=(3, 2), capsule=(12, 4), squash=4),
            Layer(3, (4, 4), window=(5, 11), squash=16),
        ),
        (1, 7, 12, 1, 1),
    ),
    "primes_few": (  # few rows, not in the last layer alone
        (
            Layer(2, (1, 16), window=2, **_MATRIX),
            Layer(4, (4, 4), window=(4, 6), squash=4),
            Layer(5, (4, 4), window=(1, 2), squash=8),
        ),
        (1, 5, 8, 1, 1),
    ),
}


def network(name, precision="tf32", seed=1):
    layers, shape = NETWORKS[name]
    return CapsNet([replace(one, precision=precision) for one in layers], shape, seed=seed)


def placed_layers(name, precision="tf32"):
    layers, shape = NETWORKS[name]
    return chain([replace(one, precision=precision) for one in layers], shape, _FLOAT32)


def drawn(draw):
    """A network of any layers that chain, which may be none."""
    precision, group = draw.choice(["tf32", "tf32x3"]), lambda: draw.choice([4, 8, 16])
    rows, columns = draw.choice([(4, 4), (2, 8), (4, 8), (2, 4), (1, 16), (8, 8), (3, 8)])
    strides = [(1, 1), (1, 2), (2, 2)]
    first = {"window": draw.randint(1, 3), "stride": draw.choice(strides)}
    capsule = {"capsule": (rows, columns), "squash": draw.choice([4, 8])}
    layers = [Layer(draw.choice([1, 2, 4]), (1, rows * columns), **first, **capsule)]
    for _ in range(draw.randint(1, 4)):
        kernel = columns, draw.choice([2, 4, 8, 16])
        window = draw.randint(1, 4), draw.randint(1, 4)
        how = {"window": window, "stride": draw.choice(strides), "dilation": draw.randint(1, 2)}
        layers.append(Layer(draw.choice([1, 2, 3, 4, 8, 10]), kernel, squash=group(), **how))
        columns = kernel[1]
    layers = [replace(one, precision=precision) for one in layers]
    image = draw.choice([8, 12, 20]), draw.randint(6, 24)
    try:
        return chain(layers, (1, *image, 1, 1), _FLOAT32)
    except ValueError:
        return None
