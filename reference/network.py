"""A whole capsule network in float64: loss and gradients of every kernel, layer by layer.

A layer is a dict of ``stride``, ``padding``, ``dilation`` (pairs), ``slope`` of LeakyReLU,
``squash`` (elements of a group, None for none) and ``input`` (G, D1, D2), the shape that its input
capsules are read as. A class is a channel of the last layer, which has one position.
"""

from . import nn
from .vectorised import capsule_convolution_backward_einsum, capsule_convolution_einsum


def network_forward(x, kernels, layers):
    """Class capsules, and what the backward pass reads.

    Parameters
    ----------
    x : ndarray (N, C, H, W, G, D1, D2)
    kernels : list of ndarray (P, C, KH, KW, G, D2, D3)
    layers : list of dict

    Returns
    -------
    capsules : ndarray (N, P, E)
    trace : list of (ndarray, ndarray)
        Each layer's input, and its sums before LeakyReLU.
    """
    trace = []
    for kernel, layer in zip(kernels, layers):
        x = x.reshape(*x.shape[:4], *layer["input"])
        sums = capsule_convolution_einsum(x, kernel, *_moves(layer))
        trace.append((x, sums))
        x = nn.leaky_relu(sums, layer["slope"])
        if layer["squash"] is not None:
            x = nn.squash(x, layer["squash"])
    return x.reshape(*x.shape[:2], -1), trace


def network_loss_and_gradients(x, labels, kernels, layers):
    """The margin loss and its gradient of every kernel.

    Parameters
    ----------
    x, kernels, layers
        As :func:`network_forward`.
    labels : ndarray (N,) of int

    Returns
    -------
    loss : float
    gradients : list of ndarray (P, C, KH, KW, G, D2, D3)
    """
    capsules, trace = network_forward(x, kernels, layers)
    size = capsules.shape[2]
    lengths = nn.capsule_length(capsules, size).reshape(capsules.shape[:2])
    d_lengths = nn.margin_loss_backward(lengths, labels)
    dy = nn.capsule_length_backward(capsules, d_lengths, size)
    gradients = []
    for (x, sums), kernel, layer in reversed(list(zip(trace, kernels, layers))):
        dy = dy.reshape(sums.shape)
        if layer["squash"] is not None:
            dy = nn.squash_backward(nn.leaky_relu(sums, layer["slope"]), dy, layer["squash"])
        dy = nn.leaky_relu_backward(sums, dy, layer["slope"])
        dy, dw = capsule_convolution_backward_einsum(x, kernel, dy, *_moves(layer))
        gradients.insert(0, dw)
    return nn.margin_loss(lengths, labels), gradients


def _moves(layer):
    return layer["stride"], layer["padding"], layer["dilation"]
