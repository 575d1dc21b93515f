"""The published five-layer network: its shapes, the bytes of its passes, and times that were recorded."""

from experiments.measuring import records
from experiments.measuring.provenance import ROOT
from experiments.measuring.workloads import PUBLISHED
from numbacaps.stages import PASSES, whole

GPU = "NVIDIA-H100-80GB-HBM3"
_RESULTS = ROOT / "experiments" / "results" / GPU / "table1.csv"
_LINES = (  # algorithm, precision, what it is called
    ("naive", "ieee", "naive"),
    ("staged", "ieee", "staged"),
    ("indexed", "ieee", "indexed"),
    ("fused", "ieee", "fused, ieee"),
    ("fused", "tf32x3", "fused, tf32x3"),
    ("fused", "tf32", "fused, tf32"),
)


def network():
    """Everything that is shown of the network.

    Returns
    -------
    dict
        ``gpu``, ``date`` of the oldest row, ``current``: whether all rows are of today's kernels;
        ``layers``: of each its ``name``, geometry, GEMM and ``flop``, the bytes of a forward pass
        (``least``; ``staged``, with every intermediate written and read), and ``ms`` by line.
    """
    rows, sources = records.read(_RESULTS), records.sources(_RESULTS)
    used = [row for row in rows if row["workload"] in PUBLISHED and _line(row)]
    return {
        "gpu": GPU,
        "date": min(row["timestamp"] for row in used)[:10] if used else "",
        "current": all(map(sources.is_current, used)),
        "lines": [name for _, _, name in _LINES],
        "layers": [_layer(name, g, used) for name, g in PUBLISHED.items()],
    }


def _line(row):
    """What a row's line is called; nothing for a row that is not shown."""
    if row["pass"] != "forward" or row["layout"] != "capsule" or row["stage"]:
        return None
    if row["dtype"] != "float32" or not row["ms_p50"]:
        return None
    named = {(algorithm, precision): name for algorithm, precision, name in _LINES}
    return named.get((row["algorithm"], row["precision"]))


def _layer(name, g, rows):
    slab = whole(g)
    names = "N C P H W KH KW OH OW D1 D2 D3 stride gemm flop"
    return {
        "name": name,
        **{key: getattr(g, key) for key in names.split()},
        "least": g.min_bytes(4),
        "staged": sum(slab.traffic(stage, 4)[0] for stage in PASSES["forward"]),
        "ms": {_line(row): float(row["ms_p50"]) for row in rows if row["workload"] == name},
    }
