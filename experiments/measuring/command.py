"""What the measuring experiments have in common on the command line, and the loop that measures.

Exit status: 0 when done; 2 for bad input, with a message that names it; 130 after Ctrl-C, with every
finished group of rows in the file.
"""

import argparse
import gc
import math
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path

from tqdm import tqdm

from experiments.measuring import (
    cards,
    contestants,
    device_memory,
    launcher,
    measure,
    provenance,
    records,
    shard,
)
from experiments.measuring.problem import PASSES, Problem
from experiments.measuring.refusal import Parser, Refusal
from numbacaps import Geometry
from numbacaps.device.target import SIMULATED, cuda

NO_GPU = """\
{name}: there is no GPU here, and a time on the simulator says nothing about one: it counts Python
threads. What works without a GPU:
  python -m experiments.sweep --predict {gpu}
                 times from the byte and FLOP floors, marked as such
  python -m experiments.figures --gpu {measured}
                 the figures of results that were measured before
  make records   which of them are older than their kernels
  make walk      the algorithm, step by step"""


def parser(name, summary, algorithms=contestants.NAMES, passes=PASSES):
    """An argument parser with the options that all measuring experiments take."""
    made = Parser(
        prog=f"python -m experiments.{name}",
        description=summary,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Rows measured before with the same sources, packages and GPU are kept; Ctrl-C loses "
        "no finished group of rows.",
    )
    made.add_argument(
        "--algorithms",
        metavar="A,B",
        type=lambda text: choice(text, algorithms),
        default=algorithms,
        help=f"of {', '.join(algorithms)} (default: all)",
    )
    made.add_argument(
        "--passes",
        metavar="A,B",
        type=lambda text: choice(text, passes),
        default=passes,
        help=f"of {', '.join(passes)} (default: all)",
    )
    made.add_argument(
        "--workload",
        metavar="NAME",
        action="append",
        help="by its name in the results; may be given again (default: all)",
    )
    made.add_argument("--fresh", action="store_true", help="measure again what was measured")
    made.add_argument(
        "--results",
        metavar="DIR",
        type=Path,
        default=provenance.RESULTS,
        help="folder of the results (default experiments/results); the CSV is DIR/<gpu>/"
        f"{name}.csv",
    )
    add_sharing(made)
    return made


def add_sharing(parser):
    """The options by which several processes share an experiment's rows."""
    shard.add_to(parser)
    launcher.add_to(parser)


def launched(name, parser, arguments, options, merge, module=None):
    """The exit status of an experiment on the GPUs that ``--gpus`` names; what it refuses, the parser does.

    Parameters
    ----------
    name, arguments, options, merge, module
        As :func:`experiments.measuring.launcher.launch` takes them.
    parser : argparse.ArgumentParser
    """
    if options.gpus == "all" and not cards.visible():
        refuse_without_gpu(name)
    try:
        return launcher.launch(name, arguments, options, merge, module or None)
    except (Refusal, records.ForeignFile) as refusal:
        parser.error(str(refusal))


def add_precisions(parser):
    """The option of the experiments that compare precisions."""
    parser.add_argument(
        "--precisions",
        metavar="A,B",
        type=lambda text: choice(text, contestants.PRECISIONS),
        default=contestants.PRECISIONS,
        help=f"of {', '.join(contestants.PRECISIONS)} (default: all)",
    )


def choose(parser, options, packed=False):
    """The variants that the options ask for, as :func:`contestants.choose`; exit status 2 if none."""
    variants = contestants.choose(options.algorithms, options.precisions, packed)
    refuse_none(parser, options, variants)
    return variants


def refuse_none(parser, options, variants):
    """Exit with status 2 if the options leave no variants."""
    if not variants:
        parser.error(
            f"--precisions got {','.join(options.precisions)}, which none of --algorithms "
            f"{','.join(options.algorithms)} has"
        )


def choice(text, names):
    """The names in a comma-separated list, in the order of ``names``."""
    given = [name.strip() for name in text.split(",")]
    for name in given:
        if name not in names:
            raise argparse.ArgumentTypeError(f"got {name!r}; it takes {', '.join(names)}")
    return tuple(name for name in names if name in given)


def refuse_without_gpu(name):
    """Exit with what works instead, unless there is a GPU."""
    if SIMULATED or not cuda.is_available():
        measured = next(iter(provenance.measured()), "NAME")
        print(NO_GPU.format(name=name, gpu="H100-SXM", measured=measured), file=sys.stderr)
        raise SystemExit(2)


def main(name, parser, groups, arguments):
    """An experiment from its command line to its CSV.

    Parameters
    ----------
    name : str
    parser : argparse.ArgumentParser
    groups : callable
        ``groups(parser, options)``: the list of :class:`Group` that the options ask for.
    arguments : list of str or None

    Returns
    -------
    int
        0; see the module for the others.
    """
    options = parser.parse_args(arguments)
    found = groups(parser, options)
    if options.gpus:
        merge = partial(records.merge, groups=[group.key for group in found])
        return launched(name, parser, arguments, options, merge)
    refuse_without_gpu(name)
    chosen(options, [group.workload for group in found])  # before there is a file
    run(open_table(name, options), found, options)
    return 0


def open_table(name, options):
    """The experiment's CSV on this GPU; a message and exit status 2 where it is not ours to write."""
    path = options.results / provenance.gpu_name() / f"{name}.csv"
    try:
        table = records.Table(path, records.of_machine(), options.fresh)
        table.write()  # whether it can be, before anything is measured
        return table
    except records.ForeignFile as foreign:
        print(f"{name}: {foreign}", file=sys.stderr)
        raise SystemExit(2) from None


@dataclass
class Group:
    """Rows that are measured together: one pass of one workload, and the variants of it.

    Attributes
    ----------
    experiment, workload : str
    geometry : numbacaps.Geometry
    wanted : str
        The pass.
    variants : list
        Each has ``cells``, those of :data:`experiments.measuring.records.VARIANT`.
    measure : callable
        ``measure(problem, wanted, variants, tick)``: a row for each variant.
    others : list
        Variants that are measured with these if the file has rows of them, so that none are lost.
    """

    experiment: str
    workload: str
    geometry: Geometry
    wanted: str
    variants: list
    measure: Callable
    others: list = field(default_factory=list)

    @property
    def cells(self):
        """The cells of :data:`experiments.measuring.records.GROUP`."""
        names = {"experiment": self.experiment, "workload": self.workload, "pass": self.wanted}
        return records.of_geometry(self.geometry) | names

    @property
    def key(self):
        """What a shard is chosen by."""
        return records.key(self.cells, records.GROUP)

    def join(self, table):
        """Take in those of ``others`` that the table has rows of."""
        mine = {records.key(variant.cells, records.VARIANT) for variant in self.variants}
        known = {records.key(row, records.VARIANT) for row in table.of_group(self.cells)}
        self.variants = self.variants + [
            other
            for other in self.others
            if records.key(other.cells, records.VARIANT) in known - mine
        ]

    def rows(self, problem, tick):
        """The rows; where measuring fails as a whole, each says why."""
        busy = [cards.busy_neighbours()]
        try:
            found = self.measure(problem, self.wanted, self.variants, tick)
        except BrokenPipeError:  # who was told how far it is has gone: it is the bar that failed
            raise
        except Exception as failure:  # whatever it was, the other groups can go on
            note = {"note": measure.note_of(failure), "timestamp": records.now()}
            found = [records.of_machine() | variant.cells | note for variant in self.variants]
        busy.append(cards.busy_neighbours())
        known = {} if None in busy else {"busy_neighbours": max(busy)}
        return [self.cells | row | known for row in found]


def convolution_groups(experiment, workloads, passes, variants):
    """A group for every workload and pass."""
    everyone = contestants.choose(contestants.NAMES)
    return [
        Group(experiment, workload, geometry, wanted, variants, measure.measure, everyone)
        for workload, geometry in workloads
        for wanted in passes
    ]


def chosen(options, names):
    """Those of the workloads' names that the options ask for; a message and exit status 2 for one that there is not."""
    names = list(dict.fromkeys(names))
    for name in options.workload or ():
        if name not in names:
            print(f"--workload got {name!r}; it takes one of {names}", file=sys.stderr)
            raise SystemExit(2)
    return options.workload or names


def lacking(table, groups, absent=None):
    """Those of the groups that the table lacks, with the variants that are measured along."""
    absent = contestants.absent() if absent is None else absent
    found = []
    for group in groups:
        if not table.has(group.cells, [variant.cells for variant in group.variants], absent):
            group.join(table)
            found.append(group)
    return found


def run(table, groups, options):
    """Measure those groups of the chosen workloads and of the shard that the table lacks.

    Consecutive groups of one geometry share operands. The rows of a shard stand in the groups' order.
    """
    names = chosen(options, [group.workload for group in groups])
    groups = [group for group in groups if group.workload in names]
    mine = options.shard.part(groups, attrgetter("key"))
    wanted = lacking(table, mine)
    if len(wanted) < len(mine):
        print(f"{len(mine) - len(wanted)} of {len(mine)} groups of rows were measured before")
    try:
        measure_groups([(table, group) for group in wanted])
        put_in_order(table, groups, options.shard)
    except KeyboardInterrupt:
        print(f"\ninterrupted; {table.path} holds every finished group", file=sys.stderr)
        raise SystemExit(130) from None
    except records.ForeignFile as foreign:
        print(f"{table.path.stem}: {foreign}", file=sys.stderr)
        raise SystemExit(2) from None
    _report(table)


def put_in_order(table, groups, part):
    """Have the rows of a shard stand as those of the whole do, in the groups' order."""
    if part != shard.WHOLE:
        table.write(partial(records.in_order, groups=[group.key for group in groups]))


@contextmanager
def _only_new_garbage():
    """Leave out of garbage collection what is alive now, modules and rows: it takes a fifth of a second for each group."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def measure_groups(jobs, until=math.inf, longest=0.0):
    """Measure groups, each into its table.

    Parameters
    ----------
    jobs : list of (records.Table, Group)
    until : float
        By :func:`time.monotonic`: no group is begun that would end later if it took as long as the
        longest before it.
    longest : float
        Seconds of the longest of earlier calls.

    Returns
    -------
    done : int
        How many were measured.
    longest : float
        Seconds of the longest.
    """
    problem = None
    total = sum(len(group.variants) for _, group in jobs)
    with tqdm(total=total, unit="row") as bar, _only_new_garbage():
        for done, (table, group) in enumerate(jobs):
            begun = time.monotonic()
            if begun + longest >= until:
                return done, longest
            if problem is None or problem.geometry != group.geometry:
                problem = Problem(group.geometry)
            label = f"{group.workload} {group.wanted}"

            def tick(variant, label=label):
                bar.set_description(f"{label}: {variant}")
                bar.update()

            table.replace(group.rows(problem, tick))
            problem.leave_device()
            device_memory.release()
            longest = max(longest, time.monotonic() - begun)
    return len(jobs), longest


def _report(table):
    """Say what could not be measured, and where the rows are."""
    failed = {
        (row["algorithm"], row["note"])
        for row in table.rows
        if not row["ms_p50"] and not row["peak_bytes"] and row["note"]
    }
    for algorithm, note in sorted(failed):
        if not note.startswith("out of memory"):
            print(f"no result of {algorithm}: {note}", file=sys.stderr)
    folder = table.path.parent
    where = "" if folder.parent == provenance.RESULTS else f" --results {folder.parent}"
    print(
        f"{len(table.rows)} rows in {table.path}; python -m experiments.figures --gpu "
        f"{folder.name}{where} draws them"
    )
