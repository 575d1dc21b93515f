"""What a call costs the host, beside the fold in eager PyTorch in the same process.

``python -m experiments.host_cost`` writes ``experiments/results/<gpu>/host_cost.csv``:

- the host's time to queue a plan's call, ``capsule_conv2d`` on device arrays, and both gradients, with PyTorch tensors,
  CuPy arrays and Numba arrays, at one small layer. Beside it the fold from capsule layout to capsule layout in eager
  PyTorch (two permutes, conv2d, one permute), and autograd through it. A few calls are queued at a time, so few that the
  queue has room, so that the host never waits for the GPU; the median is kept;
- the wall time of an eager call from capsule layout to capsule layout, waited for, at the eleven workloads of
  experiments.fused: ``capsule_conv2d`` on PyTorch tensors, and the same fold.

The fold runs with conv2d in NCHW and in channels_last; the faster of the two is kept.
Ours is compared with the library at like precision: "default" is float32 without TF32, "tf32" with it.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

from tqdm import tqdm

from experiments.fused import WORKLOADS
from experiments.measuring import command, host, measure, opponents, provenance, quick, records
from experiments.measuring.listing import Listing, of_machine
from experiments.measuring.refusal import Parser
from numbacaps.device.target import cuda

NAME = "host_cost"
MINUTES = 3  # that a run takes, about
KEYS = ("measured", "workload", "what", "arrays", "precision")
VALUES = ("ours_us", "fold_us", "ratio", "note")
LAYER = "paper-layer-5"  # whose kernels are short
CLASSES = {"default": "ieee", "tf32": "tf32"}  # the library's precision of each
_QUEUED, _REPEATS = 10, 50
_WALL_REPEATS, _WALL_SECONDS = 50, 1.0
_WARM_UPS = 5


def make_parser():
    """The command line's parser."""
    parser = Parser(
        prog=f"python -m experiments.{NAME}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit status: 0 done, 2 bad input or no GPU, 130 after Ctrl-C, with every finished row in the file",
    )
    options = {
        "arrays": (host.ARRAYS, "libraries whose arrays are given"),
        "precisions": (tuple(CLASSES), "classes"),
        "workloads": (tuple(WORKLOADS), "of the wall time"),
    }
    for name, (takes, words) in options.items():
        parser.add_argument(
            f"--{name}",
            metavar="A,B",
            type=lambda text, takes=takes: command.choice(text, takes),
            default=takes,
            help=f"{words}, of {', '.join(takes)} (default: all)",
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


def queueing_us(call, synchronize, queued=_QUEUED, repeats=_REPEATS):
    """Median microseconds of the host for queueing a call; ``queued`` of them between two waits."""
    taken = []
    for turn in range(_WARM_UPS + repeats):
        synchronize()
        start = time.perf_counter()
        for _ in range(queued):
            call()
        elapsed = time.perf_counter() - start
        if turn >= _WARM_UPS:
            taken.append(1e6 * elapsed / queued)
    synchronize()
    return statistics.median(taken)


def wall_us(call, synchronize):
    """Median microseconds until a call's result is there."""
    taken, until = [], time.perf_counter() + _WALL_SECONDS
    for turn in range(_WARM_UPS + _WALL_REPEATS):
        synchronize()
        start = time.perf_counter()
        call()
        synchronize()
        if turn >= _WARM_UPS:
            taken.append(1e6 * (time.perf_counter() - start))
        if taken and time.perf_counter() > until:
            break
    return statistics.median(taken)


def cases(options):
    """(measured, workload, what, arrays, precision) of every row, as :data:`KEYS`."""
    hosted = [
        ("host", LAYER, what, arrays, precision)
        for precision in options.precisions
        for arrays in options.arrays
        for what in host.OURS
    ]
    return hosted + [
        ("wall", workload, "capsule_conv2d", "torch", precision)
        for precision in options.precisions
        for workload in options.workloads
    ]


def our_precision(name):
    """What ours takes for a class: of the default "auto" where the package has it, else the tensor cores' if it has those."""
    words = [one.precision for one in quick.choose((name,)) if one.algorithm == quick.OURS]
    return words[-1]


def measure_case(case, precision):
    """The row of a case; ours at ``precision``."""
    measured, workload, what, library, name = case
    timed = queueing_us if measured == "host" else wall_us
    row = dict(zip(KEYS, case))
    geometry, wait = WORKLOADS[workload], cuda.synchronize
    try:
        call = host.ours(geometry, host.arrays_of(library, geometry), precision)[what]
        row["ours_us"] = timed(call, wait)
        with opponents.precision(CLASSES[name]):
            operands = host.arrays_of("torch", geometry)
            row["fold_us"] = min(
                timed(host.fold(geometry, operands, layout)[host.THEIRS[what]], wait)
                for layout in host.LAYOUTS
            )
        row["ratio"] = row["ours_us"] / row["fold_us"]
    except Exception as failure:  # whatever a library raises is what its row says
        row["note"] = measure.note_of(failure)
    measure.release()
    return row


def table(rows):
    """The lines of the printed table; a ratio is ours over the fold's."""
    lines = [f"{'us':6}{'':16}{'':16}{'arrays':8}{'class':9}{'ours':>9}{'fold':>9}{'ratio':>8}"]
    for row in rows:
        numbers = (
            f"{float(row['ours_us']):9.0f}{float(row['fold_us']):9.0f}{float(row['ratio']):8.2f}"
            if row["ratio"]
            else f"  {row['note']}"
        )
        lines.append(
            f"{row['measured']:6}{row['workload']:16}{row['what']:16}{row['arrays']:8}"
            f"{row['precision']:9}{numbers}"
        )
    return lines


def main(arguments=None):
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.gpus:
        return command.launched(NAME, parser, arguments, options, merge)
    command.refuse_without_gpu(NAME)
    try:
        opponents.torch_on_gpu()
        words = {name: our_precision(name) for name in options.precisions}
        found = listing(options.results / provenance.gpu_name(), of_machine(), options.fresh)
        found.write()  # whether it can be, before anything is measured
        mine = options.shard.part(cases(options), key=lambda case: case)
        lacking = [case for case in mine if not found.has(case)]
        for case in tqdm(lacking, unit="row"):
            found.add([measure_case(case, words[case[-1]])])
    except ImportError as missing:
        parser.error(str(missing))
    except LookupError as word:
        parser.error(f"--precisions got {word.args[0]}, which ours does not have on this GPU")
    except records.ForeignFile as foreign:
        parser.error(str(foreign))
    except KeyboardInterrupt:
        print(f"\ninterrupted; {found.path} holds every finished row", file=sys.stderr)
        return 130
    chosen = set(cases(options))
    print("\n".join(table([row for row in found.rows if records.key(row, KEYS) in chosen])))
    print(f"{len(found.rows)} rows in {found.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
