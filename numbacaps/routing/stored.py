"""The first rung: the votes are stored, and read again in every pass. It is what most code for routing does.

The votes are those of :func:`numbacaps.capsule_votes`, by one kernel; the passes are those of the fused rung, which read
where that one computes. Beside it stands what it moves: every vote once to memory, and 2 r - 1 times back at the worst.
"""

from functools import cache

from numbacaps.algorithms import indexed
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import ceil_div
from numbacaps.device.target import at, cuda
from numbacaps.routing.passes import run
from numbacaps.routing.shape import TEAM_THREADS
from numbacaps.routing.votes import make_capsule


@cache
def make_spread(shape):
    """Kernel that gives each child of a window its capsule's activation; 0 in the padding."""
    g = shape.geometry
    L, CHILDREN, CAPSULES = g.L, shape.children, g.C * g.H * g.W
    capsule, ZERO = make_capsule(shape), shape.sums.type(0)

    @kept_on_disk
    @cuda.jit
    def routing_spread_kernel(
        activations,  # in   (N, C, H, W)
        children,  # out  (N, L, I)
        N,
    ):
        i = cuda.grid(1)
        if i >= N * L * CHILDREN:
            return
        place = capsule(i // CHILDREN % L, i % CHILDREN)
        value = ZERO
        if place >= 0:
            value = activations[at(i // (CHILDREN * L) * CAPSULES + place)]
        children[at(i)] = value

    return routing_spread_kernel


def votes_of(geometry, x, w, out, stream):
    """Write the votes, (N, P, L, I, E)."""
    indexed.votes(geometry, x, w, out, stream=stream, workspace=None)


def spread(shape, activations, children, N, stream):
    """Write every child's activation."""
    grid = ceil_div(children.size, TEAM_THREADS)
    run(make_spread(shape), grid, TEAM_THREADS, (activations, children, N), stream)
