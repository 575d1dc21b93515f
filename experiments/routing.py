"""Routing without stored votes beside PyTorch with them: time, memory, and the distance from float64.

``python -m experiments.routing`` writes ``experiments/results/<gpu>/routing.csv``: for every workload, pass and
contestant the median milliseconds, bytes beside operands and results at the most, and the largest difference from
float64. A pass is "forward", or "training", forward and backward. The contestants:

- fused: ours as PyTorch's operator, called again and again; graph: the same launches as a CUDA graph, one call a graph;
- torch: votes by einsum, stored, and routed by PyTorch; torch_graph: the same as a CUDA graph; compiled: by torch.compile,
  max-autotune.

All multiply float32 without TF32. ``--workloads digitcaps-128,em-conv1-8`` is a quick run.
"""

import sys

from experiments.measuring import device_memory, measure, opponents, routed
from experiments.measuring.clocks import extra_bytes, milliseconds
from experiments.measuring.listed import Listed
from experiments.measuring.routing_rows import KEYS, NAME, OURS, VALUES, told

MINUTES = 12  # that a run takes, about
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
    name, wanted, contestant = case
    workload = routed.WORKLOADS[name]
    row = dict(zip(KEYS, case))
    row["operands_mb"] = workload.nbytes(wanted) / 1e6
    row["votes_mb"] = workload.votes_nbytes / 1e6
    try:
        with opponents.precision("ieee"):
            row["error"] = routed.error(routed.CONTESTANTS[contestant], workload, wanted)
            row |= _timed(workload, wanted, contestant)
    except Exception as failure:  # whatever a library raises is what its row says
        row["note"] = measure.note_of(failure)
    device_memory.release()
    return row


def _timed(workload, wanted, contestant):
    """Time, and bytes beside operands and results."""
    tensors = workload.tensors()
    # What PyTorch allocates for results: gradients, too, in training.
    of_results = workload.nbytes(wanted) - workload.nbytes("forward")
    of_results = of_results or tensors["dy"].numel() * 4
    if workload.options.is_summed and contestant == "graph":
        eager = routed.CONTESTANTS["fused"](workload, tensors, wanted)
        extra = max(0, extra_bytes(eager) - of_results)
        return {"ms": milliseconds(routed.captured(eager)), "extra_mb": extra / 1e6}
    is_direct = contestant in OURS and not workload.options.is_summed
    if is_direct:
        direct, workspace = routed.launched(workload, tensors, wanted)
        direct()
        extra = workspace()
    if contestant == "graph":
        return {"ms": milliseconds(routed.captured(direct)), "extra_mb": extra / 1e6}
    call = routed.CONTESTANTS[contestant](workload, tensors, wanted)
    ms = milliseconds(call)
    if contestant == "torch_graph":  # its memory is its own pool's, as much as without a graph
        return {"ms": ms}
    if not is_direct:  # the results that PyTorch allocates are no extra
        extra = max(0, extra_bytes(call) - of_results)
    return {"ms": ms, "extra_mb": extra / 1e6}


def cases(options):
    """(workload, pass, contestant) of every row."""
    return [
        (workload, wanted, contestant)
        for workload in options.workloads
        for wanted in options.passes
        for contestant in options.contestants
    ]


def jobs(options):
    """(keys, work) of every row; ImportError where PyTorch is not here."""
    opponents.torch_on_gpu()
    return [([case], lambda case=case: [measure_case(case)]) for case in cases(options)]


def main(arguments=None):
    return _LISTED.main(make_parser(), arguments, jobs, told)


if __name__ == "__main__":
    sys.exit(main())
