"""The oracle: capsule convolution in plain NumPy, to be read beside the paper.

Read it in this order.

1. `window`: where the window stands; stride, padding and dilation.
2. `convolution`: Algorithm 1, a sum of products of scalars.
3. `capsule_convolution`: Algorithm 2, the same with a small matrix for each scalar, and the
   gradients by the same loops.
   `votes`: the same products before their sum, for routing.
4. `stages`: Algorithms 3 and 4, the same sums cut into stages that a GPU can run in parallel.
5. `vectorised`: an independent einsum in float64 that checks 3 and 4 and is fast enough for large
   arrays.
6. `compare`: how a result is judged.
7. `routing`: dynamic and EM routing of the votes, in every form, with gradients.
8. `nn` and `network`: what a capsule network computes beside its convolutions, and a whole one.

`checks` holds what the functions refuse, and is no part of the paper.

Arrays of Algorithm 2 have seven axes, also those of matrix capsules, which have G = 1:

    input   (N, C, H, W, G, D1, D2)
    kernel  (P, C, KH, KW, G, D2, D3)
    output  (N, P, OH, OW, G, D1, D3)

The loops sum in the dtype of their inputs and return it; `vectorised` does all in float64.
"""

from .capsule_convolution import (
    capsule_convolution,
    capsule_convolution_backward,
    matrix_multiply,
    matrix_multiply_backward,
)
from .compare import assert_close, relative_error, tolerance
from .convolution import convolution
from .stages import (
    capsule_col2im,
    capsule_im2col,
    input_extend,
    input_reduce,
    kernel_extend,
    kernel_reduce,
    output_extend,
    output_reduce,
    staged_backward,
    staged_forward,
    strided_batched_matrix_multiply,
)
from .vectorised import (
    capsule_convolution_backward_einsum,
    capsule_convolution_einsum,
    capsule_votes_einsum,
)
from .votes import capsule_votes, capsule_votes_backward
from .window import drop_padding, output_size, pair, window_step, zero_pad

__all__ = [
    "assert_close",
    "capsule_col2im",
    "capsule_convolution",
    "capsule_convolution_backward",
    "capsule_convolution_backward_einsum",
    "capsule_convolution_einsum",
    "capsule_im2col",
    "capsule_votes",
    "capsule_votes_backward",
    "capsule_votes_einsum",
    "convolution",
    "drop_padding",
    "input_extend",
    "input_reduce",
    "kernel_extend",
    "kernel_reduce",
    "matrix_multiply",
    "matrix_multiply_backward",
    "output_extend",
    "output_reduce",
    "output_size",
    "pair",
    "relative_error",
    "staged_backward",
    "staged_forward",
    "strided_batched_matrix_multiply",
    "tolerance",
    "window_step",
    "zero_pad",
]
