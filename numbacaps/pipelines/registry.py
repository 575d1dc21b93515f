"""The one list of algorithms. The API, the tests, the experiments and the plots all read it."""

from collections.abc import Callable
from dataclasses import dataclass

from numbacaps.pipelines import cublas, indexed, naive, staged


@dataclass(frozen=True)
class Algorithm:
    """One way to compute a capsule convolution.

    The functions take a :class:`numbacaps.geometry.Geometry`, C-contiguous device arrays in its
    layout, and the keywords ``stream`` and ``workspace`` (a
    :class:`numbacaps.workspace.Workspace`); they allocate nothing outside of it.

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
    """

    summary: str
    forward: Callable
    backward: Callable
    votes: Callable | None
    deterministic: bool
    capturable: bool = True
    unavailable: Callable = lambda: None


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
}

AUTO = "indexed"  # what algorithm="auto" runs


def find_algorithm(name, votes=False):
    """The algorithm of that name; ``votes`` asks for one that has votes.

    Raises
    ------
    TypeError
        ``algorithm`` is no string.
    ValueError
        ``algorithm`` is unknown, or has no votes.
    ImportError, RuntimeError
        ``algorithm`` takes a package or a GPU that is not here.
    """
    names = [key for key, found in ALGORITHMS.items() if found.votes or not votes]
    takes = f"it takes one of {['auto', *names]}" + (" for votes" if votes else "")
    if not isinstance(name, str):
        raise TypeError(f"algorithm is {name!r}; {takes}")
    if name == "auto":
        name = AUTO
    if name not in names:
        raise ValueError(f"algorithm is {name!r}; {takes}")
    reason = ALGORITHMS[name].unavailable()
    if reason:
        raise reason
    return ALGORITHMS[name]


def available_algorithms():
    """Names of the algorithms that can run here."""
    return [name for name, algorithm in ALGORITHMS.items() if not algorithm.unavailable()]
