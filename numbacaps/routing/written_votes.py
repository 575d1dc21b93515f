"""Few votes, written before they are routed: a kernel for all of them, and how passes read them.

A child's votes lie side by side, (N, L, I, P, E), so that a team reads one run of memory, 16 bytes a lane.

Thread mapping of the kernel: one thread an element. Neighbouring threads write neighbouring elements, and read such of w.
"""

from functools import cache

from numbacaps.device.instructions import let_next_start
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.specialization import specialized
from numbacaps.device.target import SIMULATED, at, cuda
from numbacaps.routing.votes import make_capsule, make_read_votes, run_of

THREADS = 32 if SIMULATED else 256  # of a block


@cache
def make_write_votes(shape):
    """Kernel that writes all votes, in the dtype of x, which is that of sums; a child is one tap."""
    g = shape.geometry
    L, P, D1, D2, D3, E1, E2, E3 = g.L, g.P, g.D1, g.D2, g.D3, g.E1, g.E2, g.E3
    CHILDREN, CAPSULES, ZERO = shape.children, shape.capsules, shape.sums.type(0)
    capsule = make_capsule(shape)
    L, P, D1, D2, D3, E1 = map(specialized, (L, P, D1, D2, D3, E1))
    E2, E3, CHILDREN, CAPSULES = map(specialized, (E2, E3, CHILDREN, CAPSULES))

    @kept_on_disk
    @cuda.jit
    def routing_votes_kernel(
        x,  # in   (N, C, H, W, E1)
        w,  # in   (P, I, E2)
        votes,  # out  (N, L, I, P, E)
        count,  # N * L * I * P * E
    ):
        let_next_start()  # what routes them waits for them itself
        o = cuda.grid(1)
        if o >= count:
            return
        e, p, i = o % E3, o // E3 % P, o // (E3 * P) % CHILDREN
        place = o // (E3 * P * CHILDREN)
        g, d1, d3 = e // (D1 * D3), e // D3 % D1, e % D3
        from_child = capsule(place % L, i)
        from_x = (place // L * CAPSULES + max(from_child, 0)) * E1 + (g * D1 + d1) * D2
        from_w = (p * CHILDREN + i) * E2 + g * D2 * D3 + d3
        total = ZERO
        for d2 in range(D2):
            value = ZERO  # padding is zeros that multiply like any other value
            if from_child >= 0:
                value = x[at(from_x + d2)]
            total += value * w[at(from_w + d2 * D3)]
        votes[at(o)] = total

    return routing_votes_kernel


@cache
def make_written(shape):
    """Device function ``votes`` that reads them, as those of :mod:`numbacaps.routing.votes`, from x."""
    g = shape.geometry
    L, P, CHILDREN = map(specialized, (g.L, g.P, shape.children))

    @cuda.jit(device=True, forceinline=True)
    def number(n, p, l, i):
        return ((n * L + l) * CHILDREN + i) * P + p

    return make_read_votes(shape, run_of(shape), number)
