"""The signature of a call: shapes, dtype and options. Everything else about the call follows from it.

Equal calls share one signature, so it is checked and worked out once. Its key is cheap to compare: tuples of numbers
and short strings.
"""

import numpy as np

from numbacaps.algorithms.registry import ALGORITHMS, find_algorithm, resolve
from numbacaps.device.target import check_target
from numbacaps.device.workspace import check_limit
from numbacaps.forms import contiguous_strides, form_of
from numbacaps.limits import check_limits
from numbacaps.product import inverse, parse_product
from numbacaps.shapes import geometry_of, output_shape

_KEPT = 256  # signatures
_kept = {}


class Signature:
    """What calls have in common that are alike.

    Parameters
    ----------
    x_shape, w_shape : tuple of int
    dtype : numpy.dtype
    stride, padding, dilation, product, algorithm, precision, workspace_limit
        As :func:`numbacaps.capsule_conv2d` takes them.
    votes : str
        Of :data:`numbacaps.algorithms.registry.VOTES`, what is wanted of votes; empty for the convolution.

    Attributes
    ----------
    geometry : numbacaps.geometry.Geometry
    dtype : numpy.dtype
    algorithm, precision : str
        The algorithm's own name, where ``"auto"`` was asked for.
    workspace_limit : int or None
    votes : str
    shapes : dict of str to tuple
        Of "x", "w", "y", "votes" and "summed_votes" as the caller sees them.
    layouts : dict of str to tuple
        Of the same in the kernels' layout.
    orders : dict of str to tuple
        Of the same the caller's capsule axes, as numbers of the kernels'.
    back : dict of str to tuple
        Of the same the permutation from the kernels' to the caller's.
    in_order : dict of str to bool
        Whether both are alike.
    forms : dict of str to numbacaps.forms.Form
        Of the same in the kernels' layout, C-contiguous.
    contiguous : dict of str to (tuple, tuple)
        Shape, and strides in elements, of the same as C-contiguous arrays whose capsule axes are in the kernels' order.
    is_empty : bool
        There are no images.

    Raises
    ------
    TypeError, ValueError, RuntimeError, ImportError
        As :func:`numbacaps.capsule_conv2d`.
    """

    def __init__(
        self,
        x_shape,
        w_shape,
        dtype,
        stride,
        padding,
        dilation,
        product,
        algorithm,
        precision,
        workspace_limit=None,
        votes="",
    ):
        product = parse_product(product)
        g = geometry_of(x_shape, w_shape, product, stride, padding, dilation)
        self.geometry, self.dtype, self.precision = g, dtype, precision
        self.votes = votes
        self.workspace_limit = check_limit(workspace_limit)
        self.algorithm = resolve(algorithm, votes)
        if not ALGORITHMS[self.algorithm].on_host:
            check_target()
        find_algorithm(algorithm, dtype, precision, votes)
        y_shape = output_shape(g, product, x_shape, w_shape)
        self.layouts = {
            "x": g.input_shape,
            "w": g.kernel_shape,
            "y": g.output_shape,
            "votes": g.votes_shape,
            "summed_votes": g.summed_votes_shape,
        }
        capsules = x_shape[4:], w_shape[4:], *[y_shape[4:]] * 3
        self.shapes = {
            name: layout[:-3] + capsule
            for (name, layout), capsule in zip(self.layouts.items(), capsules)
        }
        orders = product.x_order, product.w_order, *[product.y_order] * 3
        self.orders = dict(zip(self.shapes, orders))
        self.back = {name: inverse(order) for name, order in self.orders.items()}
        self.in_order = {
            name: order == tuple(range(len(order))) for name, order in self.orders.items()
        }
        self.forms = {name: form_of(shape, None, dtype) for name, shape in self.layouts.items()}
        self.contiguous = {
            name: _contiguous(shape, self.orders[name]) for name, shape in self.shapes.items()
        }
        self.is_empty = g.N == 0
        self._accepted = set()  # passes

    def check_limits(self, passes):
        """Refuse passes that the algorithm would not compute rightly (:func:`numbacaps.limits.check_limits`)."""
        if passes not in self._accepted:
            check_limits(self.geometry, self.algorithm, passes)
            self._accepted.add(passes)


def _contiguous(shape, order):
    lead = len(shape) - len(order)
    shape = *shape[:lead], *(shape[lead + axis] for axis in order)
    return shape, contiguous_strides([max(size, 1) for size in shape], 1)


def signature_of(x_shape, w_shape, dtype, stride, padding, dilation, *options):
    """The signature of a call, kept if there was a call like it; parameters as those of :class:`Signature`."""
    pairs = stride, padding, dilation
    typed = pairs if type(stride) is type(padding) is type(dilation) is int else map(_typed, pairs)
    key = x_shape, w_shape, dtype, *typed, *options, *map(type, options)  # a limit of 1 is not True
    try:
        found = _kept.get(key)
    except TypeError:  # of an option that is no key: it is refused by name
        found = None
    if found is None:
        found = Signature(x_shape, w_shape, dtype, *pairs, *options)
        if len(_kept) >= _KEPT:
            _kept.clear()
        _kept[key] = found
    return found


def clear():
    """Forget all that are kept."""
    _kept.clear()


def _typed(pair):
    """A number or pair as part of a key: 1, 1.0 and True are equal, but not all are taken."""
    if type(pair) is int or is_two_ints(pair):
        return pair
    given = pair.tolist() if isinstance(pair, np.ndarray) else pair
    if isinstance(given, (list, tuple)):
        return tuple((type(number), number) for number in given)
    return type(given), given


def is_two_ints(pair):
    """Whether a pair is a tuple of two int, as geometries and layers have it."""
    return type(pair) is tuple and len(pair) == 2 and type(pair[0]) is type(pair[1]) is int
