"""Measure again what is older than its kernels, most important first, for some minutes.

``python -m experiments.record`` measures, on this machine's GPU, the rows of ``experiments/results/<gpu>/``
that are older than their kernels or missing: first the forward pass of fused.csv, then its gradients, then the
whole network of table1.csv, then the rest, and at last, for which there is time, the experiments that are run as a
whole: host_cost, first_call, with a new seed drawn_speed, routing, routing_curves, and torch_layers. It compiles what a batch of groups takes in processes side by
side, then measures the batch. Every group of rows is in its file as soon as it is measured; Ctrl-C
loses none, and the next call goes on.

``--gpus`` shares the rows out among processes, one a GPU, that write the same files; ``--shard`` takes a part of them.
Experiments that are run as a whole take a process without either: neighbours disturb the host's times.

``--list`` needs no GPU: it says which rows and which records of tests are older than their kernels.
"""

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

from experiments import (
    ahead,
    drawn_speed,
    first_call,
    fused,
    host_cost,
    memory,
    neighbours,
    routing,
    routing_curves,
    rungs,
    scaling,
    stages,
    sweep,
    table1,
    torch_layers,
)
from experiments.measuring import (
    cards,
    command,
    contestants,
    launcher,
    provenance,
    records,
    shard,
)
from experiments.measuring.problem import NETWORK_PASSES
from experiments.measuring.refusal import Parser, Refusal
from experiments.training import training
from numbacaps.device.target import SIMULATED, cuda

EXPERIMENTS = {
    "fused": fused,
    "table1": table1,
    "rungs": rungs,
    "sweep": sweep,
    "stages": stages,
    "memory": memory,
}
# Those that are run as a whole, behind all groups of rows; each says by MINUTES what it takes.
WHOLE = {
    "host_cost": host_cost,
    "first_call": first_call,
    "drawn_speed": drawn_speed,
    "routing": routing,
    "routing_curves": routing_curves,
    "torch_layers": torch_layers,
}
# Those that take several GPUs; nothing here runs them.
SEVERAL_GPUS = {"scaling": scaling, "neighbours": neighbours}
TESTS = {
    "gpu_tests.json": "python -m tests.record_gpu",
    "gpu_drawn.json": "python -m tests.record_drawn",
    "gpu_campaign.json": "python -m tests.record_campaign",
}
_NONE_OLDER = "no row and no record is older than its kernels"


def rank(experiment, wanted):
    """How late a pass of an experiment is measured."""
    if experiment == "fused":
        return 0 if wanted == "forward" else 1
    return 2 if wanted in NETWORK_PASSES else 3 + list(EXPERIMENTS).index(experiment)


# ---- what is older


def older(results):
    """A line for each group of rows, and each record, that is older than its kernels.

    Parameters
    ----------
    results : path
        Holds a folder for each GPU.

    Returns
    -------
    list of str

    Raises
    ------
    experiments.measuring.records.ForeignFile
        A CSV there is not one of ours.
    """
    listed = WHOLE | SEVERAL_GPUS
    lines, files = [], {module.NAME: name for name, module in listed.items()}
    for gpu in provenance.measured(results):
        folder = Path(results) / gpu
        paths = sorted(folder.glob("*.csv"), key=_rank_of_file)
        for path in paths:
            experiment = files.get(path.stem)
            if experiment is None:
                lines += [f"{gpu}/{path.name}: {line}" for line in _older_rows(path)]
            elif not listed[experiment].is_current(folder):
                lines.append(f"{gpu}/{path.name}; python -m experiments.{experiment}")
        for name, command_line in TESTS.items():
            path = folder / name
            if path.exists() and not provenance.is_current(record := records.read_record(path)):
                lines.append(f"{gpu}/{name}: of {record.get('date')}; {command_line}")
        path = folder / "digits" / "training.csv"
        if not all(map(provenance.is_current, training.read(path))):
            lines.append(f"{gpu}/digits/{path.name}; python -m experiments.train_digits")
    return lines


def _rank_of_file(path):
    names = list(EXPERIMENTS)
    return names.index(path.stem) if path.stem in names else len(names)


def _older_rows(path):
    """A line for each workload and pass of a CSV with rows that are older."""
    rows, sources = records.read(path), records.sources(path)
    every = Counter(f"{row['workload']}, {row['pass']}" for row in rows)
    old = Counter(
        f"{row['workload']}, {row['pass']}" for row in rows if not sources.is_current(row)
    )
    return [f"{name}: {count} of {every[name]} rows" for name, count in old.items()]


def tell(results):
    """Print what is older than its kernels."""
    lines = older(results)
    for line in lines or [_NONE_OLDER]:
        print(line)
    if lines:
        print(f"{len(lines)} in all; make record on the GPU measures the rows of experiments again")
    return 0


# ---- what is measured


def missing(folder, part=shard.WHOLE):
    """What is older than its kernels or was not measured yet, most important first.

    Parameters
    ----------
    folder : path
        Of this GPU's results.
    part : experiments.measuring.shard.Shard
        To which the rows fall.

    Returns
    -------
    list of (records.Table, command.Group)
    """
    machine, absent, jobs = records.of_machine(), contestants.absent(), []
    for name, module in EXPERIMENTS.items():
        table = records.Table(folder / f"{name}.csv", machine, same=())
        parser = module.make_parser()
        groups = module.groups(parser, parser.parse_args([]))
        jobs += [(table, group) for group in command.lacking(table, groups, absent)]
    jobs = part.part(jobs, key=lambda job: job[1].key)
    return sorted(jobs, key=lambda job: rank(job[1].experiment, job[1].wanted))


def batches(jobs, cases):
    """The jobs in their order, in batches of about ``cases`` variants and one rank each."""
    found, last = [], None
    for job in jobs:
        now = rank(job[1].experiment, job[1].wanted)
        if now != last or sum(len(group.variants) for _, group in found[-1]) >= cases:
            found.append([])
        found[-1].append(job)
        last = now
    return found


def _compile(jobs, processes):
    """Compile, side by side, what the groups of a batch run; what fails there is said by its row."""
    device = cuda.get_current_device()
    groups = [group for _, group in jobs]
    options = SimpleNamespace(
        experiments=[name for name in ahead.EXPERIMENTS if name == groups[0].experiment],
        passes=tuple(dict.fromkeys(group.wanted for group in groups)),
        precisions=contestants.PRECISIONS,
        workload=list(dict.fromkeys(group.workload for group in groups)),
        compute_capability=tuple(device.compute_capability),
        multiprocessors=device.MULTIPROCESSOR_COUNT,
    )
    ahead.compile_chosen(options, processes)


def measure(folder, minutes, processes, part=shard.WHOLE):
    """Measure what is missing of a shard, until the time is over; the exit status."""
    until = time.monotonic() + 60 * minutes
    jobs, done, longest, compiled = missing(folder, part), 0, 0.0, 0.0
    try:
        for batch in batches(jobs, 4 * processes):
            begun = time.monotonic()
            if begun + compiled + longest >= until:  # the next takes about what the last took
                break
            _compile(batch, processes)
            compiled = time.monotonic() - begun
            measured, longest = command.measure_groups(batch, until, longest)
            done += measured
            if measured < len(batch):
                break
    except KeyboardInterrupt:
        print(f"\ninterrupted; {folder} holds every finished group of rows", file=sys.stderr)
        return 130
    print(f"{done} of {len(jobs)} groups of rows were measured; they are in {folder}")
    if done < len(jobs):
        table, group = jobs[done]
        print(f"next: {table.path.name}, {group.workload}, {group.wanted}")
        return 0
    return _measure_whole(folder, until) if part == shard.WHOLE else 0


def measure_on_gpus(options, arguments):
    """Measure in a process for each GPU that ``--gpus`` names, all into the same files; the exit status."""
    gpus = cards.chosen(options.gpus)
    parts = list(map(str, options.shard.split(len(gpus))))
    processes = str(max(1, options.processes // len(gpus)))
    rest = ["experiments.record", *launcher.without_gpus(arguments), "--processes", processes]
    commands = [[*rest, "--shard", part] for part in parts]
    named = [f"shard {part}" for part in parts]
    return launcher.tell(*launcher.run("record", gpus, named, commands), options.results)


def _measure_whole(folder, until):
    """Run the experiments of :data:`WHOLE` that are older and that there is time for; the exit status."""
    for name, module in WHOLE.items():
        if module.is_current(folder):
            continue
        if time.monotonic() + 60 * module.MINUTES > until:
            print(f"left: {name}.csv, which takes about {module.MINUTES} minutes")
        elif status := module.main(["--results", str(folder.parent)]):
            return status
    return 0


def _parser():
    made = Parser(
        prog="python -m experiments.record",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit status: 0 done or out of time, 2 bad input, 130 after Ctrl-C",
    )
    made.add_argument("--list", action="store_true", help="only say what is older; needs no GPU")
    made.add_argument(
        "--minutes",
        metavar="N",
        type=ahead.count,
        default=10,
        help="begin nothing that would take longer (default 10)",
    )
    made.add_argument(
        "--processes",
        metavar="N",
        type=ahead.count,
        default=os.cpu_count(),
        help="that compile side by side (default: one a core)",
    )
    made.add_argument(
        "--results",
        metavar="DIR",
        type=Path,
        default=provenance.RESULTS,
        help="folder of the results (default experiments/results)",
    )
    shard.add_to(made)
    launcher.add_to(made)
    return made


def main(arguments=None):
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        if options.list:
            if not provenance.measured(options.results):
                takes = "a folder that holds one with CSVs for each GPU"
                raise Refusal("--results", options.results, takes)
            return tell(options.results)
        if options.gpus:
            return measure_on_gpus(options, arguments)
        if SIMULATED or not cuda.is_available():
            parser.error("there is no GPU here to measure on; --list says what is older")
        folder = options.results / provenance.gpu_name()
        return measure(folder, options.minutes, options.processes, options.shard)
    except (records.ForeignFile, Refusal) as foreign:
        parser.error(str(foreign))


if __name__ == "__main__":
    sys.exit(main())
