"""What a network keeps on the device: weights, gradients, moments, the step, the losses."""

from itertools import accumulate

import numpy as np

from numbacaps.device.streams import synchronize
from numbacaps.device.target import cuda
from numbacaps.nn.kernels.adam import adam_step
from numbacaps.nn.kernels.he_normal import he_normal

PLACES = 4096  # steps whose losses the device keeps for the host to read
_ALIGNED = 64  # elements; every layer's weights begin at a multiple, so that wide loads fit


def starts_of(layers):
    """Where each layer's weights begin among all, and where the last ones end."""
    sizes = (int(np.prod(layer.geometry.kernel_shape)) for layer in layers)
    return list(accumulate((-(-size // _ALIGNED) * _ALIGNED for size in sizes), initial=0))


class State:
    """Arrays that live as long as the network; captured graphs hold their addresses.

    Weights, their gradients and the two moments are one run of elements each, layer after layer, so
    that Adam is one launch. Between layers lie zeros, which Adam leaves alone.

    Parameters
    ----------
    layers : sequence of PlacedLayer
    dtype : numpy.dtype
    seed : int
        Of the initial weights.

    Attributes
    ----------
    kernels, d_kernels : list of device array (P, C, KH, KW, G, D2, D3)
        Each layer's part of ``weights`` and of ``gradients``.
    step : device array (1,), int64
        Steps done.
    losses, hits : device arrays (PLACES,)
        Of step t at place t % PLACES.
    writes : int
        How often :meth:`write` was called.
    """

    def __init__(self, layers, dtype, seed):
        self._layers, (*starts, count) = layers, starts_of(layers)
        zeros = np.zeros(count, dtype)
        self.weights, self.gradients = cuda.to_device(zeros), cuda.to_device(zeros)
        self.first, self.second = cuda.to_device(zeros), cuda.to_device(zeros)
        self._starts = starts
        self.kernels, self.d_kernels = self._parts(self.weights), self._parts(self.gradients)
        self.step, self.writes = cuda.to_device(np.zeros(1, np.int64)), 0
        self.factors = cuda.to_device(np.zeros(2, dtype))
        self.losses = cuda.to_device(np.zeros(PLACES, dtype))
        self.hits = cuda.to_device(np.zeros(PLACES, np.int64))
        for number, (layer, kernel) in enumerate(zip(layers, self.kernels)):
            he_normal(kernel, layer.terms, seed, number)
        synchronize()

    def _parts(self, run):
        """Each layer's part of a run of elements, in the kernels' layout."""
        shapes = [layer.geometry.kernel_shape for layer in self._layers]
        return [
            run[start : start + int(np.prod(shape))].reshape(shape)
            for start, shape in zip(self._starts, shapes)
        ]

    def move(self, adam, stream):
        """Queue Adam's step from the gradients that are there."""
        moments = self.first, self.second
        adam_step(adam, self.gradients, *moments, self.weights, self.step, self.factors, stream)

    def read(self, run):
        """Each layer's part of ``weights``, ``gradients`` or a moment, as users see it.

        Returns
        -------
        list of ndarray (P, C, KH, KW, *T2)
        """
        return [
            layer.as_given(part)
            for layer, part in zip(self._layers, self._parts(run.copy_to_host()))
        ]

    def write(self, run, arrays):
        """The inverse of :meth:`read`."""
        content = np.zeros(run.size, run.dtype)
        for layer, part, array in zip(self._layers, self._parts(content), arrays):
            part[...] = layer.canonical(array)
        self.writes += 1
        run.copy_to_device(content)
        synchronize()  # no other stream waits for the default one
