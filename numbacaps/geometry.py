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
from math import prod

import numpy as np

from numbacaps.made_once import made_once
from numbacaps.messages import shown

Pair = int | tuple[int, int]  # (vertical, horizontal), or one number for both


@dataclass(frozen=True)
class Geometry:
    """The dimensions of one capsule convolution.

    ``stride``, ``padding`` and ``dilation`` are ints or pairs (vertical, horizontal), and kept as
    pairs.

    Raises
    ------
    TypeError
        A size is no int, or a stride, padding or dilation neither an int nor a pair of ints.
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
    stride: Pair = 1
    padding: Pair = 0
    dilation: Pair = 1

    def __post_init__(self):
        for name in ("N", "C", "P", "H", "W", "KH", "KW", "G", "D1", "D2", "D3"):
            size, least = getattr(self, name), 0 if name == "N" else 1
            if type(size) is not int:
                if not is_int(size):
                    raise TypeError(f"{name} is {shown(size)}; it takes an int")
                object.__setattr__(self, name, int(size))
            if size < least:
                raise ValueError(f"{name} is {size}; it takes {least} or more")
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
    def summed_votes_shape(self):
        """(N, P, OH, OW, C, G, D1, D3): the votes summed over the window."""
        return self.output_shape[:4] + (self.C,) + self.output_shape[4:]

    @property
    def gemm(self):
        """(M, N, K) of the one matrix product for each g that the convolution folds into."""
        return (self.N * self.L * self.D1, self.P * self.D3, self.Q * self.D2)

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

    @property
    def without_window(self):
        """The same convolution of arrays that lie the same, where the window is the whole input; else itself.

        There is one output position. So every input capsule is a channel of its own: C * H * W of them, under a window
        of one.
        """
        window = self.KH, self.KW
        if window != (self.H, self.W) or window == (1, 1):
            return self
        if self.padding != (0, 0) or self.dilation != (1, 1):
            return self
        C = self.C * self.H * self.W
        return replace(self, C=C, H=1, W=1, KH=1, KW=1, stride=1)

    @property
    def of_summed_votes(self):
        """The convolution under a window of one whose votes have the shape of this one's, summed over the window."""
        how = {"stride": 1, "padding": 0, "dilation": 1}
        return replace(self, H=self.OH, W=self.OW, KH=1, KW=1, **how)

    @made_once
    def of_channels(self):
        """The convolution whose output is the votes summed over the window: what is g to it is (c, g)."""
        return replace(self, C=1, G=self.C * self.G)

    def shape_of(self, operand):
        """Shape of ``x``, ``w``, ``out``, ``votes``, ``summed_votes``, ``dy``, ``dx`` or ``dw``."""
        return {
            "x": self.input_shape,
            "dx": self.input_shape,
            "w": self.kernel_shape,
            "dw": self.kernel_shape,
            "out": self.output_shape,
            "dy": self.output_shape,
            "votes": self.votes_shape,
            "summed_votes": self.summed_votes_shape,
        }[operand]


def is_int(value):
    """Whether a value is an int, Python's or NumPy's; a bool is none."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _pair(name, value, least):
    """``value`` as a pair (vertical, horizontal) of ints."""
    given = value.tolist() if isinstance(value, np.ndarray) else value
    pair = tuple(given) if isinstance(given, (tuple, list)) else (given, given)
    if len(pair) != 2 or not all(map(is_int, pair)):
        raise TypeError(f"{name} is {value!r}; it takes an int or a pair of ints")
    if min(pair) < least:
        raise ValueError(f"{name} is {value!r}; it takes {least} or more")
    return int(pair[0]), int(pair[1])
