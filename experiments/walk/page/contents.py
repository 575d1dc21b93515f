"""What the page shows, as plain lists and numbers: the stages, their sources, and every run."""

import base64

import numpy as np

from experiments.walk.captions import caption
from experiments.walk.figures import ones, scalar_convolution
from experiments.walk.network import network
from experiments.walk.page.addresses import written_short
from experiments.walk.page.errata import ERRATA
from experiments.walk.page.launches import purpose
from experiments.walk.page.routed import routed
from experiments.walk.page.sources import coloured, reference_of
from experiments.walk.page.tiles import tiles
from numbacaps.stages import PASSES, STAGES

_GEOMETRY = "N C P H W KH KW OH OW L Q G D1 D2 D3 stride padding dilation".split()
_ALGORITHMS = ("naive", "staged", "indexed", "fused")  # in the order of what they save


def contents(runs):
    """All of the page's data.

    Parameters
    ----------
    runs : list of (experiments.walk.page.variants.Variant, experiments.walk.records.Trace)
        The first is shown first.

    Returns
    -------
    dict
        Ready for :func:`json.dumps`.
    """
    stages = runs[0][1].stages
    kernels = {
        launch.kernel.__name__: launch.kernel
        for _, trace in runs
        for record in trace.records
        for launch in record.launches
    }
    return {
        "stages": [_stage(record) for record in stages],
        "passes": PASSES,
        "errata": [vars(erratum) for erratum in ERRATA],
        "kernels": {name: coloured(kernel) for name, kernel in kernels.items()},
        "references": {
            function.__name__: coloured(function) for function in map(reference_of, STAGES)
        },
        "runs": [_run(variant, trace) for variant, trace in runs],
        "opening": {"scalars": scalar_convolution(runs[0][1]), "ones": ones()},
        "routing": routed(runs[0][1]),
        "network": network(),
    }


def _stage(record):
    """What is told of a stage whatever the run."""
    return {
        "name": record.name,
        "direction": record.direction,
        "paper": record.paper,
        "where": record.where,
        "formula": record.formula,
        "inputs": [operand.name for operand in record.inputs],
        "output": record.output.name,
        "reference": reference_of(record.name).__name__,
    }


def _run(variant, trace):
    """One run: its geometry, arrays, checks and launches."""
    plan, g = trace.plan, trace.plan.geometry
    return {
        "stride": variant.stride,
        "window": variant.window,
        "sizes": dict(variant.sizes),
        "geometry": {name: getattr(g, name) for name in _GEOMETRY} | {"gemm": g.gemm},
        "least": g.min_bytes(np.dtype(plan.options.dtype).itemsize),
        "dtype": plan.options.dtype,
        "product": plan.product.spec,
        "patch": _patch(plan),
        "arrays": {name: _array(operand) for name, operand in trace.operands.items()},
        "captions": {record.name: caption(record, g) for record in trace.stages},
        "checks": {
            record.name: [record.check.error, record.check.tolerance] for record in trace.stages
        },
        "tiles": tiles(plan),
        "launches": {record.name: _launches(record, trace) for record in trace.stages},
        "algorithms": {
            name: {
                record.direction: _launches(record, trace)
                for record in trace.algorithms
                if record.name == name
            }
            for name in _ALGORITHMS
            if name != "staged" and any(record.name == name for record in trace.algorithms)
        },
    }


def _launches(record, trace):
    """What a record's kernels did, and what for."""
    return [
        written_short(launch) | {"purpose": purpose(launch, trace.operands)}
        for launch in record.launches
    ]


def _patch(plan):
    """Where each element of an input capsule (G, D1, D2) lies in its patch of pixels."""
    rows, columns = plan.patches.patch
    pixels = np.arange(rows * columns).reshape(plan.patches.capsule)
    place = pixels.transpose(plan.product.x_order).reshape(-1)
    return {"rows": rows, "columns": columns, "place": place.tolist()}


def _array(operand):
    """An array as 16-bit integers: the value is ``scale`` times the integer over 32767."""
    scale = float(np.abs(operand.array).max()) or 1.0
    steps = np.rint(operand.array.astype(np.float64) / scale * 32767).astype("<i2")
    return {
        "axes": operand.axes.split(", "),
        "shape": operand.shape,
        "scale": scale,
        "values": base64.b64encode(steps.tobytes()).decode(),
    }
