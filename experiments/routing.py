"""Routing without stored votes beside PyTorch with them: time, memory, and the distance from float64.

``python -m experiments.routing`` writes ``experiments/results/<gpu>/routing.csv``: for every workload, pass and
contestant the median milliseconds, bytes beside operands and results at the most, and the largest difference from
float64. A pass is "forward", or "training", forward and backward. The contestants:

- fused: ours as PyTorch's operator, called again and again; graph: the same launches as a CUDA graph, one call a graph;
- torch: votes by einsum, stored, and routed by PyTorch; compiled: the same by torch.compile, max-autotune.

All multiply float32 without TF32. ``--workloads digitcaps-128,em-conv1-8`` is a quick run.
"""

import sys

from experiments.measuring import device_memory, measure, opponents, routed
from experiments.measuring.clocks import extra_bytes, milliseconds
from experiments.measuring.listed import Listed

NAME = "routing"
MINUTES = 12  # that a run takes, about
KEYS = ("workload", "pass", "contestant")
VALUES = ("ms", "extra_mb", "operands_mb", "votes_mb", "error", "note")
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


def captured(call):
    """A replay of a call as a CUDA graph."""
    cuda = opponents.torch().cuda
    stream, graph = cuda.Stream(), cuda.CUDAGraph()
    stream.wait_stream(cuda.current_stream())
    with cuda.stream(stream):
        call()  # compiled, and its workspace on this stream there: a stream that is captured allocates nothing
    cuda.synchronize()
    with cuda.graph(graph, stream=stream):
        call()
    return graph.replay


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
    if contestant in ("fused", "graph"):
        direct, workspace = routed.launched(workload, tensors, wanted)
        direct()
        extra = workspace()
    if contestant == "graph":
        return {"ms": milliseconds(captured(direct)), "extra_mb": extra / 1e6}
    call = routed.CONTESTANTS[contestant](workload, tensors, wanted)
    ms = milliseconds(call)
    if contestant != "fused":
        results = workload.nbytes(wanted) - workload.nbytes("forward")  # gradients
        extra = max(0, extra_bytes(call) - results - tensors["dy"].numel() * 4)
    return {"ms": ms, "extra_mb": extra / 1e6}


def cases(options):
    """(workload, pass, contestant) of every row."""
    return [
        (workload, wanted, contestant)
        for workload in options.workloads
        for wanted in options.passes
        for contestant in options.contestants
    ]


def table(rows):
    """The lines of the printed table: times, and how often ours goes into the best opponent's."""
    lines = [f"{'ms':18}{'pass':10}" + "".join(f"{name:>12}" for name in routed.CONTESTANTS)]
    lines[0] += f"{'ratio':>8}{'peak':>7}{'error':>10}"
    found = {tuple(row[key] for key in KEYS): row for row in rows}
    for workload, wanted in dict.fromkeys((row["workload"], row["pass"]) for row in rows):
        own = {name: found.get((workload, wanted, name)) for name in routed.CONTESTANTS}
        times = {name: float(row["ms"]) for name, row in own.items() if row and row["ms"]}
        cells = "".join(f"{times[name]:12.4g}" if name in times else f"{'-':>12}" for name in own)
        line = f"{workload:18}{wanted:10}{cells}"
        ours = [times[name] for name in ("fused", "graph") if name in times]
        theirs = [times[name] for name in ("torch", "compiled") if name in times]
        line += f"{min(theirs) / min(ours):8.1f}" if ours and theirs else f"{'-':>8}"
        row = own["graph"] or own["fused"]
        if row and row["ms"]:
            peak = 1 + float(row["extra_mb"]) / float(row["operands_mb"])
            line += f"{peak:7.2f}{float(row['error']):10.1e}"
        lines.append(line)
        lines += [f"  {name}: {row['note']}" for name, row in own.items() if row and row["note"]]
    return lines


def jobs(options):
    """(keys, work) of every row; ImportError where PyTorch is not here."""
    opponents.torch_on_gpu()
    return [([case], lambda case=case: [measure_case(case)]) for case in cases(options)]


def main(arguments=None):
    return _LISTED.main(make_parser(), arguments, jobs, table)


if __name__ == "__main__":
    sys.exit(main())
