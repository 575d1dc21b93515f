"""Routing without stored votes beside PyTorch with them: time, memory, and the distance from float64.

``python -m experiments.routing`` writes ``experiments/results/<gpu>/routing.csv``: for every workload, pass and
contestant the median milliseconds, bytes beside operands and results at the most, and the largest difference from
float64. A pass is "forward", or "training", forward and backward. The contestants:

- fused: ours as PyTorch's operator, called again and again; graph: the same launches as a CUDA graph, one call a graph;
- stored: ours with its votes stored (``algorithm="stored"``), a plan's calls as a CUDA graph; no ratio counts it;
- torch: votes by einsum, stored, and routed by PyTorch; torch_graph: the same as a CUDA graph; compiled: by torch.compile,
  max-autotune.

All multiply float32 without TF32. ``--workloads digitcaps-128,em-conv1-8`` is a quick run.
"""

import sys

from experiments.measuring import routed
from experiments.measuring.listed import Listed
from experiments.measuring.routed_cells import jobs, measure_workload
from experiments.measuring.routing_rows import KEYS, NAME, VALUES, told

MINUTES = 18  # that a run takes, about
_LISTED = Listed(NAME, KEYS, VALUES, beside=("contestant",))
listing, merge, is_current = _LISTED.listing, _LISTED.merge, _LISTED.is_current


def make_parser():
    """The command line's parser."""
    choices = {
        "workloads": (tuple(routed.WORKLOADS), "problems"),
        "passes": (routed.PASSES, "passes"),
        "contestants": (tuple(routed.CONTESTANTS), "who computes them"),
    }
    return _LISTED.parser(__doc__, choices)


def measure_case(case):
    """The row of a case."""
    name, *how = case
    return dict(zip(KEYS, case)) | measure_workload(routed.WORKLOADS[name], *how)


def cases(options):
    """(workload, pass, contestant) of every row."""
    return [
        (workload, wanted, contestant)
        for workload in options.workloads
        for wanted in options.passes
        for contestant in options.contestants
    ]


def main(arguments=None):
    return _LISTED.main(
        make_parser(), arguments, lambda options: jobs(cases(options), measure_case), told
    )


if __name__ == "__main__":
    sys.exit(main())
