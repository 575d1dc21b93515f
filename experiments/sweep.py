"""Sweep the dimensions of a capsule convolution over any set of algorithms and opponents.

``python -m experiments.sweep`` runs all presets; ``--preset NAME`` one of them; or name the axes
yourself: ``--vary D2=1,2,4,8,16 --fix C=32,P=32``. Several ``--vary`` make their product, and axes
joined by + move together: ``--vary D1+D2+D3=2,4,8``. W is H and KW is KH unless they are named.
Stride, padding and dilation take pairs too, vertical x horizontal: ``--vary stride=1,2x1,2``.

``--product gab,gbc->gac`` names the capsules' axes by letters, which are then the axes in the place of
G, D1, D2 and D3: ``--vary b=1,2,4 --fix g=2``. The arrays lie in the order (G, D1, D2), which is the
order that kernels take.

It writes ``experiments/results/<gpu>/sweep.csv``. ``--predict GPU`` writes the times of the byte and
FLOP floors of that GPU instead, of the algorithms and precisions that have a floor of their own, to
``experiments/results/<gpu>-predicted/sweep.csv``.
"""

import argparse
import itertools
import re
import sys

from experiments.measuring import command, contestants, predict, records
from experiments.measuring.workloads import EM_ROUTING
from numbacaps import Geometry
from numbacaps.product import parse_product

BASE = {
    **{"D1": 4, "D2": 4, "D3": 4, "G": 1, "C": 16, "P": 16, "N": 32, "H": 14, "KH": 3},
    **{"stride": 1, "padding": 0, "dilation": 1},
}
_FOLLOWS = {"W": "H", "KW": "KH"}  # unless they are named
AXES = (*BASE, *_FOLLOWS)
_PAIRS = ("stride", "padding", "dilation")
_CAPSULE = ("G", "D1", "D2", "D3")  # what the letters of a product make up
_LETTER = 4  # elements of a product's axis that is not named


def _together(axes, values, **fixed):
    """A convolution for each value, which all of ``axes`` take."""
    return [BASE | fixed | dict.fromkeys(axes, value) for value in values]


PRESETS = {
    "capsule-dims": _together(("D1", "D2", "D3"), range(1, 17)),
    "channels": _together(("C", "P"), (4, 8, 16, 32, 64)),
    "batch": _together(("N",), (1, 4, 16, 64, 256), C=32, P=32),
    "window": _together(("KH",), (1, 3, 5, 7)),
}
NAMES = (*PRESETS, "em-routing")


def preset(name):
    """(workload, geometry) of each point of a preset."""
    if name == "em-routing":
        return list(EM_ROUTING.items())
    return [(name, _geometry(point)) for point in PRESETS[name]]


def _geometry(point):
    """The convolution of a point."""
    return Geometry(**{axis: point[of] for axis, of in _FOLLOWS.items()} | point)


def _value(text, number, axes):
    """A number, or of a stride, padding or dilation a pair."""
    found = re.fullmatch(r"(\d+)(?:x(\d+))?", number)
    least = 0 if axes == ("padding",) else 1
    numbers = [int(part) for part in found.groups() if part] if found else []
    if not numbers or min(numbers) < least:
        raise argparse.ArgumentTypeError(
            f"got {text!r}; it takes integers from {least} on, such as D1=4"
        )
    if len(numbers) > 1 and not set(axes) <= set(_PAIRS):
        raise argparse.ArgumentTypeError(
            f"got {text!r}; {', '.join(_PAIRS)} take pairs, the other axes one integer"
        )
    return tuple(numbers) if len(numbers) > 1 else numbers[0]


def _assignments(text, several):
    """``A=1,2`` or ``A+B=1,2`` as ((A, B), values); of ``several`` values, or of one."""
    names, _, numbers = text.partition("=")
    axes = tuple(name.strip() for name in names.split("+"))
    for axis in axes:
        if axis not in AXES and not re.fullmatch("[a-z]", axis):
            takes = f"{', '.join(AXES)}, or a small letter of --product"
            raise argparse.ArgumentTypeError(f"got axis {axis!r}; it takes {takes}")
    if len(set(axes)) < len(axes):
        raise argparse.ArgumentTypeError(f"got {names!r}, which names an axis twice")
    values = [_value(text, number.strip(), axes) for number in numbers.split(",")]
    if not several and len(values) > 1:
        raise argparse.ArgumentTypeError(f"got {text!r}; it takes one value an axis")
    if len(set(values)) < len(values):
        raise argparse.ArgumentTypeError(f"got {text!r}, which names a value twice")
    return axes, values


def _vary(text):
    return text, *_assignments(text, several=True)


def _fix(text):
    parts = [_assignments(part, several=False) for part in text.split(",")]
    return [(axis, values[0]) for axes, values in parts for axis in axes]


def _spec(text):
    try:
        parsed = parse_product(text)
    except ValueError as refusal:
        raise argparse.ArgumentTypeError(str(refusal)) from None
    if not set(parsed.x + parsed.w) <= set("abcdefghijklmnopqrstuvwxyz"):
        raise argparse.ArgumentTypeError(f"got {text!r}; it takes small letters here")
    return parsed


def _with_capsule(point, product):
    """A point with G, D1, D2 and D3 in the place of a product's letters."""
    letters = dict.fromkeys(product.x + product.w, _LETTER) | {
        axis: size for axis, size in point.items() if axis in product.x + product.w
    }
    capsules = ([letters[axis] for axis in axes] for axes in (product.x, product.w))
    sizes = dict(zip(_CAPSULE, product.dimensions(*capsules)))
    return {axis: value for axis, value in point.items() if axis not in letters} | sizes


def points(vary, fix, product=None):
    """(workload, geometry) of the combinations of the varied axes.

    Parameters
    ----------
    vary : list of (str, tuple of str, list)
        What was given, axes that move together, and their values.
    fix : list of (str, value)
    product : numbacaps.product.Product, optional
        Whose letters are axes too.

    Raises
    ------
    ValueError
        An axis is given twice or is none here, or a point has no output.
    """
    named = [axis for _, axes, _ in vary for axis in axes] + [axis for axis, _ in fix]
    twice = sorted({axis for axis in named if named.count(axis) > 1})
    if twice:
        raise ValueError(f"{', '.join(twice)} given twice; an axis is varied once or fixed once")
    letters = product.x + product.w if product else ""
    for axis in named:
        if axis not in (*letters, *AXES) or (product and axis in _CAPSULE):
            takes = f"{', '.join(a for a in AXES if not (product and a in _CAPSULE))}"
            takes += f", {', '.join(dict.fromkeys(letters))} of {product.spec}" if product else ""
            raise ValueError(f"got axis {axis!r}; it takes {takes}")
    texts = [product.spec] if product else []
    workload = " ".join([*texts, *(text for text, _, _ in vary)]) or "one point"
    found = []
    for chosen in itertools.product(*(values for _, _, values in vary)):
        point = BASE | dict(fix)
        for (_, axes, _), value in zip(vary, chosen):
            point |= dict.fromkeys(axes, value)
        if product:
            point = _with_capsule(point, product)
        try:
            found.append((workload, _geometry(point)))
        except ValueError as refusal:
            sizes = ", ".join(f"{axis}={value}" for axis, value in point.items())
            raise ValueError(f"no output at {sizes}: {refusal}") from None
    return found


def make_parser():
    """The command line's parser."""
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
        "--product",
        metavar="SPEC",
        type=_spec,
        help=f"of capsules, such as gab,gbc->gac; its letters are axes, by default {_LETTER}",
    )
    parser.add_argument(
        "--predict",
        metavar="GPU",
        choices=tuple(predict.GPUS),
        help=f"no measurement but floors, of {', '.join(predict.GPUS)}; needs no GPU",
    )
    return parser


def _workloads(parser, options):
    """(workload, geometry) of every point that the options ask for."""
    alone = options.vary or options.fix or options.product
    if options.preset and alone:
        parser.error("--preset stands alone; it takes no --vary, no --fix and no --product")
    try:
        if alone:
            workloads = points(options.vary or [], options.fix, options.product)
        else:
            names = dict.fromkeys(options.preset or NAMES)
            workloads = [point for name in names for point in preset(name)]
    except ValueError as refusal:
        parser.error(str(refusal))
    names = command.chosen(options, [name for name, _ in workloads])
    return [point for point in workloads if point[0] in names]


def groups(parser, options):
    """The groups of rows that the options ask for."""
    workloads = _workloads(parser, options)
    variants = command.choose(parser, options)
    return command.convolution_groups("sweep", workloads, options.passes, variants)


def main(arguments=None):
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.predict:
        if options.gpus:
            parser.error(f"--gpus got {options.gpus!r}; --predict takes none")
        return _predict(parser, options)
    return command.main("sweep", parser, groups, arguments)


def _predict(parser, options):
    """Write predictions; they have a folder of their own."""
    workloads, variants = _workloads(parser, options), command.choose(parser, options)
    known = _predictable(parser, variants, options)
    path = options.results / f"{options.predict}-predicted" / "sweep.csv"
    every = predict.rows("sweep", workloads, options.passes, known, options.predict)
    groups = list(dict.fromkeys(records.key(row, records.GROUP) for row in every))
    found = options.shard.part(every, lambda row: records.key(row, records.GROUP))
    try:
        with records.alone(path):
            rows = records.read(path)
            for _, group in itertools.groupby(found, lambda row: records.key(row, records.GROUP)):
                rows = records.replaced(rows, list(group))
            records.write(path, records.in_order(rows, groups))
    except records.ForeignFile as foreign:
        print(f"sweep: {foreign}", file=sys.stderr)
        return 2
    print(f"{len(found)} predictions, none of them measured, in {path}")
    return 0


def _predictable(parser, variants, options):
    """The variants that have a prediction; one that was asked for by name and has none is refused."""
    refused = {}
    for variant in variants:
        if reason := predict.why_not(variant, options.predict):
            refused.setdefault(reason, variant)
    for reason, variant in refused.items():
        unknown = variant.algorithm not in predict.PREDICTED
        if unknown and options.algorithms != contestants.NAMES:
            parser.error(f"--algorithms got {variant.algorithm}: {reason}")
        if not unknown and options.precisions != contestants.PRECISIONS:
            parser.error(f"--precisions got {variant.precision}: {reason}")
        print(f"not predicted: {reason}")
    known = [variant for variant in variants if not predict.why_not(variant, options.predict)]
    if not known:
        takes = f"--algorithms of {', '.join(predict.PREDICTED)} at one of their precisions"
        parser.error(f"--predict got nothing to predict; it takes {takes}")
    return known


if __name__ == "__main__":
    sys.exit(main())
