"""Each stage of the paper's pipeline by itself: its time, and its fraction of the copy bandwidth.

``python -m experiments.stages`` writes ``experiments/results/<gpu>/stages.csv``: for every workload
and pass one row a stage of Algorithms 3 and 4 (``min_bytes`` is what the stage must read and write,
``byte_fraction`` how close its time comes to a copy of as much), and the whole pass by ``staged`` and
by PyTorch's way of doing the same, ``torch_extend_bmm``.

The stages run in their order, from NaN, and are timed only if what comes out at the end is right: every
intermediate is read by the stage behind it.
"""

import math
import sys
from dataclasses import replace
from functools import partial

import numpy as np

from experiments import command, contestants, measure
from experiments.contestants import fill_with_nan
from experiments.workloads import EM_ROUTING, PUBLISHED
from numbacaps import stages
from numbacaps.pipelines import staged
from numbacaps.target import cuda

# Batch 128 is the published one, where launches weigh; at 1024 no intermediate fits the L2 cache.
WORKLOADS = {"em": EM_ROUTING["em"]} | {
    f"{name}{of}": replace(PUBLISHED[name], N=batch)
    for batch, of in ((1024, ", batch 1024"), (128, ""))
    for name in ("layer 2", "layer 3", "layer 4")
}
_WHOLE = ("staged", "torch_extend_bmm")
_MOST_SETS = 8


class Chain:
    """A pass of the pipeline on arrays of its own, stage by stage.

    Attributes
    ----------
    calls : dict of str to callable
        The stages in their order.
    result : device array
        What the last of them leaves.
    """

    def __init__(self, problem, wanted, stream):
        g, slab, self._stream = problem.geometry, problem.geometry.whole, stream
        x, w, dy = (cuda.to_device(array) for array in problem.operands)
        self.result = cuda.device_array(problem.shape(wanted), np.float32)
        shapes = (
            staged.forward_workspace(slab)
            if wanted == "forward"
            else staged.backward_workspace(slab, [wanted.removeprefix("backward_")])
        )
        work = {name: cuda.device_array(shape, np.float32) for name, shape in shapes.items()}
        self._arrays = [self.result, *work.values()]

        def on(stage, *operands):
            names = [work[name] if isinstance(name, str) else name for name in operands]
            return partial(stage, slab, *names, stream=stream)

        def reduce_kernel():
            stages.kernel_reduce(slab, work["kernel_products"], work["lanes"], stream=stream)
            stages.kernel_reduce_lanes(g, work["lanes"], self.result, stream=stream)

        known = {
            "capsule_im2col": lambda: on(stages.capsule_im2col, x, "columns"),
            "input_extend": lambda: on(stages.input_extend, "columns", "extended_input"),
            "kernel_extend": lambda: on(stages.kernel_extend, w, "extended_kernel"),
            "strided_batched_matmul": lambda: on(
                stages.multiply, "extended_input", "extended_kernel", "products"
            ),
            "output_reduce": lambda: on(stages.output_reduce, "products", self.result),
            "output_extend": lambda: on(stages.output_extend, dy, "extended_dy"),
            "kernel_gradient_matmul": lambda: on(
                stages.multiply_for_kernel_gradient,
                *("extended_input", "extended_dy", "kernel_products"),
            ),
            "kernel_reduce": lambda: reduce_kernel,
            "input_gradient_matmul": lambda: on(
                stages.multiply_for_input_gradient,
                *("extended_dy", "extended_kernel", "extended_input"),
            ),
            "input_reduce": lambda: on(stages.input_reduce, "extended_input", "columns"),
            "capsule_col2im": lambda: on(stages.capsule_col2im, "columns", self.result),
        }
        self.calls = {name: known[name]() for name in stages.PASSES[wanted]}

    def run(self):
        """The result of all stages, one after the other, from NaN; and the arrays are filled."""
        for array in self._arrays:
            fill_with_nan(array, self._stream)
        for call in self.calls.values():
            call()
        cuda.synchronize()
        return self.result.copy_to_host()


def cells_of(stage):
    """The variant cells of a stage's row."""
    return {
        "algorithm": "staged",
        "stage": stage,
        "layout": "capsule",
        "precision": "ieee",
        "dtype": "float32",
    }


def measure_stages(problem, wanted, tick):
    """The rows of a pass's stages."""
    clock, rates, g = measure.clock(), measure.ceilings(), problem.geometry
    smallest = math.prod(g.whole.columns_shape) * g.P * 4
    sets = min(_MOST_SETS, math.ceil(2 * clock.l2_bytes / smallest))
    chains = [Chain(problem, wanted, clock.numba) for _ in range(sets)]
    error = max(problem.check(wanted, chain.run(), "ieee") for chain in chains)
    replays = {}
    for stage in stages.PASSES[wanted]:
        tick(stage)
        calls = [chain.calls[stage] for chain in chains]
        with clock.elapsed() as eager:
            calls[0]()
        floor_ms = g.whole.traffic(stage, 4)[0] / rates["copy_gbs"] / 1e6
        count = measure.calls_of(sets, floor_ms, eager[0])
        replays[stage] = clock.capture([calls[i % sets] for i in range(count)])
    times = measure.replay_in_turns(replays)
    rows = []
    for stage, ms in times.items():
        p20, p50, p80 = map(float, np.percentile(ms, (20, 50, 80)))
        least, flop = g.whole.traffic(stage, 4)
        rows.append(
            measure.common_cells(problem, wanted, sets)
            | cells_of(stage)
            | {"ms_p20": p20, "ms_p50": p50, "ms_p80": p80, "rel_error": error}
            | {"gflop": flop / 1e9, "min_bytes": least}
            | measure.fractions(least, flop, p50, rates)
        )
    return rows


def groups_of(workload, geometry, options):
    """A group for each pass: its stages, and the whole of it."""
    whole = contestants.choose([name for name in _WHOLE if name in options.algorithms], ["ieee"])

    def measure_all(problem, tick, wanted):
        rows = measure_stages(problem, wanted, tick)
        measure.release()
        return rows + measure.measure(problem, wanted, whole, tick)

    return [
        command.Group(
            "stages",
            workload,
            geometry,
            wanted,
            [cells_of(stage) for stage in stages.PASSES[wanted]] + [own.cells for own in whole],
            partial(measure_all, wanted=wanted),
        )
        for wanted in options.passes
    ]


def main(arguments=None):
    parser = command.parser("stages", __doc__, _WHOLE)
    options = parser.parse_args(arguments)
    command.refuse_without_gpu("stages")
    table = command.open_table("stages", options)
    command.run(
        table,
        [
            group
            for workload, geometry in WORKLOADS.items()
            for group in groups_of(workload, geometry, options)
        ],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
