"""The paper's Table 1 on the published five-layer network, with every algorithm and opponent.

``python -m experiments.table1`` writes ``experiments/results/<gpu>/table1.csv``: the five layers at
batch 128, forward and both gradients, by every algorithm of the registry and every opponent through
PyTorch; and one image of the fifth layer, which the plain loops of the reference finish too.

The paper's own times are of another GPU, and of a batch and a repeat count that it does not state; they are in
:mod:`experiments.paper`.
"""

import sys
import time

import reference
from experiments import command
from experiments.problem import PASSES
from experiments.workloads import ONE_IMAGE, PUBLISHED


def reference_row(problem, wanted):
    """The cells of the NumPy loops' row: once, on the host's processor."""
    g = problem.geometry
    arrays = [array.astype("float32") for array in problem.operands]
    moves = g.stride, g.padding, g.dilation
    start = time.perf_counter()
    if wanted == "forward":
        result = reference.capsule_convolution(*arrays[:2], *moves)
    else:
        gradients = reference.capsule_convolution_backward(*arrays, *moves)
        result = gradients[PASSES.index(wanted) - 1]
    ms = 1e3 * (time.perf_counter() - start)
    error = problem.check(wanted, result, "ieee")
    both = "; the loops make both gradients at once" if wanted != "forward" else ""
    return dict.fromkeys(("ms_p20", "ms_p50", "ms_p80"), ms) | {
        "algorithm": "reference",
        "rel_error": error,
        "note": f"NumPy loops on the host's processor, run once{both}",
    }


_REFERENCE = {
    "algorithm": "reference",
    "stage": "",
    "layout": "capsule",
    "precision": "ieee",
    "dtype": "float32",
}


def _with_reference(group):
    """The group with the reference's row in front."""

    def measure_all(problem, tick, measured=group.measure, wanted=group.cells["pass"]):
        rows = measured(problem, tick)
        own = {"peak_bytes": None, "host_us": None, "byte_fraction": None, "flop_fraction": None}
        return [rows[0] | own | _REFERENCE | reference_row(problem, wanted), *rows]

    group.variants, group.measure = [_REFERENCE, *group.variants], measure_all
    return group


def main(arguments=None):
    options = command.parser("table1", __doc__).parse_args(arguments)
    command.refuse_without_gpu("table1")
    table = command.open_table("table1", options)
    groups = command.convolution_groups("table1", PUBLISHED.items(), options)
    options.passes, options.precisions = ("forward",), ("ieee",)
    for group in command.convolution_groups("table1", ONE_IMAGE.items(), options):
        groups.append(_with_reference(group))
    command.run(table, groups)
    return 0


if __name__ == "__main__":
    sys.exit(main())
