"""Measure an experiment in several jobs, which share its rows: on a Slurm cluster, or here.

``python -m experiments.submit NAME --shards N ... --slurm --partition P`` submits a job array through submitit (extra
``cluster``): N jobs with a GPU each, of which each runs ``python -m experiments.NAME ... --shard I/N`` with the options
that are not submit's own. The jobs write to one CSV, in a folder that all of them see, and keep each other's rows. A job
that was killed is submitted again by the same command: what is in the file is not measured again.

Without ``--slurm`` the same jobs run on this machine, all at once, on a GPU each, and are waited for. What each printed is in the
folder of the logs.
"""

import argparse
import shutil
import sys
from pathlib import Path

from experiments.ahead import count
from experiments.measuring import cards, provenance
from experiments.measuring.refusal import Parser
from experiments.measuring.shard import WHOLE, Shard
from experiments.record import EXPERIMENTS, WHOLE as AS_A_WHOLE
from numbacaps.extras import require

NAMES = (*EXPERIMENTS, *AS_A_WHOLE)


def make_parser():
    """The command line's parser; what it does not know is the experiment's."""
    parser = Parser(
        prog="python -m experiments.submit",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit status: 0 submitted, or done here; 1 a job here failed, 2 bad input, 130 after Ctrl-C",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("name", metavar="NAME", choices=NAMES, help=f"of {', '.join(NAMES)}")
    add("--shards", metavar="N", type=count, default=2, help="jobs (default 2)")
    add("--slurm", action="store_true", help="submit to Slurm, and do not wait")
    add("--partition", metavar="P", help="of the cluster (default: Slurm's own)")
    add("--minutes", metavar="N", type=count, default=60, help="of a job at most (default 60)")
    add(
        "--logs",
        metavar="DIR",
        type=Path,
        default=provenance.ROOT / "build" / "jobs",
        help="what the jobs print, in a folder that all of them see (default build/jobs)",
    )
    return parser


def commands(name, shards, arguments):
    """The command of each job.

    Parameters
    ----------
    name : str
        Of the experiment.
    shards : int
    arguments : list of str
        The experiment's own.

    Returns
    -------
    list of list of str
    """
    command = [sys.executable, "-m", f"experiments.{name}", *arguments]
    return [[*command, "--shard", str(part)] for part in WHOLE.split(shards)]


def environments(options):
    """The environment of each job: here a GPU of its own, on a cluster what the cluster gives it, None."""
    if options.slurm or not cards.visible():
        return [None] * options.shards
    return list(map(cards.pinned, cards.visible()))


def executor(options):
    """submitit's executor of the jobs.

    Raises
    ------
    ImportError
        submitit is not installed; the message names the extra.
    """
    submitit = require("submitit", "cluster", "experiments.submit")
    made = submitit.AutoExecutor(options.logs, cluster="slurm" if options.slurm else "local")
    made.update_parameters(name=options.name, timeout_min=options.minutes)
    if options.slurm:
        partition = {"slurm_partition": options.partition} if options.partition else {}
        made.update_parameters(gpus_per_node=1, **partition)
    return made


def submit(options, arguments):
    """submitit's jobs."""
    submitit = require("submitit", "cluster", "experiments.submit")
    functions = [
        submitit.helpers.CommandFunction(command, cwd=provenance.ROOT, env=environment)
        for command, environment in zip(
            commands(options.name, options.shards, arguments), environments(options)
        )
    ]
    made = executor(options)
    with made.batch():  # one array
        jobs = [made.submit(function) for function in functions]
    return jobs


def _wait(jobs):
    """Wait for jobs here; how many failed, each of which is named."""
    failed = 0
    for number, job in enumerate(jobs, 1):
        if failure := job.exception():
            said = str(failure).strip().splitlines() or [type(failure).__name__]
            print(
                f"job {job.job_id}, shard {Shard(number, len(jobs))}: {said[-1]}", file=sys.stderr
            )
            failed += 1
    return failed


def main(arguments=None):
    parser = make_parser()
    options, rest = parser.parse_known_args(arguments)
    module = {**EXPERIMENTS, **AS_A_WHOLE}[options.name]
    theirs = module.make_parser().parse_args(rest)  # what it refuses, no job has to
    if theirs.shard != WHOLE or theirs.gpus:
        parser.error("--shard and --gpus stand alone; --shards says how many jobs there are")
    if getattr(theirs, "seed", 0) is None:
        parser.error("--seed got nothing; it takes a number, so that all jobs draw the same")
    if options.slurm and not shutil.which("sbatch"):
        parser.error("--slurm got no cluster here; it takes a machine with sbatch")
    here = len(cards.visible())
    if not options.slurm and 0 < here < options.shards:
        parser.error(f"--shards got {options.shards}; without --slurm it takes {here}, a GPU each")
    try:
        jobs = submit(options, rest)
    except ImportError as missing:
        parser.error(str(missing))
    if options.slurm:
        print(
            f"{len(jobs)} jobs, {jobs[0].job_id.split('_')[0]}; what they print is in {options.logs}"
        )
        return 0
    try:
        failed = _wait(jobs)
    except KeyboardInterrupt:
        for job in jobs:
            job.cancel()
        print("interrupted; the same command goes on from every finished row", file=sys.stderr)
        return 130
    print(
        f"{len(jobs) - failed} of {len(jobs)} jobs are done; what they printed is in {options.logs}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
