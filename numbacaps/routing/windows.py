"""From the windows back to a capsule: what was found in each window that covers it, put together.

    found (N, L, Q, each)     ->     total (N, C, H, W, each), each tap's numbers to the capsule under it

So columns become dx, and the gradients of children are added to those of their capsules.

Thread mapping: one thread a number of a capsule, which walks over the taps in their order.
"""

from functools import cache

from numbacaps.device.dtypes import conversions
from numbacaps.device.instructions import local_array
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda


@cache
def make_over_windows(shape, each, add):
    """Device function ``over_windows(sums, found, i)``: ``add(sums, value)`` for each window with i, a number of a capsule."""
    g = shape.geometry
    (SH, SW), (PH, PW), (DH, DW) = g.stride, g.padding, g.dilation
    C, H, W, KH, KW, OH, OW = map(specialized, (g.C, g.H, g.W, g.KH, g.KW, g.OH, g.OW))
    SH, SW, PH, PW, DH, DW = map(specialized, (SH, SW, PH, PW, DH, DW))
    L, Q, EACH = map(specialized, (g.L, g.Q, each))

    @cuda.jit(device=True, forceinline=True)
    def over_windows(sums, found, i):
        e, capsule = i % EACH, i // EACH
        n, w, h, c = capsule // (C * H * W), capsule % W, capsule // W % H, capsule // (H * W) % C
        for kh in range(KH):
            row = h + PH - kh * DH
            if row < 0 or row % SH != 0 or row // SH >= OH:
                continue
            for kw in range(KW):
                column = w + PW - kw * DW
                if column < 0 or column % SW != 0 or column // SW >= OW:
                    continue
                l = row // SH * OW + column // SW
                tap = (n * L + l) * Q + (c * KH + kh) * KW + kw
                add(sums, found[at(tap * EACH + e)])

    return over_windows


@cuda.jit(device=True, forceinline=True)
def _add(sums, value):
    sums[0] += value


@cache
def make_windows_sum(shape, each, dtype):
    """Kernel that adds up, and writes the sums in a dtype."""
    _, write = conversions(dtype)
    over_windows, ZERO, kind = make_over_windows(shape, each, _add), shape.sums.type(0), shape.sums
    OF_IMAGE = specialized(shape.capsules * each)

    @kept_on_disk
    @cuda.jit
    def routing_windows_sum_kernel(
        found,  # in   (N, L, Q, each)
        total,  # out  (N, C, H, W, each)
        N,
    ):
        i = cuda.grid(1)
        if i >= N * OF_IMAGE:
            return
        sums = local_array(1, kind)
        sums[0] = ZERO
        over_windows(sums, found, i)
        total[at(i)] = write(sums[0])

    return routing_windows_sum_kernel
