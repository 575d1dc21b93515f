"""The "GPU" row of the paper's Table 1: one thread for each (n, p, oh, ow, c), and atomic adds.

Each thread runs over its window and over the elements of the capsule products and adds what it finds
to memory that other threads add to as well. The order of those adds is the hardware's, so this is
the one algorithm whose last bits change from run to run. It is here to be compared with.

Thread mapping: c runs fastest, then ow, oh, p, n; consecutive threads read far apart. That is the
point of the other algorithms.
"""

from functools import cache

from numbacaps.algorithms.indices import make_index_functions
from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import flat_operands, launch
from numbacaps.device.target import at, cuda


@cache
def make_fill(dtype):
    """Kernel that clears an array before atomic adds."""
    ZERO = dtype.type(0)

    @kept_on_disk
    @cuda.jit
    def fill_kernel(
        out,  # out  (size,)
    ):
        i = cuda.grid(1)
        if i < out.size:
            out[at(i)] = ZERO

    return fill_kernel


@cache
def make_forward(geometry, dtype):
    """Kernel for one geometry (its N apart)."""
    C, P, KH, KW = (getattr(geometry, name) for name in ("C", "P", "KH", "KW"))
    OH, OW, G = (getattr(geometry, name) for name in ("OH", "OW", "G"))
    D1, D2, D3 = (getattr(geometry, name) for name in ("D1", "D2", "D3"))
    ZERO = dtype.type(0)
    calculate_input_index, calculate_weight_index, calculate_output_index = make_index_functions(
        geometry
    )

    @kept_on_disk
    @cuda.jit
    def naive_forward_kernel(
        x,  # in      (N, C, H, W, G, D1, D2)
        w,  # in      (P, C, KH, KW, G, D2, D3)
        out,  # in/out  (N, P, OH, OW, G, D1, D3), zeros at first
        N,
    ):
        i = cuda.grid(1)  # (n, p, oh, ow, c)
        if i >= N * P * OH * OW * C:
            return
        c = i % C
        ow = i // C % OW
        oh = i // (C * OW) % OH
        p = i // (C * OW * OH) % P
        n = i // (C * OW * OH * P)
        o_idx = calculate_output_index(n, p, oh, ow)
        for kh in range(KH):
            for kw in range(KW):
                i_idx = calculate_input_index(n, c, oh, ow, kh, kw)
                idx = calculate_weight_index(p, c, kh, kw)
                for gd1 in range(G * D1):
                    for d3 in range(D3):
                        total = ZERO
                        for d2 in range(D2):
                            value = ZERO  # padding is zeros that multiply like any other value
                            if i_idx >= 0:
                                value = x[at(i_idx + gd1 * D2 + d2)]
                            total += value * w[at(idx + (gd1 // D1 * D2 + d2) * D3 + d3)]
                        cuda.atomic.add(out, o_idx + gd1 * D3 + d3, total)

    return naive_forward_kernel


@cache
def make_backward_input(geometry, dtype):
    """Kernel for one geometry (its N apart)."""
    C, P, KH, KW = (getattr(geometry, name) for name in ("C", "P", "KH", "KW"))
    OH, OW, G = (getattr(geometry, name) for name in ("OH", "OW", "G"))
    D1, D2, D3 = (getattr(geometry, name) for name in ("D1", "D2", "D3"))
    ZERO = dtype.type(0)
    calculate_input_index, calculate_weight_index, calculate_output_index = make_index_functions(
        geometry
    )

    @kept_on_disk
    @cuda.jit
    def naive_backward_input_kernel(
        w,  # in      (P, C, KH, KW, G, D2, D3)
        dy,  # in      (N, P, OH, OW, G, D1, D3)
        dx,  # in/out  (N, C, H, W, G, D1, D2), zeros at first
        N,
    ):
        i = cuda.grid(1)  # (n, p, oh, ow, c)
        if i >= N * P * OH * OW * C:
            return
        c = i % C
        ow = i // C % OW
        oh = i // (C * OW) % OH
        p = i // (C * OW * OH) % P
        n = i // (C * OW * OH * P)
        o_idx = calculate_output_index(n, p, oh, ow)
        for kh in range(KH):
            for kw in range(KW):
                i_idx = calculate_input_index(n, c, oh, ow, kh, kw)
                idx = calculate_weight_index(p, c, kh, kw)
                if i_idx >= 0:
                    for gd1 in range(G * D1):
                        for d2 in range(D2):
                            total = ZERO
                            for d3 in range(D3):
                                total += (
                                    dy[at(o_idx + gd1 * D3 + d3)]
                                    * w[at(idx + (gd1 // D1 * D2 + d2) * D3 + d3)]
                                )
                            cuda.atomic.add(dx, i_idx + gd1 * D2 + d2, total)

    return naive_backward_input_kernel


@cache
def make_backward_kernel(geometry, dtype):
    """Kernel for one geometry (its N apart)."""
    C, P, KH, KW = (getattr(geometry, name) for name in ("C", "P", "KH", "KW"))
    OH, OW, G = (getattr(geometry, name) for name in ("OH", "OW", "G"))
    D1, D2, D3 = (getattr(geometry, name) for name in ("D1", "D2", "D3"))
    ZERO = dtype.type(0)
    calculate_input_index, calculate_weight_index, calculate_output_index = make_index_functions(
        geometry
    )

    @kept_on_disk
    @cuda.jit
    def naive_backward_kernel_kernel(
        x,  # in      (N, C, H, W, G, D1, D2)
        dy,  # in      (N, P, OH, OW, G, D1, D3)
        dw,  # in/out  (P, C, KH, KW, G, D2, D3), zeros at first
        N,
    ):
        i = cuda.grid(1)  # (n, p, oh, ow, c)
        if i >= N * P * OH * OW * C:
            return
        c = i % C
        ow = i // C % OW
        oh = i // (C * OW) % OH
        p = i // (C * OW * OH) % P
        n = i // (C * OW * OH * P)
        o_idx = calculate_output_index(n, p, oh, ow)
        for kh in range(KH):
            for kw in range(KW):
                i_idx = calculate_input_index(n, c, oh, ow, kh, kw)
                idx = calculate_weight_index(p, c, kh, kw)
                for gd2 in range(G * D2):
                    for d3 in range(D3):
                        total = ZERO
                        for d1 in range(D1):
                            gd1 = gd2 // D2 * D1 + d1
                            value = ZERO
                            if i_idx >= 0:
                                value = x[at(i_idx + gd1 * D2 + gd2 % D2)]
                            total += value * dy[at(o_idx + gd1 * D3 + d3)]
                        cuda.atomic.add(dw, idx + gd2 * D3 + d3, total)

    return naive_backward_kernel_kernel


def _run(geometry, kernel, inputs, result, stream):
    """Clear the result, then let every thread add to it."""
    g = geometry
    launch(make_fill(result.dtype), result.size, 1, (result,), stream)
    launch(kernel, g.N * g.P * g.L * g.C, 1, (*inputs, result, g.N), stream)


def forward(geometry, x, w, out, *, stream, workspace):
    """The forward pass. It needs no workspace."""
    g = geometry
    x, w, out = flat_operands(g, x=x, w=w, out=out)
    _run(g, make_forward(g.of_one_image, x.dtype), (x, w), out, stream)


def backward(geometry, x, w, dy, dx, dw, *, stream, workspace):
    """Both gradients; ``dx`` or ``dw`` is None where that gradient is not wanted."""
    g = geometry
    if dx is not None:
        w, dy, dx = flat_operands(g, w=w, dy=dy, dx=dx)
        _run(g, make_backward_input(g.of_one_image, dy.dtype), (w, dy), dx, stream)
    if dw is not None:
        x, dy, dw = flat_operands(g, x=x, dy=dy, dw=dw)
        _run(g, make_backward_kernel(g.of_one_image, dy.dtype), (x, dy), dw, stream)
