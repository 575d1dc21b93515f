"""Times from the floors of a named GPU: bytes at its bandwidth, FLOP at its float32 rate.

For want of a GPU this says how a sweep would look if every kernel were perfect. Each launch takes the
larger of its two floors; what the launch itself costs, and what caches save, are left out. Every row
says that it is a prediction.
"""

import numpy as np

from experiments.measuring import records
from experiments.measuring.contestants import LAID_OUT, choose
from experiments.measuring.provenance import source_sha256
from numbacaps.stages import PASSES, whole

MARK = "prediction: byte and FLOP floors, nothing was run"
# Bandwidth in 10^9 bytes/s and float32 TFLOP/s without tensor cores, from the makers' data sheets.
GPUS = {
    "TITAN-X-Pascal": (480, 11.0),
    "V100-SXM2": (900, 15.7),
    "RTX-3090": (936, 35.6),
    "A100-SXM-80GB": (2039, 19.5),
    "RTX-4090": (1008, 82.6),
    "H100-SXM": (3350, 66.9),
}
_PREDICTED = ("naive", "staged", "cublas", "indexed", "torch_fold")


def floor_ms(geometry, algorithm, wanted, gpu, itemsize=4):
    """Milliseconds of the pass at its floors.

    Parameters
    ----------
    geometry : numbacaps.Geometry
    algorithm : str
        ``staged`` and ``cublas`` pay for every stage, the others for one kernel that reads its
        operands and writes its result once.
    wanted : str
        The pass.
    gpu : str
        A name of :data:`GPUS`.
    """
    gbs, tflops = GPUS[gpu]
    costs = [(geometry.min_bytes(itemsize), geometry.flop)]
    if algorithm in LAID_OUT:
        costs = [whole(geometry).traffic(stage, itemsize) for stage in PASSES[wanted]]
    return sum(max(least / gbs / 1e6, flop / tflops / 1e9) for least, flop in costs)


def rows(experiment, workloads, passes, algorithms, gpu):
    """A row for every workload, pass and algorithm that a floor is known of."""
    gbs, tflops = GPUS[gpu]
    return [
        _row(geometry, wanted, variant, gpu)
        | {"experiment": experiment, "workload": workload, "copy_gbs": gbs, "sgemm_tflops": tflops}
        for workload, geometry in workloads
        for wanted in passes
        for variant in choose([name for name in algorithms if name in _PREDICTED], ["ieee"])
        if variant.layout == "capsule"
    ]


def _row(geometry, wanted, variant, gpu):
    ms = floor_ms(geometry, variant.algorithm, wanted, gpu)
    gbs, tflops = GPUS[gpu]
    least = geometry.min_bytes(np.dtype(variant.dtype).itemsize)
    return (
        records.of_geometry(geometry)
        | variant.cells
        | dict.fromkeys(("ms_p20", "ms_p50", "ms_p80"), ms)
        | {
            "pass": wanted,
            "gflop": geometry.flop / 1e9,
            "min_bytes": least,
            "gpu": f"{gpu} (predicted)",
            "source_sha256": source_sha256(),
            "timestamp": records.now(),
            "note": MARK,
            "byte_fraction": least / gbs / 1e6 / ms,
            "flop_fraction": geometry.flop / tflops / 1e9 / ms,
        }
    )
