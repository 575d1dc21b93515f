"""Run one capsule convolution stage by stage, check every stage, and keep all of it as records.

Each stage's kernel is fed what the kernel before it wrote. Beside it the stage of ``reference`` is
fed what the reference before it returned, in float64, and the two results are compared. Every
output is filled with NaN before its kernel runs, so an element that is left out cannot pass.

The gradient that comes in is that of half the squared length of O - T, for a seeded target T:
dO = O - T. It is taken from the reference's O, so a wrong forward stage leaves the backward ones
to be judged by themselves.
"""

import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np

import reference
from experiments.measuring.refusal import Refusal
from experiments.walk.image import crop_centre, cut_patches, read_image
from experiments.walk.records import (
    AlgorithmRecord,
    Check,
    Operand,
    Plan,
    StageRecord,
    Trace,
)
from numbacaps import ALGORITHMS, SIMULATED, Geometry, parse_product, stages
from numbacaps.device.target import cuda
from numbacaps.plan import Plan as ConvolutionPlan

# Steps (see `steps`) that take about a minute: on the simulator for the kernels, on a GPU for the
# loop reference that checks them.
MOST_STEPS = 1_500_000 if SIMULATED else 200_000_000
_BARRIER_STEPS = 30  # what the simulator spends on a thread that waits at barriers, in steps

TARGET_SIZE = 0.1  # standard deviation of the target T, somewhat below the output's own

_LAUNCHES, _ROUNDS = 20, 7  # launches between two events, and how often that is timed
_NO_LIMIT = 1 << 62  # bytes: all of a walk's arrays are on the device anyway


@dataclass(frozen=True)
class _Step:
    """How a stage is run here: names of its arrays, its launcher, its reference.

    ``launch(slab, arrays)`` and ``reference(geometry, arrays)`` find arrays by name;
    ``terms(geometry)`` is the number of products in the longest sum behind an output element.
    """

    inputs: tuple
    output: str
    launch: Callable
    reference: Callable
    terms: Callable


def _window(g):
    """The window and how it moves, as the reference takes them."""
    return (g.KH, g.KW), g.stride, g.padding, g.dilation


def _kernel_reduce(slab, a):
    """Both halves of the stage: into the lanes, then the lanes into dK."""
    stages.kernel_reduce(slab, a["dK'"], a["lanes"])
    stages.kernel_reduce_lanes(slab.geometry, a["lanes"], a["dK"])


_multiply = reference.strided_batched_matrix_multiply

_STEPS = {
    "capsule_im2col": _Step(
        ("I",),
        "I_flat",
        lambda s, a: stages.capsule_im2col(s, a["I"], a["I_flat"]),
        lambda g, a: reference.capsule_im2col(a["I"], *_window(g)),
        lambda g: 0,
    ),
    "input_extend": _Step(
        ("I_flat",),
        "I'",
        lambda s, a: stages.input_extend(s, a["I_flat"], a["I'"]),
        lambda g, a: reference.input_extend(a["I_flat"], g.P),
        lambda g: 0,
    ),
    "kernel_extend": _Step(
        ("K",),
        "K'",
        lambda s, a: stages.kernel_extend(s, a["K"], a["K'"]),
        lambda g, a: reference.kernel_extend(a["K"], g.L),
        lambda g: 0,
    ),
    "strided_batched_matmul": _Step(
        ("I'", "K'"),
        "O'",
        lambda s, a: stages.multiply(s, a["I'"], a["K'"], a["O'"]),
        lambda g, a: _multiply(a["I'"], a["K'"]),
        lambda g: g.D2,
    ),
    "output_reduce": _Step(
        ("O'",),
        "O",
        lambda s, a: stages.output_reduce(s, a["O'"], a["O"]),
        lambda g, a: reference.output_reduce(a["O'"], g.OH, g.OW),
        lambda g: g.Q * g.D2,
    ),
    "output_extend": _Step(
        ("dO",),
        "dO'",
        lambda s, a: stages.output_extend(s, a["dO"], a["dO'"]),
        lambda g, a: reference.output_extend(a["dO"], g.Q),
        lambda g: 0,
    ),
    "kernel_gradient_matmul": _Step(
        ("I'", "dO'"),
        "dK'",
        lambda s, a: stages.multiply_for_kernel_gradient(s, a["I'"], a["dO'"], a["dK'"]),
        lambda g, a: _multiply(a["I'"], a["dO'"], transpose_a=True),
        lambda g: g.D1,
    ),
    "kernel_reduce": _Step(
        ("dK'",),
        "dK",
        _kernel_reduce,
        lambda g, a: reference.kernel_reduce(a["dK'"], g.C, g.KH, g.KW),
        lambda g: g.N * g.L * g.D1,
    ),
    "input_gradient_matmul": _Step(
        ("dO'", "K'"),
        "dI'",
        lambda s, a: stages.multiply_for_input_gradient(s, a["dO'"], a["K'"], a["dI'"]),
        lambda g, a: _multiply(a["dO'"], a["K'"], transpose_b=True),
        lambda g: g.D3,
    ),
    "input_reduce": _Step(
        ("dI'",),
        "dI_flat",
        lambda s, a: stages.input_reduce(s, a["dI'"], a["dI_flat"]),
        lambda g, a: reference.input_reduce(a["dI'"]),
        lambda g: g.P * g.D3,
    ),
    "capsule_col2im": _Step(
        ("dI_flat",),
        "dI",
        lambda s, a: stages.capsule_col2im(s, a["dI_flat"], a["dI"]),
        lambda g, a: reference.capsule_col2im(a["dI_flat"], g.input_shape, *_window(g)),
        lambda g: g.P * g.KH * g.KW * g.D3,
    ),
}


def shapes(geometry):
    """Axes in symbols, and shape, of every array by its name."""
    g, slab = geometry, stages.whole(geometry)
    whole_input = ("N, C, H, W, G, D1, D2", g.input_shape)
    whole_kernel = ("P, C, KH, KW, G, D2, D3", g.kernel_shape)
    whole_output = ("N, P, OH, OW, G, D1, D3", g.output_shape)
    columns = ("N, L, Q, G, D1, D2", slab.columns_shape)
    extended_input = ("N, P, L, Q, G, D1, D2", slab.extended_input_shape)
    products = ("N, P, L, Q, G, D1, D3", slab.products_shape)
    return {
        "I": whole_input,
        "K": whole_kernel,
        "I_flat": columns,
        "I'": extended_input,
        "K'": ("P, L, Q, G, D2, D3", slab.extended_kernel_shape),
        "O'": products,
        "O": whole_output,
        "T": whole_output,
        "dO": whole_output,
        "dO'": products,
        "dK'": ("N, P, L, Q, G, D2, D3", slab.kernel_products_shape),
        "dK": whole_kernel,
        "dI'": extended_input,
        "dI_flat": columns,
        "dI": whole_input,
    }


def steps(geometry):
    """A measure of a walk's work: elements moved and operations done, over all stages.

    The small products count for more, since their threads meet at barriers. The whole convolutions
    do about as much again for each algorithm; the limit allows for that.
    """
    products = geometry.N * geometry.L * geometry.Q * geometry.G
    moved = sum(sum(stages.whole(geometry).traffic(stage, 1)) for stage in stages.STAGES)
    return moved + _BARRIER_STEPS * products


def default_sizes(product):
    """Size of each axis letter: 4, or 2 where a capsule has three axes or more."""
    size = 4 if max(map(len, (product.x, product.w, product.y))) <= 2 else 2
    return {axis: size for axis in sorted(set(product.x + product.w))}


def plan(options):
    """Accept or refuse the options; nothing is launched or written.

    Parameters
    ----------
    options : Options

    Returns
    -------
    Plan

    Raises
    ------
    Refusal
        An option cannot be used.
    """
    try:
        product = parse_product(options.product)
    except ValueError as error:
        reason = str(error).partition("; ")[2]
        got = repr(options.product) + ("" if "such as" in reason else f" ({reason})")
        raise Refusal("--product", got, "a spec such as 'ab,bc->ac'") from None
    sizes = default_sizes(product)
    if stray := sorted(set(options.sizes) - set(sizes)):
        letters = ", ".join(sizes) or "none"
        raise Refusal("--sizes", f"an axis {stray[0]!r}", f"axes of {product.spec!r}: {letters}")
    sizes |= options.sizes
    image = read_image(options.image)
    if options.crop is not None:
        image = crop_centre(image, options.crop)
    x_capsule, w_capsule = (tuple(sizes[axis] for axis in axes) for axes in (product.x, product.w))
    grid = cut_patches(image, x_capsule, 1, options.dtype).grid
    geometry = _geometry(options, grid, product.dimensions(x_capsule, w_capsule))
    if (work := steps(geometry)) > MOST_STEPS:
        size = "{},{}".format(*image.shape) + ("" if options.crop else " (the whole image)")
        where = "the simulator" if SIMULATED else "the loop reference"
        raise Refusal(
            "--crop",
            f"{size}, {work:,} steps of work for {where} with the other options",
            f"at most {MOST_STEPS:,} steps: try a smaller --crop (half the height and width is a "
            "quarter of the work), a larger --stride, less --padding or fewer --channels",
        )
    return Plan(
        options, product, cut_patches(image, x_capsule, geometry.C, options.dtype), geometry
    )


def _geometry(options, grid, dimensions):
    """The convolution's Geometry over a grid of capsules, or a Refusal of the window."""
    (C, P), (KH, KW) = options.channels, options.kernel
    moves = options.stride, options.padding, options.dilation
    try:
        return Geometry(1, C, P, *grid, KH, KW, *dimensions, *moves)
    except ValueError:
        spans = [d * (size - 1) + 1 for d, size in zip(options.dilation, options.kernel)]
        room = [size + 2 * p for size, p in zip(grid, options.padding)]
        raise Refusal(
            "--kernel",
            "{},{}, which spans {} x {} capsules with this --dilation".format(KH, KW, *spans),
            "a window within {} x {} capsules, padding included".format(*room),
        ) from None


def walk(accepted, progress=lambda doing: None, watch=lambda arrays: nullcontext([])):
    """Run and check everything.

    Parameters
    ----------
    accepted : Plan
    progress : callable
        ``progress(text)`` is told what is being done.
    watch : callable
        ``watch(arrays)`` makes the context in which a record's kernels run for the first time, and
        gives what it keeps of their launches; ``arrays`` are the device arrays by name.

    Returns
    -------
    Trace
    """
    options = accepted.options
    run = _Run(accepted.geometry, np.dtype(options.dtype), progress, watch)
    run.start(accepted.patches, accepted.product, options.seed)
    stage_records = tuple(run.stage(name) for name in stages.STAGES)
    algorithm_records = tuple(run.algorithms(options.algorithms))
    return Trace(
        accepted, _device_name(), SIMULATED, run.operands, stage_records, algorithm_records
    )


class _Run:
    """The arrays of a walk as they come to be: on the device, and the reference's in float64."""

    def __init__(self, geometry, dtype, progress, watch):
        self.geometry = geometry
        self.dtype = dtype
        self.progress = progress
        self.watch = watch
        self.shapes = shapes(geometry)
        self.device = {}
        self.expected = {}
        self.operands = {}

    def start(self, patches, product, seed):
        """Make I, K and T."""
        g, draw = self.geometry, np.random.default_rng(seed)
        axes = (0, 1, 2, 3, *(4 + axis for axis in product.x_order))
        self._give("I", patches.capsules.transpose(axes).reshape(g.input_shape))
        self._give("K", draw.standard_normal(g.kernel_shape) / np.sqrt(g.Q * g.D2))
        self._give("T", TARGET_SIZE * draw.standard_normal(g.output_shape))
        self.device["lanes"] = self._unwritten(stages.whole(g).lanes_shape)

    def _give(self, name, values):
        """Take an array that no kernel makes."""
        array = np.ascontiguousarray(values, self.dtype)
        self._keep(name, array)
        self.expected[name] = array.astype(np.float64)
        self.device[name] = cuda.to_device(array)

    def _keep(self, name, array):
        self.operands[name] = Operand(name, self.shapes[name][0], array)
        return self.operands[name]

    def _unwritten(self, shape):
        """A device array of NaN."""
        return cuda.to_device(np.full(shape, np.nan, self.dtype))

    def stage(self, name):
        """Run, check and time one stage.

        Returns
        -------
        StageRecord
        """
        told, step, g = stages.STAGES[name], _STEPS[name], self.geometry
        direction = "forward" if name in stages.FORWARD else "backward"
        self.progress(f"{direction}: {told.paper}")
        if "dO" in step.inputs:
            self._give("dO", self.expected["O"] - self.expected["T"])
        self.device[step.output] = self._unwritten(self.shapes[step.output][1])

        def launch():
            step.launch(stages.whole(g), self.device)

        with self.watch(self.device) as launches:
            seconds = _run_once(launch)
        output = self._keep(step.output, self.device[step.output].copy_to_host())
        self.expected[step.output] = step.reference(g, self.expected)
        check = self._check(output, self.expected[step.output], step.terms(g))
        return StageRecord(
            name,
            direction,
            told.paper,
            told.where,
            told.formula,
            tuple(self.operands[key] for key in step.inputs),
            check,
            *stages.whole(g).traffic(name, self.dtype.itemsize),
            _time(launch, seconds) if check.passed else None,
            launches,
        )

    def _check(self, operand, expected, terms):
        error = reference.relative_error(operand.array, expected)
        return Check(operand, error, reference.tolerance(self.dtype, terms))

    def algorithms(self, names):
        """Records of the named algorithms, forward and backward, against the loop reference."""
        g, e = self.geometry, self.expected
        self.progress("the loop reference of Algorithm 2")
        moves = g.stride, g.padding, g.dilation
        expected = {"O": reference.capsule_convolution(e["I"], e["K"], *moves)}
        expected["dI"], expected["dK"] = reference.capsule_convolution_backward(
            e["I"], e["K"], e["dO"], *moves
        )
        for name in names:
            yield self._algorithm(name, "forward", ("I", "K"), ("O",), expected)
            yield self._algorithm(name, "backward", ("I", "K", "dO"), ("dI", "dK"), expected)

    def _algorithm(self, name, direction, inputs, outputs, expected):
        """Run, check and time one direction of one algorithm of the registry."""
        g, algorithm = self.geometry, ALGORITHMS[name]
        self.progress(f"algorithm {name}, {direction}")
        made = {key: self._unwritten(self.shapes[key][1]) for key in outputs}
        arguments = [self.device[key] for key in inputs] + list(made.values())

        def launch():
            plan = ConvolutionPlan(g, self.dtype, name, "ieee", _NO_LIMIT)
            run = plan.launch_forward if direction == "forward" else plan.launch_backward
            run(*arguments, 0)

        with self.watch({key: self.device[key] for key in inputs} | made) as launches:
            seconds = _run_once(launch)
        checks = tuple(
            self._check(
                Operand(key, self.shapes[key][0], made[key].copy_to_host()),
                expected[key],
                _TERMS[key](g),
            )
            for key in outputs
        )
        passes = len(outputs)
        return AlgorithmRecord(
            name,
            algorithm.summary,
            direction,
            tuple(self.operands[key] for key in inputs),
            checks,
            passes * g.min_bytes(self.dtype.itemsize),
            passes * g.flop,
            _time(launch, seconds) if all(check.passed for check in checks) else None,
            launches,
        )


_TERMS = {step.output: step.terms for step in _STEPS.values()}


def _run_once(launch):
    """Wall seconds of the first launch; on a GPU they hold the compilation."""
    begin = time.perf_counter()
    launch()
    cuda.synchronize()
    return time.perf_counter() - begin


def _time(launch, first):
    """Seconds of a launch: on a GPU the median of several timings, else the first one's."""
    if SIMULATED:
        return first
    begin, end = cuda.event(), cuda.event()
    timings = []
    for _ in range(_ROUNDS):
        begin.record()
        for _ in range(_LAUNCHES):
            launch()
        end.record()
        end.synchronize()
        timings.append(cuda.event_elapsed_time(begin, end) * 1e-3 / _LAUNCHES)  # given in ms
    return statistics.median(timings)


def _device_name():
    """What the kernels run on, in words."""
    if SIMULATED:
        return "Numba's simulator"
    name = cuda.get_current_device().name
    return name.decode() if isinstance(name, bytes) else name
