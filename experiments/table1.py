"""The paper's Table 1 on the published five-layer network, with every algorithm and opponent.

``python -m experiments.table1`` writes ``experiments/results/<gpu>/table1.csv``: the five layers at
batch 128, forward and both gradients, by every algorithm of the registry and every opponent through
PyTorch; one image of the fifth layer, which the plain loops of the reference finish too; and the whole
network beside its twin in PyTorch.

The paper's own times, of another GPU and of a batch and a repeat count that it does not state, are in
:mod:`experiments.measuring.paper`.
"""

import sys
import time

import reference
from experiments.measuring import command, contestants, measure, networks, sources
from experiments.measuring.problem import NETWORK_PASSES, PASSES
from experiments.measuring.workloads import ONE_IMAGE, PUBLISHED


class Reference:
    """The NumPy loops, as a variant beside the others."""

    @property
    def cells(self):
        """The cells of :data:`experiments.measuring.records.VARIANT`."""
        return {
            "algorithm": "reference",
            "stage": "",
            "layout": "capsule",
            "precision": "ieee",
            "dtype": "float32",
        }

    def __str__(self):
        return "reference"


def reference_row(problem, wanted):
    """The measured cells of the NumPy loops: once, on the host's processor."""
    g = problem.geometry
    moves = g.stride, g.padding, g.dilation
    x, w, dy = problem.operands
    start = time.perf_counter()
    if wanted == "forward":
        result = reference.capsule_convolution(x, w, *moves)
    else:
        gradients = reference.capsule_convolution_backward(x, w, dy, *moves)
        result = gradients[PASSES.index(wanted) - 1]
    ms = 1e3 * (time.perf_counter() - start)
    both = "; the loops make both gradients at once" if wanted != "forward" else ""
    return dict.fromkeys(("ms_p20", "ms_p50", "ms_p80"), ms) | {
        "rel_error": problem.check(wanted, result, "ieee"),
        "min_bytes": g.min_bytes(4),
        "kernel_sources": sources.NO_KERNELS,
        "note": f"NumPy loops on the host's processor, run once{both}",
    }


def measure_beside_reference(problem, wanted, variants, tick):
    """The rows of a pass, the loops among them."""
    ours = [variant for variant in variants if not isinstance(variant, Reference)]
    rows = measure.measure(problem, wanted, ours, tick)
    tick(Reference())
    loops = measure.common_cells(problem, wanted) | Reference().cells
    return [loops | reference_row(problem, wanted), *rows]


def make_parser():
    """The command line's parser."""
    names, passes = contestants.NAMES + networks.NAMES, PASSES + NETWORK_PASSES
    parser = command.parser("table1", __doc__, names, passes)
    command.add_precisions(parser)
    return parser


def groups(parser, options):
    """The groups of rows that the options ask for."""
    variants, whole = (
        choose(options.algorithms, options.precisions)
        for choose in (contestants.choose, networks.choose)
    )
    command.refuse_none(parser, options, variants + whole)
    passes = [name for name in PASSES if name in options.passes and variants]
    found = command.convolution_groups("table1", PUBLISHED.items(), passes, variants)
    beside = [variant for variant in variants if variant.precision == "ieee"]
    found += [
        command.Group(
            *("table1", workload, geometry, "forward"),
            [Reference(), *beside],
            measure_beside_reference,
            contestants.choose(contestants.NAMES, ["ieee"]),
        )
        for workload, geometry in ONE_IMAGE.items()
        if "forward" in options.passes and beside
    ]
    found += [
        command.Group(
            *("table1", workload, geometry, wanted, whole, networks.measure_network),
            networks.choose(networks.NAMES),
        )
        for workload, geometry in networks.WORKLOADS.items()
        for wanted in NETWORK_PASSES
        if wanted in options.passes and whole
    ]
    return found


def main(arguments=None):
    return command.main("table1", make_parser(), groups, arguments)


if __name__ == "__main__":
    sys.exit(main())
