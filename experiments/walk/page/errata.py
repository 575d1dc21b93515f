"""What the paper writes, what holds, and at which stages to say so: as in reference/README.md."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Erratum:
    """One row: where in the paper, what stands there, what holds, the stages to note it at."""

    where: str
    writes: str
    holds: str
    stages: tuple


ERRATA = (
    Erratum(
        "Algorithm 1",
        "`I(i+x, j+y, n) * K(m, x, y, n)` inside loops over p and q",
        "the inner index is `(i+p, j+q)`, and K's likewise",
        ("capsule_im2col",),
    ),
    Erratum(
        "Algorithm 2",
        "a loop over c up to D1, and D1 as the row count too",
        "that loop is the rank-3 batch axis G; an input capsule begins at "
        "`(...)*G*D1*D2 + g*D1*D2`. With all sizes 3, as in Figure 2, it does not show",
        ("capsule_im2col", "strided_batched_matmul"),
    ),
    Erratum(
        "Algorithm 4",
        "`Input_diff: T1(D1, D3)`",
        "(D1, D2), the shape of the input",
        ("capsule_col2im",),
    ),
    Erratum(
        "Algorithm 4",
        "`I_d' = ...(K', O')`",
        "dI' = dO' @ K'^T: the gradient, not the output",
        ("input_gradient_matmul",),
    ),
    Erratum(
        "Algorithm 4",
        "`K_diff = strided_batched_matrix_multiply(K_diff')`, one operand",
        "it is the sum over images and positions (a product with ones)",
        ("kernel_reduce",),
    ),
    Erratum(
        "Section 1.3",
        "a capsule convolution calls the convolution interface several times",
        "once is enough: see the fold",
        ("output_reduce",),
    ),
)
