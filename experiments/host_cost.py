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

import sys

from experiments.fused import WORKLOADS
from experiments.measuring import device_memory, host, measure, opponents
from experiments.measuring.classes import plan_words
from experiments.measuring.clocks import queueing_us, wall_us
from experiments.measuring.listed import Listed
from numbacaps.device.target import cuda

NAME = "host_cost"
MINUTES = 3  # that a run takes, about
KEYS = ("measured", "workload", "what", "arrays", "precision")
VALUES = ("ours_us", "fold_us", "ratio", "note")
LAYER = "paper-layer-5"  # whose kernels are short
CLASSES = {"default": "ieee", "tf32": "tf32"}  # the library's precision of each
_LISTED = Listed(NAME, KEYS, VALUES)
listing, merge, is_current = _LISTED.listing, _LISTED.merge, _LISTED.is_current


def make_parser():
    """The command line's parser."""
    choices = {
        "arrays": (host.ARRAYS, "libraries whose arrays are given"),
        "precisions": (tuple(CLASSES), "classes"),
        "workloads": (tuple(WORKLOADS), "of the wall time"),
    }
    return _LISTED.parser(__doc__, choices)


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
    device_memory.release()
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


def jobs(options):
    """(keys, work) of every row; Refusal or ImportError where the options cannot be met here."""
    opponents.torch_on_gpu()
    words = plan_words(options.precisions)

    def job(case):
        return [case], lambda: [measure_case(case, words[case[-1]]["precision"])]

    return list(map(job, cases(options)))


def main(arguments=None):
    return _LISTED.main(make_parser(), arguments, jobs, table)


if __name__ == "__main__":
    sys.exit(main())
