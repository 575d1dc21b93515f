"""All figures as files: those that there are rows for, and why the others are missing."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from matplotlib import style

from experiments.plots import (
    canvas,
    distribution,
    memory,
    roofline,
    routing,
    routing_curves,
    scaling,
    speedup,
    stages,
    table1,
    torch_layers,
    workloads,
)
from experiments.plots.lines import FOLD
from experiments.plots.paper import column, dots, shares, sweep
from experiments.plots.paper import memory as paper_memory
from experiments.plots.paper import roofline as paper_roofline
from experiments.plots.paper import stages as paper_stages
from experiments.plots.rows import EXPERIMENTS, LISTED, Lacking, distinct, of_passes, split_sweep


@dataclass(frozen=True)
class Style:
    """How figures are drawn.

    Attributes
    ----------
    settings : dict
        Of matplotlib.
    file_bytes : callable
        ``file_bytes(figure)``: bytes by extension.
    sweep : callable
        ``sweep(workload, rows, baseline)``: a figure.
    table1, workloads, roofline, memory, drawn, stages : callable
        ``draw(rows)``: a figure.
    listed : dict of str to callable
        The same by the names of :data:`experiments.plots.rows.LISTED`; those that the style has figures of.
    """

    settings: dict
    file_bytes: Callable
    sweep: Callable
    table1: Callable
    workloads: Callable
    roofline: Callable
    memory: Callable
    drawn: Callable
    stages: Callable
    listed: dict = field(default_factory=dict)


STYLES = {
    "screen": Style(
        canvas.STYLE,
        canvas.file_bytes,
        speedup.draw,
        table1.draw,
        workloads.draw,
        roofline.draw,
        memory.draw,
        distribution.draw,
        stages.draw,
        {
            "torch": torch_layers.draw,
            "scaling": scaling.draw,
            "routing": routing.draw,
            "routing_curves": routing_curves.draw,
        },
    ),
    "paper": Style(
        column.STYLE,
        column.file_bytes,
        sweep.draw,
        dots.draw_table1,
        dots.draw_workloads,
        paper_roofline.draw,
        paper_memory.draw,
        shares.draw,
        paper_stages.draw,
    ),
}


def draw_all(data, baseline, look=STYLES["screen"]):
    """Draw every figure that there are rows for.

    Parameters
    ----------
    data : dict of str to list of dict
        Rows by experiment, as :func:`experiments.plots.rows.load_all` reads them.
    baseline : str or None
        Algorithm that the speedups are over; None for the fold, or where it has no times the first that
        has; of one variant alone milliseconds are drawn.
    look : Style

    Returns
    -------
    files : dict of str to bytes
        By the file's name.
    skipped : list of str
        One line for each figure that could not be drawn, and why.
    """
    sweeps, single = split_sweep(data["sweep"])
    jobs = [("table1", "table1", partial(look.table1, data["table1"]))]
    for workload, rows in sweeps.items():
        make = partial(look.sweep, workload, rows, baseline or _baseline(rows))
        jobs.append((f"sweep-{_slug(workload)}", "sweep", make))
    jobs += [
        ("workloads", "sweep", partial(look.workloads, single)),
        ("roofline", "table1", partial(look.roofline, data["table1"] + data["sweep"])),
        ("memory", "memory", partial(look.memory, data["memory"])),
        ("drawn-speed", "drawn_speed", partial(look.drawn, data["drawn_speed"])),
        ("stages", "stages", partial(look.stages, data["stages"])),
    ]
    for name, draw in look.listed.items():
        jobs.append((LISTED[name].replace("_", "-"), name, partial(draw, data[name])))
    for name in of_passes(data):
        if name == "fused" or name not in EXPERIMENTS:
            jobs += _of_any(name, data[name], baseline, look)
    files, skipped = {}, []
    if not sweeps:
        skipped.append(_skipped("sweep-...", "sweep", "no workload that sweeps an axis"))
    with style.context(["default", look.settings]):
        for name, experiment, make in jobs:
            try:
                made = look.file_bytes(make())
            except Lacking as lack:
                skipped.append(_skipped(name, experiment, lack))
            else:
                files |= {f"{name}.{extension}": content for extension, content in made.items()}
    return files, skipped


def _of_any(name, rows, baseline, look):
    """The figures of a CSV by its columns alone: a curve for each sweep, and bars of the rest."""
    sweeps, single = split_sweep(rows)
    for workload, some in sweeps.items():
        make = partial(look.sweep, workload, some, baseline or _baseline(some))
        yield f"{_slug(name)}-{_slug(workload)}", name, make
    if single or not sweeps:
        yield _slug(name), name, partial(look.workloads, single)


def _baseline(rows):
    """The fold, or the first algorithm with times at ieee if the fold has none; None where there is one variant."""
    timed = [row for row in rows if row["ms_p50"]]
    exact = distinct([row for row in timed if row["precision"] == "ieee"], "algorithm")
    if len({(row["algorithm"], row["precision"]) for row in timed}) == 1 or not exact:
        return None
    return FOLD if FOLD in exact else exact[0]


def _slug(text):
    """A workload's name, fit for a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _skipped(name, experiment, lack):
    command = LISTED.get(experiment, experiment if experiment in EXPERIMENTS else "")
    made = f"; python -m experiments.{command} makes it" if command else ""
    return f"{name} skipped: {experiment}.csv has {lack}{made}"
