"""What every forward and backward pass can do, whatever computes it.

:mod:`numbacaps.nn.passes` has both layer by layer, :mod:`numbacaps.nn.resident.passes` both as one kernel.
"""

from typing import Protocol


class Forward(Protocol):
    """From a batch to the lengths of its class capsules.

    Attributes
    ----------
    layers : list of numbacaps.nn.layer.Layer
    outputs : list of device array (N, P*OH*OW*E3)
        Every layer's; None where it is not written.
    lengths : device array (N, classes)
    capturable : bool
        The launches can be captured into a CUDA graph.
    """

    layers: list
    outputs: list
    lengths: object
    capturable: bool

    def pack(self, state, beside) -> None:
        """Queue what :meth:`launch` does with the kernels alone; once until they change."""

    def launch(self, x, state, beside) -> None:
        """Queue the pass, behind what was packed."""

    def explain(self) -> str:
        """Which kernels compute the layers, and why."""


class Backward(Protocol):
    """From the lengths of class capsules to the gradient of every kernel.

    Attributes
    ----------
    forward : Forward
        Whose results it reads.
    """

    forward: Forward

    def differentiate(self, x, labels, state, beside) -> None:
        """Queue both passes of a batch, and the packing of the kernels."""

    def pack(self, state, beside) -> None:
        """Queue what :meth:`launch` does with the kernels alone, beside what is queued since the mark."""

    def launch(self, x, labels, state, beside) -> None:
        """Queue the loss and the pass, behind what was packed beside it."""

    def explain(self) -> str:
        """Which kernels compute the gradients, and why."""


def differentiate(backward, x, labels, state, beside) -> None:
    """Queue both passes of a batch, and the packing of the kernels.

    Parameters
    ----------
    backward : Backward
    x : device array (N, C, H, W, *T1)
    labels : device array (N,), int64
    state : numbacaps.nn.state.State
    beside : numbacaps.device.streams.Beside
    """
    forward = backward.forward
    beside.mark()
    forward.pack(state, beside)
    forward.launch(x, state, beside)
    backward.pack(state, beside)
    backward.launch(x, labels, state, beside)
