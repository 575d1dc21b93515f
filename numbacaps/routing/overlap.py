"""EM routing's assignments normalised over all parents that a capsule votes for, in all windows that cover it.

Each such window sees the capsule as a child of its own. So what is summed over all these parents takes two kernels: one
sums over the parents of each position, a number for every child (:mod:`numbacaps.routing.children`); one puts the numbers
of a capsule together.

    forward     norm = log of the sum of exp(log p)      children's norms become the capsule's, here
    backward    q = sum of omega D                       children's q are added (:mod:`numbacaps.routing.windows`)

Thread mapping: one thread a capsule.
"""

import math
from functools import cache

from numbacaps.device.instructions import local_array
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.routing.windows import make_over_windows


@cache
def make_norms_of_capsules(shape):
    """Kernel that makes a capsule's norm of those of its children; 0 where there are none."""
    sums = shape.sums
    ZERO, ONE, LOWEST = sums.type(0), sums.type(1), sums.type(-math.inf)

    @cuda.jit(device=True, forceinline=True)
    def add(found, value):
        if value > found[1]:
            found[0] = found[0] * sums.type(math.exp(found[1] - value)) + ONE
            found[1] = value
        else:
            found[0] += sums.type(math.exp(value - found[1]))

    over_windows, CAPSULES = make_over_windows(shape, 1, add), specialized(shape.capsules)

    @kept_on_disk
    @cuda.jit
    def em_norms_of_capsules_kernel(
        norms,  # in   (N, L, I)
        total,  # out  (N, C, H, W)
        N,
    ):
        i = cuda.grid(1)
        if i >= N * CAPSULES:
            return
        found = local_array(2, sums)  # the sum of exp(norm - largest), the largest
        found[0], found[1] = ZERO, LOWEST
        over_windows(found, norms, i)
        total[at(i)] = found[1] + sums.type(math.log(found[0])) if found[0] != ZERO else ZERO

    return em_norms_of_capsules_kernel
