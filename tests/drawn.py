"""Convolutions that hypothesis draws: any geometry, and any pass, dtype and precision of ``"fused"``."""

from dataclasses import dataclass

import numpy as np
from cases import nan, operands, oracle, sums
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import reference
from experiments.problem import PASSES
from numbacaps.bfloat16 import dtype_of, to_device
from numbacaps.geometry import Geometry
from numbacaps.pipelines.registry import ALGORITHMS, find_algorithm
from numbacaps.target import SIMULATED
from numbacaps.workspace import Workspace

_DTYPES = ("float32", "float64", "float16", "bfloat16")
_ROOM = 1 << 30


@st.composite
def geometries(draw):
    """Any geometry of a size that the target takes in well under a second."""
    most = (lambda small, large: small) if SIMULATED else (lambda small, large: large)

    def number(low, high):
        return draw(st.integers(low, high))

    stride, dilation = ((number(1, 3), number(1, 3)) for _ in range(2))
    padding = (number(0, 2), number(0, 2))
    KH, KW = number(1, most(3, 5)), number(1, most(3, 5))
    least = [max(1, dilation[i] * ((KH, KW)[i] - 1) + 1 - 2 * padding[i]) for i in (0, 1)]
    return Geometry(
        N=number(1, most(2, 9)),
        C=number(1, most(2, 9)),
        P=number(1, most(2, 9)),
        H=least[0] + number(0, most(2, 11)),
        W=least[1] + number(0, most(2, 11)),
        KH=KH,
        KW=KW,
        G=number(1, 3),
        D1=number(1, most(3, 9)),
        D2=number(1, most(3, 9)),
        D3=number(1, most(3, 9)),
        stride=stride,
        padding=padding,
        dilation=dilation,
    )


@dataclass(frozen=True)
class Convolution:
    """One pass of one geometry, and the seed of its operands."""

    geometry: Geometry
    wanted: str
    dtype: str
    precision: str
    seed: int

    def ready(self):
        """(operands, result, a function that computes the result); on this GPU, or a pretended one."""
        g, dtype = self.geometry, dtype_of(self.dtype)
        algorithm = find_algorithm("fused", dtype, self.precision)
        x, w, dy = host = operands(g, self.dtype, np.random.default_rng(self.seed))
        result = nan((dy, x, w)[PASSES.index(self.wanted)].shape, dtype)
        X, W, DY = map(to_device, host)
        how = {"stream": 0, "workspace": Workspace(_ROOM)}

        def forward():
            algorithm.forward(g, X, W, result, **how)

        def backward_input():
            algorithm.backward(g, None, W, DY, result, None, **how)

        def backward_kernel():
            algorithm.backward(g, X, None, DY, None, result, **how)

        return host, result, (forward, backward_input, backward_kernel)[PASSES.index(self.wanted)]

    def check(self):
        """Compare it with float64."""
        host, result, compute = self.ready()
        compute()
        which = PASSES.index(self.wanted)
        rounding = self.dtype if dtype_of(self.dtype).itemsize == 2 else self.precision
        have = result.copy_to_host()
        have = have if self.dtype == "float64" else have.astype(np.float32)
        wanted = oracle(self.geometry, *host)[which]
        reference.assert_close(have, wanted, sums(self.geometry)[which], precision=rounding)


@st.composite
def convolutions(draw):
    """Any :class:`Convolution` that this GPU takes."""
    takes = ALGORITHMS["fused"].precisions
    choices = [(dtype, word) for dtype in _DTYPES for word in takes(dtype_of(dtype))]
    geometry, wanted = draw(geometries()), draw(st.sampled_from(PASSES))
    return Convolution(
        geometry, wanted, *draw(st.sampled_from(choices)), draw(st.integers(0, 2**32 - 1))
    )


def each(examples, do):
    """Call ``do`` with so many drawn convolutions: the same ones every time, and simpler ones if it fails."""

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(convolution=convolutions())
    def drawn_convolution(convolution):
        do(convolution)

    drawn_convolution()
