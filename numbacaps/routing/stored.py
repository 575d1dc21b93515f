"""The rung whose votes are stored, and read again in every pass. It is what most code for routing does.

The votes are those of :func:`numbacaps.capsule_votes`, by one kernel; the passes are those of the fused rung, which read
where that one computes. Beside it stands what it moves: every vote once to memory, and once back where positions are routed
whole (:mod:`numbacaps.routing.whole`), or 2 r - 1 times at the worst. Backward, the gradient of every vote is written once too,
and read by the votes' own gradients.
Votes that are summed over the window are stored band by band (:mod:`numbacaps.routing.summed`).
"""

from numbacaps.algorithms import indexed


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
