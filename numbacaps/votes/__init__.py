"""The kernels of votes, the products of a capsule convolution before routing weighs them, and of their gradients.

Each thread owns one element of the result, or a share of its sum that is added in a fixed order; nothing is added
atomically, and the same input gives the same bits. No workspace. Elements of 2 bytes are added in float32.

    forward           a thread an element of a vote: sum over d2, with ``sum_window`` over kh and kw too
    backward, input   a thread an element of dI: sum over p, the windows that cover it, and d3
    backward, kernel  LANES threads an element of dK: sum over n, oh, ow, d1, then over the lanes

With ``sum_window`` a vote is that of an input channel for an output capsule, and its gradient reaches every tap.
"""
