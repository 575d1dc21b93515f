"""Functions of capsules on tensors."""

import math

import torch

from numbacaps.product import parse_product
from numbacaps.signature import is_two_ints
from numbacaps.torch import operators, votes_operators
from numbacaps.torch.closed import check_tensors, is_number, refuse_tangents
from numbacaps.torch.squash_operators import factor, squashed

_input_gradient = torch.ops.numbacaps.capsule_input_gradient.default


def pair(name, value, least):
    """Two ints, of an int or of a pair of them; TypeError or ValueError where one is none, or below ``least``."""
    if is_two_ints(value) and value[0] >= least <= value[1]:  # in the least time
        return value
    both = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(both) != 2 or any(isinstance(n, bool) or not isinstance(n, int) for n in both):
        raise TypeError(f"{name} is {value!r}; it takes an int or a pair of ints")
    if min(both) < least:
        raise ValueError(f"{name} is {value!r}; it takes {least} or more")
    return both


def _options(stride, padding, dilation):
    return pair("stride", stride, 1), pair("padding", padding, 0), pair("dilation", dilation, 1)


def capsule_conv2d(
    x,
    w,
    stride=1,
    padding=0,
    dilation=1,
    *,
    product="ab,bc->ac",
    precision="auto",
    keep_packed=False,
):
    """Capsule convolution, with gradients; as :func:`numbacaps.capsule_conv2d`.

    Parameters
    ----------
    x : Tensor (N, C, H, W, *T1)
    w : Tensor (P, C, KH, KW, *T2)
        On the same device, of the same dtype.
    stride, padding, dilation : int or pair of int
    product : str
        What two capsules make.
    precision : str
        How float32 is multiplied on CUDA devices; CPU tensors are multiplied in their own dtype, those of 2 bytes in
        float32.
    keep_packed : bool
        Keep for the next call what CUDA devices pack of ``w``, as layers do in ``eval()``: until PyTorch writes to ``w``. Not
        seen is what is written through ``w.data``, or by the replay of a CUDA graph.

    Returns
    -------
    Tensor (N, P, OH, OW, *T3)

    Raises
    ------
    RuntimeError
        Tensors on two devices, or of two dtypes.
    TypeError, ValueError
        As :func:`numbacaps.capsule_conv2d`.
    """
    how = _options(stride, padding, dilation)
    return operators.convolve(x, w, (*how, product, precision, keep_packed))


def capsule_conv_transpose2d(
    y, w, output_size, stride=1, padding=0, dilation=1, *, product="ab,bc->ac", precision="auto",
    keep_packed=False,
):  # fmt: skip
    """The transposed capsule convolution: what :func:`capsule_conv2d`'s input gradient is, as a forward pass.

    Parameters
    ----------
    y : Tensor (N, P, OH, OW, *T3)
    w : Tensor (P, C, KH, KW, *T2)
        The kernel of the convolution that it transposes.
    output_size : tuple
        Shape of the result, (N, C, H, W, *T1): several have the same OH and OW where the stride is not 1.
    stride, padding, dilation, product, precision, keep_packed
        Those of the convolution.

    Returns
    -------
    Tensor (N, C, H, W, *T1)
    """
    check_tensors(y=y, w=w)
    how = _options(stride, padding, dilation)
    if not torch.compiler.is_compiling():  # which cannot trace this; the operator checks there
        axes = 4 + len(parse_product(product).x)
        if not isinstance(output_size, (tuple, list)) or len(output_size) != axes:
            raise ValueError(
                f"output_size is {output_size!r}; it takes the whole shape of the result, (N, C, H, W, *T1), {axes} axes"
            )
        of_shape = operators.shape_of_output(output_size, w.shape, *how, product, precision)
        if tuple(of_shape) != tuple(y.shape):
            raise ValueError(
                f"y has shape {tuple(y.shape)}; output_size={tuple(output_size)} takes {tuple(of_shape)}"
            )
    refuse_tangents(y=y, w=w)
    # While torch.jit.trace runs, sizes are tensors.
    shape = tuple(map(int, output_size)) if torch.jit.is_tracing() else tuple(output_size)
    how = *how, product, precision, keep_packed
    return _input_gradient(y, w, shape, *how)


def capsule_votes(
    x,
    w,
    stride=1,
    padding=0,
    dilation=1,
    *,
    product="ab,bc->ac",
    precision="auto",
    sum_window=False,
):
    """The votes that routing weighs, with gradients; as :func:`numbacaps.capsule_votes`.

    Parameters
    ----------
    x, w, stride, padding, dilation, product
        As :func:`capsule_conv2d`.
    precision : str
        ``"auto"`` or ``"ieee"``, which are one here.
    sum_window : bool
        Sum the votes of a window, channel by channel, as SegCaps and DeepCaps do.

    Returns
    -------
    Tensor (N, P, OH, OW, C, KH, KW, *T3), or (N, P, OH, OW, C, *T3) with ``sum_window``

    Raises
    ------
    RuntimeError, TypeError, ValueError
        As :func:`capsule_conv2d`.
    """
    how = _options(stride, padding, dilation)
    return votes_operators.votes(x, w, (*how, product, precision, sum_window))


def capsule_linear(x, w, *, product="ab,bc->ac", precision="auto", keep_packed=False):
    """The sum of every child's product with a weight of its own.

    Parameters
    ----------
    x : Tensor (N, children, *T1)
    w : Tensor (parents, children, *T2)
    product, precision, keep_packed
        As for :func:`capsule_conv2d`.

    Returns
    -------
    Tensor (N, parents, *T3)
    """
    how = {"product": product, "precision": precision, "keep_packed": keep_packed}
    y = capsule_conv2d(*_as_window(x, w), **how)
    return y.flatten(1, 3)


def capsule_linear_votes(x, w, *, product="ab,bc->ac", precision="auto"):
    """The same products before their sum: what each child votes for each parent, as in DigitCaps (Sabour et al. 2017).

    Parameters
    ----------
    x, w, product
        As for :func:`capsule_linear`.
    precision : str
        ``"auto"`` or ``"ieee"``, which are one here.

    Returns
    -------
    Tensor (N, parents, children, *T3)
    """
    votes = capsule_votes(*_as_window(x, w), product=product, precision=precision)
    return votes.flatten(1, 3).flatten(2, 4)


def _as_window(x, w):
    """Children as channels of one position, under a window of one."""
    check_tensors(x=x, w=w)
    for name, tensor, takes in (("x", x, "(N, children"), ("w", w, "(parents, children")):
        if tensor.dim() < 2:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; it takes {takes}, *T)")
    return x[:, :, None, None], w[:, :, None, None]


def squash(x, dim=-1):
    """Lengths squashed into 0 to 1, directions kept: ``|x|^2 / (1 + |x|^2) * x / |x|`` (Sabour et al. 2017, equation 1).

    The last ``|x|`` is ``sqrt(|x|^2 + 1e-7)``, so that value and gradient at 0 are 0, and finite: a capsule of length 0.001 becomes
    5 % shorter than by the equation, and one of 0.01 0.05 %. Statistics are float32 at least.

    Parameters
    ----------
    x : Tensor
    dim : int or tuple of int
        The capsule's axes: -1 of vectors, (-2, -1) of matrices, of which -1 would squash each row alone. CUDA tensors take one
        kernel, and where these are not the last axes a copy.

    Raises
    ------
    TypeError
        ``x`` is no tensor.
    RuntimeError
        ``x`` has no dtype of floats.
    """
    check_tensors(x=x)
    wide = _wide(x)
    axes = None if x.is_nested else _axes(x.dim(), dim)
    group = 0 if axes is None else math.prod([x.shape[axis] for axis in axes])
    if group == 0:  # no axes of x, which plain PyTorch refuses; all; or no elements
        y = wide * factor(wide.square().sum(dim, keepdim=True), "rational")
    elif last_elements(x.shape, dim):
        y = squashed(wide, group, 1.0, "rational")
    else:
        last = tuple(range(-len(axes), 0))
        moved = wide.movedim(axes, last).unsqueeze(0)  # all axes may be of a capsule
        y = squashed(moved, group, 1.0, "rational").squeeze(0).movedim(last, axes)
        y = y.clone(memory_format=torch.contiguous_format)  # in place of a view
    return y.to(x.dtype)


def exponential_squash(x, group, slope=1.0):
    """The published network's activation: LeakyReLU, then ``(1 - exp(-|a|)) * a / |a|``, with ``|a|`` as ``sqrt(|a|^2 + 1e-7)``.

    Statistics are float32 at least. CUDA tensors take one kernel.

    Parameters
    ----------
    x : Tensor (N, ...)
    group : int
        Consecutive elements of an image, in the order of the axes, that are squashed together.
    slope : float
        Of LeakyReLU; 1 for none.

    Raises
    ------
    TypeError, ValueError
        An argument is not as above, or an image's elements are no whole groups.
    """
    check_tensors(x=x)
    if isinstance(group, bool) or not isinstance(group, int):
        raise TypeError(f"group is {group!r}; it takes an int")
    if not is_number(slope):
        raise TypeError(f"slope is {slope!r}; it takes a number")
    each = math.prod(x.shape[1:])
    if group < 1 or each % group:
        raise ValueError(f"group is {group}; it takes a divisor of the {each} elements of an image")
    return squashed(_wide(x), group, slope, "exponential").to(x.dtype)


def _wide(x):
    if not x.dtype.is_floating_point:
        raise RuntimeError(f"x is {x.dtype}; it takes a dtype of floats")
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def last_elements(shape, dim):
    """Elements of the axes ``dim`` of a tensor where these are the last ones, behind the images'; else 0."""
    axes, rank = _axes(len(shape), dim), len(shape)
    if axes is None or axes != tuple(range(rank - len(axes), rank)) or len(axes) == rank:
        return 0
    return math.prod(shape[-len(axes) :])


def _axes(rank, dim):
    """The axes ``dim`` of a tensor, counted from the first and in their order; None where these are no axes of it."""
    axes = tuple(dim) if isinstance(dim, (tuple, list)) else (dim,)
    if any(isinstance(axis, bool) or not isinstance(axis, int) for axis in axes):
        return None
    known = {axis % rank for axis in axes if -rank <= axis < rank}
    return tuple(sorted(known)) if axes and len(known) == len(axes) else None
