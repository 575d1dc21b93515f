"""A quick measurement of one pass by ours and by the library, both on tensors of PyTorch; checked on the GPU.

It differs from :mod:`experiments.measuring.measure` in that the oracle is PyTorch's conv2d in float64 through the
fold, on the GPU; ours run by the public functions alone; only the two of one class take turns; and a replay
settles for a shorter time.
"""

from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

import numbacaps
from experiments.measuring import ceilings, device_memory, gpu_time, measure, opponents, sources
from experiments.measuring.contestants import Variant
from experiments.measuring.problem import PASSES, WrongResult, itemsize
from experiments.measuring.ratios import CLASSES, FOLD, OURS
from numbacaps.device.bfloat16 import dtype_of
from numbacaps.device.kernel_cache import launched

AUTO = "auto"
DTYPES = {"default": "float32", "tf32": "float32", "float16": "float16", "bfloat16": "bfloat16"}
_LAYOUTS = ("nchw", "channels_last")
_ONE, _NONE = (1,) * 6, (0, 1, 1, 1, 1, 1)  # shapes of a kernel of one element and of no images
_MOST_SETS, _LONGEST_MS = 32, 30.0  # of a replay
_LARGE = (
    1 << 28
)  # bytes of a geometry, from which on the copies that the classes take fill the memory


def plan_options(variant):
    """What a plan takes for a variant's precision: arrays of 2 bytes have one."""
    same = variant.precision == variant.dtype
    return {"dtype": variant.dtype, "precision": "ieee" if same else variant.precision}


def _takes(variant):
    """Whether the package has a variant's precision on this device."""
    how = plan_options(variant)
    try:
        none = np.zeros(_NONE, dtype_of(how["dtype"]))  # checks everything, compiles nothing
        numbacaps.capsule_conv2d(none, np.zeros(_ONE, none.dtype), precision=how["precision"])
    except (ValueError, ImportError):
        return False
    return True


def explain(geometry, variant):
    """What the package says of a convolution by a variant."""
    return numbacaps.explain(*_arguments(geometry), **_moves(geometry), **plan_options(variant))


def _arguments(geometry):
    return geometry.input_shape, geometry.kernel_shape


def _moves(g):
    moves = {"stride": g.stride, "padding": g.padding, "dilation": g.dilation}
    return moves | {"product": "gab,gbc->gac"}


def choose(names):
    """The variants of some of :data:`experiments.measuring.ratios.CLASSES`, ours first in each.

    Of the default class ours is "auto" where the package has it, otherwise all that it has.

    Raises
    ------
    LookupError
        The package has none of a class's precisions here; the message says which class.
    """
    found = []
    for name in names:
        (ours, theirs), dtype = CLASSES[name], DTYPES[name]
        mine = [Variant(OURS, "capsule", word, dtype, OurRun) for word in ours]
        mine = list(filter(_takes, mine))
        if not mine:
            raise LookupError(name)
        found += [one for one in mine if one.precision == AUTO] or mine
        found += [Variant(FOLD, layout, theirs, dtype, FoldRun) for layout in _LAYOUTS]
    return found


def everyone():
    """The variants of all classes of which the package has a precision here."""
    found = []
    for name in CLASSES:
        with suppress(LookupError):
            found += choose((name,))
    return found


@lru_cache(1)
def operands(geometry, seed=0):
    """(x, w, dy) on the GPU, float32, standard normal."""
    torch = opponents.torch_on_gpu()
    generator = torch.Generator("cuda").manual_seed(seed)
    shapes = geometry.input_shape, geometry.kernel_shape, geometry.output_shape
    made = tuple(torch.randn(shape, generator=generator, device="cuda") for shape in shapes)
    torch.cuda.synchronize()  # others read them on other streams
    return made


def expected(geometry, wanted, tensors):
    """A pass's result in float64, in capsule layout."""
    fold = _fold("nchw")
    arrays = fold.prepare(geometry, *(tensor.double() for tensor in tensors))
    before = opponents.torch().backends.cudnn.benchmark
    opponents.torch().backends.cudnn.benchmark = False
    try:
        result = getattr(fold, wanted)(geometry, *arrays)
    finally:
        opponents.torch().backends.cudnn.benchmark = before
    gpu_time.clock().synchronize()
    return fold.deliver[wanted](geometry, result)


def check(result, right, limit):
    """The result's largest error, relative to the largest right value.

    Raises
    ------
    WrongResult
        It is more than ``limit``, or no number.
    """
    if tuple(result.shape) != tuple(right.shape):
        raise WrongResult(f"wrong result: shape {tuple(result.shape)}, not {tuple(right.shape)}")
    scale = float(right.abs().max())
    error = float((result.double() - right).abs().max()) / (scale or 1.0)
    if not error <= limit:
        raise WrongResult(f"wrong result: relative error {error:.1e}, at most {limit:.1e}")
    return error


def _fold(layout):
    """The opponent with its operands in place."""
    return next(one for one in opponents.OPPONENTS if (one.algorithm, one.layout) == (FOLD, layout))


def _copies(tensors, dtype):
    """The tensors in another dtype, and always in other memory."""
    return [tensor.to(dtype, copy=True) for tensor in tensors]


def _call(plan, wanted, stream, result, x, w, dy):
    """Queue a pass of a plan."""
    if wanted == "forward":
        plan(x, w, result, stream=stream)
    elif wanted == "backward_input":
        plan.backward(x, w, dy, dx=result, stream=stream)
    else:
        plan.backward(x, w, dy, dw=result, stream=stream)


class OurRun:
    """Ours by the public functions, on tensors in capsule layout."""

    def __init__(self, variant, geometry, wanted, tensors, sets, clock):
        g = geometry
        torch = opponents.torch()
        dtype = getattr(torch, variant.dtype)
        shapes = _arguments(g)
        plan = numbacaps.plan(*shapes, **_moves(g), **plan_options(variant))
        self._clock = clock
        result = dict(zip(PASSES, (g.output_shape, *shapes)))[wanted]
        device = tensors[0].device
        self._results = [torch.empty(result, dtype=dtype, device=device) for _ in range(sets)]
        self.calls = [
            partial(_call, plan, wanted, clock.numba, result, *_copies(tensors, dtype))
            for result in self._results
        ]

    def once(self):
        """The first call's result."""
        return self._after(self._results[0], self.calls[0])

    def repeatedly(self, order):
        """(a replay of the calls in that order, a function that runs it and returns the last one's result)."""
        replay = self._clock.capture([self.calls[i] for i in order])
        return replay, lambda: self._after(self._results[order[-1]], replay.run)

    def _after(self, result, work):
        result.fill_(float("nan"))
        self._clock.synchronize()
        work()
        self._clock.synchronize()
        return result


class FoldRun:
    """One conv2d on operands that lie folded."""

    def __init__(self, variant, geometry, wanted, tensors, sets, clock):
        fold = _fold(variant.layout)
        dtype = getattr(opponents.torch(), variant.dtype)
        self._clock = clock
        self._deliver = partial(fold.deliver[wanted], geometry)
        self.calls = [
            partial(
                getattr(fold, wanted),
                geometry,
                *fold.prepare(geometry, *_copies(tensors, dtype)),
            )
            for _ in range(sets)
        ]
        clock.synchronize()

    def once(self):
        result = self.calls[0]()
        self._clock.synchronize()
        return self._deliver(result)

    def repeatedly(self, order):
        replay = self._clock.capture_torch([self.calls[i] for i in order], len(self.calls))

        def once():
            result = replay.needs[-1]
            result.fill_(float("nan"))
            replay.run()
            self._clock.synchronize()
            return self._deliver(result)

        return replay, once


def measure_pass(problem, wanted, variants, tick, effort):
    """Check and time the variants of one pass; those of one class take turns.

    Parameters
    ----------
    problem : experiments.measuring.problem.Problem
        For its geometry and tolerances.
    wanted : str
        The pass.
    variants : list of experiments.measuring.contestants.Variant
    tick : callable
        Called with each variant before it is checked.
    effort : experiments.measuring.gpu_time.Effort

    Returns
    -------
    list of dict
        The cells of a row for each variant.
    """
    tensors = operands(problem.geometry)
    right = expected(problem.geometry, wanted, tensors)
    common, rows = measure.common_cells(problem, wanted), {}
    for name in CLASSES:
        some = [variant for variant in variants if _is_of(variant, name)]
        rows |= _measure_class(problem, wanted, some, tick, effort, tensors, right)
        if problem.geometry.min_bytes(4) > _LARGE:  # collecting garbage takes longer than measuring
            device_memory.release()
    return [
        common
        | variant.cells
        | {"min_bytes": problem.geometry.min_bytes(itemsize(variant.dtype))}
        | rows[variant]
        for variant in variants
    ]


def _is_of(variant, name):
    """Whether a variant is of a class."""
    ours, theirs = CLASSES[name]
    return variant.precision in (ours if variant.algorithm == OURS else (theirs,))


def _measure_class(problem, wanted, variants, tick, effort, tensors, right):
    """What was measured of each variant, or why not; the library first, whose workspace is not known.

    Those for which there is no memory beside the others are measured again, each alone.
    """
    how, ready, rows, alone = (problem, wanted, tensors, right, effort), {}, {}, []
    for variant in sorted(variants, key=lambda variant: variant.algorithm == OURS):
        tick(variant)
        try:
            ready[variant] = _prepare(variant, *how)
        except Exception as failure:  # whatever a library raises is what its row says
            rows[variant] = {"note": measure.note_of(failure)}
            device_memory.release()
            if device_memory.is_out_of_memory(failure):
                alone.append(variant)
    rows |= _timed(problem, ready, effort, "")
    ready.clear()
    for variant in alone:
        device_memory.release()
        try:
            rows |= _timed(problem, {variant: _prepare(variant, *how)}, effort, measure.ALONE)
        except Exception as failure:
            rows[variant] = {"note": measure.note_of(failure)}
    return rows


def _timed(problem, ready, effort, note):
    """Rows of variants that take turns."""
    replays = {variant: found.replay for variant, found in ready.items()}
    times = gpu_time.replay_in_turns(replays, effort) if replays else {}
    rates = ceilings.ceilings()
    return {
        variant: measure.row_of(problem, variant, ready[variant], ms, rates) | {"note": note}
        for variant, ms in times.items()
    }


def _prepare(variant, problem, wanted, tensors, right, effort):
    """Check a variant, and capture it."""
    g, clock = problem.geometry, gpu_time.clock()
    read = problem.bytes_read(wanted, variant.dtype)
    sets = measure.sets_of(read, _MOST_SETS)
    limit = problem.limit(wanted, variant.precision)
    with opponents.precision(variant.precision), opponents.torch().cuda.stream(clock.torch):
        run = variant.run(variant, g, wanted, tensors, sets, clock)
        with launched() as kernels:
            first = run.once()
        error = check(first, right, limit)
        with clock.elapsed() as eager:
            host_us = measure.microseconds(run.calls[0])
        floor_ms = g.min_bytes(itemsize(variant.dtype)) / ceilings.ceilings()["copy_gbs"] / 1e6
        sets = max(
            1, min(sets, int(_LONGEST_MS / eager[0]))
        )  # a slow call gains little from the cache
        calls = gpu_time.calls_of(sets, floor_ms, eager[0], effort)
        replay, once = run.repeatedly([i % sets for i in range(calls)])
        error = max(error, check(once(), right, limit))
    replay = replace(replay, host_us=max(replay.host_us, measure.microseconds(replay.run)))
    clock.synchronize()
    of = sources.name_of(kernels)
    return measure.Ready(error, host_us, None, measure.cache_cell(sets, read), replay, of)
