"""How a row of a routing problem is measured: who computes it is checked against float64, then timed, and its memory counted."""

from experiments.measuring import device_memory, measure, opponents, routed
from experiments.measuring.clocks import extra_bytes, milliseconds
from experiments.measuring.routing_rows import OURS, STORED


def measure_workload(workload, wanted, contestant):
    """Check and time a contestant.

    Parameters
    ----------
    workload : experiments.measuring.routed.Workload
    wanted : str
        Of :data:`experiments.measuring.routed.PASSES`.
    contestant : str
        Of :data:`experiments.measuring.routed.CONTESTANTS`.

    Returns
    -------
    dict
        Those of :data:`experiments.measuring.routing_rows.VALUES` that were found; a note where it failed.
    """
    cells = {
        "operands_mb": workload.nbytes(wanted) / 1e6,
        "votes_mb": workload.votes_nbytes / 1e6,
    }
    try:
        with opponents.precision("ieee"):
            cells["error"] = routed.error(routed.CONTESTANTS[contestant], workload, wanted)
            cells |= _timed(workload, wanted, contestant)
    except Exception as failure:  # whatever a library raises is what its row says
        cells["note"] = measure.note_of(failure)
    device_memory.release()
    return cells


def jobs(cases, measure_case):
    """(keys, work) of every row, as :class:`experiments.measuring.listed.Listed` takes them; ImportError without PyTorch."""
    opponents.torch_on_gpu()
    return [([case], lambda case=case: [measure_case(case)]) for case in cases]


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
    is_direct = contestant == STORED or contestant in OURS and not workload.options.is_summed
    if is_direct:
        make = routed.stored if contestant == STORED else routed.launched
        direct, workspace = make(workload, tensors, wanted)
        direct()
        extra = workspace()
    if contestant in ("graph", STORED):
        return {"ms": milliseconds(routed.captured(direct)), "extra_mb": extra / 1e6}
    call = routed.CONTESTANTS[contestant](workload, tensors, wanted)
    ms = milliseconds(call)
    if contestant == "torch_graph":  # its memory is its own pool's, as much as without a graph
        return {"ms": ms}
    if not is_direct:  # the results that PyTorch allocates are no extra
        extra = max(0, extra_bytes(call) - of_results)
    return {"ms": ms, "extra_mb": extra / 1e6}
