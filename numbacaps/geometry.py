"""Every shape, byte and FLOP of a capsule convolution. No other module computes one.

Symbols (a loop index is the lower-case letter):

==========  ==================================================================================
N           batch
C, H, W     input channels, height, width
P, OH, OW   output channels, height, width
KH, KW      kernel window
L           OH * OW output positions; position ``l = oh * OW + ow``
Q           C * KH * KW products summed into one output capsule; ``q = (c * KH + kh) * KW + kw``
G           batch axis of a rank-3 capsule; 1 for a matrix capsule
D1, D2, D3  the capsule product is (D1 x D2) @ (D2 x D3) -> (D1 x D3), once for each g
E1, E2, E3  elements of an input, kernel and output capsule: G*D1*D2, G*D2*D3, G*D1*D3
==========  ==================================================================================

Arrays are C-contiguous: input ``(N, C, H, W, G, D1, D2)``, kernel ``(P, C, KH, KW, G, D2, D3)``,
output ``(N, P, OH, OW, G, D1, D3)``.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np

# Threads that share the sum of one kernel-gradient element: enough to fill a large GPU when the
# kernel is small. It depends on nothing but the geometry, so the order of the sum is fixed.
_GRADIENT_THREADS = 1 << 18
_MAX_LANES = 128


@dataclass(frozen=True)
class Geometry:
    """The dimensions of one capsule convolution.

    ``stride``, ``padding`` and ``dilation`` are ints or pairs (vertical, horizontal), and kept as
    pairs.

    Raises
    ------
    TypeError
        A stride, padding or dilation is neither an int nor a pair of ints.
    ValueError
        A number is out of range, or the window is larger than the padded input.
    """

    N: int
    C: int
    P: int
    H: int
    W: int
    KH: int
    KW: int
    G: int
    D1: int
    D2: int
    D3: int
    stride: int | tuple = 1
    padding: int | tuple = 0
    dilation: int | tuple = 1

    def __post_init__(self):
        for name in ("C", "P", "H", "W", "KH", "KW", "G", "D1", "D2", "D3"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it takes 1 or more")
        if self.N < 0:
            raise ValueError(f"N is {self.N}; it takes 0 or more")
        for name, least in (("stride", 1), ("padding", 0), ("dilation", 1)):
            object.__setattr__(self, name, _pair(name, getattr(self, name), least))
        for axis, size, window, at in (
            ("height", self.H, self.KH, 0),
            ("width", self.W, self.KW, 1),
        ):
            span = self.dilation[at] * (window - 1) + 1
            padded = size + 2 * self.padding[at]
            if span > padded:
                raise ValueError(
                    f"w spans {span} of the input's {axis}; x has {padded} there, padding included"
                )

    @property
    def OH(self):
        """Output height."""
        return self._steps(self.H, self.KH, 0)

    @property
    def OW(self):
        """Output width."""
        return self._steps(self.W, self.KW, 1)

    def _steps(self, size, window, at):
        span = self.dilation[at] * (window - 1) + 1
        return (size + 2 * self.padding[at] - span) // self.stride[at] + 1

    @property
    def L(self):
        """Output positions of an image."""
        return self.OH * self.OW

    @property
    def Q(self):
        """Products summed into one output capsule."""
        return self.C * self.KH * self.KW

    @property
    def E1(self):
        """Elements of an input capsule."""
        return self.G * self.D1 * self.D2

    @property
    def E2(self):
        """Elements of a kernel capsule."""
        return self.G * self.D2 * self.D3

    @property
    def E3(self):
        """Elements of an output capsule."""
        return self.G * self.D1 * self.D3

    @property
    def input_shape(self):
        """(N, C, H, W, G, D1, D2)"""
        return (self.N, self.C, self.H, self.W, self.G, self.D1, self.D2)

    @property
    def kernel_shape(self):
        """(P, C, KH, KW, G, D2, D3)"""
        return (self.P, self.C, self.KH, self.KW, self.G, self.D2, self.D3)

    @property
    def output_shape(self):
        """(N, P, OH, OW, G, D1, D3)"""
        return (self.N, self.P, self.OH, self.OW, self.G, self.D1, self.D3)

    @property
    def votes_shape(self):
        """(N, P, OH, OW, C, KH, KW, G, D1, D3): the products before their sum."""
        return self.output_shape[:4] + (self.C, self.KH, self.KW) + self.output_shape[4:]

    @property
    def gemm(self):
        """(M, N, K) of the one matrix product for each g that the convolution folds into."""
        return (self.N * self.L * self.D1, self.P * self.D3, self.Q * self.D2)

    @property
    def lanes(self):
        """Partial sums that kernel_reduce keeps for each element of the kernel's gradient."""
        lanes = 1
        while lanes < _MAX_LANES and 2 * lanes * prod(self.kernel_shape) <= _GRADIENT_THREADS:
            lanes *= 2
        return lanes

    @property
    def flop(self):
        """Floating-point operations of one pass (forward, or one gradient)."""
        return 2 * self.N * self.P * self.L * self.Q * self.G * self.D1 * self.D2 * self.D3

    def min_bytes(self, itemsize):
        """Fewest bytes a pass can move: each input read once, the output written once."""
        return itemsize * sum(map(prod, (self.input_shape, self.kernel_shape, self.output_shape)))

    @property
    def of_one_image(self):
        """The same with N = 1: what kernels that take N as an argument are compiled for."""
        return replace(self, N=1)

    def shape_of(self, operand):
        """Shape of ``x``, ``w``, ``out``, ``votes``, ``dy``, ``dx`` or ``dw``."""
        return {
            "x": self.input_shape,
            "dx": self.input_shape,
            "w": self.kernel_shape,
            "dw": self.kernel_shape,
            "out": self.output_shape,
            "dy": self.output_shape,
            "votes": self.votes_shape,
        }[operand]

    @cached_property
    def whole(self):
        """The slab that holds all of the work."""
        return Slab(self, 0, self.N, 0, self.OH)

    def slabs(self, elements, limit):
        """Cut the work into slabs whose workspace fits: by images, then by output rows.

        Parameters
        ----------
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

        def fits(images, rows):
            return elements(Slab(self, 0, images, 0, rows)) <= limit

        if not fits(1, 1):
            raise MemoryError("one output row does not fit", elements(Slab(self, 0, 1, 0, 1)))
        if not fits(1, self.OH):
            rows = _largest(self.OH, lambda rows: fits(1, rows))
            return [
                Slab(self, n, 1, row, min(rows, self.OH - row))
                for n in range(self.N)
                for row in range(0, self.OH, rows)
            ]
        images = _largest(self.N, lambda images: fits(images, self.OH))
        return [
            Slab(self, n, min(images, self.N - n), 0, self.OH) for n in range(0, self.N, images)
        ]


def _pair(name, value, least):
    """``value`` as a pair (vertical, horizontal) of ints."""
    given = value.tolist() if isinstance(value, np.ndarray) else value
    pair = tuple(given) if isinstance(given, (tuple, list)) else (given, given)
    if len(pair) != 2 or not all(
        isinstance(number, (int, np.integer)) and not isinstance(number, bool) for number in pair
    ):
        raise TypeError(f"{name} is {value!r}; it takes an int or a pair of ints")
    if min(pair) < least:
        raise ValueError(f"{name} is {value!r}; it takes {least} or more")
    return int(pair[0]), int(pair[1])


def _largest(most, fits):
    """The largest count up to ``most`` that fits, by bisection; 1 is known to fit."""
    low, high = 1, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


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
        return (self.geometry.lanes,) + self.geometry.kernel_shape

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
