"""What a network's layers are, and how they chain: a description, and its place behind others."""

import numbers
import operator
from dataclasses import dataclass, fields, replace
from math import prod

import numpy as np

from numbacaps.algorithms.registry import device_algorithms, find_algorithm
from numbacaps.device.target import SIMULATED
from numbacaps.geometry import Geometry
from numbacaps.messages import is_iterable
from numbacaps.product import inverse, parse_product


@dataclass(frozen=True)
class Layer:
    """A capsule convolution, then LeakyReLU, then squash.

    Attributes
    ----------
    channels : int
        P, output channels.
    kernel : tuple of int
        Shape of a kernel capsule: (D2, D3) for matrix capsules.
    window, stride, padding, dilation : int or pair of them (vertical, horizontal)
    product : str
        What two capsules make, as :func:`numbacaps.capsule_conv2d` takes it; the axes of the input
        capsule in the order of G, D1, D2, those of the output capsule in the order of G, D1, D3.
    capsule : tuple of int, optional
        Shape that the output capsule is read as, of as many elements; its own by default.
    slope : float
        Of LeakyReLU; 1 for none.
    squash : int, optional
        Consecutive elements that are squashed together; None for no squash.
    algorithm : str
        ``"auto"`` or a name of :data:`numbacaps.ALGORITHMS`.
    precision : str
        As :func:`numbacaps.capsule_conv2d` takes it, of the layer's convolution. Where all layers are one kernel, ``"auto"`` is
        ``"tf32x3"``, whose results are not looked through there: an infinity may become NaN.
    """

    channels: int
    kernel: tuple[int, ...]
    window: int | tuple[int, int] = 3
    stride: int | tuple[int, int] = 1
    padding: int | tuple[int, int] = 0
    dilation: int | tuple[int, int] = 1
    product: str = "ab,bc->ac"
    capsule: tuple[int, ...] | None = None
    slope: float = 0.1
    squash: int | None = None
    algorithm: str = "auto"
    precision: str = "auto"


@dataclass(frozen=True)
class PlacedLayer:
    """A layer behind another one: every shape is known.

    Attributes
    ----------
    layer : Layer
    geometry : Geometry
        With N = 1.
    kernel_shape : tuple
        (P, C, KH, KW, *T2), as users see it.
    kernel_order : tuple of int
        Where the axes of T2 stand in the kernels' order G, D2, D3.
    output_shape : tuple
        (P, OH, OW, *capsule), as the next layer reads it.
    """

    layer: Layer
    geometry: Geometry
    kernel_shape: tuple
    kernel_order: tuple
    output_shape: tuple

    def __repr__(self):
        layer, g = self.layer, self.geometry
        squash = f", squash {layer.squash}" if layer.squash else ""
        kernel = "x".join(map(str, self.kernel_shape))
        output = "x".join(map(str, self.output_shape))
        stride = "" if g.stride == (1, 1) else f", stride {g.stride[0]}x{g.stride[1]}"
        return f"<layer {kernel}{stride}, slope {layer.slope}{squash} -> {output}>"

    @property
    def terms(self) -> int:
        """Length of the sum behind an output element."""
        return self.geometry.Q * self.geometry.D2

    def canonical(self, kernel: np.ndarray) -> np.ndarray:
        """A kernel (P, C, KH, KW, *T2) in the kernels' layout (P, C, KH, KW, G, D2, D3)."""
        order = (0, 1, 2, 3, *(4 + axis for axis in self.kernel_order))
        return kernel.transpose(order).reshape(self.geometry.kernel_shape)

    def as_given(self, kernel: np.ndarray) -> np.ndarray:
        """The inverse of :meth:`canonical`, as a new array."""
        in_order = (self.kernel_shape[4:][axis] for axis in self.kernel_order)
        back = (0, 1, 2, 3, *(4 + axis for axis in inverse(self.kernel_order)))
        return kernel.reshape(*kernel.shape[:4], *in_order).transpose(back).copy(order="C")

    @property
    def description(self) -> dict:
        """What decides the layer's function and its weights' meaning, fit for JSON."""
        g, layer = self.geometry, self.layer
        return {
            "kernel": list(self.kernel_shape),
            "stride": list(g.stride),
            "padding": list(g.padding),
            "dilation": list(g.dilation),
            "product": layer.product,
            "output": list(self.output_shape),
            "slope": float(layer.slope),
            "squash": None if layer.squash is None else int(layer.squash),
        }


def chain(layers, input_shape, dtype) -> tuple[PlacedLayer, ...]:
    """Every layer in its place.

    Parameters
    ----------
    layers : sequence of Layer
    input_shape : tuple
        (C, H, W, *T1) of an image.
    dtype : numpy.dtype
        Of everything.

    Returns
    -------
    tuple of PlacedLayer

    Raises
    ------
    TypeError
        A description is none, or holds something of another type.
    ValueError
        A layer does not fit what comes before it, or a number is out of range; the message names
        the layer and both shapes.
    """
    if isinstance(layers, Layer) or not is_iterable(layers):
        raise TypeError(f"layers is {layers!r}; it takes a sequence of Layer")
    layers = tuple(layers)
    if not layers:
        raise ValueError("layers is empty; it takes one layer or more")
    shape = _sizes("input_shape", input_shape)
    if len(shape) < 3:
        raise ValueError(f"input_shape is {shape}; it takes (C, H, W, *capsule)")
    placed, before = [], "the input"
    for number, layer in enumerate(layers):
        name = f"layers[{number}]"
        if not isinstance(layer, Layer):
            raise TypeError(f"{name} is a {type(layer).__name__}; it takes a Layer")
        placed.append(_place(name, layer, shape, before, dtype))
        shape, before = placed[-1].output_shape, f"the output of {name}"
    return tuple(placed)


def _place(name, layer, shape, before, dtype):
    """A layer behind an input of that shape."""
    try:
        found = find_algorithm(layer.algorithm, dtype, layer.precision)
    except (TypeError, ValueError) as reason:
        raise type(reason)(f"{name}: {reason}") from None
    if found.on_host and not SIMULATED:
        raise ValueError(
            f"{name}: algorithm is {layer.algorithm!r}, which computes on the host; "
            f"it takes one of {device_algorithms()}"
        )
    product = parse_product(layer.product)
    kernel = _sizes(f"{name}.kernel", layer.kernel)
    KH, KW = _pair(f"{name}.window", layer.window)
    (P,) = _sizes(f"{name}.channels", (layer.channels,))
    (C, H, W), capsule = shape[:3], shape[3:]
    try:
        made = product.y_capsule(capsule, kernel)
        dimensions = product.dimensions(capsule, kernel)
        sizes = (1, C, P, H, W, KH, KW, *dimensions)
        g = Geometry(*sizes, layer.stride, layer.padding, layer.dilation)
    except (TypeError, ValueError) as reason:
        raise type(reason)(
            f"{name}, of kernel capsules {kernel} and window {KH} x {KW}, does not fit {before}, "
            f"of shape {shape}: {reason}"
        ) from None
    for what, order in (("input", product.x_order), ("output", product.y_order)):
        if order != tuple(sorted(order)):
            raise ValueError(
                f"{name} has product={layer.product!r}; a layer takes one whose {what} capsule has "
                f"its axes in the order of G, D1, {'D2' if what == 'input' else 'D3'}"
            )
    read_as = made if layer.capsule is None else _sizes(f"{name}.capsule", layer.capsule)
    if prod(read_as) != g.E3:
        raise ValueError(
            f"{name} makes capsules of shape {made}, {g.E3} elements; capsule={read_as} has "
            f"{prod(read_as)}"
        )
    _check_activation(name, layer, made, dtype)
    layer = _with_tuples(layer)
    return PlacedLayer(
        layer, g, (P, C, KH, KW, *kernel), product.w_order, (P, g.OH, g.OW, *read_as)
    )


def _listed(value):
    """Ints of a NumPy array as Python's: an int, or a list."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def _is_several(value):
    return hasattr(value, "__len__") and not isinstance(value, str)


def _with_tuples(layer):
    """The layer with tuples for what else holds several ints, and a float for its slope, so that it can be a key."""
    found = {field.name: _listed(getattr(layer, field.name)) for field in fields(layer)}
    several = {name: tuple(map(int, value)) for name, value in found.items() if _is_several(value)}
    return replace(layer, **found | several | {"slope": float(layer.slope)})


def _check_activation(name, layer, capsule, dtype):
    slope, squash = layer.slope, layer.squash
    if not isinstance(slope, numbers.Real) or isinstance(slope, bool):
        raise TypeError(f"{name} has slope={slope!r}; it takes a number")
    if not abs(slope) <= float(np.finfo(dtype).max):
        raise ValueError(f"{name} has slope={slope!r}; it takes a number that is finite in {dtype}")
    if squash is None:
        return
    (squash,) = _sizes(f"{name}.squash", (squash,))
    if prod(capsule) % squash:
        raise ValueError(
            f"{name} has squash={squash}; it takes a divisor of the {prod(capsule)} elements of "
            f"its capsules, of shape {capsule}"
        )


def _sizes(name, sizes):
    """A tuple of ints of 1 or more."""
    try:
        found = tuple(operator.index(size) for size in sizes)
    except TypeError:
        found = None
    if found is None or any(isinstance(size, bool) for size in sizes):
        raise TypeError(f"{name} is {sizes!r}; it takes ints of 1 or more")
    if any(size < 1 for size in found):
        raise ValueError(f"{name} is {sizes!r}; it takes ints of 1 or more")
    return found


def _pair(name, value):
    """An int or a pair as a pair."""
    value = _listed(value)
    found = _sizes(name, value if isinstance(value, (tuple, list)) else (value, value))
    if len(found) != 2:
        raise ValueError(f"{name} is {value!r}; it takes an int or a pair of ints")
    return found
