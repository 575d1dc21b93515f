"""A call of routing: its arguments accepted, its arrays where the algorithm takes them, its results delivered."""

from dataclasses import dataclass

import numpy as np

from numbacaps.algorithms.registry import AUTO
from numbacaps.arrays import check_out, check_together, contiguous, describe, repeated
from numbacaps.call import Call
from numbacaps.device.allocation import new_array
from numbacaps.device.bfloat16 import to_device
from numbacaps.device.dtypes import sum_dtype
from numbacaps.device.launch import ceil_div
from numbacaps.device.strided_copy import gather
from numbacaps.fused.precision import PRECISIONS
from numbacaps.limits import check_limits
from numbacaps.routing.options import Options, check_activations, check_given, check_name
from numbacaps.routing.pack import make_unpack
from numbacaps.routing.passes import run, widen
from numbacaps.routing.runner import runner_of, settle
from numbacaps.routing.shape import TEAM_THREADS
from numbacaps.routing.summed import PRODUCT, Summed, add_channels, precision_of_sums
from numbacaps.signature import signature_of

ALGORITHMS = ("auto", "fused", "stored", "numpy")


@dataclass(frozen=True)
class Problem:
    """What is routed, and how: options that are no arrays.

    Attributes
    ----------
    options : numbacaps.routing.options.Options
    algorithm, precision, product : str
    stride, padding, dilation : int or pair of int
    """

    options: Options
    algorithm: str = "auto"
    precision: str = "auto"
    product: str = "ab,bc->ac"
    stride: object = 1
    padding: object = 0
    dilation: object = 1

    def __post_init__(self):
        check_name("algorithm", self.algorithm, ALGORITHMS)
        check_name("precision", self.precision, PRECISIONS)

    @property
    def name(self):
        """The algorithm, where "auto" was asked for."""
        if self.algorithm != "auto":
            return self.algorithm
        return "numpy" if AUTO[0] == "numpy" else rung(self.options)


def rung(options):
    """The kernels that are used unless somebody names others: a sum over a window costs more than to read it again."""
    return "stored" if options.is_summed else "fused"


def children_of(geometry, options):
    """(C, KH, KW), whose product is a position's children; (C, 1, 1) where votes are summed over the window."""
    g = geometry
    return (g.C, 1, 1) if options.is_summed else (g.C, g.KH, g.KW)


def shapes_of_operands(geometry, options):
    """The shapes of all operands besides x, w and dy, by name."""
    g = geometry
    return {
        "activations": (g.N, g.C, g.H, g.W),
        "beta_u": (g.P,),
        "beta_a": (g.P,),
        "logits": (g.P, g.C) if options.is_summed else (g.P, g.C, g.KH, g.KW),
        "d_activations": (g.N, g.P, g.OH, g.OW),
    }


class RoutingCall:
    """A call whose arguments have been accepted; before, nothing is allocated or launched.

    Parameters
    ----------
    arrays : tuple
        (x, w) or (x, w, dy).
    more : dict of str to array or None
        The operands that the routing has besides.
    problem : Problem
    stream, out : optional

    Raises
    ------
    TypeError, ValueError, RuntimeError, ImportError
    """

    def __init__(self, arrays, more, problem, stream=None, out=None):
        p = self.problem = problem
        self.shared, self.runners, self._plans = False, [], {}
        if p.options.is_summed:
            arrays = self._of_channels(*arrays)
        self.on_host, outs = p.name == "numpy", {"y": ("out", out)}
        how = p.stride, p.padding, p.dilation, p.product
        algorithm = "numpy" if self.on_host else "fused"
        self.call = Call(arrays, *how, algorithm=algorithm, stream=stream, outs=outs)
        self.signature, self.stream = self.call.signature, self.call.stream
        self.geometry = self.signature.geometry
        if p.name == "stored" and p.options.is_summed:
            passes = ("input", "kernel") if len(arrays) > 2 else ("forward",)
            check_limits(self.geometry.of_channels, "fused", passes)
        self.sums = sum_dtype(self.signature.dtype)
        check_given(more, p.options)
        self._more = {
            name: describe(name, array) for name, array in more.items() if array is not None
        }
        for name, operand in self._more.items():
            if operand.shape != self.shape_of(name):
                raise ValueError(
                    f"{name} has shape {operand.shape}; it takes {self.shape_of(name)}"
                )
            check_together([describe("x", arrays[0]), operand])
        if out is not None:
            check_out(describe("out", out), self.signature.shapes["y"], self._more.values())
        self._check_activations()

    def _of_channels(self, x, w, *dy):
        """The arrays, with a kernel of its own for every channel where all share one."""
        of_x, of_w = describe("x", x), describe("w", w)
        self.shared = is_shared(of_x.shape, of_w.shape)
        return x, repeated(of_w, 1, of_x.shape[1]) if self.shared else w, *dy

    def shape_of(self, name):
        """Of an operand besides x and w."""
        return shapes_of_operands(self.geometry, self.problem.options)[name]

    @property
    def children(self):
        """(C, KH, KW), or (C, 1, 1); see :func:`children_of`."""
        return children_of(self.geometry, self.problem.options)

    def _check_activations(self):
        given = self._more.get("activations")
        if given is None or given.on_device or not given.array.size:
            return
        low, high = np.nanmin(given.array, initial=0), np.nanmax(given.array, initial=0)
        check_activations(low, high)

    def __enter__(self):
        self.call.__enter__()
        return self

    def __exit__(self, *failure):
        self.call.__exit__(*failure)
        for runner in self.runners:
            settle(runner)

    def operand(self, name, default=None):
        """An operand where the algorithm takes it, in the dtype of sums; filled with ``default`` where it is not given."""
        given, shape = self._more.get(name), self.shape_of(name)
        if given is None and default is None:
            return None
        if self.on_host:
            return (
                np.full(shape, default, float) if given is None else np.float64(host_array(given))
            )
        if given is None:
            return self.keep(to_device(np.full(shape, default, self.sums), self.stream))
        if not given.on_device:
            host = contiguous(given.array.astype(self.sums))
            return self.keep(to_device(host, self.stream))
        array = given.reshaped(shape) if given.is_contiguous else self._gathered(given)
        return array if array.dtype == self.sums else self._wide(array)

    def was_given(self, name):
        """Whether the caller gave an operand."""
        return name in self._more

    def narrow(self, array):
        """A device array of the dtype of sums in x's dtype."""
        narrow, size = self.room("narrow", array.shape), array.size
        kernel = make_unpack(1, self.signature.dtype)
        grid = ceil_div(size, TEAM_THREADS)
        run(kernel, grid, TEAM_THREADS, (array, narrow, size, 1), self.stream)
        return narrow

    def _gathered(self, given):
        return self.keep(gather(given, tuple(range(given.rank)), self.stream))

    def _wide(self, array):
        """In the dtype of sums."""
        return widen(array, self.room("wide", array.shape, self.sums), self.stream)

    def keep(self, array):
        """An array of the call's own, which is kept until the stream has passed the call."""
        return self.call.passing(array)

    def room(self, name, shape, dtype=None):
        """A new device array, by default of x's dtype, whatever its name."""
        return self.keep(new_array(shape, dtype or self.signature.dtype, self.stream))

    def runner(self, geometry, is_stored):
        """What routes a problem, or refuses it."""
        p = self.problem
        how = geometry, self.signature.dtype, p.options, is_stored
        found = runner_of(*how, stream=self.stream, precision=p.precision)
        if found not in self.runners:
            self.runners.append(found)
        return found

    def summed(self):
        """What routes votes that are summed over the window and stored; the call does not hold it, which holds the call."""
        how = self._plan_of_channels, lambda band: self.runner(band, True)
        return Summed(self.geometry, self.signature.dtype, *how)

    def _plan_of_channels(self, band):
        """The plan of the convolution that computes a band's votes; the same one throughout the call."""
        if band not in self._plans:
            self._plans[band] = self.call.plan(self._signature_of_channels(band))
        return self._plans[band]

    def _signature_of_channels(self, band):
        g = band.of_channels
        shapes, window = (g.input_shape, g.kernel_shape), (g.stride, g.padding, g.dilation)
        dtype = self.signature.dtype
        how = *window, PRODUCT, "fused", precision_of_sums(dtype, self.problem.precision), None, ""
        return signature_of(*shapes, dtype, *how)

    def zeros(self, shape):
        """The same, of zeros."""
        return self.keep(to_device(np.zeros(shape, self.signature.dtype), self.stream))

    def delivered(self, array):
        """A result besides y, dx and dw as the caller gets it; None for None."""
        if array is None:
            return None
        dtype = self.signature.dtype
        if self.on_host:
            array = np.ascontiguousarray(array, dtype)
            return array if not self.gives_device else to_device(array, self.stream)
        if self.gives_device:
            return self.call.as_given(array.bind(self.stream))
        host = array.copy_to_host(stream=self.stream)
        if self.stream:
            self.stream.synchronize()
        return host

    def deliver_w(self, dw):
        """The kernel's gradient as the caller gets it: the sum over the channels that share the kernel; None for None."""
        if dw is None or not self.shared:
            return self.call.deliver(dw)
        found = dw.operand.array if dw.in_place else self.call.moved(dw)
        if isinstance(found, np.ndarray):
            return found.sum(1, keepdims=True, dtype=self.sums).astype(found.dtype)
        self.keep(found)
        P, _, *rest = found.shape
        total = self.room("dw", (P, 1, *rest))
        add_channels(found, total, self.stream, self.room)
        return self.call.as_given(total.bind(self.stream))

    @property
    def gives_device(self):
        """The caller's arrays are on the device."""
        return self.call.on_device


def host_array(operand):
    """A NumPy array of an operand that stays on the host."""
    return np.asarray(getattr(operand.array, "_ary", operand.array))


def is_shared(x_shape, w_shape):
    """Whether all input channels, of which there are several, have one kernel."""
    return min(len(x_shape), len(w_shape)) > 1 and w_shape[1] == 1 < x_shape[1]
