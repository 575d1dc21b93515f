"""Routing without stored votes beside PyTorch with them: time, memory, and the distance from float64.

``python -m experiments.routing`` writes ``experiments/results/<gpu>/routing.csv``: for every workload, pass and
contestant the median milliseconds, bytes beside operands and results at the most, and the largest difference from
float64. A pass is "forward", or "training", forward and backward. The contestants:

- fused: ours as PyTorch's operator, called again and again; graph: the same launches as a CUDA graph, one call a graph;
- torch: votes by einsum, stored, and routed by PyTorch; compiled: the same by torch.compile, max-autotune.

All multiply float32 without TF32. ``--workloads digitcaps-128,em-conv1-8`` is a quick run.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

from tqdm import tqdm

from experiments.measuring import command, measure, opponents, provenance, records, routed
from experiments.measuring.listing import Listing, of_machine
from experiments.measuring.refusal import Parser

NAME = "routing"
MINUTES = 12  # that a run takes, about
KEYS = ("workload", "pass", "contestant")
VALUES = ("ms", "extra_mb", "operands_mb", "votes_mb", "error", "note")
_WARM_UPS, _REPEATS, _SECONDS = 3, 30, 1.0
_BATCH_MS = 2  # of calls between two events


def make_parser():
    """The command line's parser."""
    parser = Parser(
        prog="python -m experiments.routing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit status: 0 done, 2 bad input or no GPU, 130 after Ctrl-C, with every finished row in the file",
    )
    for name, takes in (
        ("workloads", tuple(routed.WORKLOADS)),
        ("passes", routed.PASSES),
        ("contestants", tuple(routed.CONTESTANTS)),
    ):
        parser.add_argument(
            f"--{name}",
            metavar="A,B",
            type=lambda text, takes=takes: command.choice(text, takes),
            default=takes,
            help=f"of {', '.join(takes)} (default: all)",
        )
    parser.add_argument("--fresh", action="store_true", help="measure again what was measured")
    parser.add_argument(
        "--results",
        metavar="DIR",
        type=Path,
        default=provenance.RESULTS,
        help=f"folder of the results (default experiments/results); the CSV is DIR/<gpu>/{NAME}.csv",
    )
    command.add_sharing(parser)
    return parser


def listing(folder, machine=None, fresh=False):
    """The CSV in a GPU's folder."""
    return Listing(Path(folder) / f"{NAME}.csv", KEYS, VALUES, machine, fresh)


def merge(table, part):
    """Take the rows of another such CSV, by their paths."""
    listing(table.parent).merge(listing(part.parent))


def is_current(folder):
    """Whether a GPU's folder holds rows, and all of the package as it is now."""
    return listing(folder).is_current


def milliseconds(call):
    """Median milliseconds of a call, by events around as many as take about 2 ms."""
    cuda = opponents.torch().cuda

    def batch(calls):
        first, last = (cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(calls):
            call()
        last.record()
        last.synchronize()
        return first.elapsed_time(last) / calls

    for _ in range(_WARM_UPS):
        one = batch(1)
    calls, taken, until = max(1, round(_BATCH_MS / one)), [], time.perf_counter() + _SECONDS
    while len(taken) < _REPEATS and (len(taken) < 3 or time.perf_counter() < until):
        taken.append(batch(calls))
    return statistics.median(taken)


def extra_bytes(call):
    """Most bytes that PyTorch allocates in a call, over what was there before."""
    cuda = opponents.torch().cuda
    cuda.synchronize()
    cuda.empty_cache()
    cuda.reset_peak_memory_stats()
    before = cuda.memory_allocated()
    call()
    cuda.synchronize()
    return cuda.max_memory_allocated() - before


def captured(call):
    """A replay of a call as a CUDA graph."""
    cuda = opponents.torch().cuda
    call()  # compiled, and its workspace there
    cuda.synchronize()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
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
    measure.release()
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


def main(arguments=None):
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.gpus:
        return command.launched(NAME, parser, arguments, options, merge)
    command.refuse_without_gpu(NAME)
    try:
        opponents.torch_on_gpu()
        found = listing(options.results / provenance.gpu_name(), of_machine(), options.fresh)
        found.write()  # whether it can be, before anything is measured
        mine = options.shard.part(cases(options), key=lambda case: case)
        lacking = [case for case in mine if not found.has(case)]
        for case in tqdm(lacking, unit="row"):
            found.add([measure_case(case)])
    except ImportError as missing:
        parser.error(str(missing))
    except records.ForeignFile as foreign:
        parser.error(str(foreign))
    except KeyboardInterrupt:
        print(f"\ninterrupted; {found.path} holds every finished row", file=sys.stderr)
        return 130
    chosen = {tuple(case) for case in cases(options)}
    print("\n".join(table([row for row in found.rows if records.key(row, KEYS) in chosen])))
    print(f"{len(found.rows)} rows in {found.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
