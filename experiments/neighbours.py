"""What several GPUs of a host are worth to an experiment: rows a minute, and how far a busy neighbour moves a row's time.

``python -m experiments.neighbours EXPERIMENT [ITS OPTIONS]`` measures the same rows three times, into folders that are thrown
away: on all GPUs, which compiles the kernels and is not counted; on the first GPU alone; on all GPUs again.

It writes ``experiments/results/<gpu>/neighbours.csv``. For one GPU and for all of them: rows, seconds, rows a minute. For all of
them also by what factor a busy neighbour changes a row's median time, up or down: median, 95th percentile, largest.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from experiments.measuring import cards, command, listing, provenance, records
from experiments.measuring.listed import Listed
from experiments.measuring.refusal import Parser, Refusal

NAME = "neighbours"
KEYS = ("experiment", "gpus")
VALUES = ("rows", "seconds", "rows_per_minute", "moved_p50", "moved_p95", "moved_most")
is_current = Listed(NAME, KEYS, VALUES).is_current
_ROW = (*records.GROUP, *records.VARIANT)


def times(path):
    """Milliseconds by a row's key."""
    rows = records.read(path)
    return {records.key(row, _ROW): float(row["ms_p50"]) for row in rows if row["ms_p50"]}


def moved(alone, beside):
    """Median, 95th percentile and largest factor between the times of the same rows, each at least 1."""
    if alone.keys() != beside.keys():
        raise ValueError(f"{len(alone)} rows alone, {len(beside)} beside neighbours; not the same")
    factors = sorted(max(beside[key] / ms, ms / beside[key]) for key, ms in alone.items())
    return statistics.median(factors), factors[int(0.95 * (len(factors) - 1))], factors[-1]


def run(experiment, arguments, gpus, folder):
    """(milliseconds by key, seconds) of an experiment on GPUs as ``--gpus`` takes them."""
    words = [sys.executable, "-m", f"experiments.{experiment}", *arguments]
    start = time.perf_counter()
    done = subprocess.run([*words, "--gpus", gpus, "--results", folder], cwd=provenance.ROOT)
    taken = time.perf_counter() - start
    if done.returncode:
        got = " ".join([experiment, *arguments])
        raise Refusal(
            "EXPERIMENT", f"{got}, which ended by {done.returncode}", "one that ends by 0"
        )
    return times(Path(folder) / provenance.gpu_name() / f"{experiment}.csv"), taken


def measure(experiment, arguments, count):
    """The two rows, of one GPU and of ``count``."""
    found = []
    for gpus in ("all", "0", "all"):
        with tempfile.TemporaryDirectory() as folder:
            found.append(run(experiment, arguments, gpus, folder))
    rows = []
    for gpus, (taken, seconds) in zip((1, count), found[1:]):
        rows.append({"experiment": " ".join([experiment, *arguments]), "gpus": gpus})
        rows[-1] |= {"rows": len(taken), "seconds": round(seconds, 1)}
        rows[-1] |= {"rows_per_minute": round(60 * len(taken) / seconds, 1)}
    moves = moved(found[1][0], found[2][0])
    rows[1] |= dict(zip(VALUES[3:], (round(factor, 3) for factor in moves)))
    return rows


def main(arguments=None):
    """Measure, print and write the rows; the exit status."""
    parser = Parser(prog=f"python -m experiments.{NAME}", description=__doc__)
    parser.add_argument("experiment", choices=("fused", "sweep", "rungs", "stages"))
    options, rest = parser.parse_known_args(arguments)
    command.refuse_without_gpu(NAME)
    path = provenance.RESULTS / provenance.gpu_name() / f"{NAME}.csv"
    table = listing.Listing(path, KEYS, VALUES, listing.of_machine())
    try:
        count = len(cards.visible())
        if count < 2:
            raise Refusal("CUDA_VISIBLE_DEVICES", f"{count} GPU", "several, or nothing")
        rows = measure(options.experiment, rest, count)
    except (Refusal, ValueError) as refusal:
        parser.error(str(refusal))
    except KeyboardInterrupt:
        print("\ninterrupted; nothing was written", file=sys.stderr)
        return 130
    table.add(rows)
    for row in rows:
        print(", ".join(f"{name} {row[name]}" for name in (*KEYS, *VALUES) if name in row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
