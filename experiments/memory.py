"""Device memory against batch size: measured on the GPU, and predicted by the geometry.

``python -m experiments.memory`` writes ``experiments/results/<gpu>/memory.csv``. ``peak_bytes`` is what
a pass holds: operands, result and intermediates; what ours allocate is read off the driver's free
memory, in steps of 2 MiB. ``predicted_bytes`` adds up the shapes. ``staged`` and ``cublas`` get
all the workspace that the whole batch takes, so that their curves show what laying out costs (in use
they are cut to any ``workspace_limit``). Results are checked; nothing is timed.
"""

import sys
from dataclasses import replace
from functools import partial

from experiments.measuring import command, contestants, device_memory, gpu_time, measure, sources
from experiments.measuring.contestants import LAID_OUT
from experiments.measuring.workloads import EM_ROUTING
from numbacaps import ALGORITHMS
from numbacaps.algorithms import staged
from numbacaps.device.kernel_cache import launched
from numbacaps.device.target import cuda
from numbacaps.stages import whole

BATCHES = (1, 4, 16, 64, 128, 256, 512)
WORKLOAD = "em"
_NO_LIMIT = 1 << 62


def predicted_bytes(geometry, algorithm, wanted, itemsize=4):
    """Bytes of operands, result and intermediates; None for an opponent, whose workspace is its own."""
    if algorithm not in ALGORITHMS:
        return None
    held = geometry.min_bytes(itemsize)
    if algorithm not in LAID_OUT:
        return held
    shapes = (
        staged.forward_workspace(whole(geometry))
        if wanted == "forward"
        else staged.backward_workspace(whole(geometry), [wanted.removeprefix("backward_")])
    )
    return held + itemsize * staged.elements(shapes)


def _variants(names):
    """What is compared: float32 throughout, as much workspace as it takes."""
    return [
        replace(variant, run=partial(variant.run, workspace_limit=_NO_LIMIT))
        if variant.algorithm in LAID_OUT
        else variant
        for variant in contestants.choose(names, ["ieee"])
    ]


def _free_bytes():
    return cuda.current_context().get_memory_info().free


def _held_bytes(variant, problem, wanted):
    """(bytes that a pass holds, its result's error, its kernels' sources).

    PyTorch's allocator counts for itself. Of ours, operands and result are counted by their sizes, and
    what a call allocates by how much the driver's free memory falls; its first call loads code, so the
    second counts.
    """
    clock = gpu_time.clock()
    needed = problem.geometry.min_bytes(4)
    with launched() as kernels:
        run = variant.run(variant, problem, wanted, 1, clock)
        with run.environment():
            result = run.once()
    of = sources.name_of(kernels)
    with run.environment():
        error = problem.check(wanted, result, variant.precision)
        if variant.algorithm not in ALGORITHMS:
            return run.peak_bytes(needed), error, of
    del run
    problem.leave_device()
    run = variant.run(variant, problem, wanted, 1, clock)
    device_memory.release()
    before = _free_bytes()
    run.calls[0]()
    clock.synchronize()
    return needed + before - _free_bytes(), error, of


def _measure(problem, wanted, variants, tick):
    """The rows of one pass."""
    rows = []
    for variant in variants:
        tick(variant)
        predicted = predicted_bytes(problem.geometry, variant.algorithm, wanted)
        row = {"predicted_bytes": predicted, "min_bytes": problem.geometry.min_bytes(4)}
        try:
            found = _held_bytes(variant, problem, wanted)
            row["peak_bytes"], row["rel_error"], row["kernel_sources"] = found
        except Exception as failure:  # whatever a library raises is what its row says
            row["note"] = measure.note_of(failure)
        problem.leave_device()
        device_memory.release()
        rows.append(measure.common_cells(problem, wanted) | variant.cells | row)
    return rows


def make_parser():
    """The command line's parser."""
    return command.parser("memory", __doc__)


def groups(parser, options):
    """The groups of rows that the options ask for."""
    variants = _variants(options.algorithms)
    return [
        command.Group(
            *("memory", WORKLOAD, replace(EM_ROUTING[WORKLOAD], N=batch), wanted),
            variants,
            _measure,
            _variants(contestants.NAMES),
        )
        for batch in BATCHES
        for wanted in options.passes
    ]


def main(arguments=None):
    return command.main("memory", make_parser(), groups, arguments)


if __name__ == "__main__":
    sys.exit(main())
