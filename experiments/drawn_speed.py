"""Ours beside the library over geometries that are drawn at random: speed as a distribution.

``python -m experiments.drawn_speed --seed S --count N`` draws geometries (experiments/measuring/drawing.py), compiles
what they take in processes side by side, checks every result against float64, times forward and both gradients of
every class of precision beside one ``conv2d`` of PyTorch through the fold, and writes
``experiments/results/<gpu>/drawn_speed.csv``. It prints the 5th and 25th percentile, median and geometric mean of the
library's time over ours, and what the worst five are. Tiles are not tuned to a list: each recorded run takes a new
seed, which is in the cell ``workload``.

"default" is float32 without TF32: ours is precision="auto" where the package has it, else the faster of ieee and tf32x3.
"""

import argparse
import random
import re
import sys
from collections import Counter
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

from tqdm import tqdm

import numbacaps
from experiments.ahead import count
from experiments.measuring import (
    command,
    gpu_time,
    measure,
    opponents,
    provenance,
    quick,
    ratios,
    records,
)
from experiments.measuring.drawing import drawn
from experiments.measuring.problem import PASSES
from experiments.measuring.refusal import Parser

NAME = "drawn_speed"
MINUTES = 9  # that a run takes, about
_WORST = 5
_SETTLE_MS = 10


def _whole(text):
    """A number of 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"got {text!r}; it takes a number of 0 or more")
    return int(text)


def make_parser():
    """The command line's parser."""
    parser = Parser(
        prog=f"python -m experiments.{NAME}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Rows measured before with the same sources, packages and GPU are kept; Ctrl-C loses no "
        "finished group of rows, and the same seed goes on. exit status: 0 done, 2 bad input or no GPU, 130 "
        "after Ctrl-C",
    )
    add = parser.add_argument
    add("--seed", metavar="S", type=_whole, help="by default a new one, which is printed")
    add("--count", metavar="N", type=count, default=100, help="geometries (default 100)")
    for name, takes in (("passes", PASSES), ("precisions", tuple(ratios.CLASSES))):
        add(
            f"--{name}",
            metavar="A,B",
            type=lambda text, takes=takes: command.choice(text, takes),
            default=takes,
            help=f"of {', '.join(takes)} (default: all)",
        )
    add(
        "--settle",
        metavar="MS",
        type=_whole,
        default=_SETTLE_MS,
        help=f"milliseconds of replays before each of two turns (default {_SETTLE_MS})",
    )
    add("--processes", metavar="N", type=count, help="that compile (default: one a core)")
    add("--fresh", action="store_true", help="measure again what was measured")
    add(
        "--results",
        metavar="DIR",
        type=Path,
        default=provenance.RESULTS,
        help=f"folder of the results (default experiments/results); the CSV is DIR/<gpu>/{NAME}.csv",
    )
    command.add_sharing(parser)
    parser.set_defaults(workload=None)
    return parser


def workload(seed, number):
    """What a row's cell says of a drawn geometry."""
    return f"seed {seed}, {number}"


def cases(options):
    """(experiment, workload, geometry, pass) of every drawn geometry and pass."""
    return [
        (NAME, workload(options.seed, i), drawn(options.seed, i), wanted)
        for i in range(options.count)
        for wanted in options.passes
    ]


def groups(options, variants):
    """A group of rows for every case; what a file has of other classes is measured along."""
    everyone = quick.everyone()
    effort = gpu_time.Effort(
        options.settle, timed_ms=8, repeats=(5, 9), turns=2, graph_ms=0.3, calls=64
    )
    measured = partial(quick.measure_pass, effort=effort)
    return [command.Group(*case, variants, measured, everyone) for case in cases(options)]


def _compile(groups, processes):
    """Compile ahead what groups take; what fails there is said by its row."""
    geometries = list(dict.fromkeys(group.geometry for group in groups))
    ours = [variant for variant in groups[0].variants if variant.algorithm == quick.OURS]
    words = {}  # by dtype
    for variant in ours:
        words.setdefault(variant.dtype, []).append(quick.plan_options(variant)["precision"])
    for dtype, precisions in words.items():
        with tqdm(desc=f"compiling {dtype}", unit="plan") as bar:

            def tell(done, of, bar=bar):
                bar.total = of
                bar.update()

            how = {"dtypes": (dtype,), "precisions": precisions, "processes": processes}
            done = numbacaps.warmup(geometries, progress=tell, **how)
        for why, times in Counter(done.failed.values()).items():
            print(f"{times} of {dtype} were not compiled ahead: {why}", file=sys.stderr)


def is_current(folder):
    """Whether a GPU's folder holds rows, and none is older than its kernels."""
    path = Path(folder) / f"{NAME}.csv"
    rows, sources = records.read(path), records.sources(path)
    return bool(rows) and all(map(sources.is_current, rows))


def without_older(table, seed):
    """Drop other seeds' rows that are older than their kernels, which are not measured again, and the library's beside none."""
    is_current = records.sources(table.path).is_current

    def is_mine(row):
        return row["workload"].startswith(f"seed {seed}, ")

    def change(rows):
        rows = [row for row in rows if is_mine(row) or is_current(row)]
        ours = [row for row in rows if row["algorithm"] == ratios.OURS]
        compared = {records.key(row, records.GROUP) for row in ours}
        return [row for row in rows if is_mine(row) or records.key(row, records.GROUP) in compared]

    table.write(change)


# ---- what is said of the rows


def report(rows, options):
    """The lines on what was measured: the distribution of each class and pass, then the worst.

    Parameters
    ----------
    rows : list of dict
        Of one seed.
    options : namespace
        ``passes`` and ``precisions``.

    Returns
    -------
    list of str
    """
    lines = [f"{'library / ours':28}{'p5':>8}{'p25':>8}{'median':>8}{'mean':>8}{'of':>6}"]
    worst = []
    for name in options.precisions:
        for wanted in options.passes:
            found, failed = ratios.ratios(rows, name, wanted)
            if found:
                numbers = ratios.summary([ratio.value for ratio in found])
                cells = "".join(f"{number:8.2f}" for number in numbers)
                lines.append(f"{name + ', ' + wanted:28}{cells}{len(found):6}")
            worst += [(ratio, name) for ratio in found]
            for note, times in Counter(row["note"] for row in failed).items():
                lines.append(f"{name}, {wanted}: {times} without a time of ours: {note}")
    worst.sort(key=lambda one: one[0].value)
    for ratio, name in worst[:_WORST]:
        lines += ["", _told(ratio, name), *_explained(ratio.ours)]
    return lines


def _told(ratio, name):
    row = ratio.ours
    sizes = " ".join(f"{column}={row[column]}" for column in records.GEOMETRY)
    times = f"{float(row['ms_p50']):.3g} ms, the library {float(ratio.theirs['ms_p50']):.3g}"
    return (
        f"{ratio.value:.2f}: {name}, {row['pass']}, {row['workload']}: ours ({row['precision']}) {times} "
        f"({ratio.theirs['layout']})\n  {sizes}"
    )


def _explained(row):
    """What the package says of a row's pass."""
    seed, number = map(int, row["workload"].removeprefix("seed ").split(", "))
    try:
        said = quick.explain(drawn(seed, number), SimpleNamespace(**row))
    except Exception as failure:  # the row stands, whatever the package cannot explain here
        return [f"  not explained: {measure.note_of(failure)}"]
    found = re.findall(rf"^{row['pass']}:.*(?:\n .*)*", said, re.MULTILINE)
    return [f"  {line}" for one in found or [said] for line in one.splitlines()]


def _launch(parser, options, arguments):
    """Draw the same geometries in a process for each GPU; the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1 << 31)
        arguments = [*arguments, "--seed", str(options.seed)]
    order = [command.Group(*case, variants=[], measure=None).key for case in cases(options)]

    def merge(table, part):
        records.merge(table, part, order)
        without_older(records.Table(table, {}), options.seed)

    return command.launched(NAME, parser, arguments, options, merge)


def main(arguments=None):
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.gpus:
        return _launch(parser, options, arguments)
    command.refuse_without_gpu(NAME)
    try:
        opponents.torch_on_gpu()
        variants = quick.choose(options.precisions)
    except ImportError as missing:
        parser.error(str(missing))
    except LookupError as lacking:
        parser.error(f"--precisions got {lacking.args[0]}, which ours does not have on this GPU")
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {options.seed}")
    table = command.open_table(NAME, options)
    found = groups(options, variants)
    try:
        without_older(table, options.seed)
        mine = options.shard.part(found, attrgetter("key"))
        if lacking := command.lacking(table, mine):
            _compile(lacking, options.processes)
    except records.ForeignFile as foreign:
        parser.error(str(foreign))
    except KeyboardInterrupt:
        return 130
    command.run(table, found, options)
    mine = [row for row in table.rows if row["workload"].startswith(f"seed {options.seed}, ")]
    print("\n".join(report(mine, options)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
