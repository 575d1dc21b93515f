"""A run of training: epochs of shuffled batches, watched for NaN, logged, saved, and gone on with.

The order of an epoch's images follows from the seed and the epoch's number alone, so a run that
goes on from a file sees the batches that it would have seen. Images that fill no batch wait for the
next epoch's order.
"""

import csv
import io
import json
import math
import os
import shutil
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

import reference.nn
from experiments.measuring import cards, provenance, records
from experiments.training.digits import as_input
from experiments.training.processes import ALONE, Agreed, Job
from numbacaps.device.target import SIMULATED

_SHOWN_EVERY = 0.2  # seconds between two looks at the device
RUN = ("by", "seed")
# column: what it holds; a row is an epoch of a run
COLUMNS = {
    "by": "numbacaps; torch: the twin through PyTorch; torch-modules, sabour-modules, sabour-torch: modules; "
    "NETWORK-modules, NETWORK-torch: a network with routing, and its twin with stored votes",
    "seed": "of the initial weights and of the batches",
    "epoch": "counted from 1",
    "step": "steps done at its end",
    "counted": "steps of it that loss, accuracy and images_per_s are of: all, unless resumed",
    "rate": "learning rate of its last step",
    "loss": "mean loss of its batches, each before its step: margin loss; of a network with routing, its paper's",
    "accuracy": "share of their images that were classified rightly",
    "test_loss": "loss of the test images: as above, but without images drawn again, and with the last margin",
    "test_accuracy": "share of them that were classified rightly",
    "images_per_s": "images trained on a second, the test apart",
    "gpu": "name of the GPU, or simulator",
    "versions": "JSON: versions of Python and of the packages that matter",
    "source_sha256": "of numbacaps/**/*.py",
    "timestamp": "UTC, ISO 8601",
    "gpu_uuid": "UUID of the GPU, which tells it from others of its name",
    "busy_neighbours": "how many other GPUs of the host were at work; empty where it is not known",
}
_NUMBERS = "rate", "loss", "accuracy", "test_loss", "test_accuracy", "images_per_s"
_LATER = ("gpu_uuid", "busy_neighbours")  # which older files lack


class Diverged(ArithmeticError):
    """The loss, or a weight, is not finite any more.

    Attributes
    ----------
    step : int
        The first such step, counted from 1.
    """

    def __init__(self, step):
        super().__init__(f"the loss is not finite at step {step}")
        self.step = step


@dataclass(frozen=True)
class Run:
    """What is trained on what, and where it is kept.

    Attributes
    ----------
    by : str
        Who trains: a value of the column.
    seed : int
    digits : experiments.training.digits.Digits
    batch, epochs : int
    folder : Path
        Of the network's file.
    job : experiments.training.processes.Job
        The processes that train it.
    test_loss : callable
        Of scores (count, classes) and labels of the test images.
    """

    by: str
    seed: int
    digits: object
    batch: int
    epochs: int
    folder: Path
    job: Job = ALONE
    test_loss: object = reference.nn.margin_loss

    @property
    def checkpoint(self):
        """The network's file."""
        return self.folder / f"{self.by}-seed{self.seed}.npz"

    @property
    def steps_an_epoch(self):
        return len(self.digits.train_labels) // self.batch

    @property
    def steps(self):
        """Steps of the whole run."""
        return self.epochs * self.steps_an_epoch

    def order(self, epoch):
        """Rows of the training images in the order of an epoch, counted from 0."""
        rng = np.random.default_rng((self.seed, epoch))
        return rng.permutation(len(self.digits.train_labels))


class Log:
    """The CSV of an epoch a row.

    Parameters
    ----------
    path : path
    gpu : str

    Raises
    ------
    experiments.measuring.records.ForeignFile
        The file is not ours, or cannot be read or written.
    """

    def __init__(self, path, gpu):
        self.path, self._gpu = Path(path), gpu
        self.rows = read(self.path)
        self._write()  # whether it can be

    def begin(self, run, step):
        """Drop the rows of a run that lie behind a step."""
        self.rows = [
            row
            for row in self.rows
            if records.key(row, RUN) != (run.by, str(run.seed)) or int(row["step"]) <= step
        ]
        self._write()

    def add(self, run, **cells):
        """Add a row and write the file."""
        row = {"by": run.by, "seed": run.seed, **cells, "gpu": self._gpu}
        row["versions"] = json.dumps(provenance.versions())
        row["source_sha256"] = provenance.source_sha256()
        row["timestamp"] = records.now()
        row |= _cards()
        self.rows.append({column: _cell(row[column]) for column in COLUMNS})
        self._write()

    def has(self, run):
        """Whether there is a row of a run."""
        return any(records.key(row, RUN) == (run.by, str(run.seed)) for row in self.rows)

    def replace(self, run, rows):
        """Put rows in the place of those of a run, by its :data:`RUN`, and write the file."""
        self.rows = [row for row in self.rows if records.key(row, RUN) != run] + rows
        self._write()

    def _write(self):
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        records.write_text(self.path, text.getvalue())


def _cards():
    """The cells of :data:`_LATER` now; empty on the simulator."""
    if SIMULATED:
        return dict.fromkeys(_LATER, "")
    busy = cards.busy_neighbours()
    return {"gpu_uuid": cards.gpu_uuid(), "busy_neighbours": "" if busy is None else busy}


class Unlogged:
    """A log of which nothing is kept, of processes behind the first."""

    rows = ()

    def begin(self, run, step):
        """Do nothing."""

    def add(self, run, **cells):
        """Do nothing."""


def drop(runs, log):
    """Drop the networks and the rows of runs that begin anew: all before the first, as an interruption may come before the last."""
    for run in runs:
        run.checkpoint.unlink(missing_ok=True)
        log.begin(run, 0)


def read(path):
    """Rows of a log, each a dict of strings; none if there is no file.

    Raises
    ------
    experiments.measuring.records.ForeignFile
        It is no log, or cannot be read.
    """
    try:
        rows = csv.DictReader(io.StringIO(Path(path).read_text("utf-8")))
        columns, rows = rows.fieldnames, list(rows)
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError, csv.Error) as failure:
        raise records.ForeignFile(f"{path} cannot be read: {failure}") from failure
    records.check_lengths(path, rows)
    known = [list(COLUMNS), [column for column in COLUMNS if column not in _LATER]]
    if columns not in known or not all(row["step"].isdecimal() for row in rows):
        raise records.ForeignFile(
            f"{path} is no log of training, which has the columns {', '.join(COLUMNS)}. It was "
            "left as it is"
        )
    for number, row in enumerate(rows, 2):
        for column in _NUMBERS:
            if not _is_number(row[column]):
                got = f"row {number}, column {column} is {row[column]!r}"
                raise records.ForeignFile(f"{path}: {got}; it takes a number")
    return [{column: row.get(column, "") for column in COLUMNS} for row in rows]


def merge(path, part):
    """Take over from another folder the runs that are further there: their rows, and their networks' files.

    Parameters
    ----------
    path, part : path
        Of the log that is written, and of the other.

    Raises
    ------
    experiments.measuring.records.ForeignFile
        One is no log, or cannot be read or written.
    """
    path, part = Path(path), Path(part)
    with records.alone(path):
        log, found = Log(path, None), {}
        for row in read(part):
            found.setdefault(records.key(row, RUN), []).append(row)
        for run, rows in found.items():
            mine = [row["timestamp"] for row in log.rows if records.key(row, RUN) == run]
            if max(mine, default="") < max(row["timestamp"] for row in rows):
                log.replace(run, rows)
        for file in part.parent.glob("*.npz"):
            _take_newer(file, path.parent / file.name)


def _take_newer(file, target):
    """Put a file in the place of an older one, whole or not at all."""
    if not target.exists() or target.stat().st_mtime_ns < file.stat().st_mtime_ns:
        temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        shutil.copy2(file, temporary)
        os.replace(temporary, target)


def _is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


def _cell(value):
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@contextmanager
def asked_to_stop():
    """An event that Ctrl-C sets, so that a step is finished and the network can be saved.

    A second Ctrl-C interrupts at once.
    """
    asked = threading.Event()

    def ask(*_):
        asked.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def train(model, run, log):
    """Train to the end of the run, from where the model is.

    After every epoch the test images are classified, a row is logged and the network saved, in this order: a row whose
    network was not saved is dropped by :meth:`Log.begin`.

    Parameters
    ----------
    model : numbacaps.nn.CapsNet, or one that answers to its calls
    run : Run
    log : Log or Unlogged

    Raises
    ------
    Diverged
        The file holds the network as it was at the end of the last good epoch.
    KeyboardInterrupt
        Ctrl-C was pressed; the file holds the network as it is.
    """
    shown = {"unit": "step", "disable": not run.job.is_first}
    with (
        tqdm(total=run.steps, initial=model.steps, **shown) as bar,
        asked_to_stop() as asked,
    ):
        stop = Agreed(asked, run.job)
        bar.set_description(f"{run.by}, seed {run.seed}")
        images = as_input(run.digits.train, model.dtype)
        data = model.place(images, run.digits.train_labels)
        while model.steps < run.steps:
            _train_epoch(model, data, run, log, bar, stop)
        if stop.is_set():
            raise KeyboardInterrupt


def _train_epoch(model, data, run, log, bar, stop):
    """Train to the end of the epoch that the model is in."""
    epoch, done = divmod(model.steps, run.steps_an_epoch)
    first = seen = model.steps
    order = run.order(epoch)
    start = shown = time.perf_counter()
    for at in range(done, run.steps_an_epoch):
        if stop.is_set():
            _save(model, run, seen)
            raise KeyboardInterrupt
        model.step_rows(data, order[at * run.batch : (at + 1) * run.batch])
        bar.update()
        if time.perf_counter() - shown > _SHOWN_EVERY:
            losses, hits = _finite_history(model, seen)
            rate = (model.steps - first) * run.batch / (time.perf_counter() - start)
            _show(bar, losses, hits, run, rate)
            seen, shown = model.steps, time.perf_counter()
    losses, hits = _finite_history(model, first)
    rate = (model.steps - first) * run.batch / (time.perf_counter() - start)
    _show(bar, losses, hits, run, rate)
    test_loss, test_accuracy = evaluate(model, run.digits, run.test_loss)
    log.add(
        run,
        epoch=epoch + 1,
        step=model.steps,
        counted=model.steps - first,
        rate=model.adam.rate_of(model.steps - 1),
        loss=float(losses.mean()),
        accuracy=float(hits.mean() / run.batch),
        test_loss=test_loss,
        test_accuracy=test_accuracy,
        images_per_s=rate,
    )
    # Behind its row: what a killed process has not saved is trained and logged again.
    _save(model, run, first)


def classify(model, images):
    """Scores of the classes of images, in float64: lengths of their capsules, or their activations."""
    return model.forward(as_input(images, model.dtype))[1].astype(np.float64)


def evaluate(model, digits, test_loss=reference.nn.margin_loss):
    """(loss, share classified rightly) of the test images."""
    scores = classify(model, digits.test)
    hits = reference.nn.hits(scores, digits.test_labels)
    return float(test_loss(scores, digits.test_labels)), hits / len(scores)


def _finite_history(model, first):
    """Losses and hits from a step on; Diverged if a loss is not finite."""
    losses, hits = model.history(first)
    if not np.isfinite(losses).all():
        raise Diverged(first + 1 + int(np.argmin(np.isfinite(losses))))
    return losses, hits


def _save(model, run, first):
    """Save a network whose steps from ``first`` on were sound."""
    _finite_history(model, first)
    try:
        model.save(run.checkpoint)
    except ValueError:  # the step that its loss would have told of comes next
        raise Diverged(model.steps + 1) from None


def _show(bar, losses, hits, run, rate):
    accuracy = hits.mean() / run.batch if len(hits) else math.nan
    loss = losses.mean() if len(losses) else math.nan
    bar.set_postfix_str(f"loss {loss:.4f}, accuracy {accuracy:.1%}, {rate:.0f} images/s")
