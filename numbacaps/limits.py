"""The largest convolutions that each algorithm takes: one table, and the check that reads it.

Kernels count most things in 64 bits. What is counted in 32 bits, or launched as a side of a grid, has a limit here,
and a convolution beyond it is refused by name before anything is allocated. All are far above what fits a GPU's
memory in ordinary shapes. What reaches them is one very long axis, a very wide padding, or a very large G.
``"numpy"`` has none but what an array of the host can be (:func:`refuse_unaddressable`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd, prod

from numbacaps.device.launch import MAX_GRID_Y
from numbacaps.geometry import Geometry

MAX_GRID_X = 2**31 - 1  # blocks of a grid along x
_MOST_BYTES = 2**63 - 1  # of an array of the host
_THREADS = 256  # of a block of an elementwise kernel
_LOWEST, _WIDEST = (
    32,
    128,
)  # rows of the lowest tile of a product; columns of the tiles of wide ones
# "input" and "kernel" are the gradients of the convolution.
PASSES = ("forward", "input", "kernel", "votes", "summed_votes", "votes_gradients")


@dataclass(frozen=True)
class Limit:
    """The most of something that an algorithm takes.

    Attributes
    ----------
    says : callable
        ``says(geometry)``: what there is so much of, beginning with the argument's name, for a message.
    counts : callable
        ``counts(geometry)``: how much there is.
    most : int
    why : str
    passes : tuple of str
        Of :data:`PASSES`, those that it bounds.
    """

    says: Callable[[Geometry], str]
    counts: Callable[[Geometry], int]
    most: int
    why: str
    passes: tuple = PASSES


def _of_operand(name, argument, passes):
    return Limit(
        lambda g: f"{argument} has {prod(g.shape_of(name))} elements",
        lambda g: prod(g.shape_of(name)),
        MAX_GRID_X * _THREADS,
        "a grid has no more threads",
        passes,
    )


_OPERANDS = (
    _of_operand("x", "x", PASSES),
    _of_operand("w", "w", PASSES),
    _of_operand("out", "the output", ("forward", "input", "kernel")),
    _of_operand("votes", "the result", ("votes",)),
    _of_operand("summed_votes", "the result", ("summed_votes",)),
)


def _spans(most, why):
    """Limits of what rows and columns of the padded input are counted in."""
    found = []
    for axis, (word, size) in enumerate((("rows", "H"), ("columns", "W"))):

        def padded(g, axis=axis, size=size):
            return getattr(g, size) + 2 * g.padding[axis]

        def says_padded(g, word=word, padded=padded):
            name = f"padding is {g.padding}: x" if any(g.padding) else "x"
            return f"{name} has {padded(g)} {word}" + (" with it" if any(g.padding) else "")

        found.append(Limit(says_padded, padded, most, why))
        for name in ("stride", "dilation"):
            found.append(
                Limit(
                    lambda g, name=name: f"{name} is {getattr(g, name)}",
                    lambda g, name=name, axis=axis: getattr(g, name)[axis],
                    most,
                    why,
                )
            )
    return tuple(found)


def _channel_span(g):
    """Elements from the first to the last row of a channel of the padded input, or a stride further."""
    rows = max(g.H + 2 * g.padding[0], g.stride[0], g.dilation[0])
    columns = max(g.W + 2 * g.padding[1], g.stride[1], g.dilation[1])
    return (rows * g.W + columns) * g.E1


def _rows_of_an_image(name, pixels, passes):
    return Limit(
        lambda g: f"an image of {name} has {pixels(g) * g.D1} rows of D1 (positions times {g.D1})",
        lambda g: pixels(g) * g.D1,
        2**31,
        "they are counted in 32 bits",
        passes,
    )


def _rows_of_a_product(argument, pixels, passes):
    return Limit(
        lambda g: f"{argument} has {g.N * pixels(g) * g.D1} rows (images times positions times D1)",
        lambda g: g.N * pixels(g) * g.D1,
        MAX_GRID_X * _LOWEST,
        f"a grid has no more blocks of {_LOWEST}",
        passes,
    )


def _columns_of_a_product(argument, letters, columns, passes):
    return Limit(
        lambda g: f"{argument} has {columns(g)} channels times {letters}",
        columns,
        MAX_GRID_Y * _WIDEST,
        f"a grid has no more blocks of {_WIDEST} along y",
        passes,
    )


def _residues(g):
    """Residues of the stride that have taps and pixels."""
    along = zip(g.stride, g.dilation, (g.KH, g.KW), (g.H, g.W))
    return prod(min(stride // gcd(stride, step), *sizes) for stride, step, *sizes in along)


_IN_64_BITS = (*_OPERANDS, *_spans(2**62, "rows and columns are counted in 64 bits"))

LIMITS = {
    "naive": (
        *_IN_64_BITS,
        Limit(
            lambda g: f"x and w make {g.N * g.P * g.L * g.C} products of a window (N*P*OH*OW*C)",
            lambda g: g.N * g.P * g.L * g.C,
            MAX_GRID_X * _THREADS,
            "each is a thread, and a grid has no more",
            ("forward", "input", "kernel"),
        ),
    ),
    "staged": _IN_64_BITS,
    "cublas": _IN_64_BITS,
    "indexed": _IN_64_BITS,
    "fused": (
        *_OPERANDS,
        *_spans(2**30, "rows and columns are kept in 32 bits"),
        Limit(
            lambda g: f"x spans {_channel_span(g)} elements with padding, stride and dilation",
            _channel_span,
            2**62,
            "offsets have 64 bits",
        ),
        Limit(
            lambda g: f"product takes capsules of G = {g.G}",
            lambda g: g.G,
            MAX_GRID_Y,
            "a grid has no more blocks along z",
        ),
        _rows_of_an_image("the output", lambda g: g.L, ("forward", "kernel")),
        _rows_of_an_image("x", lambda g: g.H * g.W, ("input",)),
        _rows_of_a_product("the output", lambda g: g.L, ("forward", "kernel")),
        _rows_of_a_product("x", lambda g: g.H * g.W, ("input",)),
        _columns_of_a_product("w", "D3", lambda g: g.P * g.D3, ("forward", "kernel")),
        _columns_of_a_product("x", "D2", lambda g: g.C * g.D2, ("input",)),
        Limit(
            lambda g: f"stride is {g.stride}: the input's gradient is {_residues(g)} products",
            _residues,
            4096,
            "each has a kernel of its own",
            ("input",),
        ),
    ),
    "numpy": (),
}


def check_limits(geometry, algorithm, passes):
    """Refuse a convolution that an algorithm would not compute rightly.

    Parameters
    ----------
    geometry : numbacaps.geometry.Geometry
    algorithm : str
        A name of :data:`numbacaps.ALGORITHMS`, not ``"auto"``.
    passes : tuple of str
        Of :data:`PASSES`, those that are wanted.

    Raises
    ------
    ValueError
        A limit is passed; the message says which argument passes it, by what, and which algorithms take it.
    """
    passed = _passed(geometry, algorithm, passes)
    if passed is not None:
        others = [name for name in LIMITS if _passed(geometry, name, passes) is None]
        raise ValueError(
            f"{passed.says(geometry)}; algorithm {algorithm!r} takes at most {passed.most}, because {passed.why} "
            f"({others} take more)"
        )


def _passed(geometry, algorithm, passes):
    """The first limit that is passed, or None."""
    for limit in LIMITS.get(algorithm, ()):
        if not set(limit.passes).isdisjoint(passes) and limit.counts(geometry) > limit.most:
            return limit
    return None


def refuse_unaddressable(name, shape, dtype):
    """Refuse an array of the host that has more bytes than an address can count; ValueError."""
    least = prod(max(1, size) for size in shape) * dtype.itemsize  # NumPy counts an axis of 0 as 1
    if least > _MOST_BYTES:
        raise ValueError(
            f"{name} would have shape {tuple(shape)}; an array takes {_MOST_BYTES} bytes at the most"
        )
