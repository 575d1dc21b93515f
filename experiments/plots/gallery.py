"""All figures as files: those that there are rows for, and why the others are missing."""

import re
from functools import partial

from matplotlib import style

from experiments.plots import distribution, memory, roofline, speedup, stages, table1, workloads
from experiments.plots.canvas import STYLE, file_bytes
from experiments.plots.lines import FOLD
from experiments.plots.rows import EXPERIMENTS, Lacking, split_sweep


def draw_all(data, baseline):
    """Draw every figure that there are rows for.

    Parameters
    ----------
    data : dict of str to list of dict
        Rows by experiment, as :func:`experiments.plots.rows.load_all` reads them.
    baseline : str or None
        Algorithm that the speedups are over; None for the fold, or where it has no times the first that has.

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
        make = partial(speedup.draw, workload, rows, baseline or _baseline(rows))
        jobs.append((f"sweep-{_slug(workload)}", "sweep", make))
    jobs += [
        ("workloads", "sweep", partial(workloads.draw, single)),
        ("roofline", "table1", partial(roofline.draw, data["table1"] + data["sweep"])),
        ("stages", "stages", partial(stages.draw, data["stages"])),
        ("memory", "memory", partial(memory.draw, data["memory"])),
        ("drawn-speed", "drawn_speed", partial(distribution.draw, data["drawn_speed"])),
    ]
    for name in data:
        if name == "fused" or name not in EXPERIMENTS:
            jobs += _of_any(name, data[name], baseline)
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


def _of_any(name, rows, baseline):
    """The figures of a CSV by its columns alone: a curve for each sweep, and bars of the rest."""
    sweeps, single = split_sweep(rows)
    for workload, some in sweeps.items():
        make = partial(speedup.draw, workload, some, baseline or _baseline(some))
        yield f"{_slug(name)}-{_slug(workload)}", name, make
    if single or not sweeps:
        yield _slug(name), name, partial(workloads.draw, single)


def _baseline(rows):
    """The fold, or the first algorithm with times at ieee if the fold has none."""
    timed = [row["algorithm"] for row in rows if row["ms_p50"] and row["precision"] == "ieee"]
    return FOLD if FOLD in timed or not timed else timed[0]


def _slug(text):
    """A workload's name, fit for a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _skipped(name, experiment, lack):
    made = f"; python -m experiments.{experiment} makes it" if experiment in EXPERIMENTS else ""
    return f"{name} skipped: {experiment}.csv has {lack}{made}"
