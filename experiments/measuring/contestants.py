"""Who computes a pass: the registry's algorithms and PyTorch's ways, made ready to be timed.

A run is an algorithm at work on one pass of a problem. It has

- ``calls``: one function a set of operands, which queues the work on the clock's stream;
- ``environment()``: what the calls want around them;
- ``once()``: the first call's result, in capsule layout on the host;
- ``repeatedly(order, host_us)``: (a :class:`experiments.measuring.gpu_time.Replay` of the calls in that order, a
  function that runs it once and returns the last call's result);
- ``peak_bytes(needed)``: most device memory that one call holds, of which operands and result are
  ``needed``.
"""

import math
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np

from experiments.measuring import opponents, records
from numbacaps import ALGORITHMS
from numbacaps.algorithms import registry
from numbacaps.device.target import cuda
from numbacaps.plan import Plan

PRECISIONS = (*registry.PRECISIONS, "float16")
OURS = tuple(name for name, algorithm in ALGORITHMS.items() if not algorithm.on_host)
LAID_OUT = ("staged", "cublas")  # algorithms that hold the paper's intermediates
WORKSPACE = 12 << 30  # bytes for them


@dataclass(frozen=True)
class Variant:
    """One algorithm in one layout and precision; ``run`` is the class that puts it to work."""

    algorithm: str
    layout: str
    precision: str
    dtype: str
    run: Callable

    @property
    def cells(self):
        """The cells of :data:`experiments.measuring.records.VARIANT`."""
        return {name: getattr(self, name, "") for name in records.VARIANT}

    def __str__(self):
        return f"{self.algorithm} {self.layout} {self.precision}"


def choose(names, precisions=PRECISIONS, packed=False):
    """The variants of those algorithms at those precisions, ours and opponents, ours first.

    ``packed`` asks for those of ours, too, whose kernel was packed before the clock starts.
    """
    ours = [
        Variant(name, layout, precision, dtype, run)
        for name, algorithm in ALGORITHMS.items()
        if name in names and not algorithm.on_host
        for precision, dtype in _takes(algorithm)
        if precision in precisions
        for layout, run in (("capsule", OurRun), ("packed", PackedRun))
        if run is OurRun or (packed and name == "fused" and precision != "ieee")
    ]
    return ours + [
        Variant(
            opponent.algorithm,
            opponent.layout,
            precision,
            "float16" if precision == "float16" else "float32",
            TorchRun,
        )
        for opponent in opponents.OPPONENTS
        if opponent.algorithm in names
        for precision in opponents.PRECISIONS
        if precision in precisions
    ]


def _takes(algorithm):
    """(precision, dtype) of each way in which an algorithm is measured; float16 arrays have one."""
    full = [(word, "float32") for word in algorithm.precisions(np.dtype(np.float32))]
    return full + [("float16", "float16")] * bool(algorithm.precisions(np.dtype(np.float16)))


NAMES = (*OURS, *opponents.NAMES)


def absent():
    """Algorithms that cannot run here for want of a package."""
    found = [name for name in OURS if ALGORITHMS[name].unavailable()]
    try:
        has_torch = opponents.torch().cuda.is_available()
    except ImportError:
        has_torch = False
    return found if has_torch else [*found, *opponents.NAMES, *opponents.NETWORKS]


class OurRun:
    """An algorithm of the registry, through a plan."""

    def __init__(self, variant, problem, wanted, sets, clock, workspace_limit=WORKSPACE):
        self._clock, dtype = clock, np.dtype(variant.dtype)

        def to_device(arrays):
            return [cuda.to_device(array.astype(dtype, copy=False)) for array in arrays]

        def unwritten(arrays):
            return cuda.device_array(problem.shape(wanted), dtype)

        operands = problem.on_device(("ours", dtype), sets, to_device)
        self._results = problem.on_device(("ours", dtype, wanted), sets, unwritten)
        self._plans = self._made(variant, problem.geometry, wanted, operands, workspace_limit)
        self._capturable = self._plans[0].capturable
        self.calls = [
            partial(self._launch, plan, wanted, *arrays, result)
            for plan, arrays, result in zip(self._plans, operands, self._results)
        ]

    def _made(self, variant, geometry, wanted, operands, workspace_limit):
        """A plan for each set: one, as calls in turn share it."""
        return [self.plan_of(variant, geometry, workspace_limit)] * len(operands)

    def plan_of(self, variant, geometry, workspace_limit=WORKSPACE):
        precision = "ieee" if variant.precision == "float16" else variant.precision
        dtype = np.dtype(variant.dtype)
        return Plan(geometry, dtype, variant.algorithm, precision, workspace_limit)

    def _launch(self, plan, wanted, x, w, dy, result, packed=False):
        stream = self._clock.numba
        how = {"packed": True} if packed else {}
        if wanted == "forward":
            plan.launch_forward(x, w, result, stream, **how)
        elif wanted == "backward_input":
            plan.launch_backward(None, w, dy, result, None, stream, **how)
        else:
            plan.launch_backward(x, None, dy, None, result, stream)

    def environment(self):
        return nullcontext()

    def once(self):
        return self._read(0, self.calls[0])

    def repeatedly(self, order, host_us):
        calls = [self.calls[i] for i in order]
        if not self._capturable:
            replay = self._clock.queue(calls, host_us)
            return replay, lambda: self._read(order[-1], calls[-1])
        replay = self._clock.capture(calls)
        return replay, lambda: self._read(order[-1], replay.run)

    def _read(self, i, work):
        fill_with_nan(self._results[i], self._clock.numba)
        work()
        self._clock.synchronize()
        return self._results[i].copy_to_host().astype(np.float32, copy=False)

    def peak_bytes(self, needed):
        return needed + self._plans[0].nbytes


class PackedRun(OurRun):
    """The same with kernels that are packed before the clock starts, as the opponents' are folded."""

    PASSES = ("forward", "backward_input")  # which read the kernel

    def _made(self, variant, geometry, wanted, operands, workspace_limit):
        """A plan for each set, which has its packed kernel."""
        plans = [self.plan_of(variant, geometry) for _ in operands]
        reads = "forward" if wanted == "forward" else "input"
        for plan, (_, w, _) in zip(plans, operands):
            if plan.packs(reads):
                plan.launch_pack(reads, w, self._clock.numba)
        return plans

    def _launch(self, plan, wanted, x, w, dy, result):
        super()._launch(plan, wanted, x, w, dy, result, packed=True)


class TorchRun:
    """An opponent through PyTorch."""

    def __init__(self, variant, problem, wanted, sets, clock):
        torch = opponents.torch_on_gpu()
        g = problem.geometry
        opponent = next(
            opponent
            for opponent in opponents.OPPONENTS
            if (opponent.algorithm, opponent.layout) == (variant.algorithm, variant.layout)
        )
        dtype = getattr(torch, variant.dtype)
        self._precision, self._clock = variant.precision, clock
        self._deliver = partial(opponent.deliver[wanted], g)

        def prepare(arrays):
            return opponent.prepare(
                g, *(torch.from_numpy(array).cuda().to(dtype) for array in arrays)
            )

        operands = problem.on_device((variant.layout, variant.dtype), sets, prepare)
        self.calls = [partial(getattr(opponent, wanted), g, *arrays) for arrays in operands]
        clock.synchronize()

    @contextmanager
    def environment(self):
        with (
            opponents.precision(self._precision),
            opponents.torch().cuda.stream(self._clock.torch),
        ):
            yield

    def once(self):
        return self._read(self.calls[0]())

    def repeatedly(self, order, host_us):
        replay = self._clock.capture_torch([self.calls[i] for i in order], len(self.calls))

        def once():
            result = replay.needs[-1]
            result.fill_(math.nan)
            replay.run()
            return self._read(result)

        return replay, once

    def _read(self, result):
        self._clock.synchronize()
        return self._deliver(result).float().cpu().numpy()

    def peak_bytes(self, needed):
        """By PyTorch's allocator; the result is its own, so it is not counted twice."""
        memory = opponents.torch().cuda
        memory.empty_cache()
        memory.reset_peak_memory_stats()
        before = memory.memory_allocated()
        result = self.calls[0]()
        return needed - result.nbytes + memory.max_memory_allocated() - before


def fill_with_nan(array, stream):
    """Fill a device array with bytes of ones, which are NaN in every floating-point format."""
    from cuda.bindings import driver

    address = array.__cuda_array_interface__["data"][0]
    (status,) = driver.cuMemsetD8Async(address, 0xFF, array.nbytes, driver.CUstream(int(stream)))
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"cuMemsetD8Async: {status}")
