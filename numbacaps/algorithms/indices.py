"""Algorithm 5's three index functions: where each operand of a small product lies.

``indexed`` and ``naive`` walk the products in different orders and share these.
"""

from functools import cache

from numbacaps.device.target import cuda


@cache
def make_index_functions(geometry):
    """Algorithm 5's three index functions, each the offset of a capsule in its array."""
    C, P, H, W, KH, KW = (getattr(geometry, name) for name in ("C", "P", "H", "W", "KH", "KW"))
    OH, OW, E1, E2, E3 = (getattr(geometry, name) for name in ("OH", "OW", "E1", "E2", "E3"))
    SH, SW = geometry.stride
    PH, PW = geometry.padding
    DH, DW = geometry.dilation

    @cuda.jit(device=True, inline="always")
    def calculate_input_index(n, c, oh, ow, kh, kw):
        """Offset of the input capsule that product (oh, ow, kh, kw) reads; -1 in the padding."""
        h = oh * SH + kh * DH - PH
        w = ow * SW + kw * DW - PW
        if h < 0 or h >= H or w < 0 or w >= W:
            return -1
        return (((n * C + c) * H + h) * W + w) * E1

    @cuda.jit(device=True, inline="always")
    def calculate_weight_index(p, c, kh, kw):
        """Offset of the kernel capsule."""
        return (((p * C + c) * KH + kh) * KW + kw) * E2

    @cuda.jit(device=True, inline="always")
    def calculate_output_index(n, p, oh, ow):
        """Offset of the output capsule."""
        return (((n * P + p) * OH + oh) * OW + ow) * E3

    return calculate_input_index, calculate_weight_index, calculate_output_index
