"""What a warp multiplies of a word that it loaded: a factor, or the high and the low part of one."""

from numbacaps.device.instructions import cut_tf32
from numbacaps.device.target import cuda
from numbacaps.device.tf32 import nearer


def make_keep(itemsize, terms, count):
    """``keep(factors, i, word)``: factor i of ``count``; of three terms the high part, and the low one behind all those.

    The high part is cut, not rounded: so it is finite where the factor is. The low one is brought near to its rounding,
    so that what the tensor cores cut from it has no sign of its own.
    """
    THREE, FLOAT32, COUNT = terms == 3, itemsize == 4, count

    @cuda.jit(device=True, inline="always")
    def keep(factors, i, word):
        if THREE:
            high = cut_tf32(word)
            factors[i] = high
            factors[COUNT + i] = nearer(word - high)
        elif FLOAT32:
            factors[i] = nearer(word)
        else:
            factors[i] = word

    return keep
