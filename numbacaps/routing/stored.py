"""The rung whose votes are stored, and read again in every pass. It is what most code for routing does.

The votes are those of :func:`numbacaps.capsule_votes`, by one kernel; the passes are those of the fused rung, which read
where that one computes. Beside it stands what it moves: every vote once to memory, and 2 r - 1 times back at the worst.
Backward, what reaches every vote is written once too, and read by the votes' own gradients.

Votes that are summed over the window are a capsule convolution of a product for each channel,

    V[n,p,oh,ow,(c,g)] = sum over kh, kw of I[n,..,(c,g)] @ K[p,kh,kw,(c,g)]

of x and w that have their channels beside g. So are their gradients those of a convolution.
"""

from numbacaps.algorithms import indexed
from numbacaps.api import capsule_conv2d, capsule_conv2d_backward
from numbacaps.arrays import describe
from numbacaps.device.strided_copy import gather

CHANNELS_LAST = 0, 2, 3, 1, 4, 5, 6  # (N, C, H, W, G, D1, D2) as (N, H, W, C, G, D1, D2)
CHANNELS_FIRST = 0, 3, 1, 2, 4, 5, 6  # and back
HOW = {"product": "gab,gbc->gac", "precision": "ieee"}  # of the convolution


class Children:
    """Votes of every child of a window, and their gradients.

    Parameters
    ----------
    geometry : numbacaps.geometry.Geometry
    x, w : device arrays (N, C, H, W, G, D1, D2) and (P, C, KH, KW, G, D2, D3)
    stream : Numba stream
    """

    def __init__(self, geometry, x, w, stream):
        self._operands = geometry, x, w
        self._how = {"stream": stream, "workspace": None}

    def votes_of(self, out):
        """Write the votes, (N, P, L, I, E)."""
        indexed.votes(*self._operands, out, **self._how)

    def gradients_of(self, d_votes, dx, dw):
        """Write the gradients of x and w from that of the votes; ``dx`` or ``dw`` is None where that one is not wanted."""
        indexed.votes_backward(*self._operands, d_votes, dx, dw, **self._how)


class Sums:
    """The same of votes that are summed over the window, (N, P, L, C, E).

    Parameters
    ----------
    geometry, x, w, stream
        As :class:`Children`.
    keep : callable
        ``keep(array)``: a device array of which the stream has to have passed all uses before it is freed; returns it.
    """

    def __init__(self, geometry, x, w, stream, keep):
        g, self._stream, self._keep = geometry, stream, keep
        self._of = g.of_channels
        window = {"stride": g.stride, "padding": g.padding, "dilation": g.dilation}
        self._how = {**HOW, **window, "algorithm": "fused", "stream": stream}
        self._operands = [
            keep(self._moved(array, CHANNELS_LAST)).reshape(*shape)
            for array, shape in ((x, self._of.input_shape), (w, self._of.kernel_shape))
        ]

    def votes_of(self, out):
        """As :meth:`Children.votes_of`."""
        out = out.reshape(*self._of.output_shape)
        capsule_conv2d(*self._operands, out=out, **self._how)

    def gradients_of(self, d_votes, dx, dw):
        """As :meth:`Children.gradients_of`."""
        into = {"input": dx, "kernel": dw}
        needs = [name for name, wanted in into.items() if wanted is not None]
        d_votes = d_votes.reshape(*self._of.output_shape)
        found = capsule_conv2d_backward(*self._operands, d_votes, needs=needs, **self._how)
        for gradient, to in zip(found, into.values()):
            if to is not None:
                N, C, H, W, *capsule = to.shape
                seen = self._keep(gradient).reshape(N, H, W, C, *capsule)
                self._moved(seen, CHANNELS_FIRST, describe("result", to))

    def _moved(self, array, order, out=None):
        return gather(describe("array", array), order, self._stream, out)
