"""The public functions: check, plan, deliver.

Nothing is allocated or launched before all arguments have been accepted. One check comes later, when the operands are
on the device but before the first launch: whether a workspace fits.
"""

from collections.abc import Collection

import numpy as np

from numbacaps.arrays import Array
from numbacaps.call import Call
from numbacaps.geometry import Pair
from numbacaps.messages import shown


def capsule_conv2d(
    x: Array,
    w: Array,
    *,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    product: str = "ab,bc->ac",
    algorithm: str = "auto",
    precision: str = "auto",
    workspace_limit: int | None = None,
    out: Array | None = None,
    stream: object = None,
) -> Array:
    """Capsule convolution (the paper's Algorithm 2; run as Algorithm 3 or 5).

    .. code-block:: text

        O[n,p,oh,ow] = sum over c,kh,kw of
            I[n, c, oh*stride+kh*dilation-padding, ow*stride+kw*dilation-padding] @ K[p,c,kh,kw]

    where ``@`` is ``product``. Padding is made of zeros that multiply like any other value, so
    NaN and infinity in ``w`` reach the border as IEEE 754 says.

    Parameters
    ----------
    x : array (N, C, H, W, *T1), float16, bfloat16 (both added in float32), float32 or float64
        Input: a NumPy array, a Numba device array or an array with ``__cuda_array_interface__`` or DLPack.
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
        ``"auto"`` or a name of :data:`numbacaps.ALGORITHMS`. ``"numpy"`` computes on the host and takes NumPy arrays;
        it is what ``"auto"`` stands for where there is no GPU.
    precision : str
        How float32 is multiplied. ``"auto"``: about as exactly as by ``"ieee"`` (numbacaps/README.md says how exactly), and as
        fast as the GPU can; infinities and NaN are where ``"ieee"`` has them. ``"ieee"``: ordinary arithmetic. ``"fused"`` has two more on GPUs of
        compute capability 8.0 and later: ``"tf32"``, operands of 11 bits of mantissa, sums in float32; and
        ``"tf32x3"``, three such products for one, as which ``"auto"`` computes large products; results that
        they cannot tell, as infinities, are summed again.
    workspace_limit : int, optional
        Most bytes that ``"staged"`` and ``"cublas"`` may allocate for their intermediates; half of
        the free device memory by default. The result does not depend on it (of ``"staged"``, not
        a bit of it). ``"fused"`` allocates copies of the kernel, sums of splits, copies of what it gathers where that
        pays, and the matrix of all windows or columns of the input's gradient, 480 MiB at most; the other algorithms nothing.
    out : array (N, P, OH, OW, *T3), optional
        Where to write the result: C-contiguous, in the same place and of the same dtype as ``x``,
        apart from the inputs in memory.
    stream : optional
        Numba stream, cuda.core, CuPy or PyTorch stream, or a stream's address. By default the
        stream that ``x`` names in its interface, PyTorch's current one for a tensor, else the default stream. With device arrays the
        call returns once the work is queued there; what was copied for it is kept until then, and where that exceeds
        256 MiB earlier calls are waited for. It must not be capturing: :func:`numbacaps.plan` makes what can be captured.

    Returns
    -------
    array (N, P, OH, OW, *T3)
        ``out`` if given; else a NumPy array where ``x`` is one, a CuPy array where it is one, and a Numba device array for all
        others on the device. CuPy's current stream is ordered behind the call.
        For PyTorch tensors, on PyTorch's current stream, it lies in memory of PyTorch's pool, for CuPy arrays, on CuPy's, in
        CuPy's: as with theirs, who uses it on another stream holds it until that has passed.
        OH = (H + 2*padding - dilation*(KH-1) - 1) // stride + 1, OW likewise. Empty for N = 0.

    Raises
    ------
    TypeError
        An argument is of the wrong type, the dtype is not float16, bfloat16, float32 or float64 or not
        the same, or some arrays are on the host and some on the device.
    ValueError
        Shapes do not go together, the window is larger than the padded input, an axis other than N
        is empty, a number is out of range or beyond a limit of the algorithm (:mod:`numbacaps.limits`), ``product``, ``algorithm`` or ``precision`` is unknown or
        not to be had here, ``out`` does not fit or overlaps an input, an array lies on another
        GPU, or the stream is being captured.
    ImportError, RuntimeError
        ``algorithm`` or bfloat16 takes a package, or ``algorithm`` a GPU, that is not here.
    MemoryError
        ``workspace_limit`` is too small for one output row of one image.
    """
    with Call(
        *((x, w), stride, padding, dilation, product),
        algorithm=algorithm,
        precision=precision,
        workspace_limit=workspace_limit,
        outs={"y": ("out", out)},
        stream=stream,
    ) as call:
        y = call.result("y")
        if not call.signature.is_empty:
            call.plan().forward_operands(*call.operands(), y.operand, call.stream)
        return call.deliver(y)


def capsule_votes(
    x: Array,
    w: Array,
    *,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    product: str = "ab,bc->ac",
    sum_window: bool = False,
    algorithm: str = "auto",
    precision: str = "auto",
    workspace_limit: int | None = None,
    out: Array | None = None,
    stream: object = None,
) -> Array:
    """The products of a capsule convolution before their sum: O' of Algorithm 3, step 4.

    .. code-block:: text

        V[n,p,oh,ow,c,kh,kw] =
            I[n, c, oh*stride+kh*dilation-padding, ow*stride+kw*dilation-padding] @ K[p,c,kh,kw]
        V[n,p,oh,ow,c] = sum over kh,kw of these, with sum_window

    Routing weighs these votes before it adds them; their plain sum over (c, kh, kw) is
    :func:`capsule_conv2d`. In the capsule convolutions of EM routing (Hinton et al. 2018) each capsule of the window
    votes by itself. Where a window votes as one for each type of capsule, as in SegCaps (LaLonde and Bagci 2018), 3D-UCaps and
    DeepCaps, ``sum_window`` gives the votes without the KH*KW times larger array.

    Parameters
    ----------
    x, w, stride, padding, dilation, product, workspace_limit, stream
        As :func:`capsule_conv2d`.
    sum_window : bool
        Sum the votes over kh and kw.
    algorithm : str
        ``"auto"``, ``"indexed"`` or ``"numpy"``; without ``sum_window``, for float32 and float64, also ``"staged"`` or
        ``"cublas"``.
    precision : str
        ``"auto"`` and ``"ieee"`` are one here: votes are multiplied by ordinary arithmetic.
    out : array (N, P, OH, OW, C, KH, KW, *T3), or (N, P, OH, OW, C, *T3) with ``sum_window``, optional
        As :func:`capsule_conv2d`.

    Returns
    -------
    array (N, P, OH, OW, C, KH, KW, *T3), or (N, P, OH, OW, C, *T3) with ``sum_window``
        Where and how as :func:`capsule_conv2d`.

    Raises
    ------
    TypeError, ValueError, ImportError, RuntimeError, MemoryError
        As :func:`capsule_conv2d`; ValueError also for an algorithm that has no such votes.
    """
    about = _votes(sum_window)
    options = {"workspace_limit": workspace_limit, "outs": {about: ("out", out)}, "stream": stream}
    options |= {"algorithm": algorithm, "precision": precision, "about": about}
    with Call((x, w), stride, padding, dilation, product, **options) as call:
        votes = call.result(about)
        if not call.signature.is_empty:
            operands = *call.operands(), votes.operand
            call.plan().votes_operands(*operands, call.stream, bool(sum_window))
        return call.deliver(votes)


def capsule_votes_backward(
    x: Array,
    w: Array,
    dvotes: Array,
    *,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    product: str = "ab,bc->ac",
    sum_window: bool = False,
    algorithm: str = "auto",
    precision: str = "auto",
    needs: Collection[str] = ("input", "kernel"),
    out: tuple[Array | None, Array | None] = (None, None),
    stream: object = None,
) -> tuple[Array | None, Array | None]:
    """Both gradients of :func:`capsule_votes`.

    .. code-block:: text

        dI[n,c,h,w]     = sum over p and the (oh,ow,kh,kw) that read (h,w) of
                              dV[n,p,oh,ow,c,kh,kw] @ K[p,c,kh,kw]^T
        dK[p,c,kh,kw]   = sum over n,oh,ow of I^T @ dV[n,p,oh,ow,c,kh,kw]

    With ``sum_window`` dV has no kh and kw, and is the same for all of them.

    Parameters
    ----------
    x, w, stride, padding, dilation, product, stream
        As :func:`capsule_conv2d`.
    dvotes : array (N, P, OH, OW, C, KH, KW, *T3), or (N, P, OH, OW, C, *T3) with ``sum_window``, dtype of x
        Gradient of the votes, in the same place as ``x``.
    sum_window : bool
        As :func:`capsule_votes`.
    algorithm : str
        ``"auto"``, ``"indexed"`` or ``"numpy"``.
    precision : str
        As of :func:`capsule_votes`.
    needs : collection of "input" and "kernel"
        The gradients wanted; the other one is not computed.
    out : pair of array (N, C, H, W, *T1) or None, and array (P, C, KH, KW, *T2) or None
        Where to write the gradients, each as ``out`` of :func:`capsule_conv2d`.

    Returns
    -------
    dx : array (N, C, H, W, *T1) or None
    dw : array (P, C, KH, KW, *T2) or None
        Where and how as :func:`capsule_conv2d`. For N = 0 ``dx`` is empty and ``dw`` zero.

    Raises
    ------
    TypeError, ValueError, ImportError, RuntimeError
        As :func:`capsule_conv2d`; ValueError also for a ``dvotes`` of another shape than the votes',
        ``needs`` that name nothing or something else, or an ``out`` for a gradient that is not wanted.
    """
    about, needs = _votes(sum_window), _check_needs(needs)
    options = {"outs": _check_outs(out, needs), "stream": stream}
    options |= {"algorithm": algorithm, "precision": precision, "about": about}
    with Call((x, w, dvotes), stride, padding, dilation, product, **options) as call:
        dx = call.result("x") if "input" in needs else None
        dw = call.result("w") if "kernel" in needs else None
        if not call.signature.is_empty:
            arrays = call.operands({"w"} if dx is None else {"x"} if dw is None else ())
            gradients = (result and result.operand for result in (dx, dw))
            run = call.plan().votes_backward_operands
            run(*arrays, *gradients, call.stream, bool(sum_window))
        return call.deliver(dx), call.deliver(dw)


def _votes(sum_window):
    """Which votes: those of every tap, or of every window."""
    if not isinstance(sum_window, (bool, np.bool_)):
        raise TypeError(f"sum_window is {shown(sum_window)}; it takes True or False")
    return "summed_votes" if sum_window else "votes"


def capsule_conv2d_backward(
    x: Array,
    w: Array,
    dy: Array,
    *,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    product: str = "ab,bc->ac",
    algorithm: str = "auto",
    precision: str = "auto",
    workspace_limit: int | None = None,
    needs: Collection[str] = ("input", "kernel"),
    stream: object = None,
) -> tuple[Array | None, Array | None]:
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
    with Call(
        *((x, w, dy), stride, padding, dilation, product),
        algorithm=algorithm,
        precision=precision,
        workspace_limit=workspace_limit,
        stream=stream,
    ) as call:
        needs = _check_needs(needs)
        dx = call.result("x") if "input" in needs else None
        dw = call.result("w") if "kernel" in needs else None
        if not call.signature.is_empty:
            arrays = call.operands({"w"} if dx is None else {"x"} if dw is None else ())
            gradients = (result and result.operand for result in (dx, dw))
            call.plan().backward_operands(*arrays, *gradients, call.stream)
        return call.deliver(dx), call.deliver(dw)


def _check_needs(needs):
    """``needs`` as a set."""
    takes = "it takes a collection of 'input' and 'kernel'"
    if isinstance(needs, (str, bytes)) or not hasattr(needs, "__iter__"):
        raise TypeError(f"needs is {shown(needs)}; {takes}")
    names = np.ravel(needs).tolist() if isinstance(needs, np.ndarray) else list(needs)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"needs is {shown(needs)}; {takes}")
    if not names or not set(names) <= {"input", "kernel"}:
        raise ValueError(f"needs is {shown(needs)}; {takes}, at least one")
    return set(names)


def _check_outs(out, needs):
    """Places for the gradients of x and w, each with its name."""
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        raise TypeError(f"out is {shown(out)}; it takes a pair, each an array or None")
    for i, need in enumerate(("input", "kernel")):
        if out[i] is not None and need not in needs:
            raise ValueError(f"out[{i}] is given, but needs lack {need!r}; it takes None")
    return {"x": ("out[0]", out[0]), "w": ("out[1]", out[1])}
