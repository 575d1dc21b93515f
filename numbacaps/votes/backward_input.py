"""The gradient of the votes that reaches the input.

dI[n,c,h,w] = sum over p and the (oh,ow,kh,kw) that read (h,w) of dV[n,p,oh,ow,c,kh,kw] @ K[p,c,kh,kw]^T
"""

from functools import cache

from numbacaps.algorithms.gradients import make_input_gradient
from numbacaps.device.bfloat16 import bits
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import flat_operands, launch
from numbacaps.device.target import cuda
from numbacaps.votes.indices import make_vote_index


@cache
def make_votes_backward_input(geometry, dtype, sum_window):
    """Kernel for one geometry (its N apart)."""
    input_gradient = make_input_gradient(geometry, dtype, make_vote_index(geometry, sum_window))

    @kept_on_disk
    @cuda.jit
    def votes_backward_input_kernel(
        w,  # in   (P, C, KH, KW, G, D2, D3)
        dvotes,  # in   (N, P, OH, OW, C, taps, G, D1, D3)
        dx,  # out  (N, C, H, W, G, D1, D2)
        N,
    ):
        input_gradient(w, dvotes, dx, N)

    return votes_backward_input_kernel


def backward_input(geometry, w, dvotes, dx, *, stream, sum_window):
    """Write the gradient of the input."""
    g, which = geometry, "summed_votes" if sum_window else "votes"
    w, dvotes, dx = flat_operands(g, **{"w": w, which: dvotes, "dx": dx})
    kernel = make_votes_backward_input(g.of_one_image, dx.dtype, sum_window)
    launch(kernel, g.C * g.H * g.W * g.E1, g.N, (bits(w), bits(dvotes), bits(dx), g.N), stream)
