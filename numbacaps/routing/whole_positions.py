"""Which few positions are routed whole by clusters of blocks (:mod:`numbacaps.routing.clusters`), and how large those are.

It follows from the arguments and from limits alone, so the same call gives the same bits.
"""

from dataclasses import dataclass, replace

import numpy as np

from numbacaps.device import gpu
from numbacaps.device.gpu import SHARED_WITHOUT_ASKING
from numbacaps.device.launch import ceil_div
from numbacaps.device.target import SIMULATED
from numbacaps.routing.clusters import cluster_bytes
from numbacaps.routing.shape import MULTIPROCESSORS, Shape

_MOST_BLOCKS = 2 if SIMULATED else 8  # of a cluster; every GPU that has clusters takes 8
_MOST_THREADS = 64 if SIMULATED else 1024  # of a block
_FEWEST_THREADS = 64 if SIMULATED else 256  # two teams at least
_AT_ONCE = 4 if SIMULATED else MULTIPROCESSORS  # blocks of all clusters
_FEWEST_CHILDREN = 2  # of a team
_MOST_HELD = 40 * 1024  # words that a block's lanes hold in a walk, of 64 * 1024 registers
_MOST_VOTES = 8 << 20  # bytes of all votes: few multiprocessors read them in every iteration
_PRECISIONS = "auto", "ieee"


@dataclass(frozen=True)
class Cluster:
    """How a cluster routes a position.

    Attributes
    ----------
    shape : numbacaps.routing.shape.Shape
        Of one image a team; it has the threads of a block.
    blocks : int
        Of a cluster.
    written_bytes : int
        Of votes that are written first; 0 where they are stored.
    """

    shape: Shape
    blocks: int
    written_bytes: int

    @property
    def children(self):
        """Of a team."""
        return ceil_div(self.shape.children, self.blocks * self.shape.teams)

    def __str__(self):
        shape = self.shape
        first = f"; before it votes of {self.written_bytes} bytes are written"
        return (
            f"in one kernel, each position by a cluster of {self.blocks} blocks of {shape.threads} threads: {shape.team} "
            f"lanes a team, {self.blocks * shape.teams} teams of {self.children} children each (ordinary arithmetic)"
            f"{first if self.written_bytes else ''}"
        )


def choose_cluster(shape, make_form, images, is_stored, precision):
    """How clusters route the positions of a batch; None where they do not.

    Parameters
    ----------
    shape : numbacaps.routing.shape.Shape
    make_form : callable
        The form of the pass forward, of a shape.
    images : int
        Of the whole batch.
    is_stored : bool
        Votes are stored.
    precision : str
        How they are computed, where they are not.
    """
    g = shape.geometry
    nbytes = images * g.L * shape.children * g.P * g.E3 * shape.dtype.itemsize
    can_write = shape.taps == 1 and shape.dtype == shape.sums and precision in _PRECISIONS
    is_few = images * g.L * _MOST_BLOCKS <= _AT_ONCE and nbytes <= _MOST_VOTES
    if not (gpu.current().has_clusters and is_few and (is_stored or can_write)):
        return None
    threads, blocks = _MOST_THREADS, _MOST_BLOCKS
    while threads >= _FEWEST_THREADS:
        of_block = replace(shape, images=1, threads=threads)
        if _fits(of_block, make_form(of_block), blocks):
            return Cluster(of_block, blocks, 0 if is_stored else nbytes)
        threads //= 2
    return None


def _fits(shape, form, blocks):
    """Whether lanes have registers, a block has shared memory, and every team has children."""
    words = shape.sums.itemsize // np.dtype(np.float32).itemsize
    record = shape.scalars * shape.own_fields(form.record)
    held = shape.threads * (2 * shape.elements + record) * words
    shared = cluster_bytes(shape, form, blocks)
    fewest = blocks * shape.teams * _FEWEST_CHILDREN
    return held <= _MOST_HELD and shared <= SHARED_WITHOUT_ASKING and fewest <= shape.children
