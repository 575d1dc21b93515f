"""Times from the floors of a named GPU: bytes at its bandwidth, FLOP at its rate in the precision.

For want of a GPU this says how a sweep would look if every kernel were perfect. Each launch takes the
larger of its two floors; what the launch itself costs, and what caches save, are left out. Every row
says that it is a prediction.

Two algorithms have floors of their own. ``fused`` is one kernel that reads its operands and writes its
result once, which no algorithm can undercut; ``staged`` pays for each stage of the paper. Of the others
nothing is known but these same floors, so they are not predicted.
"""

from dataclasses import dataclass

import numpy as np

from experiments.measuring import records, sources
from experiments.measuring.provenance import source_sha256
from numbacaps.stages import PASSES, whole

MARK = "prediction: byte and FLOP floors, nothing was run"
PREDICTED = ("fused", "staged")


@dataclass(frozen=True)
class Rates:
    """A GPU's rates by the maker's data sheet, without sparsity.

    Attributes
    ----------
    gbs : float
        Bandwidth of the memory, 10^9 bytes/s.
    float32 : float
        TFLOP/s without tensor cores.
    tf32, float16 : float or None
        TFLOP/s of the tensor cores, sums in float32; None where they lack the precision.
    """

    gbs: float
    float32: float
    tf32: float | None
    float16: float | None

    def tflops(self, precision):
        """TFLOP/s of one kernel's products in a precision; None where there is no such rate."""
        if precision == "tf32x3":  # three products in the place of one
            return self.tf32 and self.tf32 / 3
        return {"ieee": self.float32, "tf32": self.tf32, "float16": self.float16}[precision]


GPUS = {
    "TITAN-X-Pascal": Rates(480, 11.0, None, None),
    "V100-SXM2": Rates(900, 15.7, None, 125),
    "RTX-3090": Rates(936, 35.6, 35.6, 71),
    "A100-SXM-80GB": Rates(2039, 19.5, 156, 312),
    "RTX-4090": Rates(1008, 82.6, 82.6, 165.2),
    "H100-SXM": Rates(3350, 66.9, 494.7, 989.4),
    "H200-SXM": Rates(4800, 66.9, 494.7, 989.4),
}


def why_not(variant, gpu):
    """Why there is no prediction of a variant; nothing where there is one.

    Parameters
    ----------
    variant : experiments.measuring.contestants.Variant
    gpu : str
        A name of :data:`GPUS`.
    """
    if variant.algorithm not in PREDICTED:
        return f"{variant.algorithm} has no floor of its own; {' and '.join(PREDICTED)} have one"
    if GPUS[gpu].tflops(variant.precision) is None:
        return f"the tensor cores of {gpu} lack {variant.precision}"
    return ""


def floor_ms(geometry, algorithm, wanted, gpu, precision="ieee"):
    """Milliseconds of the pass at its floors.

    Parameters
    ----------
    geometry : numbacaps.Geometry
    algorithm : str
        Of :data:`PREDICTED`.
    wanted : str
        The pass.
    gpu : str
        A name of :data:`GPUS`.
    precision : str
    """
    rates, itemsize = GPUS[gpu], 2 if precision == "float16" else 4
    costs, tflops = [(geometry.min_bytes(itemsize), geometry.flop)], rates.tflops(precision)
    if algorithm == "staged":  # whose stages use no tensor cores
        costs = [whole(geometry).traffic(stage, itemsize) for stage in PASSES[wanted]]
        tflops = rates.float32
    return sum(max(least / rates.gbs / 1e6, flop / tflops / 1e9) for least, flop in costs)


def rows(experiment, workloads, passes, variants, gpu):
    """A row for every workload, pass and variant."""
    named = {"experiment": experiment, "copy_gbs": GPUS[gpu].gbs}
    named["sgemm_tflops"] = GPUS[gpu].float32
    return [
        _row(geometry, wanted, variant, gpu) | named | {"workload": workload}
        for workload, geometry in workloads
        for wanted in passes
        for variant in variants
    ]


def _row(geometry, wanted, variant, gpu):
    ms = floor_ms(geometry, variant.algorithm, wanted, gpu, variant.precision)
    rates = GPUS[gpu]
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
            "kernel_sources": sources.NO_KERNELS,
            "timestamp": records.now(),
            "note": MARK,
            "byte_fraction": least / rates.gbs / 1e6 / ms,
            "flop_fraction": geometry.flop / rates.float32 / 1e9 / ms,
        }
    )
