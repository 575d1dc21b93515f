"""The one list of algorithms. The API, the tests, the experiments and the plots all read it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from numbacaps.algorithms import cublas, fused, indexed, naive, staged
from numbacaps.arrays import FULL_DTYPES


@dataclass(frozen=True)
class Algorithm:
    """One way to compute a capsule convolution.

    The functions take a :class:`numbacaps.geometry.Geometry`, C-contiguous device arrays in its
    layout, and the keywords ``stream`` and ``workspace`` (a
    :class:`numbacaps.device.workspace.Workspace`); they allocate nothing outside of it.

    Attributes
    ----------
    summary : str
        One line on what it does.
    forward : callable
        ``forward(geometry, x, w, out, *, stream, workspace)``
    backward : callable
        ``backward(geometry, x, w, dy, dx, dw, *, stream, workspace)``; ``dx`` or ``dw`` is
        None where that gradient is not wanted, and ``w`` or ``x``, which it would need, may be.
    votes : callable or None
        ``votes(geometry, x, w, out, *, stream, workspace)``; None where it has no votes.
    deterministic : bool
        The same input gives the same bits.
    capturable : bool
        Calls can be captured into a CUDA graph.
    unavailable : callable
        ``unavailable()`` is None where it can run, else the exception that says why it cannot.
    precisions : callable
        ``precisions(dtype)``: the words of :data:`PRECISIONS` that it takes for a dtype here; its
        functions take all but "ieee" as the keyword ``precision``.
    prepare : callable or None
        ``prepare(geometry, dtype, precision, activation=None)``: what it keeps for a geometry, with
        ``explain()`` and, of what is packed below, ``packs_forward`` and ``packs_backward``.
    activated : callable or None
        ``activated(geometry, x, w, sums, out, activation, *, stream, workspace)``: the forward pass
        with a :class:`numbacaps.fused.activation.Activation` in its kernel, where what
        ``prepare(geometry, dtype, precision, activation)`` returns ``activates``.
    differentiated : callable or None
        ``differentiated(geometry, w, dy, sums, dx, activation, *, stream, workspace)``: the input's
        gradient, and behind it that of an activation before the input, where what ``prepare`` returns for
        such a one ``differentiates``.
    pack_forward, pack_backward : callable or None
        ``pack_forward(geometry, w, *, stream, workspace)``, with the keyword ``activation`` for ``activated``
        or ``differentiated``: what a pass does with the kernel alone, done ahead. The pass is then called with ``packed=True``
        and the same workspace, until the kernel changes. ``backward`` needs it for ``dx`` alone.
    zeros_outside : bool
        Where a gradient's window reaches outside the output, it multiplies zeros, so an infinite
        kernel element makes NaN at the input gradient's border; the others multiply nothing there.
    """

    summary: str
    forward: Callable
    backward: Callable
    votes: Callable | None
    deterministic: bool
    capturable: bool = True
    unavailable: Callable = lambda: None
    precisions: Callable = lambda dtype: ("ieee",) if dtype in FULL_DTYPES else ()
    prepare: Callable | None = None
    activated: Callable | None = None
    differentiated: Callable | None = None
    pack_forward: Callable | None = None
    pack_backward: Callable | None = None
    zeros_outside: bool = False

    def at(self, precision):
        """This algorithm at a precision that it takes."""
        if precision == "ieee":
            return self
        passes = ("forward", "backward", "activated", "differentiated")
        passes += ("pack_forward", "pack_backward")
        functions = {name: getattr(self, name) for name in passes if getattr(self, name)}
        at_precision = {name: partial(f, precision=precision) for name, f in functions.items()}
        return replace(self, **at_precision)


# How float32 is multiplied; the words are those of Triton's input_precision.
PRECISIONS = ("ieee", "tf32x3", "tf32")


ALGORITHMS = {
    "naive": Algorithm(
        'the "GPU" row of Table 1: a thread for each (n, p, oh, ow, c), atomic adds',
        naive.forward,
        naive.backward,
        None,
        deterministic=False,
    ),
    "staged": Algorithm(
        "Algorithms 3 and 4: lay everything out, multiply in one strided batch, reduce",
        staged.forward,
        staged.backward,
        staged.votes,
        deterministic=True,
    ),
    "cublas": Algorithm(
        'the "official APIs" row of Table 1: staged, with cuBLAS\'s strided batched GEMM in stage 4',
        cublas.forward,
        cublas.backward,
        cublas.votes,
        deterministic=True,
        capturable=False,  # CuPy refuses to call cuBLAS on a stream that is being captured
        unavailable=cublas.unavailable,
    ),
    "indexed": Algorithm(
        "Algorithm 5: index functions and small products, nothing laid out",
        indexed.forward,
        indexed.backward,
        indexed.votes,
        deterministic=True,
    ),
    "fused": Algorithm(
        "the fold as one kernel a pass: operands gathered from capsule layout, only results written",
        fused.forward,
        fused.backward,
        None,
        deterministic=True,
        precisions=fused.precisions,
        prepare=fused.prepare,
        activated=fused.activated,
        differentiated=fused.differentiated,
        pack_forward=fused.pack_forward,
        pack_backward=fused.pack_backward,
        zeros_outside=True,
    ),
}

AUTO = ("fused", "indexed")  # what algorithm="auto" runs: the first that can


def resolve(name, votes=False):
    """The name of an algorithm: ``name``, or what ``"auto"`` stands for.

    Raises
    ------
    TypeError
        ``algorithm`` is no string.
    ValueError
        ``algorithm`` is unknown, or has no votes.
    """
    names = [key for key, found in ALGORITHMS.items() if found.votes or not votes]
    takes = f"it takes one of {['auto', *names]}" + (" for votes" if votes else "")
    if not isinstance(name, str):
        raise TypeError(f"algorithm is {name!r}; {takes}")
    if name == "auto":
        return next(name for name in AUTO if name in names)
    if name not in names:
        raise ValueError(f"algorithm is {name!r}; {takes}")
    return name


def find_algorithm(name, dtype=np.dtype(np.float32), precision="ieee", votes=False):
    """The algorithm of that name at a precision; ``votes`` asks for one that has votes.

    Raises
    ------
    TypeError
        ``algorithm`` or ``precision`` is no string.
    ValueError
        ``algorithm`` is unknown, has no votes, or does not take the dtype, or the precision for it here.
    ImportError, RuntimeError
        ``algorithm`` takes a package or a GPU that is not here.
    """
    name = resolve(name, votes)
    found = ALGORITHMS[name]
    if not isinstance(precision, str):
        raise TypeError(f"precision is {precision!r}; it takes one of {list(PRECISIONS)}")
    if precision not in PRECISIONS:
        raise ValueError(f"precision is {precision!r}; it takes one of {list(PRECISIONS)}")
    if not found.precisions(dtype):
        others = [
            other
            for other, one in ALGORITHMS.items()
            if one.precisions(dtype) and (one.votes or not votes)
        ]
        takes = f"{others} can" if others else "none can"
        raise ValueError(f"algorithm is {name!r}, which takes no {dtype} on this device; {takes}")
    if precision not in found.precisions(dtype):
        raise ValueError(
            f"precision is {precision!r}; algorithm {name!r} takes one of "
            f"{list(found.precisions(dtype))} for {dtype} on this device"
        )
    reason = found.unavailable()
    if reason:
        raise reason
    return found.at(precision)


def available_algorithms():
    """Names of the algorithms that can run here."""
    return [name for name, algorithm in ALGORITHMS.items() if not algorithm.unavailable()]
