"""Sweep the dimensions of a capsule convolution over any set of algorithms and opponents.

``python -m experiments.sweep`` runs all presets; ``--preset NAME`` one of them; or name the axes
yourself: ``--vary D2=1,2,4,8,16 --fix C=32,P=32``. Several ``--vary`` make their product, and axes
joined by + move together: ``--vary D1+D2+D3=2,4,8``. An image is square, H by H, and so is the
window, KH by KH.

It writes ``experiments/results/<gpu>/sweep.csv``. ``--predict GPU`` writes the times of the byte and
FLOP floors of that GPU instead, to ``experiments/results/<gpu>-predicted/sweep.csv``.
"""

import argparse
import itertools
import sys

from experiments.measuring import command, predict, records
from experiments.measuring.workloads import EM_ROUTING, square

AXES = ("D1", "D2", "D3", "C", "P", "N", "H", "KH", "stride")
BASE = {"N": 32, "C": 16, "P": 16, "H": 14, "KH": 3, "stride": 1, "D1": 4, "D2": 4, "D3": 4}


def _together(axes, values, **fixed):
    """A convolution for each value, which all of ``axes`` take."""
    return [BASE | fixed | dict.fromkeys(axes, value) for value in values]


PRESETS = {
    "capsule-dims": _together(("D1", "D2", "D3"), (1, 2, 4, 8, 16)),
    "channels": _together(("C", "P"), (4, 8, 16, 32, 64)),
    "batch": _together(("N",), (1, 4, 16, 64, 256), C=32, P=32),
    "window": _together(("KH",), (1, 3, 5, 7)),
}
NAMES = (*PRESETS, "em-routing")


def preset(name):
    """(workload, geometry) of each point of a preset."""
    if name == "em-routing":
        return list(EM_ROUTING.items())
    return [(name, square(**point)) for point in PRESETS[name]]


def _assignments(text, several):
    """``A=1,2`` or ``A+B=1,2`` as ((A, B), values); of ``several`` values, or of one."""
    names, _, numbers = text.partition("=")
    axes = tuple(name.strip() for name in names.split("+"))
    for axis in axes:
        if axis not in AXES:
            raise argparse.ArgumentTypeError(f"got axis {axis!r}; it takes {', '.join(AXES)}")
    if len(set(axes)) < len(axes):
        raise argparse.ArgumentTypeError(f"got {names!r}, which names an axis twice")
    values = [number.strip() for number in numbers.split(",")]
    if not all(value.isdecimal() and int(value) >= 1 for value in values):
        raise argparse.ArgumentTypeError(f"got {text!r}; it takes integers from 1 on, such as D1=4")
    if not several and len(values) > 1:
        raise argparse.ArgumentTypeError(f"got {text!r}; it takes one value an axis")
    if len(set(values)) < len(values):
        raise argparse.ArgumentTypeError(f"got {text!r}, which names a value twice")
    return axes, [int(value) for value in values]


def _vary(text):
    return text, *_assignments(text, several=True)


def _fix(text):
    parts = [_assignments(part, several=False) for part in text.split(",")]
    return [(axis, values[0]) for axes, values in parts for axis in axes]


def points(vary, fix):
    """(workload, geometry) of the product of the varied axes.

    Raises
    ------
    ValueError
        An axis is given twice, or a point has no output.
    """
    named = [axis for _, axes, _ in vary for axis in axes] + [axis for axis, _ in fix]
    twice = sorted({axis for axis in named if named.count(axis) > 1})
    if twice:
        raise ValueError(f"{', '.join(twice)} given twice; an axis is varied once or fixed once")
    workload = " ".join(text for text, _, _ in vary) or "one point"
    found = []
    for chosen in itertools.product(*(values for _, _, values in vary)):
        point = BASE | dict(fix)
        for (_, axes, _), value in zip(vary, chosen):
            point |= dict.fromkeys(axes, value)
        try:
            found.append((workload, square(**point)))
        except ValueError as refusal:
            sizes = ", ".join(f"{axis}={point[axis]}" for axis in AXES)
            raise ValueError(f"no output at {sizes}: {refusal}") from None
    return found


def _parser():
    parser = command.parser("sweep", __doc__)
    command.add_precisions(parser)
    parser.add_argument(
        "--preset", choices=NAMES, action="append", help="may be given again (default: all)"
    )
    parser.add_argument(
        "--vary", metavar="AXIS=A,B", type=_vary, action="append", help=f"of {', '.join(AXES)}"
    )
    parser.add_argument(
        "--fix",
        metavar="AXIS=A,AXIS=B",
        type=_fix,
        action="extend",
        default=[],
        help="the other axes; by default " + ", ".join(f"{a}={v}" for a, v in BASE.items()),
    )
    parser.add_argument(
        "--predict",
        metavar="GPU",
        choices=tuple(predict.GPUS),
        help=f"no measurement but floors, of {', '.join(predict.GPUS)}; needs no GPU",
    )
    return parser


def main(arguments=None):
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.preset and (options.vary or options.fix):
        parser.error("--preset stands alone; it takes no --vary and no --fix")
    try:
        if options.vary or options.fix:
            workloads = points(options.vary or [], options.fix)
        else:
            names = dict.fromkeys(options.preset or NAMES)
            workloads = [point for name in names for point in preset(name)]
    except ValueError as refusal:
        parser.error(str(refusal))
    names = command.chosen(options, [name for name, _ in workloads])
    workloads = [point for point in workloads if point[0] in names]
    variants = command.choose(parser, options)
    if options.predict:
        return _predict(parser, workloads, options)
    command.refuse_without_gpu("sweep")
    table = command.open_table("sweep", options)
    groups = command.convolution_groups("sweep", workloads, options.passes, variants)
    command.run(table, groups, options)
    return 0


def _predict(parser, workloads, options):
    """Write predictions; they have a folder of their own."""
    path = options.results / f"{options.predict}-predicted" / "sweep.csv"
    found = predict.rows("sweep", workloads, options.passes, options.algorithms, options.predict)
    if not found:
        parser.error(f"--algorithms got {','.join(options.algorithms)}; no floor is known of them")
    try:
        rows = records.read(path)
        for _, group in itertools.groupby(found, lambda row: records.key(row, records.GROUP)):
            rows = records.replaced(rows, list(group))
        records.write(path, rows)
    except records.ForeignFile as foreign:
        print(f"sweep: {foreign}", file=sys.stderr)
        return 2
    print(f"{len(found)} predictions, none of them measured, in {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
