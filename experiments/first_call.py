"""How long a user waits for the first result: of a geometry that is new here, and of a network.

``python -m experiments.first_call`` writes ``experiments/results/<gpu>/first_call.csv``. Each row is of a fresh process
with a folder for kernels (``NUMBA_CACHE_DIR``) of its own, which is

- empty, or
- other: it holds the kernels of other geometries, in every pass, at the same precision; of a network, those of the
  published network, whose process went before; or
- warm: it holds what ``numbacaps.warmup()`` compiles at the same precision.

Measured are ``import numbacaps``; the warm-up; the first result of each pass at each precision, and of all passes in one
process; the first parents of dynamic and of EM routing, and all gradients behind them, at the default precision; and
the first step and the first inference of the published network, and of another network after it in the same process. A
process's start, its first use of the GPU, and the arrays are not in the time.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path

from experiments.measuring import measure, provenance, ratios
from experiments.measuring.classes import plan_words
from experiments.measuring.first import PASSES
from experiments.measuring.listed import Listed
from experiments.measuring.workloads import square

NAME = "first_call"
MINUTES = 12  # that a run takes, about
KEYS = ("what", "pass", "precision", "kernels")
VALUES = ("seconds", "note")
EMPTY, OTHER, WARM = KERNELS = "empty", "other", "warm"
ALL = "all passes"
NEW = square(32, 12, 20, 13, 3, 1, 3, 5, 6)
OTHERS = (square(32, 16, 16, 12, 3, 1, 4, 4, 4), square(16, 8, 24, 15, 5, 2, 7, 3, 5))
ROUTINGS = ("dynamic", "em")
_ORDERS = (("step", "inference"), ("inference", "step"))
_LONGEST = 600  # seconds of a process
_DEFAULT = next(iter(ratios.CLASSES))  # the class of the default precision
_LISTED = Listed(NAME, KEYS, VALUES)
listing, merge, is_current = _LISTED.listing, _LISTED.merge, _LISTED.is_current


def make_parser():
    """The command line's parser."""
    choices = {
        "passes": ((*PASSES, ALL), "passes"),
        "precisions": (tuple(ratios.CLASSES), "classes"),
        "kernels": (KERNELS, "what the folder of kernels holds"),
    }
    parser = _LISTED.parser(__doc__, choices)
    parser.add_argument("--without-network", action="store_true", help="geometries alone")
    return parser


# ---- processes


def run(case, kernels):
    """Seconds by name that a fresh process prints for a case.

    Parameters
    ----------
    case : dict
        As :mod:`experiments.measuring.first` takes it.
    kernels : path
        Its folder for kernels.

    Raises
    ------
    RuntimeError
        It failed; the message is the last line that it said.
    """
    folders = {"NUMBA_CACHE_DIR": kernels, "CUDA_CACHE_PATH": kernels}  # the driver keeps some, too
    environment = os.environ | {name: str(folder) for name, folder in folders.items()}
    done = subprocess.run(
        [sys.executable, "-m", "experiments.measuring.first", json.dumps(case)],
        cwd=provenance.ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_LONGEST,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(
            (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        )
    return json.loads(done.stdout.strip().splitlines()[-1])


def _of_passes(geometry, names, how):
    return {"what": "passes", "geometry": asdict(geometry), "names": list(names), **how}


def _of_routing(geometry, form):
    return {"what": "routing", "geometry": asdict(geometry), "form": form}


class Folders:
    """Folders for kernels: empty ones, and copies of some that hold those of other geometries, or of a warm-up."""

    def __init__(self, root):
        self._root, self._made, self._kept = Path(root), 0, {}

    def new(self):
        """An empty folder."""
        self._made += 1
        folder = self._root / str(self._made)
        folder.mkdir()
        return folder

    def other(self, of):
        """A folder with kernels of :data:`OTHERS`; ``of`` says which case a geometry is."""
        cases = [of(geometry) for geometry in OTHERS]
        return self._copy(json.dumps(cases), cases)

    def warm(self, how):
        """A folder behind a warm-up at a dtype and precision."""
        case = {"what": "warmup", **how}
        return self._copy(json.dumps(case), [case])

    def warmed(self, how):
        """The seconds of that warm-up."""
        self.warm(how)
        return self._kept[json.dumps({"what": "warmup", **how})][1][0]["warmup"]

    def _copy(self, key, cases):
        if key not in self._kept:
            folder = self.new()
            with ThreadPoolExecutor(len(cases)) as pool:  # each waits for a process
                self._kept[key] = folder, list(pool.map(lambda case: run(case, folder), cases))
        copy = self.new()
        shutil.copytree(self._kept[key][0], copy, dirs_exist_ok=True)
        return copy

    def holding(self, kernels, of, how):
        """A folder that holds what is asked for."""
        if kernels == WARM:
            return self.warm(how)
        return self.new() if kernels == EMPTY else self.other(of)


# ---- rows


def jobs(options, words):
    """(keys of the rows, function of :class:`Folders` that measures them) of every process.

    Parameters
    ----------
    options : namespace
        As on the command line.
    words : dict of str to dict
        Of each class what ours takes: ``dtype`` and ``precision``.
    """
    found = [([("import", "", "", EMPTY)], _imported)]
    if WARM in options.kernels:
        for name in options.precisions:
            work = partial(lambda how, folders: [folders.warmed(how)], words[name])
            found.append(([("warm-up", "", name, EMPTY)], work))
    for kernels in options.kernels:
        for name in options.precisions:
            for wanted in options.passes:
                key = ("geometry", wanted, name, kernels)
                found.append(([key], _geometry_job(wanted, words[name], kernels)))
        if _DEFAULT in options.precisions:
            found += [_routing_job(form, words[_DEFAULT], kernels) for form in ROUTINGS]
    if not options.without_network:
        for name in options.precisions:
            if words[name]["dtype"] == "float32":
                found += [_network_job(name, words[name], order, EMPTY) for order in _ORDERS]
                if WARM in options.kernels:
                    found.append(_network_job(name, words[name], _ORDERS[0], WARM))
    return found


def _imported(folders):
    """Of a process that finds the bytecode: the first one writes it."""
    run({"what": "import"}, folders.new())
    return [run({"what": "import"}, folders.new())["import"]]


def _geometry_job(wanted, how, kernels):
    names = PASSES if wanted == ALL else (wanted,)

    def work(folders):
        folder = folders.holding(kernels, lambda g: _of_passes(g, PASSES, how), how)
        return [sum(run(_of_passes(NEW, names, how), folder).values())]

    return work


def _routing_job(form, how, kernels):
    """The process of a layer with routing; its gradients find what its forward pass has compiled."""
    passes = "forward", "gradients"
    keys = [(f"routing, {form}", wanted, _DEFAULT, kernels) for wanted in passes]

    def work(folders):
        folder = folders.holding(kernels, lambda g: _of_routing(g, form), how)
        found = run(_of_routing(NEW, form), folder)
        return [found[wanted] for wanted in passes]

    return keys, work


def _network_job(name, how, order, kernels):
    """The process of a network; the second of its two passes finds what the first has compiled."""
    then = f" after {order[0]}"
    behind = OTHER if kernels == EMPTY else kernels
    keys = [
        (who, what + (then if i else ""), name, kernels if who == "network" else behind)
        for who in ("network", "another network")
        for i, what in enumerate(order)
    ]

    def work(folders):
        case = {"what": "network", "precision": how["precision"], "order": list(order)}
        found = run(case, folders.holding(kernels, None, how))
        return [found[f"{who}, {what}"] for who in ("network", "another network") for what in order]

    return keys, work


def measured(keys, work, folders):
    """The rows of a process."""
    try:
        cells = [{"seconds": value} for value in work(folders)]
    except (RuntimeError, subprocess.TimeoutExpired) as failure:
        cells = [{"note": measure.note_of(failure)}] * len(keys)
    return [dict(zip(KEYS, key)) | some for key, some in zip(keys, cells)]


def table(rows):
    """The lines of the printed table."""
    lines = [f"{'seconds':>8}  {'kernels':8}{'class':10}first result of"]
    for row in rows:
        number = f"{float(row['seconds']):8.2f}" if row["seconds"] else f"{'-':>8}"
        words = " ".join(filter(None, (row["what"], row["pass"], row["note"])))
        lines.append(f"{number}  {row['kernels']:8}{row['precision']:10}{words}")
    return lines


def main(arguments=None):
    with tempfile.TemporaryDirectory() as root:
        folders = Folders(root)

        def works(options):
            found = jobs(options, plan_words(options.precisions))
            return [(keys, partial(measured, keys, work, folders)) for keys, work in found]

        return _LISTED.main(make_parser(), arguments, works, table)


if __name__ == "__main__":
    sys.exit(main())
