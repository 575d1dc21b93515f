"""Both gradients of the votes."""

from numbacaps.votes.backward_input import backward_input
from numbacaps.votes.backward_kernel import backward_kernel


def votes_backward(geometry, x, w, dvotes, dx, dw, *, stream, workspace, sum_window=False):
    """Write both gradients; ``dx`` or ``dw`` is None where that one is not wanted. ``workspace`` is not used."""
    how = {"stream": stream, "sum_window": sum_window}
    if dx is not None:
        backward_input(geometry, w, dvotes, dx, **how)
    if dw is not None:
        backward_kernel(geometry, x, dvotes, dw, **how)
