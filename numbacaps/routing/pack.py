"""The kernel as the passes read it: (children, e2, parents), so that neighbouring lanes read neighbouring numbers.

    packed[i, e2, p] = w[p, i, e2]        and back, of the sum over the splits of its gradient

Thread mapping: one thread an element.
"""

from functools import cache

from numbacaps.device.dtypes import conversions, sum_dtype
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda


@cache
def make_pack(P, dtype):
    """Kernel that packs."""
    P, (read, _) = specialized(P), conversions(dtype)

    @kept_on_disk
    @cuda.jit
    def routing_pack_kernel(
        w,  # in   (P, I, E2)
        packed,  # out  (I, E2, P)
        size,  # I * E2
    ):
        i = cuda.grid(1)
        if i >= size * P:
            return
        packed[at(i)] = read(w[at(i % P * size + i // P)])

    return routing_pack_kernel


@cache
def make_unpack(P, dtype):
    """Kernel that adds splits, in their order, and writes them in the kernel's own layout."""
    P, (_, write) = specialized(P), conversions(dtype)
    ZERO = sum_dtype(dtype).type(0)

    @kept_on_disk
    @cuda.jit
    def routing_unpack_kernel(
        packed,  # in   (splits, I, E2, P)
        w,  # out  (P, I, E2)
        size,  # I * E2
        splits,
    ):
        i = cuda.grid(1)
        if i >= size * P:
            return
        total = ZERO
        for split in range(splits):
            total += packed[at((split * size + i % size) * P + i // size)]
        w[at(i)] = write(total)

    return routing_unpack_kernel


@cache
def make_clear(dtype):
    """Kernel that writes zeros."""
    ZERO = dtype.type(0)

    @kept_on_disk
    @cuda.jit
    def routing_clear_kernel(
        array,  # out  (count,)
        count,
    ):
        i = cuda.grid(1)
        if i < count:
            array[at(i)] = ZERO

    return routing_clear_kernel
