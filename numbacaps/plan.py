"""A capsule convolution decided once and run many times.

Checking, the choice of kernels and tiles, compilation, tables of offsets and workspace are done when a
plan is made. A call of it only launches, so it can be captured into a CUDA graph.
"""

from math import prod

from numbacaps.algorithms.registry import find_algorithm, resolve
from numbacaps.arrays import (
    DTYPE_NAMES,
    check_out,
    check_together,
    describe,
    is_taken,
    resolve_stream,
)
from numbacaps.device.bfloat16 import dtype_of
from numbacaps.device.target import check_target
from numbacaps.device.workspace import Workspace, check_limit
from numbacaps.product import parse_product
from numbacaps.shapes import geometry_of, output_shape


def plan(
    x_shape,
    w_shape,
    dtype="float32",
    *,
    stride=1,
    padding=0,
    dilation=1,
    product="ab,bc->ac",
    algorithm="auto",
    precision="ieee",
    workspace_limit=None,
):
    """Decide how a capsule convolution is computed, and make it ready.

    Parameters
    ----------
    x_shape : tuple of int
        (N, C, H, W, *T1), N at least 1.
    w_shape : tuple of int
        (P, C, KH, KW, *T2)
    dtype : str or numpy.dtype
        float32 or float64; or float16 or bfloat16, which are added in float32.
    stride, padding, dilation, product, algorithm, precision, workspace_limit
        As :func:`numbacaps.capsule_conv2d`; ``product`` names each capsule's axes in the order in which
        the kernels read them, as ``"ab,bc->ac"`` and ``"gab,gbc->gac"`` do.

    Returns
    -------
    Plan

    Raises
    ------
    TypeError, ValueError, ImportError, RuntimeError
        As :func:`numbacaps.capsule_conv2d`; ValueError also for a product in another order.
    """
    x_shape, w_shape = _shape("x_shape", x_shape), _shape("w_shape", w_shape)
    try:
        dtype = dtype_of(dtype)
    except TypeError:
        raise TypeError(f"dtype is {dtype!r}; it takes {DTYPE_NAMES}") from None
    if not is_taken(dtype):
        raise TypeError(f"dtype is {dtype}; it takes {DTYPE_NAMES}")
    product = parse_product(product)
    geometry = geometry_of(x_shape, w_shape, product, stride, padding, dilation)
    if geometry.N == 0:
        raise ValueError("x_shape has N = 0; a plan takes 1 or more")
    orders = (product.x_order, product.w_order, product.y_order)
    if any(order != tuple(range(len(order))) for order in orders):
        raise ValueError(
            f"product is {product.spec!r}; a plan takes axes in the order in which kernels read them: "
            f"{product.g}{product.d1}{product.d2},{product.g}{product.d2}{product.d3}"
            f"->{product.g}{product.d1}{product.d3}"
        )
    workspace_limit = check_limit(workspace_limit)
    check_target()
    found = find_algorithm(algorithm, dtype, precision)
    shapes = (x_shape, w_shape, output_shape(geometry, product, x_shape, w_shape))
    return Plan(geometry, shapes, dtype, resolve(algorithm), found, precision, workspace_limit)


def explain(x_shape, w_shape, dtype="float32", **options):
    """Which kernels, with which tiles, would compute a capsule convolution, and why.

    Parameters
    ----------
    x_shape, w_shape, dtype, options
        As :func:`plan`.

    Returns
    -------
    str
        A line for each kernel, and how long making them ready took.
    """
    return plan(x_shape, w_shape, dtype, **options).explain()


class Plan:
    """A capsule convolution made ready by :func:`plan`; call it with device arrays.

    Attributes
    ----------
    geometry : numbacaps.geometry.Geometry
    x_shape, w_shape, y_shape : tuple of int
    dtype : numpy.dtype
    algorithm, precision : str
    """

    def __init__(self, geometry, shapes, dtype, name, algorithm, precision, workspace_limit):
        self.geometry, self.dtype = geometry, dtype
        self.x_shape, self.w_shape, self.y_shape = shapes
        self.algorithm, self.precision = name, precision
        self._algorithm = algorithm
        self._workspaces = {
            wanted: Workspace(workspace_limit)
            for wanted in ("forward", "input", "kernel", "packed forward", "packed input")
        }
        self._prepared = None
        self._packed, self._packing = (
            None,
            {},
        )  # a kernel; what packs it, by the pass that reads it so
        if algorithm.prepare:
            self._prepared = algorithm.prepare(geometry, dtype, precision)
            for wanted, arrays in self._prepared.workspaces().items():
                self._workspaces[wanted].arrays(arrays, self._prepared.sums)
            if self._prepared.packs_forward:
                self._packing["forward"] = algorithm.pack_forward
            if self._prepared.packs_backward:
                self._packing["input"] = algorithm.pack_backward

    def __call__(self, x, w, out, *, stream=None):
        """The forward pass.

        Parameters
        ----------
        x, w, out : device arrays of ``x_shape``, ``w_shape`` and ``y_shape``
            C-contiguous, of the plan's dtype. None for ``w`` takes the kernel that was packed.
        stream : optional
            As :func:`numbacaps.capsule_conv2d`; it may be capturing.

        Returns
        -------
        ``out``

        Raises
        ------
        TypeError, ValueError
            An array does not fit, or ``w`` is None and none was packed.
        """
        inputs = self._inputs(x=x, w=w)
        result = self._result("out", out, self.y_shape, inputs)
        stream = resolve_stream(stream, (*inputs, result))
        g = self.geometry
        self._algorithm.forward(
            g,
            inputs[0].reshaped(g.input_shape),
            inputs[1].reshaped(g.kernel_shape),
            result.reshaped(g.output_shape),
            stream=stream,
            **self._how("forward", w),
        )
        return out

    def pack(self, w, *, stream=None):
        """Do ahead what depends on the kernel alone: for inference, where it does not change.

        Calls that are given None for ``w`` take it from then on: on the same stream, or behind an event. The
        tensor cores' products read a copy in their own order, which other calls make anew each time; other
        kernels read the array itself. The first call allocates room for the copy, so it is not to be captured.

        Parameters
        ----------
        w : device array of ``w_shape``
            It must stay as it is, until another one is packed.
        stream : optional
            As for a call.

        Raises
        ------
        TypeError, ValueError
            The array does not fit.
        """
        (kernel,) = self._inputs(w=w)
        stream = resolve_stream(stream, (kernel,))
        array = kernel.reshaped(self.geometry.kernel_shape)
        for wanted, pack in self._packing.items():
            workspace = self._workspaces[f"packed {wanted}"]
            pack(self.geometry, array, stream=stream, workspace=workspace)
        self._packed = kernel

    def _how(self, wanted, w):
        """Keywords of a pass that reads the kernel, or the packed one."""
        if w is None and wanted in self._packing:
            return {"workspace": self._workspaces[f"packed {wanted}"], "packed": True}
        return {"workspace": self._workspaces[wanted]}

    def backward(self, x, w, dy, dx=None, dw=None, *, stream=None):
        """Both gradients, or the one that there is an array for.

        Parameters
        ----------
        x, w, dy : device arrays of ``x_shape``, ``w_shape`` and ``y_shape``
            None for ``w`` takes the kernel that was packed.
        dx, dw : device arrays of ``x_shape`` and ``w_shape``, or None
            Where to write; None leaves that gradient out.
        stream : optional
            As for a call.

        Returns
        -------
        (``dx``, ``dw``)

        Raises
        ------
        TypeError, ValueError
            An array does not fit, neither gradient is wanted, or ``w`` is None and none was packed.
        """
        if dx is None and dw is None:
            raise ValueError("dx and dw are None; at least one takes an array")
        inputs = self._inputs(x=x, w=w, dy=dy)
        wanted = {"dx": (dx, self.x_shape), "dw": (dw, self.w_shape)}
        results = {
            name: self._result(name, array, shape, inputs)
            for name, (array, shape) in wanted.items()
            if array is not None
        }
        stream = resolve_stream(stream, (*inputs, *results.values()))
        g = self.geometry
        shapes = (g.input_shape, g.kernel_shape, g.output_shape)
        x, kernel, dy = (operand.reshaped(shape) for operand, shape in zip(inputs, shapes))
        if dx is not None:
            gradients = results["dx"].reshaped(g.input_shape), None
            run = {"stream": stream, **self._how("input", w)}
            self._algorithm.backward(g, None, kernel, dy, *gradients, **run)
        if dw is not None:
            gradients = None, results["dw"].reshaped(g.kernel_shape)
            run = {"stream": stream, "workspace": self._workspaces["kernel"]}
            self._algorithm.backward(g, x, None, dy, *gradients, **run)
        return dx, dw

    def explain(self):
        """Which kernels run, with which tiles, and why; and how long making them ready took."""
        head = f"algorithm {self.algorithm}, precision {self.precision}, {self.dtype}"
        if self._prepared is None:
            return f"{head}\nkernels are compiled at the first call"
        return f"{head}\n{self._prepared.explain()}"

    def _inputs(self, **arrays):
        """The operands, checked; of ``w`` None the packed one."""
        shapes = {"x": self.x_shape, "w": self.w_shape, "dy": self.y_shape}
        if arrays.get("w", 0) is None and self._packed is None:
            raise ValueError("w is None, and no kernel was packed; it takes one, or pack(w) before")
        operands = [
            self._packed if name == "w" and array is None else describe(name, array)
            for name, array in arrays.items()
        ]
        for operand in operands:
            if operand.shape != shapes[operand.name]:
                raise ValueError(
                    f"{operand.name} has shape {operand.shape}; the plan takes {shapes[operand.name]}"
                )
            self._check(operand)
        check_together(operands)
        return operands

    def _result(self, name, array, shape, inputs):
        """The operand to write to, checked."""
        result = describe(name, array)
        self._check(result)
        check_together([inputs[0], result])
        check_out(result, shape, inputs)
        return result

    def _check(self, operand):
        """Refuse what a plan cannot use as it lies."""
        if not operand.on_device:
            raise TypeError(f"{operand.name} is on the host; a plan takes device arrays")
        if operand.dtype != self.dtype:
            raise TypeError(
                f"{operand.name} has dtype {operand.dtype}; the plan takes {self.dtype}"
            )
        if not operand.is_contiguous:
            raise ValueError(
                f"{operand.name} is not C-contiguous; a plan takes C-contiguous arrays"
            )


def _shape(name, shape):
    """A shape as a tuple of int."""
    try:
        sizes = tuple(int(size) for size in shape)
        if prod(sizes) < 0 or sizes != tuple(shape):
            raise ValueError
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {shape!r}; it takes a tuple of sizes") from None
    return sizes
