"""What the public functions keep between calls, and how it is given back."""

import threading

from numbacaps import arrays, signature
from numbacaps.algorithms import cublas, fused
from numbacaps.algorithms.registry import ALGORITHMS
from numbacaps.device import allocation, compiled, keeping, streams
from numbacaps.device.target import current_device
from numbacaps.last_used import LastUsed
from numbacaps.plan import Plan
from numbacaps.routing import runner

PLANS = 64
BYTES = 1 << 29  # of the kept plans' workspaces, all devices and threads together
_others = []  # functions that give back what parts keep that are imported only where they are used


plans = LastUsed(PLANS, BYTES)


def kept_plan(signature, stream):
    """The plan of calls that are alike, of this thread's on a stream of this device.

    The last few are kept, so that calls of a small convolution again and again decide nothing and do not allocate.

    Parameters
    ----------
    signature : numbacaps.signature.Signature
    stream : Numba stream or 0

    Returns
    -------
    Plan
    """
    s = signature
    device = None if ALGORITHMS[s.algorithm].on_host else current_device()
    key = s, int(stream) if stream else 0, threading.get_ident(), device

    def make():
        how = s.geometry, s.dtype, s.algorithm, s.precision, s.workspace_limit
        return Plan(*how, votes=s.votes)

    return plans.get(key, make)


def settle(plan):
    """Give back what a plan does not keep behind a call: a large workspace, or more bytes than are kept."""
    plan.release()
    if plan.growth.grown:
        plan.growth.grown = False
        plans.fit()


def cleared_too(function):
    """Have :func:`clear_caches` call a function."""
    _others.append(function)


def clear_caches() -> None:
    """Give back what calls have left behind, on all devices: it waits for the calls that are queued.

    The public functions keep the plans of the last 64 kinds of calls, a kind for each thread,
    stream and device, with workspaces of 512 MiB at most; PyTorch's operators those of 256, and kernels that stay packed; of
    routing 32 and 256 MiB; the tables of 64 geometries, each with the tensor maps of the last 64 places of arrays; signatures
    of calls and forms of arrays; as many handles of cuBLAS as threads called it together; and for each call that had to copy
    an array the copy, until a later call, or memory that runs out, finds that the stream has passed it. All of it is made
    anew when it is needed.
    What others hold stays as it is: plans of :func:`numbacaps.plan`, networks, arrays, and compiled kernels.
    """
    plans.clear()
    runner.runners.clear()
    for give_back in _others:
        give_back()
    for module in (arrays, streams, compiled, allocation):
        for kept in module.KEPT:
            kept.cache_clear()
    fused.kept_passes.cache_clear()
    signature.clear()
    keeping.let_go()
    cublas.destroy_handles()
