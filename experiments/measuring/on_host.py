"""Times of what computes on the host, by the host's clock: no GPU is needed, and none is measured.

The results are in a folder of the processor's name. Results are checked first, and variants take turns, as on a GPU;
operands are the same every call.
"""

import json
import platform
import re
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from tqdm import tqdm

import reference
from experiments.measuring import command, measure, provenance, records
from experiments.measuring.problem import PASSES, Problem
from numbacaps.plan import Plan

_MS = 100.0  # of timed calls of a variant
_FEWEST, _MOST = 3, 25  # timed calls
_SLOW_MS = 1000.0  # what takes so long needs neither warming up nor repeats


@dataclass(frozen=True)
class Variant:
    """An algorithm on the host, in float32."""

    algorithm: str

    @property
    def cells(self):
        """The cells of :data:`experiments.measuring.records.VARIANT`."""
        how = {"layout": "capsule", "precision": "ieee", "dtype": "float32"}
        return {"algorithm": self.algorithm, "stage": ""} | how

    def __str__(self):
        return self.algorithm


def _by_numpy(problem, wanted):
    """One call of the algorithm ``"numpy"``, made ready: it returns the pass's result."""
    x, w, dy = problem.operands
    plan = Plan(problem.geometry, np.dtype(np.float32), "numpy")
    result = np.empty(problem.shape(wanted), np.float32)
    if wanted == "forward":
        return lambda: plan(x, w, result)
    gradient = "dx" if wanted == "backward_input" else "dw"
    return lambda: plan.backward(x, w, dy, **{gradient: result}) and result


def _by_loops(problem, wanted):
    """The same of the reference's plain loops, which make both gradients at once."""
    x, w, dy = problem.operands
    g = problem.geometry
    moves = g.stride, g.padding, g.dilation
    if wanted == "forward":
        return lambda: reference.capsule_convolution(x, w, *moves)
    which = PASSES.index(wanted) - 1
    return lambda: reference.capsule_convolution_backward(x, w, dy, *moves)[which]


_CALLS = {"numpy": _by_numpy, "reference": _by_loops}
NAMES = tuple(_CALLS)


@cache
def processor():
    """Name of the processor, fit for a folder's name."""
    try:
        found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    name = found[1] if found else platform.machine()
    return "host-" + re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-")


def machine():
    """The cells that say where and of what a row was measured."""
    return {
        "gpu": processor(),
        "driver": "",
        "versions": json.dumps(provenance.versions()),
        "source_sha256": provenance.source_sha256(),
        "method_sha256": provenance.sources_name([Path(__file__)]),
    }


def rows(problem, wanted, variants, tick):
    """A row for each variant of a pass; one that fails says why."""
    common = machine() | {"timestamp": records.now(), "gflop": problem.geometry.flop / 1e9}
    common |= {"min_bytes": problem.geometry.min_bytes(4), "cache": "the same operands every call"}
    found, calls, times = {}, {}, {}
    for variant in variants:
        tick(variant)
        found[variant] = common | variant.cells
        try:
            call, start = _CALLS[variant.algorithm](problem, wanted), time.perf_counter()
            result, first = call(), _since(start)
            found[variant]["rel_error"] = problem.check(wanted, result, "ieee")
            calls[variant], times[variant] = call, [first] if first > _SLOW_MS else []
        except Exception as failure:  # whatever it was, the other variants can go on
            found[variant]["note"] = measure.note_of(failure)
    for _ in range(_MOST):
        for variant, call in calls.items():
            spent = sum(times[variant])
            if spent < _MS or (spent < _SLOW_MS and len(times[variant]) < _FEWEST):
                start = time.perf_counter()
                call()
                times[variant].append(_since(start))
    for variant, some in times.items():
        percentiles = map(float, np.percentile(some, (20, 50, 80)))
        found[variant] |= dict(zip(("ms_p20", "ms_p50", "ms_p80"), percentiles))
    return list(found.values())


def _since(start):
    """Milliseconds since a time of the host's clock."""
    return 1e3 * (time.perf_counter() - start)


def run(name, layers, options):
    """Measure those rows of the chosen layers and of the shard that the CSV lacks.

    Parameters
    ----------
    name : str
        Of the experiment and its CSV.
    layers : list of (str, numbacaps.Geometry)
    options : namespace
        As of :func:`experiments.measuring.command.parser`.

    Returns
    -------
    path

    Raises
    ------
    experiments.measuring.records.ForeignFile
        The CSV is not ours, or cannot be written.
    """
    names = command.chosen(options, [workload for workload, _ in layers])  # before there is a file
    path = options.results / processor() / f"{name}.csv"
    table = records.Table(path, machine(), options.fresh)
    table.write()
    variants, others = list(map(Variant, options.algorithms)), list(map(Variant, NAMES))
    groups = [
        command.Group(name, workload, geometry, wanted, variants, rows, others)
        for workload, geometry in layers
        if workload in names
        for wanted in options.passes
    ]
    mine = options.shard.part(groups, lambda group: group.key)
    for group in tqdm(command.lacking(table, mine, absent=()), unit="group"):
        table.replace(group.rows(Problem(group.geometry), lambda variant: None))
    command.put_in_order(table, groups, options.shard)
    return path
