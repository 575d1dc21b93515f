"""The stages of Algorithms 3 and 4, one file each, and the order in which they are told.

A stage module reads top to bottom: the formula, shapes and thread mapping; the factory that closes
over the compile-time dimensions and returns the ``numba.cuda.jit`` kernel; the launcher, which
checks, configures and launches on a stream. Launchers take a :class:`numbacaps.stages.slab.Slab`, a part of the work
(``whole(geometry)`` for all of it), and device arrays::

    g = numbacaps.Geometry(N=1, C=1, P=1, H=3, W=3, KH=2, KW=2, G=1, D1=2, D2=2, D3=2)
    slab = whole(g)
    x = cuda.device_array(g.input_shape, np.float32)
    columns = cuda.device_array(slab.columns_shape, np.float32)
    capsule_im2col(slab, x, columns)

Letters are those of :class:`numbacaps.geometry.Geometry`; a capsule of the input has E1 = G*D1*D2 elements, of the kernel
E2 = G*D2*D3, of the output E3 = G*D1*D3, and ``e`` counts them. Read the files in the order of ``FORWARD``, then ``BACKWARD``.
"""

from dataclasses import dataclass

from numbacaps.stages.capsule_col2im import capsule_col2im
from numbacaps.stages.capsule_im2col import capsule_im2col
from numbacaps.stages.input_extend import input_extend
from numbacaps.stages.input_reduce import input_reduce
from numbacaps.stages.kernel_extend import kernel_extend
from numbacaps.stages.kernel_reduce import kernel_reduce, kernel_reduce_lanes
from numbacaps.stages.multiplications import (
    batched_matmul,
    multiply,
    multiply_for_input_gradient,
    multiply_for_kernel_gradient,
)
from numbacaps.stages.output_extend import output_extend
from numbacaps.stages.output_reduce import output_reduce
from numbacaps.stages.slab import Slab, slabs, whole
from numbacaps.stages.strided_batched_matmul import strided_batched_matmul


@dataclass(frozen=True)
class Stage:
    """What the paper says of a stage: its line there, its figure (if any), what it computes."""

    paper: str
    where: str
    formula: str


FORWARD = {
    "capsule_im2col": Stage(
        "I_flat = capsule_im2col(I)",
        "Algorithm 3, step 1, Figure 3",
        "I_flat[n,l,q] = I[n, c, oh*stride+kh*dil-pad, ow*stride+kw*dil-pad]",
    ),
    "input_extend": Stage(
        "I' = input_extend(I_flat)", "Algorithm 3, step 2, Figure 4", "I'[n,p,l,q] = I_flat[n,l,q]"
    ),
    "kernel_extend": Stage(
        "K' = kernel_extend(K)", "Algorithm 3, step 3, Figure 5", "K'[p,l,q] = K[p,q]"
    ),
    "strided_batched_matmul": Stage(
        "O' = strided_batched_matrix_multiply(K', I')",
        "Algorithm 3, step 4, Figure 6",
        "O'[n,p,l,q] = I'[n,p,l,q] @ K'[p,l,q]",
    ),
    "output_reduce": Stage(
        "O = output_reduce(O')", "Algorithm 3, step 5, Figure 6", "O[n,p,l] = sum_q O'[n,p,l,q]"
    ),
}

BACKWARD = {
    "output_extend": Stage("dO' = output_extend(dO)", "Algorithm 4", "dO'[n,p,l,q] = dO[n,p,l]"),
    "kernel_gradient_matmul": Stage(
        "dK' = strided_batched_matrix_multiply(dO', I')",
        "Algorithm 4",
        "dK'[n,p,l,q] = I'[n,p,l,q]^T @ dO'[n,p,l,q]",
    ),
    "kernel_reduce": Stage(
        "dK = strided_batched_matrix_multiply(dK')", "Algorithm 4", "dK[p,q] = sum_nl dK'[n,p,l,q]"
    ),
    "input_gradient_matmul": Stage(
        "dI' = strided_batched_matrix_multiply(K', dO')",
        "Algorithm 4",
        "dI'[n,p,l,q] = dO'[n,p,l,q] @ K'[p,l,q]^T",
    ),
    "input_reduce": Stage(
        "dI_flat = input_reduce(dI')", "Algorithm 4", "dI_flat[n,l,q] = sum_p dI'[n,p,l,q]"
    ),
    "capsule_col2im": Stage(
        "dI = capsule_col2im(dI_flat)",
        "Algorithm 4",
        "dI[n,c,h,w] = sum of dI_flat[n,l,q] over the windows (l,q) that cover (h,w)",
    ),
}

STAGES = FORWARD | BACKWARD

# The stages of each pass, in order; what backward needs of forward's is made again.
PASSES = {
    "forward": tuple(FORWARD),
    "backward_input": (
        "output_extend",
        "kernel_extend",
        "input_gradient_matmul",
        "input_reduce",
        "capsule_col2im",
    ),
    "backward_kernel": (
        "capsule_im2col",
        "input_extend",
        "output_extend",
        "kernel_gradient_matmul",
        "kernel_reduce",
    ),
}
