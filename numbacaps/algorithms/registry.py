"""The one list of algorithms. The API, the tests, the experiments and the plots all read it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from numbacaps.algorithms import cublas, fused, host, indexed, naive, staged
from numbacaps.algorithms.passes import Passes
from numbacaps.device.target import FELL_BACK, SIMULATED
from numbacaps.forms import FULL_DTYPES
from numbacaps.fused.precision import AUTO as AUTO_PRECISION
from numbacaps.fused.precision import PRECISIONS, precisions
from numbacaps.messages import did_you_mean, shown

# What an algorithm may have beside the convolution and its gradients, in the words of messages.
VOTES = ("votes", "votes summed over the window", "gradients of votes")


@dataclass(frozen=True)
class Algorithm:
    """One way to compute a capsule convolution.

    Attributes
    ----------
    summary : str
        One line on what it does.
    passes : callable
        ``passes(geometry, dtype, precision, activation=None, rungs=())``: its :class:`numbacaps.algorithms.passes.Passes` for a
        :class:`numbacaps.geometry.Geometry`, by which a :class:`numbacaps.Plan` runs it.
    votes : tuple of str
        Of :data:`VOTES`, what it has.
    deterministic : bool
        The same input gives the same bits.
    capturable : bool
        Calls can be captured into a CUDA graph.
    unavailable : callable
        ``unavailable()`` is None where it can run, else the exception that says why it cannot.
    precisions : callable
        ``precisions(dtype)``: the words of :data:`PRECISIONS` that it takes for a dtype here.
    votes_precisions : callable
        The same of votes and their gradients.
    keeps_workspace : bool
        Its workspace is small, and kept between calls of the public functions.
    zeros_outside : bool
        Where a gradient's window reaches outside the output, it multiplies zeros, so an infinite
        kernel element makes NaN at the input gradient's border; the others multiply nothing there.
    on_host : bool
        It computes on the host: it takes NumPy arrays where they lie, and touches no GPU.
    """

    summary: str
    passes: Callable
    votes: tuple
    deterministic: bool
    capturable: bool
    unavailable: Callable
    precisions: Callable
    votes_precisions: Callable
    keeps_workspace: bool
    zeros_outside: bool
    on_host: bool = False

    @property
    def has_votes(self):
        """Whether it has the products before their sum."""
        return "votes" in self.votes

    def has(self, votes):
        """Whether it has what is wanted of votes; empty is nothing."""
        return not votes or votes in self.votes

    def precisions_of(self, dtype, votes):
        """The precisions for a dtype of what is wanted."""
        return (self.votes_precisions if votes else self.precisions)(dtype)

    def stays_on_host(self, operand):
        """Whether an operand is used on the host, where it lies.

        Raises
        ------
        TypeError
            The operand lies on a GPU, and the algorithm computes on the host.
        """
        if self.on_host and operand.on_device and not SIMULATED:
            raise TypeError(
                f"{operand.name} is on the device; algorithm 'numpy' takes NumPy arrays"
            )
        return self.on_host and not operand.on_device


def _of_full_dtypes(dtype):
    """Ordinary arithmetic of float32 and float64."""
    return ("ieee",) if dtype in FULL_DTYPES else ()


def _of_all_dtypes(dtype):
    """Ordinary arithmetic of every dtype that can be added here."""
    return precisions(dtype)[:1]


def _of_functions(summary, module, passes=Passes, **differs):
    """An algorithm that keeps nothing for a geometry: a module's functions."""
    usual = {
        "votes": (),
        "deterministic": True,
        "capturable": True,
        "unavailable": lambda: None,
        "precisions": _of_full_dtypes,
        "votes_precisions": _of_full_dtypes,
        "keeps_workspace": False,
        "zeros_outside": False,
    }
    return Algorithm(summary, partial(passes, module), **usual | differs)


ALGORITHMS = {
    "naive": _of_functions(
        'the "GPU" row of Table 1: a thread for each (n, p, oh, ow, c), atomic adds',
        naive,
        deterministic=False,
    ),
    "staged": _of_functions(
        "Algorithms 3 and 4: lay everything out, multiply in one strided batch, reduce",
        staged,
        votes=VOTES[:1],
    ),
    "cublas": _of_functions(
        'the "official APIs" row of Table 1: staged, with cuBLAS\'s strided batched GEMM in stage 4',
        cublas,
        votes=VOTES[:1],
        capturable=False,  # CuPy refuses to call cuBLAS on a stream that is being captured
        unavailable=cublas.unavailable,
    ),
    "indexed": _of_functions(
        "Algorithm 5: index functions and small products, nothing laid out",
        indexed,
        votes=VOTES,
        votes_precisions=_of_all_dtypes,
    ),
    "fused": Algorithm(
        "the fold as one kernel a pass: operands gathered from capsule layout, only results written",
        fused.passes,
        votes=(),
        deterministic=True,
        capturable=True,
        unavailable=lambda: None,
        precisions=precisions,
        votes_precisions=lambda dtype: (),
        keeps_workspace=True,
        zeros_outside=True,
    ),
    "numpy": _of_functions(
        "the fold by NumPy on the host: windows laid out a block at a time, one matrix product for each g",
        host,
        host.HostPasses,
        votes=VOTES,
        capturable=False,
        precisions=lambda dtype: ("ieee",),
        votes_precisions=lambda dtype: ("ieee",),
        on_host=True,
    ),
}

# What algorithm="auto" runs: the first that can.
AUTO = ("numpy",) if FELL_BACK else ("fused", "indexed")


def resolve(name, votes=""):
    """The name of an algorithm: ``name``, or what ``"auto"`` stands for.

    Raises
    ------
    TypeError
        ``algorithm`` is no string.
    ValueError
        ``algorithm`` is unknown, or has not what is wanted of ``votes``.
    """
    names = [key for key, found in ALGORITHMS.items() if found.has(votes)]
    takes = f"it takes one of {['auto', *names]}" + (f" for {votes}" if votes else "")
    if not isinstance(name, str):
        raise TypeError(f"algorithm is {shown(name)}; {takes}")
    if name == "auto":
        return next(name for name in AUTO if name in names)
    if name not in names:
        raise ValueError(f"algorithm is {name!r}; {takes}" + did_you_mean(name, names))
    return name


def find_algorithm(name, dtype=np.dtype(np.float32), precision="auto", votes=""):
    """The algorithm of that name at a precision; ``votes``, of :data:`VOTES`, is what else it must have.

    Raises
    ------
    TypeError
        ``algorithm`` or ``precision`` is no string.
    ValueError
        ``algorithm`` is unknown, has not what is wanted, or does not take the dtype, or the precision for it here.
    ImportError, RuntimeError
        ``algorithm`` takes a package or a GPU that is not here.
    """
    name = resolve(name, votes)
    found = ALGORITHMS[name]
    if not isinstance(precision, str):
        raise TypeError(f"precision is {shown(precision)}; it takes one of {list(PRECISIONS)}")
    if precision not in PRECISIONS:
        raise ValueError(
            f"precision is {precision!r}; it takes one of {list(PRECISIONS)}"
            + did_you_mean(precision, PRECISIONS)
        )
    taken = found.precisions_of(dtype, votes)
    if not taken:
        others = [
            other
            for other, one in ALGORITHMS.items()
            if one.has(votes) and one.precisions_of(dtype, votes)
        ]
        takes = f"{others} can" if others else "none can"
        raise ValueError(f"algorithm is {name!r}, which takes no {dtype} on this device; {takes}")
    if precision not in (AUTO_PRECISION, *taken):
        raise ValueError(
            f"precision is {precision!r}; algorithm {name!r} takes one of "
            f"{[AUTO_PRECISION, *taken]} for {dtype} on this device"
        )
    reason = found.unavailable()
    if reason:
        raise reason
    return found


def available_algorithms():
    """Names of the algorithms that can run here."""
    return [name for name, algorithm in ALGORITHMS.items() if not algorithm.unavailable()]


def device_algorithms():
    """Of those, the names of the algorithms that are kernels, which take device arrays."""
    return [name for name in available_algorithms() if not ALGORITHMS[name].on_host]
