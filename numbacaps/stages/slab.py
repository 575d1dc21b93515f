"""A slab: the images and output rows that the stages work on at a time, its shapes and its costs.

The workspace of Algorithms 3 and 4 grows with images and output rows. So the work is cut into slabs
whose workspace fits.
"""

from dataclasses import dataclass
from math import prod

from numbacaps.geometry import Geometry

# Threads that share the sum of one kernel-gradient element: enough to fill a large GPU when the
# kernel is small. It depends on nothing but the geometry, so the order of the sum is fixed.
_GRADIENT_THREADS = 1 << 18
_MAX_LANES = 128


@dataclass(frozen=True)
class Slab:
    """Some images and some output rows of a convolution: what the stages work on at a time.

    The shapes are those of Algorithms 3 and 4, with ``n`` images and ``l`` positions in place of
    all N and L.
    """

    geometry: Geometry
    first_image: int
    images: int
    first_row: int
    rows: int

    @property
    def first_position(self):
        """Position at which the slab begins in each of its images."""
        return self.first_row * self.geometry.OW

    @property
    def positions(self):
        """Output positions that the slab has of each of its images."""
        return self.rows * self.geometry.OW

    @property
    def columns_shape(self):
        """(n, l, Q, G, D1, D2): I_flat, and its gradient."""
        g = self.geometry
        return (self.images, self.positions, g.Q, g.G, g.D1, g.D2)

    @property
    def extended_input_shape(self):
        """(n, P, l, Q, G, D1, D2): I', and its gradient dI'."""
        g = self.geometry
        return (self.images, g.P, self.positions, g.Q, g.G, g.D1, g.D2)

    @property
    def extended_kernel_shape(self):
        """(P, l, Q, G, D2, D3): K', shared by the images."""
        g = self.geometry
        return (g.P, self.positions, g.Q, g.G, g.D2, g.D3)

    @property
    def products_shape(self):
        """(n, P, l, Q, G, D1, D3): O', and the extended gradient dO'."""
        g = self.geometry
        return (self.images, g.P, self.positions, g.Q, g.G, g.D1, g.D3)

    @property
    def kernel_products_shape(self):
        """(n, P, l, Q, G, D2, D3): dK'."""
        g = self.geometry
        return (self.images, g.P, self.positions, g.Q, g.G, g.D2, g.D3)

    @property
    def lanes_shape(self):
        """(lanes, P, C, KH, KW, G, D2, D3): the partial sums of dK."""
        return (lanes_of(self.geometry),) + self.geometry.kernel_shape

    @property
    def output_shape(self):
        """(n, P, l, G, D1, D3): the slab's part of O, and of dO."""
        g = self.geometry
        return (self.images, g.P, self.positions, g.G, g.D1, g.D3)

    @property
    def input_shape(self):
        """(n, C, H, W, G, D1, D2): the slab's images of I, and of dI."""
        return (self.images,) + self.geometry.input_shape[1:]

    @property
    def flop(self):
        """Floating-point operations of the slab's products."""
        g = self.geometry
        return 2 * prod(self.products_shape) * g.D2

    def traffic(self, stage, itemsize):
        """(bytes, FLOP) that a stage must move and do, each operand read or written once.

        Parameters
        ----------
        stage : str
            A key of :data:`numbacaps.stages.STAGES`.
        itemsize : int
            Bytes of an element.
        """
        shapes, flop = _STAGE_COSTS[stage](self)
        return itemsize * sum(map(prod, shapes)), flop


def _adds(shape):
    """One addition an element of the array that is summed."""
    return prod(shape)


# stage: slab -> (shapes read and written, FLOP)
_STAGE_COSTS = {
    "capsule_im2col": lambda s: ((s.input_shape, s.columns_shape), 0),
    "input_extend": lambda s: ((s.columns_shape, s.extended_input_shape), 0),
    "kernel_extend": lambda s: ((s.geometry.kernel_shape, s.extended_kernel_shape), 0),
    "strided_batched_matmul": lambda s: (
        (s.extended_input_shape, s.extended_kernel_shape, s.products_shape),
        s.flop,
    ),
    "output_reduce": lambda s: ((s.products_shape, s.output_shape), _adds(s.products_shape)),
    "output_extend": lambda s: ((s.output_shape, s.products_shape), 0),
    "kernel_gradient_matmul": lambda s: (
        (s.extended_input_shape, s.products_shape, s.kernel_products_shape),
        s.flop,
    ),
    "kernel_reduce": lambda s: (
        (s.kernel_products_shape, s.geometry.kernel_shape),
        _adds(s.kernel_products_shape),
    ),
    "input_gradient_matmul": lambda s: (
        (s.products_shape, s.extended_kernel_shape, s.extended_input_shape),
        s.flop,
    ),
    "input_reduce": lambda s: (
        (s.extended_input_shape, s.columns_shape),
        _adds(s.extended_input_shape),
    ),
    "capsule_col2im": lambda s: ((s.columns_shape, s.input_shape), _adds(s.columns_shape)),
}


def lanes_of(geometry):
    """Partial sums that kernel_reduce keeps for each element of the kernel's gradient."""
    lanes = 1
    while lanes < _MAX_LANES and 2 * lanes * prod(geometry.kernel_shape) <= _GRADIENT_THREADS:
        lanes *= 2
    return lanes


def whole(geometry):
    """The slab that holds all of the work."""
    return Slab(geometry, 0, geometry.N, 0, geometry.OH)


def slabs(geometry, elements, limit):
    """Cut the work into slabs whose workspace fits: by images, then by output rows.

    Parameters
    ----------
    geometry : numbacaps.geometry.Geometry
    elements : callable
        ``elements(slab)`` is the workspace's size in elements of the pass in question.
    limit : int
        Elements at hand.

    Returns
    -------
    list of Slab
        In the order of (image, row). All but the last of their kind are equally large.

    Raises
    ------
    MemoryError
        Even one output row of one image does not fit. ``args[1]`` is what it needs, in elements.
    """
    g = geometry

    def fits(images, rows):
        return elements(Slab(g, 0, images, 0, rows)) <= limit

    if not fits(1, 1):
        raise MemoryError("one output row does not fit", elements(Slab(g, 0, 1, 0, 1)))
    if not fits(1, g.OH):
        rows = _largest(g.OH, lambda rows: fits(1, rows))
        return [
            Slab(g, n, 1, row, min(rows, g.OH - row))
            for n in range(g.N)
            for row in range(0, g.OH, rows)
        ]
    images = _largest(g.N, lambda images: fits(images, g.OH))
    return [Slab(g, n, min(images, g.N - n), 0, g.OH) for n in range(0, g.N, images)]


def _largest(most, fits):
    """The largest count up to ``most`` that fits, by bisection; 1 is known to fit."""
    low, high = 1, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
