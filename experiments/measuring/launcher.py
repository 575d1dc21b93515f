"""An experiment on several GPUs: a process for each, which measures a shard of the rows into a CSV of its own.

The CSVs are in ``RESULTS/shards/NAME/`` while the processes run; training's are in its own folder's ``shards``. What they hold goes to the experiment's CSVs in one
write each, when the last process has ended, on Ctrl-C too; what a killed launcher has left, goes there when the next
one begins.
"""

import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from argparse import ArgumentParser
from collections import deque
from contextlib import suppress
from pathlib import Path

from tqdm import tqdm

from experiments.measuring import cards, provenance, records

_BAR = "@{n} {total} {desc}"  # a bar's line of a process; TQDM_... are tqdm's own
_SHOWN_EVERY = 0.2  # seconds
_LAST_LINES = 3


def add_to(parser):
    """Add ``--gpus`` to a command line's parser."""
    parser.add_argument(
        "--gpus",
        metavar="all|0,1",
        help="a process for each of these GPUs, which share the rows (default: this one on the first)",
    )


class Worker:
    """A process on one GPU.

    Parameters
    ----------
    gpu : str
        As ``CUDA_VISIBLE_DEVICES`` takes it.
    share : str
        Which rows are its own, in words.
    command : list of str
    """

    def __init__(self, gpu, share, command):
        self.gpu, self.share, self.done, self.total, self.label = gpu, share, 0, 0, ""
        self._lines, self._heard, self._asked = deque(maxlen=_LAST_LINES), deque(), False
        self.process = subprocess.Popen(
            command,
            cwd=provenance.ROOT,
            env=cards.pinned(gpu)
            | {"TQDM_BAR_FORMAT": _BAR, "TQDM_MININTERVAL": str(_SHOWN_EVERY)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches the launcher alone, which passes it on once
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        """Take in what the process says, line by line."""
        said = b""
        with self.process.stderr as pipe:
            while piece := os.read(pipe.fileno(), 1 << 16):
                *lines, said = re.split(rb"[\r\n]", said + piece)
                for line in lines:
                    self._take(line.decode(errors="replace").strip())
        self._take(said.decode(errors="replace").strip())

    def _take(self, line):
        if found := re.fullmatch(r"@(\d+) (\d+) (.*)", line):
            self.done, self.total, self.label = int(found[1]), int(found[2]), found[3]
        elif line and not line.startswith("@"):
            self._lines.append(line)
            self._heard.append(line)

    @property
    def runs(self):
        """Whether it does, or has said something that was not taken in yet."""
        return self.process.poll() is None or self._reader.is_alive()

    def heard(self):
        """The lines that it has said since the last call."""
        return [self._heard.popleft() for _ in range(len(self._heard))]

    def stop(self):
        """Ask it to stop as Ctrl-C does; who was asked before is killed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL if self._asked else signal.SIGINT)
            self._asked = True

    def epitaph(self):
        """What it died of, in words; None if it ended well, or as it was asked to."""
        status = self.process.returncode
        if status == 0 or (self._asked and status in (130, -signal.SIGINT)):
            return None
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        said = "; ".join(self._lines)
        return (
            f"GPU {self.gpu}: process {self.process.pid}, {self.share}, ended by {how}"
            f"{f' ({said})' if said else ''}; the next run measures the rows that it left"
        )


def launch(name, arguments, options, merge, module=None, shares=None, inside=""):
    """Run an experiment's processes to their end, and merge their CSVs.

    Parameters
    ----------
    name : str
        Of the experiment and its CSV.
    arguments : list of str or None
        Its command line; None for that of this process.
    options : namespace
        ``gpus``, ``shard`` and ``results``.
    merge : callable
        ``merge(table, part)``: take the rows of the CSV ``part`` into the CSV ``table``, by their paths.
    module : str, optional
        What each process runs; by default ``experiments.NAME``.
    shares : list of (str, str), optional
        An option and its value for each process, which are its rows; by default ``--shard``. No more processes begin.
    inside : str
        The one folder in the results that the processes write, if they take that as ``--results``; by default all are theirs.

    Returns
    -------
    int
        0; 1 if a process died; 130 after Ctrl-C.

    Raises
    ------
    experiments.measuring.refusal.Refusal
        ``--gpus`` names no GPU.
    experiments.measuring.records.ForeignFile
        Another launcher is at work, or a CSV is not ours or cannot be written.
    """
    gpus = cards.chosen(options.gpus)
    shares = shares or [("--shard", str(part)) for part in options.shard.split(len(gpus))]
    folder = options.results / inside / "shards" / name
    rest = without_gpus(arguments)
    with records.alone(folder, seconds=1.0), records.named(folder):
        _collect(folder, options.results, name, merge, inside)
        commands = []
        for number, (option, share) in zip(range(len(gpus)), shares):
            own = folder / f"{number + 1}-of-{len(gpus)}"
            _give(options.results, name, own, inside)
            where = ["--results", str((own / inside).resolve())]
            commands.append([module or f"experiments.{name}", *rest, option, share, *where])
        named = [f"{option.strip('-')} {share}" for option, share in shares]
        try:
            workers, interrupted = run(name, gpus, named, commands)
        finally:
            tables = _collect(folder, options.results, name, merge, inside)
    with suppress(OSError):  # another experiment's launcher may be at work there
        folder.parent.rmdir()
    return tell(workers, interrupted, ", ".join(map(str, tables)) or "no file")


def without_gpus(arguments):
    """A command line, None for that of this process, without ``--gpus``."""
    stripped = ArgumentParser(add_help=False, allow_abbrev=False)
    stripped.add_argument("--gpus")
    return stripped.parse_known_args(sys.argv[1:] if arguments is None else arguments)[1]


def run(name, gpus, shares, commands):
    """Run a module with arguments on each GPU, as far as there are both, to the end of all.

    Parameters
    ----------
    name : str
        Shown.
    gpus, shares : list of str
        As of :class:`Worker`.
    commands : list of list of str
        A module's name and its arguments.

    Returns
    -------
    workers : list of Worker
    interrupted : bool
        Whether Ctrl-C was pressed.
    """
    workers = []
    try:
        for gpu, share, command in zip(gpus, shares, commands):
            workers.append(Worker(gpu, share, [sys.executable, "-m", *command]))
        return workers, _watch(workers, name)
    finally:
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.process.wait()


def tell(workers, interrupted, where):
    """Say how the processes ended, and where their rows are; the exit status."""
    deaths = list(filter(None, (worker.epitaph() for worker in workers)))
    for words in deaths:
        print(words, file=sys.stderr)
    if interrupted:
        print(f"interrupted; {where} holds every finished row", file=sys.stderr)
        return 130
    print(f"{len(workers) - len(deaths)} of {len(workers)} processes ended well; rows in {where}")
    return 1 if deaths else 0


def _watch(workers, name):
    """Show how far all are, until the last has ended; whether Ctrl-C was pressed."""
    interrupted = False
    with tqdm(unit="row", desc=name) as bar:
        while True:
            try:
                while any(worker.runs for worker in workers):
                    _show(bar, workers)
                    threading.Event().wait(_SHOWN_EVERY)
                _show(bar, workers)
                return interrupted
            except KeyboardInterrupt:
                interrupted = True
                for worker in workers:
                    worker.stop()


def _show(bar, workers):
    for worker in workers:
        for line in worker.heard():
            bar.write(f"GPU {worker.gpu}: {line}", file=sys.stderr)
    bar.total = sum(worker.total for worker in workers)
    bar.n = sum(worker.done for worker in workers)
    at_work = [f"{worker.gpu} {worker.label}".strip(" :") for worker in workers if worker.runs]
    bar.set_postfix_str("; ".join(at_work))


def _give(results, name, own, inside):
    """Give a process what was measured before, so that it is kept, and networks' files to go on from."""
    for path in results.glob(f"{glob.escape(inside) or '*'}/{name}.csv"):
        (own / path.parent.name).mkdir(parents=True, exist_ok=True)
        for file in (path, path.with_suffix(".sources.json"), *path.parent.glob("*.npz")):
            if file.exists():
                shutil.copy2(
                    file, own / path.parent.name / file.name
                )  # with the time of its last change


def _collect(folder, results, name, merge, inside):
    """Merge what the processes have written; the CSVs that have it now."""
    found = {}
    for part in sorted(Path(folder).glob(f"*/{glob.escape(inside) or '*'}/{name}.csv")):
        table = results / part.parent.name / part.name
        merge(table, part)
        found[table] = None
    shutil.rmtree(folder, ignore_errors=True)
    return list(found)
