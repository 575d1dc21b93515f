"""Drawn calls: any product, algorithm, dtype, precision, stream and layout, all three passes against float64."""

from dataclasses import dataclass, replace
from math import isqrt

import numpy as np

import numbacaps
import reference
from numbacaps import ALGORITHMS, available_algorithms, parse_product
from numbacaps.device.bfloat16 import dtype_of
from numbacaps.device.target import SIMULATED, cuda
from numbacaps.geometry import Geometry
from tests.support.campaign import large
from tests.support.campaign.layouts import (
    LAYOUTS,
    laid_out,
    on_host,
    repeated,
    unwritten,
)
from tests.support.campaign.part import Part
from tests.support.cases import oracle, sums
from tests.support.drawn import any_geometry

_DTYPES = ("float32", "float64", "float16", "bfloat16")
_MOST_FLOP = {False: 1 << 25, True: 1 << 28} if not SIMULATED else {False: 1 << 11, True: 1 << 12}
_SELDOM = 0.1  # of the calls may take the most
_WAYS = ("call", "call", "plan", "packed plan")
_STREAMS = ("default", "own", "address")
_SHARED = 4  # calls of a kind that have one geometry
_LARGE_EVERY = 2500  # a call beyond 2^31 elements, of these


@dataclass(frozen=True)
class Call:
    """A convolution and its gradients, and how they are asked for."""

    geometry: Geometry
    product: str
    capsules: tuple
    algorithm: str
    dtype: str
    precision: str
    way: str
    stream: str
    layouts: tuple
    on_device: bool
    has_out: bool
    draws: tuple

    @property
    def options(self):
        """Keyword arguments of the public functions."""
        g = self.geometry
        moves = {"stride": g.stride, "padding": g.padding, "dilation": g.dilation}
        chosen = {"algorithm": self.algorithm, "precision": self.precision}
        return moves | chosen | {"product": self.product}

    @property
    def kinds(self):
        """What it is counted under."""
        return (
            f"{self.algorithm} {self.dtype} {self.precision}",
            f"way: {self.way}",
            f"stream: {self.stream}",
            *(f"layout: {layout}" for layout in dict.fromkeys(self.layouts)),
            f"arrays on the {'device' if self.on_device else 'host'}",
        )

    @property
    def is_exact(self):
        """Whether the same call gives the same bits."""
        found = ALGORITHMS.get(self.algorithm)
        return found is None or found.deterministic

    def operands(self):
        """x, w and dy as NumPy arrays in the product's order of axes."""
        rng, g = np.random.default_rng(self.draws), self.geometry
        heads = (g.N, g.C, g.H, g.W), (g.P, g.C, g.KH, g.KW), (g.N, g.P, g.OH, g.OW)
        made = []
        for head, capsule, layout in zip(heads, self.capsules, self.layouts):
            array = rng.standard_normal((*head, *capsule)).astype(dtype_of(self.dtype))
            made.append(repeated(array) if layout == "repeated" else array)
        return made

    def place(self, arrays):
        """The operands where and how they are to lie."""
        return [
            laid_out(array, layout, self.on_device) for array, layout in zip(arrays, self.layouts)
        ]

    def made_stream(self):
        """(what is told as ``stream``, what is waited for)."""
        if self.stream == "default":
            return None, None
        stream = cuda.stream()
        return (int(stream) if self.stream == "address" and not SIMULATED else stream), stream

    def launch(self, x, w, dy, stream):
        """y, dx and dw of placed operands, queued on a stream."""
        if self.way == "call":
            return self._by_functions(x, w, dy, stream)
        return self._by_plan(x, w, dy, stream)

    def _by_functions(self, x, w, dy, stream):
        out = unwritten(dy, self.on_device) if self.has_out else None
        y = numbacaps.capsule_conv2d(x, w, **self.options, out=out, stream=stream)
        dx, dw = numbacaps.capsule_conv2d_backward(x, w, dy, **self.options, stream=stream)
        return y, dx, dw

    def _by_plan(self, x, w, dy, stream):
        plan = numbacaps.plan(x.shape, w.shape, self.dtype, **self.options)
        y, dx, dw = (unwritten(array, True) for array in (dy, x, w))
        if self.way == "packed plan":
            plan.pack(w, stream=stream)
            w = None
        plan(x, w, y, stream=stream)
        plan.backward(x, w, dy, dx, dw, stream=stream)
        return y, dx, dw

    def expected(self, arrays):
        """What y, dx and dw should be, in the kernels' order of axes."""
        return oracle(self.geometry, *self._canonical(arrays))

    def compare(self, results, expected):
        """AssertionError unless results are close to what is expected."""
        y, dx, dw = (on_host(result) for result in results)
        dx, dw, y = self._canonical((dx, dw, y))
        rounding = self._rounding()
        for name, have, want, terms in zip(
            ("y", "dx", "dw"), (y, dx, dw), expected, sums(self.geometry)
        ):
            try:
                reference.assert_close(have, want, terms, precision=rounding)
            except AssertionError as wrong:
                raise AssertionError(f"{name} of {self}: {wrong}") from None

    def _canonical(self, arrays):
        """Arrays like x, w and y with capsules (G, D1, D2), (G, D2, D3) and (G, D1, D3)."""
        p, g = parse_product(self.product), self.geometry
        orders = p.x_order, p.w_order, p.y_order
        shapes = g.input_shape, g.kernel_shape, g.output_shape
        return [
            array.transpose(0, 1, 2, 3, *(4 + axis for axis in order)).reshape(shape)
            for array, order, shape in zip(arrays, orders, shapes)
        ]

    def _rounding(self):
        if dtype_of(self.dtype).itemsize == 2:
            return self.dtype
        if self.dtype == "float64" or self.algorithm not in ("auto", "fused"):
            return "ieee"
        return "tf32x3" if self.precision == "auto" else self.precision  # which it may stand for


def kinds():
    """(algorithm, dtype, precision) of all that this machine takes."""
    return [
        (algorithm, dtype, precision)
        for algorithm in ("auto", *available_algorithms())
        for dtype in _DTYPES
        for precision in _precisions(algorithm, dtype_of(dtype))
    ]


def _precisions(algorithm, dtype):
    if algorithm == "auto":
        return ("auto",)
    taken = ALGORITHMS[algorithm].precisions_of(dtype, "")
    return ("auto", *taken) if taken else ()


def draw(seed, number):
    """The call of that number."""
    rng, every = np.random.default_rng((seed, number)), kinds()
    algorithm, dtype, precision = every[number % len(every)]
    geometry = _geometry(seed, *divmod(number, len(every)))
    takes_host = algorithm == "numpy"
    way = "call" if takes_host else str(rng.choice(_WAYS))
    on_device = way != "call" or not takes_host and rng.random() < 0.7
    layouts = tuple(map(str, rng.choice(LAYOUTS, 3))) if way == "call" else ("contiguous",) * 3
    product, capsules = _product(geometry, rng, in_order=way != "call")
    return Call(
        geometry=geometry,
        product=product,
        capsules=capsules,
        algorithm=algorithm,
        dtype=dtype,
        precision=precision,
        way=way,
        stream="default" if takes_host else str(rng.choice(_STREAMS)),
        layouts=layouts,
        on_device=on_device,
        has_out=bool(rng.random() < 0.5),
        draws=(seed, number, 1),
    )


def _geometry(seed, turn, kind):
    """A geometry for calls of a kind; some turns share it, because compiling for one takes seconds."""
    rng = np.random.default_rng((seed, turn // _SHARED, kind))
    most, found = _MOST_FLOP[rng.random() < _SELDOM], any_geometry(rng)
    while found.flop > most:
        found = any_geometry(rng)
    return found


def _product(geometry, rng, in_order):
    """(product, capsules' shapes): letters that make up G, D1, D2 and D3, in any order unless ``in_order``."""
    sizes, parts, letters = {}, [], iter("abcdefgh")
    for size in (geometry.G, geometry.D1, geometry.D2, geometry.D3):
        found = {next(letters): factor for factor in _factors(size, rng)}
        sizes |= found
        parts.append("".join(found))
    g, d1, d2, d3 = parts
    axes = [g + d1 + d2, g + d2 + d3, g + d1 + d3]
    if not in_order:
        axes = ["".join(rng.permutation(list(one))) if one else "" for one in axes]
    x, w, y = axes
    return f"{x},{w}->{y}", tuple(tuple(sizes[axis] for axis in one) for one in axes)


def _factors(size, rng):
    """Sizes of axes that make up one of a size: none, one or two of them."""
    if size == 1:
        return (1,) * int(rng.integers(0, 2))
    first = [factor for factor in range(2, isqrt(size) + 1) if size % factor == 0]
    if first and rng.random() < 0.4:
        factor = int(rng.choice(first))
        return factor, size // factor
    return (size,)


def check(seed, number):
    """Compare a call with float64; see :class:`tests.support.campaign.part.Part`."""
    if _is_large(number):
        return large.check(seed, number)
    call = draw(seed, number)
    arrays = call.operands()
    told, stream = call.made_stream()
    results = call.launch(*call.place(arrays), told)
    if stream is not None:
        stream.synchronize()
    call.compare(results, call.expected(arrays))
    return call.kinds


def compile_call(seed, number):
    """Compile what a call takes; its arrays lie on the device, and nothing is fetched.

    The kernels of ``"cublas"`` are those of ``"staged"``.
    """
    call = draw(seed, number)
    if call.algorithm in ("numpy", "cublas") or _is_large(number):
        return
    call = replace(call, on_device=True)
    call.launch(*call.place(call.operands()), None)


def _is_large(number):
    return not SIMULATED and number % _LARGE_EVERY == _LARGE_EVERY // 2


PART = Part(
    summary="drawn convolutions and their gradients against float64",
    unit="call",
    check=check,
    amount=10_000,
    few=20,
    compile=compile_call,
    shared=True,
)
