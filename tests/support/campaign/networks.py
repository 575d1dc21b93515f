"""Drawn networks of :mod:`numbacaps.nn`: loss and gradients of every kernel against float64."""

from types import SimpleNamespace

import numpy as np

from numbacaps import ALGORITHMS
from numbacaps.algorithms.registry import device_algorithms
from numbacaps.device.target import SIMULATED, cuda
from numbacaps.nn import CapsNet, Layer
from reference import assert_close, network, nn
from tests.support.campaign.part import Part
from tests.support.nn_networks import batch, canonical, expected, layers_of

_TERMS = 1 << 12  # as tests/nn counts: sums one after the other, of a few hundred terms each
# From its kink LeakyReLU has another slope. A sum that lies nearer, of the largest, may round to the other side.
_NEAR = 1e-5
_BATCHES = 50  # that are drawn to find one without
_SIZES = (1, 2, 3) if SIMULATED else (1, 2, 3, 4, 8)
_CHANNELS = 3 if SIMULATED else 12
_SIDE = 5 if SIMULATED else 13
_IMAGES = 3 if SIMULATED else 40


def draw(seed, number):
    """(network, N) of that number."""
    rng = np.random.default_rng((seed, number))
    dtype = "float64" if number % 4 == 3 else "float32"
    G, D1, D2 = (int(rng.choice(_SIZES)) if part else 1 for part in (number % 3 == 2, 1, 1))
    with_g = G > 1
    C, H, W = int(rng.integers(1, 4)), *(int(side) for side in rng.integers(3, _SIDE, 2))
    input_shape = (C, H, W, *((G, D1, D2) if with_g else (D1, D2)))
    layers, count = [], int(rng.integers(1, 4))
    for at in range(count):
        D3 = int(rng.choice(_SIZES))
        how = _window(rng, H, W, is_last=at == count - 1)
        H, W = how.pop("leaves")
        squash = [size for size in (2, 3, 4, D1 * D3, G * D1 * D3) if G * D1 * D3 % size == 0]
        layers.append(
            Layer(
                int(rng.integers(2 if at == count - 1 else 1, _CHANNELS)),
                (G, D2, D3) if with_g else (D2, D3),
                product="gab,gbc->gac" if with_g else "ab,bc->ac",
                slope=float(rng.choice((0.0, 0.1, 0.3, 1.0))),
                squash=int(rng.choice(squash)) if rng.random() < 0.7 else None,
                **how,
                **_chosen(rng, dtype),
            )
        )
        D2 = D3
    net = CapsNet(layers, input_shape, seed=number, dtype=dtype)
    return net, int(rng.integers(1, _IMAGES))


def _window(rng, H, W, is_last):
    """A layer's window and how it moves, and the (height, width) that it ``leaves``."""
    if is_last:
        return {"window": (H, W), "leaves": (1, 1)}
    window = int(rng.integers(1, min(H, 3) + 1)), int(rng.integers(1, min(W, 3) + 1))
    stride = tuple(map(int, rng.integers(1, 3, 2)))
    padding = tuple(map(int, rng.integers(0, 2, 2)))
    most = [
        max(1, (size + 2 * pad - 1) // max(1, one - 1))
        for size, pad, one in zip((H, W), padding, window)
    ]
    dilation = tuple(int(rng.integers(1, min(2, reach) + 1)) for reach in most)
    leaves = tuple(
        (size + 2 * pad - spread * (one - 1) - 1) // step + 1
        for size, pad, spread, one, step in zip((H, W), padding, dilation, window, stride)
    )
    moves = {"stride": stride, "padding": padding, "dilation": dilation}
    return {"window": window, "leaves": leaves, **moves}


def _chosen(rng, dtype):
    """The algorithm and precision of a layer: mostly what ``"auto"`` is."""
    if rng.random() < 0.5:
        return {}
    taking = [
        name for name in device_algorithms() if ALGORITHMS[name].precisions_of(np.dtype(dtype), "")
    ]
    name = str(rng.choice(taking))
    exact = [word for word in ALGORITHMS[name].precisions(np.dtype(dtype)) if word != "tf32"]
    return {"algorithm": name, "precision": str(rng.choice(exact))}


def clear_batch(net, N, rng):
    """Images and labels of which no sum lies at LeakyReLU's kink, if some are soon found."""
    for _ in range(_BATCHES):
        x, labels = batch(net, N, rng)
        _, trace = network.network_forward(
            x.astype(np.float64), canonical(net, net.kernels), layers_of(net)
        )
        if not any(_near_the_kink(sums) for _, sums in trace):
            break
    return x, labels


def _near_the_kink(sums):
    """Whether a sum may round to the other side; one of padding alone is 0 in every precision."""
    sizes = np.abs(sums[sums != 0])
    return sizes.size and sizes.min() <= _NEAR * sizes.max()


def cancellation(net, x, labels):
    """How many times larger than the gradient of the class capsules' sums the terms are that it consists of.

    The margin loss has a gradient along a class capsule only, and there a long capsule's squash is flat: across it, terms
    cancel to what they are rounded to. Near its margin a length, too, leaves little of itself.

    Parameters
    ----------
    net : CapsNet
    x : ndarray (N, C, H, W, *T1)
    labels : ndarray (N,) of int

    Returns
    -------
    float
        1 or more.
    """
    layers = layers_of(net)
    capsules, trace = network.network_forward(
        x.astype(np.float64), canonical(net, net.kernels), layers
    )
    size = capsules.shape[2]
    lengths = nn.capsule_length(capsules, size).reshape(capsules.shape[:2])
    d_lengths = nn.margin_loss_backward(lengths, labels)
    if not d_lengths.any():
        return 1.0
    found = lengths.max() / (len(x) * np.abs(d_lengths).max())
    slope, group = layers[-1]["slope"], layers[-1]["squash"]
    if group is not None:
        before = nn.leaky_relu(trace[-1][1], slope).reshape(-1, group)
        dy = nn.capsule_length_backward(capsules, d_lengths, size).reshape(-1, group)
        factors = np.linalg.norm(nn.squash(before, group), axis=1) / np.linalg.norm(before, axis=1)
        terms = np.abs(dy * factors[:, None]).max()
        found += terms / np.abs(nn.squash_backward(before, dy, group)).max()
    return max(1.0, found)


def check(seed, number):
    """Compare loss and gradients of two batches, with a step of each in between."""
    net, N = draw(seed, number)
    rng, losses, kinds = np.random.default_rng((seed, number, 1)), [], []
    for _ in range(2):
        x, labels = clear_batch(net, N, rng)
        loss, gradients = net.loss_and_gradients(x, labels)
        want_loss, want = expected(net, x, labels)
        losses.append(want_loss)
        compare_losses([loss], [want_loss], net.dtype)
        times = cancellation(net, x, labels)
        if times > 100:
            kinds.append("a gradient that is left of terms over 100 times larger")
        for at, (have, gradient) in enumerate(zip(canonical(net, gradients), want)):
            try:  # the tolerance grows with the root of the number of terms
                assert_close(have.astype(net.dtype), gradient, _TERMS * times**2)
            except AssertionError as wrong:
                raise AssertionError(f"layer {at} of {net}, N = {N}: {wrong}") from None
        net.step(x, labels)
    compare_losses(net.history()[0], losses, net.dtype)
    kinds += [f"layer {placed.layer.algorithm}" for placed in net.layers]
    return f"{len(net.layers)} layers {net.dtype}", *kinds


def compare_losses(have, want, dtype):
    """Compare what lengths, of the size of 1, are from their margins: the roots of losses, of which 1 + root is close."""
    have, want = (1 + np.sqrt(np.asarray(losses, np.float64)) for losses in (have, want))
    assert_close(have.astype(dtype), want, _TERMS)


def compile_network(seed, number):
    """Compile what a network's step takes."""
    compile_step(*draw(seed, number))


def compile_step(net, N):
    """Compile what a step of a network takes."""
    x = cuda.device_array((N, *net.input_shape), net.dtype)
    batch = SimpleNamespace(x=x, labels=cuda.device_array(N, np.int64))
    net._training(N)._step.launch(batch)


PART = Part(
    summary="drawn networks, their loss and gradients against float64",
    unit="network",
    check=check,
    amount=1000,
    few=5,
    compile=compile_network,
    shared=True,
)
