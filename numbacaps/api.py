"""The public functions: check everything, then run one algorithm of the registry.

Nothing is allocated or launched before all arguments have been accepted. Only whether a workspace
fits is known later, when the operands are on the device; it is known before the first launch.
"""

from dataclasses import dataclass

import numpy as np

from numbacaps.algorithms.registry import find_algorithm
from numbacaps.arrays import (
    check_out,
    check_together,
    describe,
    permuted,
    resolve_stream,
    to_canonical,
)
from numbacaps.device.bfloat16 import to_device
from numbacaps.device.target import check_target, cuda
from numbacaps.device.workspace import Workspace, check_limit, kept_workspace
from numbacaps.geometry import Geometry
from numbacaps.product import Product, inverse, parse_product
from numbacaps.shapes import geometry_of, output_shape


def capsule_conv2d(
    x,
    w,
    *,
    stride=1,
    padding=0,
    dilation=1,
    product="ab,bc->ac",
    algorithm="auto",
    precision="ieee",
    workspace_limit=None,
    out=None,
    stream=None,
):
    """Capsule convolution (the paper's Algorithm 2; run as Algorithm 3 or 5).

    .. code-block:: text

        O[n,p,oh,ow] = sum over c,kh,kw of
            I[n, c, oh*stride+kh*dilation-padding, ow*stride+kw*dilation-padding] @ K[p,c,kh,kw]

    where ``@`` is ``product``. Padding is made of zeros that multiply like any other value, so
    NaN and infinity in ``w`` reach the border as IEEE 754 says.

    Parameters
    ----------
    x : array (N, C, H, W, *T1), float16, bfloat16 (both added in float32), float32 or float64
        Input: a NumPy array, a Numba device array or an array with ``__cuda_array_interface__``.
        Arrays that are not C-contiguous are copied.
    w : array (P, C, KH, KW, *T2), dtype of x
        Kernel, in the same place as ``x``.
    stride, dilation : int >= 1 or pair of them (vertical, horizontal)
    padding : int >= 0 or pair of them (vertical, horizontal)
    product : str
        What two capsules make, in the manner of ``np.einsum``: ``"ab,bc->ac"`` for matrix capsules,
        ``"gab,gbc->gac"`` for rank-3 capsules, ``"abk,kcd->abcd"`` for tensors. An axis of both
        inputs that the output lacks is summed over.
    algorithm : str
        ``"auto"`` or a name of :data:`numbacaps.ALGORITHMS`.
    precision : str
        How float32 is multiplied: ``"ieee"``, or what ``"fused"`` has on GPUs of compute capability
        9.0: ``"tf32"``, operands of 11 bits of mantissa, sums in float32; ``"tf32x3"``, three such
        products for one, about as exact as float32 arithmetic, but infinite operands make NaN.
    workspace_limit : int, optional
        Most bytes that ``"staged"`` and ``"cublas"`` may allocate for their intermediates; half of
        the free device memory by default. The result does not depend on it (of ``"staged"``, not
        a bit of it). ``"fused"`` allocates copies of the kernel, 396 at most, the other algorithms
        nothing.
    out : array (N, P, OH, OW, *T3), optional
        Where to write the result: C-contiguous, in the same place and of the same dtype as ``x``,
        apart from the inputs in memory.
    stream : optional
        Numba stream, cuda.core, CuPy or PyTorch stream, or a stream's address. By default the
        stream that ``x`` names in its interface, else the default stream. With device arrays the
        call returns once the work is queued there.

    Returns
    -------
    array (N, P, OH, OW, *T3)
        ``out`` if given; else a NumPy array for NumPy inputs, a Numba device array for device ones.
        OH = (H + 2*padding - dilation*(KH-1) - 1) // stride + 1, OW likewise. Empty for N = 0.

    Raises
    ------
    TypeError
        An argument is of the wrong type, the dtype is not float16, bfloat16, float32 or float64 or not
        the same, or some arrays are on the host and some on the device.
    ValueError
        Shapes do not go together, the window is larger than the padded input, an axis other than N
        is empty, a number is out of range, ``product``, ``algorithm`` or ``precision`` is unknown or
        not to be had here, ``out`` does not fit or overlaps an input, or an array lies on another
        GPU.
    ImportError, RuntimeError
        ``algorithm`` or bfloat16 takes a package, or ``algorithm`` a GPU, that is not here.
    MemoryError
        ``workspace_limit`` is too small for one output row of one image.
    """
    task = _Task.check((x, w), stride, padding, dilation, product, workspace_limit)
    algorithm = find_algorithm(algorithm, task.dtype, precision)
    out = task.check_out(out, task.output_shape)
    stream = resolve_stream(stream, task.operands if out is None else (*task.operands, out))
    if task.geometry.N == 0:
        return task.empty(task.output_shape, out)
    workspace = task.workspace(algorithm, stream, precision)
    result = task.run(algorithm.forward, workspace, task.geometry.output_shape, stream, out)
    return task.deliver(result, task.output_shape, inverse(task.product.y_order), out, stream)


def capsule_votes(
    x,
    w,
    *,
    stride=1,
    padding=0,
    dilation=1,
    product="ab,bc->ac",
    algorithm="auto",
    workspace_limit=None,
    out=None,
    stream=None,
):
    """The products of a capsule convolution before their sum: O' of Algorithm 3, step 4.

    .. code-block:: text

        V[n,p,oh,ow,c,kh,kw] =
            I[n, c, oh*stride+kh*dilation-padding, ow*stride+kw*dilation-padding] @ K[p,c,kh,kw]

    Routing weighs these votes before it adds them; their plain sum over (c, kh, kw) is
    :func:`capsule_conv2d`.

    Parameters
    ----------
    x, w, stride, padding, dilation, product, workspace_limit, stream
        As :func:`capsule_conv2d`.
    algorithm : str
        ``"auto"``, ``"indexed"``, ``"staged"`` or ``"cublas"``.
    out : array (N, P, OH, OW, C, KH, KW, *T3), optional
        As :func:`capsule_conv2d`.

    Returns
    -------
    array (N, P, OH, OW, C, KH, KW, *T3)
        Where and how as :func:`capsule_conv2d`.

    Raises
    ------
    TypeError, ValueError, ImportError, RuntimeError, MemoryError
        As :func:`capsule_conv2d`; ValueError also for an algorithm that has no votes.
    """
    task = _Task.check((x, w), stride, padding, dilation, product, workspace_limit)
    algorithm = find_algorithm(algorithm, task.dtype, votes=True)
    out = task.check_out(out, task.votes_shape)
    stream = resolve_stream(stream, task.operands if out is None else (*task.operands, out))
    if task.geometry.N == 0:
        return task.empty(task.votes_shape, out)
    workspace = Workspace(task.limit)
    result = task.run(algorithm.votes, workspace, task.geometry.votes_shape, stream, out)
    return task.deliver(result, task.votes_shape, inverse(task.product.y_order), out, stream)


def capsule_conv2d_backward(
    x,
    w,
    dy,
    *,
    stride=1,
    padding=0,
    dilation=1,
    product="ab,bc->ac",
    algorithm="auto",
    precision="ieee",
    workspace_limit=None,
    needs=("input", "kernel"),
    stream=None,
):
    """Both gradients of a capsule convolution (the paper's Algorithm 4).

    .. code-block:: text

        dI[n,c,h,w]   = sum over p and the (oh,ow,kh,kw) that read (h,w) of dO[n,p,oh,ow] @ K^T
        dK[p,c,kh,kw] = sum over n,oh,ow of I^T @ dO[n,p,oh,ow]

    Parameters
    ----------
    x, w, stride, padding, dilation, product, algorithm, precision, workspace_limit, stream
        As :func:`capsule_conv2d`.
    dy : array (N, P, OH, OW, *T3), dtype of x
        Gradient of the output, in the same place as ``x``.
    needs : collection of "input" and "kernel"
        The gradients wanted; the other one is not computed.

    Returns
    -------
    dx : array (N, C, H, W, *T1) or None
    dw : array (P, C, KH, KW, *T2) or None
        Where and how as :func:`capsule_conv2d`. For N = 0 ``dx`` is empty and ``dw`` zero.

    Raises
    ------
    TypeError, ValueError, ImportError, RuntimeError, MemoryError
        As :func:`capsule_conv2d`; ValueError also for a ``dy`` of another shape than the output's,
        or ``needs`` that name nothing or something else.
    """
    task = _Task.check((x, w, dy), stride, padding, dilation, product, workspace_limit)
    algorithm = find_algorithm(algorithm, task.dtype, precision)
    needs = _check_needs(needs)
    stream = resolve_stream(stream, task.operands)
    x, w, dy = task.operands
    g = task.geometry
    if g.N == 0:
        dx = task.empty(x.shape) if "input" in needs else None
        dw = task.zeros(w.shape, stream) if "kernel" in needs else None
        return dx, dw
    dx = cuda.device_array(g.input_shape, task.dtype, stream=stream) if "input" in needs else None
    dw = cuda.device_array(g.kernel_shape, task.dtype, stream=stream) if "kernel" in needs else None
    unread = {"w"} if dx is None else {"x"} if dw is None else set()
    arrays = task.canonical(stream, unread)
    workspace = task.workspace(algorithm, stream, precision, *sorted(needs))
    algorithm.backward(g, *arrays, dx, dw, stream=stream, workspace=workspace)
    if dx is not None:
        dx = task.deliver(dx, x.shape, inverse(task.product.x_order), None, stream)
    if dw is not None:
        dw = task.deliver(dw, w.shape, inverse(task.product.w_order), None, stream)
    return dx, dw


@dataclass(frozen=True)
class _Task:
    """A call whose arguments have been accepted."""

    operands: tuple
    geometry: Geometry
    product: Product
    limit: int | None

    @classmethod
    def check(cls, arrays, stride, padding, dilation, product, workspace_limit):
        """Accept or refuse ``(x, w)`` or ``(x, w, dy)`` and the options."""
        operands = [describe(name, array) for name, array in zip(("x", "w", "dy"), arrays)]
        x, w = operands[:2]
        product = parse_product(product)
        geometry = geometry_of(x.shape, w.shape, product, stride, padding, dilation)
        task = cls(tuple(operands), geometry, product, check_limit(workspace_limit))
        if len(operands) == 3 and operands[2].shape != task.output_shape:
            raise ValueError(f"dy has shape {operands[2].shape}; it takes {task.output_shape}")
        check_target()
        check_together(operands)
        return task

    @property
    def dtype(self):
        return self.operands[0].dtype

    @property
    def on_device(self):
        return self.operands[0].on_device

    @property
    def output_shape(self):
        """(N, P, OH, OW, *T3)"""
        x, w = self.operands[:2]
        return output_shape(self.geometry, self.product, x.shape, w.shape)

    @property
    def votes_shape(self):
        """(N, P, OH, OW, C, KH, KW, *T3)"""
        return self.geometry.votes_shape[:7] + self.output_shape[4:]

    def check_out(self, out, shape):
        """``out`` as an operand, or None."""
        if out is None:
            return None
        out = describe("out", out)
        check_together([self.operands[0], out])
        check_out(out, shape, self.operands)
        return out

    def canonical(self, stream, unread=()):
        """The operands on the device in the kernels' layout; None for those named in ``unread``."""
        g, product = self.geometry, self.product
        layouts = (
            (product.x_order, g.input_shape[4:]),
            (product.w_order, g.kernel_shape[4:]),
            (product.y_order, g.output_shape[4:]),
        )
        return [
            None if operand.name in unread else to_canonical(operand, order, capsule, stream)
            for operand, (order, capsule) in zip(self.operands, layouts)
        ]

    def run(self, function, workspace, shape, stream, out):
        """Run a forward or votes function into a new array, or straight into ``out`` if it can."""
        in_place = out is not None and out.on_device and self._keeps_order
        if in_place:
            result = to_canonical(out, tuple(range(out.rank - 4)), shape[4:], stream)
        else:
            result = cuda.device_array(shape, self.dtype, stream=stream)
        x, w = self.canonical(stream)
        function(self.geometry, x, w, result, stream=stream, workspace=workspace)
        return result

    def workspace(self, algorithm, stream, *what):
        """Memory for intermediates; that of an algorithm that takes little is kept between calls."""
        if algorithm.prepare is None:
            return Workspace(self.limit)
        return kept_workspace(stream, self.geometry, self.dtype, *what)

    @property
    def _keeps_order(self):
        return self.product.y_order == tuple(range(len(self.product.y)))

    def deliver(self, result, shape, order, out, stream):
        """The result in the caller's shape, order of capsule axes and place."""
        lead = len(shape) - len(order)
        axes = tuple(range(lead)) + tuple(lead + axis for axis in order)
        in_order = [0] * len(shape)
        for mine, theirs in enumerate(axes):
            in_order[theirs] = shape[mine]
        if self.on_device:
            if out is not None and self._keeps_order:
                return out.array
            result = permuted(result, tuple(in_order), axes, stream)
            if out is None:
                return result.bind(stream)  # whoever takes it next is ordered behind this stream
            out.reshaped(out.shape).copy_to_device(result, stream=stream)
            return out.array
        host = result.copy_to_host(stream=stream)
        if stream:
            stream.synchronize()
        host = host.reshape(in_order).transpose(axes)
        if out is None:
            return np.ascontiguousarray(host)
        out.array[...] = host
        return out.array

    def empty(self, shape, out=None):
        """A result with no elements."""
        if out is not None:
            return out.array
        if self.on_device:
            return cuda.device_array(shape, self.dtype)
        return np.empty(shape, self.dtype)

    def zeros(self, shape, stream):
        """A result of zeros: the kernel's gradient of an empty batch."""
        zeros = np.zeros(shape, self.dtype)
        return to_device(zeros, stream) if self.on_device else zeros


def _check_needs(needs):
    """``needs`` as a set."""
    takes = "it takes a collection of 'input' and 'kernel'"
    if isinstance(needs, (str, bytes)) or not hasattr(needs, "__iter__"):
        raise TypeError(f"needs is {needs!r}; {takes}")
    names = np.ravel(needs).tolist() if isinstance(needs, np.ndarray) else list(needs)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"needs is {needs!r}; {takes}")
    if not names or not set(names) <= {"input", "kernel"}:
        raise ValueError(f"needs is {needs!r}; {takes}, at least one")
    return set(names)
