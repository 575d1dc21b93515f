"""He's initialisation ("msra"): normal numbers of variance 2 / terms, by a seeded generator.

``terms`` is the length of the sum behind an element of the layer's output, C*KH*KW*D2.

Weight i of layer k draws from Philox's counter (i, attempt, k, 0) with the seed as its key, by the
polar method of Marsaglia: of points (a, b) in the square from -1 to 1, the first one within the
unit circle gives a * sqrt(-2 log(s) / s) with s = a^2 + b^2. The points have 24 bits, exact in
float32 too: both dtypes begin with the same weights, up to rounding.

Thread mapping: one thread a weight.
"""

import math
from functools import cache

import numpy as np

from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import THREADS, launch
from numbacaps.device.target import at, cuda
from numbacaps.nn.kernels.philox import BITS, WORD, philox


@cache
def make_he_normal(dtype):
    """Kernel for one dtype."""
    ZERO, ONE, MINUS_TWO = dtype.type(0), dtype.type(1), dtype.type(-2)
    SCALE = dtype.type(2.0**-23)
    NONE, NEXT, DROPPED = np.uint64(0), np.uint64(1), np.uint64(8)
    to_dtype, to_word = dtype.type, np.uint64

    @kept_on_disk
    @cuda.jit
    def he_normal_kernel(
        weights,  # out  (count,)
        deviation,
        seed,  # uint64
        layer,  # uint64
        count,
    ):
        i = cuda.grid(1)
        if i >= count:
            return
        attempt = NONE
        a = ZERO
        s = ZERO
        while s >= ONE or s == ZERO:
            words = philox(to_word(i), attempt, layer, NONE, seed & WORD, seed >> BITS)
            a = to_dtype(words[0] >> DROPPED) * SCALE - ONE
            b = to_dtype(words[1] >> DROPPED) * SCALE - ONE
            s = a * a + b * b
            attempt += NEXT
        weights[at(i)] = deviation * a * math.sqrt(MINUS_TWO * math.log(s) / s)

    return he_normal_kernel


def he_normal(weights, terms, seed, layer, stream=0, threads=THREADS):
    """Fill weights with normal numbers of variance 2 / terms.

    Parameters
    ----------
    weights : device array, float32 or float64, C-contiguous, written
    terms : int
        Length of the sum behind an output element.
    seed : int
        0 to 2^64 - 1.
    layer : int
        Layers of one seed get numbers of their own.
    stream : Numba stream
    threads : int
        Most threads of a block.
    """
    deviation = weights.dtype.type(math.sqrt(2 / terms))
    count = weights.size
    arguments = (weights.reshape(count), deviation, np.uint64(seed), np.uint64(layer), count)
    launch(make_he_normal(weights.dtype), count, 1, arguments, stream, threads)
