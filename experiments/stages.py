"""Each stage of the paper's pipeline by itself: its time, and its fraction of the copy bandwidth.

``python -m experiments.stages`` writes ``experiments/results/<gpu>/stages.csv``: for every workload
and pass one row a stage of Algorithms 3 and 4 (``min_bytes`` is what the stage must read and write,
``byte_fraction`` how close its time comes to a copy of as much), and the whole pass by ``staged`` and
by PyTorch's way of doing the same, ``torch_extend_bmm``.

The stages run in their order, from NaN, and are timed only if what comes out at the end is right: every
intermediate is read by the stage behind it.
"""

import sys
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from experiments.measuring import (
    ceilings,
    command,
    contestants,
    device_memory,
    gpu_time,
    measure,
    sources,
)
from experiments.measuring.contestants import fill_with_nan
from experiments.measuring.workloads import EM_ROUTING, PUBLISHED
from numbacaps import stages
from numbacaps.algorithms import staged
from numbacaps.device.kernel_cache import launched
from numbacaps.device.target import cuda

# Batch 128 is the published one, where launches weigh; at 1024 they weigh less.
WORKLOADS = {"em": EM_ROUTING["em"]} | {
    f"{name}{of}": replace(PUBLISHED[name], N=batch)
    for batch, of in ((1024, ", batch 1024"), (128, ""))
    for name in ("layer 2", "layer 3", "layer 4")
}
_WHOLE = ("staged", "torch_extend_bmm")
_MOST_SETS = 8
_ROOM = 20 << 30  # bytes for all chains


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
        g, slab, self._stream = problem.geometry, stages.whole(problem.geometry), stream
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
        self.forget()
        for call in self.calls.values():
            call()
        cuda.synchronize()
        return self.result.copy_to_host()

    def forget(self):
        """Fill every array that a stage writes with NaN."""
        for array in self._arrays:
            fill_with_nan(array, self._stream)


@dataclass(frozen=True)
class StageVariant:
    """A stage, as a variant beside the whole pass."""

    stage: str

    @property
    def cells(self):
        """The cells of :data:`experiments.measuring.records.VARIANT`."""
        return {
            "algorithm": "staged",
            "stage": self.stage,
            "layout": "capsule",
            "precision": "ieee",
            "dtype": "float32",
        }

    def __str__(self):
        return self.stage


def _chains(problem, wanted, clock):
    """Chains enough to keep every stage's arrays out of the L2 cache, if memory allows."""
    slab = stages.whole(problem.geometry)
    sets = max(measure.sets_of(slab.traffic(stage, 4)[0]) for stage in stages.PASSES[wanted])
    room = max(1, _ROOM // sum(slab.traffic(stage, 4)[0] for stage in stages.PASSES[wanted]))
    return [Chain(problem, wanted, clock.numba) for _ in range(min(sets, room, _MOST_SETS))]


def measure_stages(problem, wanted, tick):
    """The rows of a pass's stages."""
    clock, rates, slab = gpu_time.clock(), ceilings.ceilings(), stages.whole(problem.geometry)
    chains = _chains(problem, wanted, clock)
    error = max(problem.check(wanted, chain.run(), "ieee") for chain in chains)
    replays, caches, of = {}, {}, {}
    for stage in stages.PASSES[wanted]:
        tick(stage)
        least, _ = slab.traffic(stage, 4)
        sets = measure.sets_of(least, len(chains))
        caches[stage] = measure.cache_cell(sets, least)
        calls = [chain.calls[stage] for chain in chains[:sets]]
        with launched() as kernels, clock.elapsed() as eager:
            calls[0]()
        of[stage] = sources.name_of(kernels)
        count = gpu_time.calls_of(sets, least / rates["copy_gbs"] / 1e6, eager[0])
        replays[stage] = clock.capture([calls[i % sets] for i in range(count)])
    times = gpu_time.replay_in_turns(replays)
    chains[0].forget()
    for replay in replays.values():
        replay.run()
    cuda.synchronize()
    error = max(error, problem.check(wanted, chains[0].result.copy_to_host(), "ieee"))
    rows = []
    for stage, ms in times.items():
        p20, p50, p80 = map(float, np.percentile(ms, (20, 50, 80)))
        least, flop = slab.traffic(stage, 4)
        rows.append(
            measure.common_cells(problem, wanted)
            | StageVariant(stage).cells
            | {"ms_p20": p20, "ms_p50": p50, "ms_p80": p80, "rel_error": error}
            | {"gflop": flop / 1e9, "min_bytes": least, "cache": caches[stage]}
            | {"kernel_sources": of[stage]}
            | measure.fractions(least, flop, p50, rates)
        )
    return rows


def measure_all(problem, wanted, variants, tick):
    """The rows of a pass's stages, and of the whole pass."""
    rows = measure_stages(problem, wanted, tick)
    device_memory.release()
    whole = [variant for variant in variants if not isinstance(variant, StageVariant)]
    return rows + measure.measure(problem, wanted, whole, tick)


def make_parser():
    """The command line's parser."""
    return command.parser("stages", __doc__, _WHOLE)


def groups(parser, options):
    """The groups of rows that the options ask for."""
    whole = contestants.choose(options.algorithms, ["ieee"])
    return [
        command.Group(
            *("stages", workload, geometry, wanted),
            [*map(StageVariant, stages.PASSES[wanted]), *whole],
            measure_all,
            contestants.choose(_WHOLE, ["ieee"]),
        )
        for workload, geometry in WORKLOADS.items()
        for wanted in options.passes
    ]


def main(arguments=None):
    return command.main("stages", make_parser(), groups, arguments)


if __name__ == "__main__":
    sys.exit(main())
