"""Routing without stored votes beside PyTorch with them, as the batch and the number of iterations grow.

``python -m experiments.routing_curves`` writes ``experiments/results/<gpu>/routing_curves.csv``: time, memory and the distance
from float64, measured as by ``python -m experiments.routing``. The networks are CapsNet's DigitCaps and the first routed layer
of the matrix capsules; the batch grows with 3 iterations, the iterations with 128 images of DigitCaps and 16 of the other. The
contestants:

- graph: ours as a CUDA graph;
- torch_graph: votes by einsum, stored, and routed by PyTorch, as a CUDA graph; torch: the same called eagerly, whose row has
  the memory.

All multiply float32 without TF32. ``--networks digitcaps --axes iterations`` is a quick run.
"""

import sys
from dataclasses import replace

from experiments.measuring import routed
from experiments.measuring.listed import Listed
from experiments.measuring.routed_cells import jobs, measure_workload
from experiments.measuring.routing_curve_rows import (
    CONTESTANTS,
    IMAGES,
    ITERATIONS,
    KEYS,
    NAME,
    PLACES,
    VALUES,
    told,
)

MINUTES = 6  # that a run takes, about
_KNOWN = {
    "digitcaps": routed.WORKLOADS["digitcaps-128"],
    "em-conv1": routed.WORKLOADS["em-conv1-8"],
}
_LISTED = Listed(NAME, KEYS, VALUES, beside=("at", "contestant"))
listing, merge, is_current = _LISTED.listing, _LISTED.merge, _LISTED.is_current


def make_parser():
    """The command line's parser."""
    choices = {
        "networks": (tuple(_KNOWN), "whose layers are routed"),
        "axes": (tuple(PLACES), "what grows"),
        "passes": (routed.PASSES, "passes"),
        "contestants": (CONTESTANTS, "who computes them"),
    }
    return _LISTED.parser(__doc__, choices)


def workload_of(network, axis, at):
    """The routing problem at a place of an axis."""
    known = _KNOWN[network]
    images, iterations = (at, ITERATIONS) if axis == "batch" else (IMAGES[network], at)
    return replace(
        known,
        geometry=replace(known.geometry, N=images),
        options=replace(known.options, iterations=iterations),
    )


def measure_case(case):
    """The row of a case."""
    *where, wanted, contestant = case
    return dict(zip(KEYS, case)) | measure_workload(workload_of(*where), wanted, contestant)


def cases(options):
    """(network, axis, at, pass, contestant) of every row."""
    return [
        (network, axis, at, wanted, contestant)
        for network in options.networks
        for axis in options.axes
        for at in PLACES[axis][network]
        for wanted in options.passes
        for contestant in options.contestants
    ]


def main(arguments=None):
    return _LISTED.main(
        make_parser(), arguments, lambda options: jobs(cases(options), measure_case), told
    )


if __name__ == "__main__":
    sys.exit(main())
