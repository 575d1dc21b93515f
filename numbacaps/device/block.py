"""What every kernel with pipelines begins with: which warp and lane a thread is, and aligned shared memory."""

from numbacaps.device.instructions import short
from numbacaps.device.target import cuda


@cuda.jit(device=True, forceinline=True)
def warp_and_lane():
    """Which warp of the block a thread belongs to, and which of the warp's 32 lanes it is."""
    thread = cuda.threadIdx.x
    return short(thread >> 5 & 31), short(
        thread & 31
    )  # as // 32 and % 32, but known not to be negative


@cuda.jit(device=True, forceinline=True)
def aligned(address, multiple):
    """The first multiple that does not lie before an address."""
    return (address + (multiple - 1)) // multiple * multiple
