"""Algorithm 5: no multiplication interface, no replication; indices, and one small product each.

The paper runs one parallel loop over all products and accumulates each at its output position. Here
the thread that owns an output element runs through the products summed into it, so that nothing is
added by two threads at once: the same input gives the same bits. No workspace.

    forward           one thread an element of O: sum over c, kh, kw, d2
    backward, input   one thread an element of dI: sum over p and the windows that cover it, d3
    backward, kernel  LANES threads an element of dK: sum over n, oh, ow, d1, then over the lanes

Thread mapping: consecutive threads own consecutive elements, so they write consecutive addresses,
and read consecutive elements of one operand and the same one of the other. Its votes and their gradients are in
:mod:`numbacaps.votes`.
"""

from functools import cache

from numbacaps.algorithms.gradients import (
    kernel_gradient_grid,
    make_input_gradient,
    make_kernel_gradient,
)
from numbacaps.algorithms.indices import make_index_functions
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import flat_operands, launch
from numbacaps.device.target import at, cuda
from numbacaps.votes.backward import votes_backward
from numbacaps.votes.forward import votes

__all__ = ["backward", "forward", "votes", "votes_backward"]


@cache
def make_forward(geometry, dtype):
    """Kernel for one geometry (its N apart): the sum of an output element's products."""
    C, P, KH, KW = (getattr(geometry, name) for name in ("C", "P", "KH", "KW"))
    OH, OW, D1, D2, D3 = (getattr(geometry, name) for name in ("OH", "OW", "D1", "D2", "D3"))
    E3 = geometry.E3
    IMAGE = P * OH * OW * E3
    ZERO = dtype.type(0)
    calculate_input_index, calculate_weight_index, calculate_output_index = make_index_functions(
        geometry
    )

    @kept_on_disk
    @cuda.jit
    def indexed_forward_kernel(
        x,  # in   (N, C, H, W, G, D1, D2)
        w,  # in   (P, C, KH, KW, G, D2, D3)
        out,  # out  (N, P, OH, OW, G, D1, D3)
        N,
    ):
        i = cuda.grid(1)  # (p, oh, ow, g, d1, d3)
        if i >= IMAGE:
            return
        d3 = i % D3
        d1 = i // D3 % D1
        g = i // (D3 * D1) % (E3 // (D3 * D1))
        ow = i // E3 % OW
        oh = i // (E3 * OW) % OH
        p = i // (E3 * OW * OH)
        n = cuda.blockIdx.y
        while n < N:
            total = ZERO
            for c in range(C):
                for kh in range(KH):
                    for kw in range(KW):
                        i_idx = calculate_input_index(n, c, oh, ow, kh, kw)
                        idx = calculate_weight_index(p, c, kh, kw)
                        for d2 in range(D2):
                            value = ZERO  # padding is zeros that multiply like any other value
                            if i_idx >= 0:
                                value = x[at(i_idx + (g * D1 + d1) * D2 + d2)]
                            total += value * w[at(idx + (g * D2 + d2) * D3 + d3)]
            o_idx = calculate_output_index(n, p, oh, ow)
            out[at(o_idx + (g * D1 + d1) * D3 + d3)] = total
            n += cuda.gridDim.y

    return indexed_forward_kernel


@cache
def make_backward_input(geometry, dtype):
    """Kernel for one geometry (its N apart): the gradient that reaches an input element."""
    input_gradient = make_input_gradient(geometry, dtype, _make_gradient_at(geometry))

    @kept_on_disk
    @cuda.jit
    def indexed_backward_input_kernel(
        w,  # in   (P, C, KH, KW, G, D2, D3)
        dy,  # in   (N, P, OH, OW, G, D1, D3)
        dx,  # out  (N, C, H, W, G, D1, D2)
        N,
    ):
        input_gradient(w, dy, dx, N)

    return indexed_backward_input_kernel


@cache
def make_backward_kernel(geometry, dtype):
    """Kernel for one geometry (its N apart): the gradient that reaches a kernel element."""
    kernel_gradient = make_kernel_gradient(geometry, dtype, _make_gradient_at(geometry))

    @kept_on_disk
    @cuda.jit
    def indexed_backward_kernel_kernel(
        x,  # in   (N, C, H, W, G, D1, D2)
        dy,  # in   (N, P, OH, OW, G, D1, D3)
        dw,  # out  (P, C, KH, KW, G, D2, D3)
        N,
    ):
        kernel_gradient(x, dy, dw, N)

    return indexed_backward_kernel_kernel


def _make_gradient_at(geometry):
    """Device function: the offset of the gradient that products of a position have in common."""
    _, _, calculate_output_index = make_index_functions(geometry)

    @cuda.jit(device=True, inline="always")
    def gradient_at(n, p, oh, ow, c, tap):
        return calculate_output_index(n, p, oh, ow)

    return gradient_at


def forward(geometry, x, w, out, *, stream, workspace):
    """Algorithm 5. It needs no workspace."""
    g = geometry
    arguments = (*flat_operands(g, x=x, w=w, out=out), g.N)
    count = g.P * g.L * g.E3
    launch(make_forward(g.of_one_image, x.dtype), count, g.N, arguments, stream)


def backward(geometry, x, w, dy, dx, dw, *, stream, workspace):
    """Both gradients by index; ``dx`` or ``dw`` is None where that gradient is not wanted."""
    g = geometry
    if dx is not None:
        kernel = make_backward_input(g.of_one_image, dy.dtype)
        arguments = (*flat_operands(g, w=w, dy=dy, dx=dx), g.N)
        launch(kernel, g.C * g.H * g.W * g.E1, g.N, arguments, stream)
    if dw is not None:
        kernel = make_backward_kernel(g.of_one_image, dy.dtype)
        arguments = (*flat_operands(g, x=x, dy=dy, dw=dw), g.N)
        kernel[*kernel_gradient_grid(g), stream](*arguments)
