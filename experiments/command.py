"""What the measuring experiments have in common on the command line, and the loop that measures.

Exit status: 0 when done; 2 for bad input, with a message that names it; 130 after Ctrl-C, with every
finished group of rows in the file.
"""

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from experiments import contestants, measure, opponents, provenance, records
from experiments.problem import PASSES, Problem
from numbacaps.target import SIMULATED

NO_GPU = """\
{name}: there is no GPU here, and a time on the simulator says nothing about one: it counts Python
threads. What works without a GPU:
  python -m experiments.sweep --predict {gpu}   times from the byte and FLOP floors, marked as such
  python -m experiments.figures                 the figures of the committed results
  make walk                                     the algorithm, step by step"""


def parser(name, summary, algorithms=contestants.NAMES):
    """An argument parser with the options that all measuring experiments take."""
    made = argparse.ArgumentParser(
        prog=f"python -m experiments.{name}",
        description=summary,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Rows measured before for the same sources and GPU are kept; Ctrl-C loses no "
        "finished group of rows.",
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
        type=lambda text: choice(text, PASSES),
        default=PASSES,
        help=f"of {', '.join(PASSES)} (default: all)",
    )
    made.add_argument(
        "--precisions",
        metavar="A,B",
        type=lambda text: choice(text, opponents.PRECISIONS),
        default=opponents.PRECISIONS,
        help=f"of {', '.join(opponents.PRECISIONS)} (default: all); ours compute in ieee",
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
    return made


def choice(text, names):
    """The names in a comma-separated list, in the order of ``names``."""
    given = [name.strip() for name in text.split(",")]
    for name in given:
        if name not in names:
            raise argparse.ArgumentTypeError(f"got {name!r}; it takes {', '.join(names)}")
    return tuple(name for name in names if name in given)


def refuse_without_gpu(name):
    """Exit with what works instead, unless there is a GPU."""
    if SIMULATED:
        print(NO_GPU.format(name=name, gpu="H100-SXM"), file=sys.stderr)
        raise SystemExit(2)


def open_table(name, options):
    """The experiment's CSV on this GPU; a message and exit status 2 where it is not ours to write."""
    path = options.results / provenance.gpu_name() / f"{name}.csv"
    try:
        return records.Table(path, options.fresh)
    except records.ForeignFile as foreign:
        print(f"{name}: {foreign}", file=sys.stderr)
        raise SystemExit(2) from None


class Group:
    """Rows that are measured together: one pass of one workload, and the variants of it.

    Parameters
    ----------
    experiment, workload : str
    geometry : numbacaps.Geometry
    wanted : str
        The pass.
    variants : list of dict
        Cells of :data:`experiments.records.VARIANT`.
    measure : callable
        ``measure(problem, tick)``: the rows.
    """

    def __init__(self, experiment, workload, geometry, wanted, variants, measure):
        self.cells = {"experiment": experiment, "workload": workload, "pass": wanted}
        self.cells |= records.of_geometry(geometry)
        self.geometry, self.variants, self.measure = geometry, variants, measure


def convolution_groups(experiment, workloads, options):
    """A group for every workload and pass, of the algorithms that the options name."""
    variants = contestants.choose(options.algorithms, options.precisions)
    return [
        Group(
            experiment,
            workload,
            geometry,
            wanted,
            [variant.cells for variant in variants],
            lambda problem, tick, wanted=wanted: measure.measure(problem, wanted, variants, tick),
        )
        for workload, geometry in workloads
        for wanted in options.passes
    ]


def run(table, groups):
    """Measure the groups that the table lacks; consecutive groups of one geometry share operands."""
    wanted = [group for group in groups if not table.has(group.cells, group.variants)]
    kept = len(groups) - len(wanted)
    if kept:
        print(f"{kept} of {len(groups)} groups of rows were measured before for these sources")
    problem = None
    try:
        with tqdm(total=sum(len(group.variants) for group in wanted), unit="row") as bar:
            for group in wanted:
                if problem is None or problem.geometry != group.geometry:
                    problem = Problem(group.geometry)
                label = f"{group.cells['workload']} {group.cells['pass']}"

                def tick(variant, label=label):
                    bar.set_description(f"{label}: {variant}")
                    bar.update()

                rows = group.measure(problem, tick)
                table.replace([group.cells | row for row in rows])
                problem.leave_device()
                measure.release()
    except KeyboardInterrupt:
        print(f"\ninterrupted; {table.path} holds every finished group", file=sys.stderr)
        raise SystemExit(130) from None
    _report(table)


def _report(table):
    """Say what could not be measured, and where the rows are."""
    absent = {(row["algorithm"], row["note"]) for row in table.rows if not row["ms_p50"]}
    for algorithm, note in sorted(absent):
        if note and not note.startswith("out of memory"):
            print(f"no time for {algorithm}: {note}", file=sys.stderr)
    print(f"{len(table.rows)} rows in {table.path}; python -m experiments.figures draws them")
