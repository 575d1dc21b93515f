"""A convolution with random operands, and what each of its passes must make of them in float64."""

import math
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np

import reference

PASSES = ("forward", "backward_input", "backward_kernel")
NETWORK_PASSES = ("net_forward", "net_gradients", "net_step")  # of a whole network
_AS_EXACT = {"auto": "tf32x3"}  # whatever it stands for must be as exact
_THREADS = 16


def itemsize(dtype):
    """Bytes of an element of a dtype, by its name; NumPy lacks bfloat16."""
    return 2 if str(dtype) == "bfloat16" else np.dtype(dtype).itemsize


class WrongResult(Exception):
    """A result that is not the convolution's."""


class Problem:
    """One convolution with random operands.

    Parameters
    ----------
    geometry : numbacaps.Geometry
    seed : int
    """

    def __init__(self, geometry, seed=0):
        self.geometry, self._seed = geometry, seed
        self._on_device = {}

    @cached_property
    def operands(self):
        """(x, w, dy), float32, standard normal."""
        rng = np.random.default_rng(self._seed)
        g = self.geometry
        shapes = g.input_shape, g.kernel_shape, g.output_shape
        return tuple(rng.standard_normal(shape, np.float32) for shape in shapes)

    def shape(self, wanted):
        """Shape of a pass's result."""
        g = self.geometry
        shapes = g.output_shape, g.input_shape, g.kernel_shape
        return dict(zip(PASSES, shapes))[wanted]

    def bytes_read(self, wanted, dtype):
        """Bytes of the two operands that a pass reads."""
        size = itemsize(dtype)
        return self.geometry.min_bytes(size) - size * math.prod(self.shape(wanted))

    def on_device(self, key, sets, build):
        """``sets`` builds from the operands, kept for whoever else asks for ``key``."""
        if (key, sets) not in self._on_device:
            self._on_device[key, sets] = [build(self.operands) for _ in range(sets)]
        return self._on_device[key, sets]

    def leave_device(self):
        """Forget everything that :meth:`on_device` made."""
        self._on_device.clear()

    def expected(self, wanted):
        """The pass's result in float64."""
        return self._output if wanted == "forward" else self._gradients[wanted]

    @cached_property
    def _output(self):
        x, w, _ = self.operands
        out = np.empty(self.shape("forward"))

        def forward(n):
            out[n] = reference.capsule_convolution_einsum(x[n], w, *self._moves)

        side_by_side(forward, len(x))
        return out

    @cached_property
    def _gradients(self):
        x, w, dy = self.operands
        dx = np.empty(x.shape)

        def backward(n):
            dx[n], dw = reference.capsule_convolution_backward_einsum(x[n], w, dy[n], *self._moves)
            return dw

        return {"backward_kernel": sum(side_by_side(backward, len(x))), "backward_input": dx}

    @property
    def _moves(self):
        return self.geometry.stride, self.geometry.padding, self.geometry.dilation

    def check(self, wanted, result, precision):
        """The result's relative error, as :func:`reference.relative_error`.

        Raises
        ------
        WrongResult
            It is more than rounding explains.
        """
        error = relative_error(result, self.expected(wanted))
        limit = self.limit(wanted, precision)
        if not error <= limit:
            raise WrongResult(f"wrong result: relative error {error:.1e}, at most {limit:.1e}")
        return error

    def limit(self, wanted, precision):
        """The largest relative error of a pass that rounding explains, at a precision."""
        g = self.geometry
        terms = {
            "forward": g.Q * g.D2,
            "backward_input": g.P * g.KH * g.KW * g.D3,
            "backward_kernel": g.N * g.L * g.D1,
        }[wanted]
        return reference.tolerance(np.float32, terms, _AS_EXACT.get(precision, precision))


def side_by_side(function, images, at_a_time=1):
    """``function`` of slices of so many images, in order, side by side."""
    slices = [slice(n, n + at_a_time) for n in range(0, images, at_a_time)]
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(function, slices))


def relative_error(actual, expected):
    """What :func:`reference.relative_error` computes, side by side over the first axis."""
    if actual.shape != expected.shape:
        raise WrongResult(f"wrong result: shape {actual.shape}, not {expected.shape}")

    def worst(n):
        return np.max(np.abs(actual[n] - expected[n])), np.max(np.abs(expected[n]))

    error, scale = map(float, np.max(side_by_side(worst, len(actual)), axis=0))
    if not math.isfinite(error):
        return math.inf
    return error / scale if scale else error
