"""All figures as files: those that there are rows for, and why the others are missing."""

import re
from functools import partial

from matplotlib import style

from experiments.plots import memory, roofline, speedup, stages, table1, workloads
from experiments.plots.canvas import STYLE, file_bytes
from experiments.plots.rows import Lacking, split_sweep


def draw_all(data, baseline):
    """Draw every figure that there are rows for.

    Parameters
    ----------
    data : dict of str to list of dict
        Rows by experiment, as :func:`experiments.plots.rows.load_all` reads them.
    baseline : str
        Algorithm that the speedups are over.

    Returns
    -------
    files : dict of str to bytes
        By the file's name.
    skipped : list of str
        One line for each figure that could not be drawn, and why.
    """
    sweeps, single = split_sweep(data["sweep"])
    jobs = [("table1", "table1", partial(table1.draw, data["table1"]))]
    for workload, rows in sweeps.items():
        make = partial(speedup.draw, workload, rows, baseline)
        jobs.append((f"sweep-{_slug(workload)}", "sweep", make))
    jobs += [
        ("workloads", "sweep", partial(workloads.draw, single)),
        ("roofline", "table1", partial(roofline.draw, data["table1"] + data["sweep"])),
        ("stages", "stages", partial(stages.draw, data["stages"])),
        ("memory", "memory", partial(memory.draw, data["memory"])),
    ]
    files, skipped = {}, []
    if not sweeps:
        skipped.append(_skipped("sweep-...", "sweep", "no workload that sweeps an axis"))
    with style.context(["default", STYLE]):
        for name, experiment, make in jobs:
            try:
                made = file_bytes(make())
            except Lacking as lack:
                skipped.append(_skipped(name, experiment, lack))
            else:
                files |= {f"{name}.{extension}": content for extension, content in made.items()}
    return files, skipped


def _slug(text):
    """A workload's name, fit for a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _skipped(name, experiment, lack):
    return (
        f"{name} skipped: {experiment}.csv has {lack}; python -m experiments.{experiment} makes it"
    )
