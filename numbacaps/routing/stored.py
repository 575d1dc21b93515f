"""The first rung: the votes are stored, and read again in every pass. It is what most code for routing does.

The votes are those of :func:`numbacaps.capsule_votes`, by one kernel; the passes are those of the fused rung, which read
where that one computes. Beside it stands what it moves: every vote once to memory, and 2 r - 1 times back at the worst.
Backward, what reaches every vote is written once too, and read by the votes' own gradients.
"""

from numbacaps.algorithms import indexed


def votes_of(geometry, x, w, out, stream):
    """Write the votes, (N, P, L, I, E)."""
    indexed.votes(geometry, x, w, out, stream=stream, workspace=None)


def gradients_of(geometry, x, w, d_votes, dx, dw, stream):
    """Write the gradients of x and w from that of the votes; ``dx`` or ``dw`` is None where that one is not wanted."""
    indexed.votes_backward(geometry, x, w, d_votes, dx, dw, stream=stream, workspace=None)
