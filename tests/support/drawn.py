"""Drawn convolutions: any geometry, by every pass, dtype and precision of ``"fused"`` in turn.

They are known by their numbers, so that processes can compile them side by side. (Examples of hypothesis come in
families that differ in a size or two, and which they are depends on the modules that are loaded.)
"""

from dataclasses import dataclass

import numpy as np

import reference
from experiments.measuring.problem import PASSES
from numbacaps.algorithms import fused
from numbacaps.device.bfloat16 import dtype_of, to_device
from numbacaps.device.target import SIMULATED
from numbacaps.fused.precision import precisions
from numbacaps.geometry import Geometry
from numbacaps.plan import Plan
from tests.support.cases import is_swapped, nan, operands, oracle, sums

_DTYPES = ("float32", "float64", "float16", "bfloat16")
# What copies and tensor cores like: sizes of capsules' axes, and half the numbers of channels.
_EVEN = (1, 2, 4, 8, 16)
_MOST_FLOP = 1 << (13 if SIMULATED else 29)
_ROOM = 1 << 30  # bytes
_IN_REGISTERS = "forward", "float32", "tf32"  # may have the kernel in registers, where it is small


@dataclass(frozen=True)
class Convolution:
    """One pass of one geometry."""

    geometry: Geometry
    wanted: str
    dtype: str
    precision: str
    number: int

    def prepare(self):
        """Compile what it takes; the kernels' names."""
        prepared = fused.passes(self.geometry, dtype_of(self.dtype), self.precision)
        made = {
            "forward": lambda: prepared.forward_launchers,
            "backward_input": lambda: prepared.input_launchers,
            "backward_kernel": lambda: [prepared.kernel_launcher],
        }[self.wanted]()
        return {str(one).split()[0] for one in made}

    def check(self):
        """Compare it with float64.

        Raises
        ------
        AssertionError
            It is not close.
        """
        g, which = self.geometry, PASSES.index(self.wanted)
        x, w, dy = operands(g, self.dtype, np.random.default_rng(self.number))
        result = nan((dy, x, w)[which].shape, dtype_of(self.dtype))
        X, W, DY = map(to_device, (x, w, dy))
        plan = Plan(g, dtype_of(self.dtype), "fused", self.precision)
        if self.wanted == "forward":
            plan.launch_forward(X, W, result, 0)
        elif self.wanted == "backward_input":
            plan.launch_backward(None, W, DY, result, None, 0)
        else:
            plan.launch_backward(X, None, DY, None, result, 0)
        have = result.copy_to_host()
        have = have if self.dtype == "float64" else have.astype(np.float32)
        rounding = self.dtype if dtype_of(self.dtype).itemsize == 2 else self.precision
        wanted = oracle(g, x, w, dy)[which]
        reference.assert_close(have, wanted, sums(g)[which], precision=rounding)


def kinds():
    """(pass, dtype, precision) of all that this GPU takes."""
    return [
        (wanted, dtype, precision)
        for dtype in _DTYPES
        for precision in precisions(dtype_of(dtype))
        for wanted in PASSES
    ]


def convolution(number):
    """The convolution of that number, the same one every time."""
    rng, of_all = np.random.default_rng(number), kinds()
    turn, kind = divmod(number, len(of_all))
    small = of_all[kind] == _IN_REGISTERS and turn % 2 == 1 and not SIMULATED  # few others have it
    geometry = any_geometry(rng)
    while geometry.flop > _MOST_FLOP or small and not is_swapped(geometry):
        geometry = any_geometry(rng)
    return Convolution(geometry, *of_all[kind], number)


def any_geometry(rng):
    """A geometry of any sizes; more than half have capsules, and channels, for the tensor cores."""

    def number(low, high):
        return int(rng.integers(low, high, endpoint=True))

    def size(times=1):
        return int(rng.choice(_EVEN)) * times if even else number(1, 3 if SIMULATED else 9)

    even = not SIMULATED and rng.random() < 0.6
    stride, dilation = ((number(1, 3), number(1, 3)) for _ in range(2))
    padding = number(0, 2), number(0, 2)
    KH, KW = (number(1, 3 if SIMULATED else 5) for _ in range(2))
    least = [max(1, dilation[i] * ((KH, KW)[i] - 1) + 1 - 2 * padding[i]) for i in (0, 1)]
    H, W = (one + number(0, 2 if SIMULATED else 11) for one in least)
    return Geometry(
        N=number(1, 2 if SIMULATED else 70),
        C=size(2),
        P=size(2),
        H=H,
        W=W,
        KH=KH,
        KW=KW,
        G=1 if rng.random() < 0.6 else number(2, 3),
        D1=size(),
        D2=size(),
        D3=size(),
        stride=stride if rng.random() < 0.5 else (1, 1),
        padding=padding,
        dilation=dilation if rng.random() < 0.5 else (1, 1),
    )
