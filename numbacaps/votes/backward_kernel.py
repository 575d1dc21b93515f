"""The gradient of the votes that reaches the kernel.

dK[p,c,kh,kw] = sum over n, oh, ow of I^T @ dV[n,p,oh,ow,c,kh,kw]
"""

from functools import cache

from numbacaps.algorithms.gradients import kernel_gradient_grid, make_kernel_gradient
from numbacaps.device.bfloat16 import bits
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import flat_operands
from numbacaps.device.target import cuda
from numbacaps.votes.indices import make_vote_index


@cache
def make_votes_backward_kernel(geometry, dtype, sum_window):
    """Kernel for one geometry (its N apart)."""
    kernel_gradient = make_kernel_gradient(geometry, dtype, make_vote_index(geometry, sum_window))

    @kept_on_disk
    @cuda.jit
    def votes_backward_kernel_kernel(
        x,  # in   (N, C, H, W, G, D1, D2)
        dvotes,  # in   (N, P, OH, OW, C, taps, G, D1, D3)
        dw,  # out  (P, C, KH, KW, G, D2, D3)
        N,
    ):
        kernel_gradient(x, dvotes, dw, N)

    return votes_backward_kernel_kernel


def backward_kernel(geometry, x, dvotes, dw, *, stream, sum_window):
    """Write the gradient of the kernel."""
    g, which = geometry, "summed_votes" if sum_window else "votes"
    x, dvotes, dw = flat_operands(g, **{"x": x, which: dvotes, "dw": dw})
    kernel = make_votes_backward_kernel(g.of_one_image, dw.dtype, sum_window)
    kernel[*kernel_gradient_grid(g), stream](bits(x), bits(dvotes), bits(dw), g.N)
