"""The fused kernels beside the best that a library does: one conv2d through the fold.

``python -m experiments.fused`` writes ``experiments/results/<gpu>/fused.csv``: the published network's
layers 2 to 5 and the layers of EM routing, forward and both gradients, ``"fused"`` at every precision that
it takes beside ``torch_fold`` in every layout. Where the kernel is read, a row of layout packed has it packed
before the clock starts, as ``torch_fold`` has it folded. ``"naive"`` and ``"staged"`` are measured at em, forward.
"""

import sys

from experiments.measuring import command, contestants, measure
from experiments.measuring.workloads import EM_ROUTING, PUBLISHED

WORKLOADS = {
    **{f"paper-layer-{i}": PUBLISHED[f"layer {i}"] for i in range(2, 6)},
    "em-caps1": EM_ROUTING["EM ConvCaps1"],
    "em-caps2": EM_ROUTING["EM ConvCaps2"],
    **{name: EM_ROUTING[name] for name in ("em", "em-wide", "caps2", "caps8", "caps16")},
}
_COMPARED = ("fused", "torch_fold")
_SCALE = ("naive", "staged")  # what the paper's own ways take, at one workload
_SCALE_AT = ("em", "forward")


def make_parser():
    """The command line's parser."""
    parser = command.parser("fused", __doc__, (*_SCALE, *_COMPARED))
    command.add_precisions(parser)
    return parser


def groups(parser, options):
    """The groups of rows that the options ask for."""
    variants = command.choose(parser, options, packed=True)
    everyone = contestants.choose((*_SCALE, *_COMPARED), packed=True)
    found = []
    for workload, geometry in WORKLOADS.items():
        for wanted in options.passes:
            names = _COMPARED + (_SCALE if (workload, wanted) == _SCALE_AT else ())
            chosen, others = (
                [
                    variant
                    for variant in some
                    if variant.algorithm in names
                    and (variant.layout != "packed" or wanted in contestants.PackedRun.PASSES)
                ]
                for some in (variants, everyone)
            )
            if chosen:
                where = ("fused", workload, geometry, wanted)
                found.append(command.Group(*where, chosen, measure.measure, others))
    return found


def main(arguments=None):
    return command.main("fused", make_parser(), groups, arguments)


if __name__ == "__main__":
    sys.exit(main())
