"""The command line: ``python -m experiments.walk``."""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from experiments.measuring.refusal import Parser, Refusal, make_folder
from experiments.walk.image import DIGIT
from experiments.walk.page import make as page
from experiments.walk.page.write import check_writable
from experiments.walk.pictures import draw_all
from experiments.walk.records import Options
from experiments.walk.report import Progress, report, verdict
from experiments.walk.trace import plan, walk
from experiments.walk.watch import watching
from numbacaps import SIMULATED
from numbacaps.algorithms.registry import device_algorithms
from numbacaps.device.target import cuda

_MOST = 1_000_000  # for any one size, so that a product of some of them stays a printable number
_DESCRIPTION = """\
Walk through one capsule convolution, forward and backward, over a real digit: every stage of the
paper is run alone, checked against the loop reference, told and drawn.
"""
_EPILOG = """\
examples:
  python -m experiments.walk --kernel 2 --stride 1 --crop 20,20
  python -m experiments.walk --product gab,gbc->gac --channels 2,3 --image photo.png --crop 24,24
  python -m experiments.walk --html walk.html --no-pictures

Without a GPU the kernels run on Numba's simulator; NUMBACAPS_TARGET=sim chooses it anywhere.
exit status: 0 all passed, 1 something failed, 2 an option cannot be used, 130 interrupted
"""


def main(argv=None):
    """Walk, report, draw.

    Parameters
    ----------
    argv : list of str, optional
        The command line's arguments; by default those of the process.

    Returns
    -------
    int
        0 if everything passed, 1 if not, 130 after Ctrl-C. An option that cannot be used exits with 2.
    """
    parser = _make_parser()
    argv = sys.argv[1:] if argv is None else argv
    arguments = vars(parser.parse_args(argv))
    folder, draws = Path(arguments.pop("out")), arguments.pop("pictures")
    html = arguments.pop("html")
    if not SIMULATED and not cuda.is_available():
        parser.error("NUMBACAPS_TARGET got 'cuda', but there is no GPU; it takes sim here")
    try:
        accepted = plan(Options(**arguments))
        if html is not None:
            page.check(accepted)
        if draws:
            make_folder("--out", folder)
        if html is not None:  # it may lie in that folder
            check_writable(html)
    except (Refusal, ImportError) as refusal:
        parser.error(str(refusal))
    start = time.time()
    try:
        return _walk(parser, accepted, folder if draws else None, html, argv)
    except KeyboardInterrupt:
        print(f"\nwalk: interrupted; {_kept(folder, html, start)}", file=sys.stderr)
        return 130


def _kept(folder, html, start):
    """What a walk that began at a time has written, in words."""
    pictures = [path for path in folder.glob("*.png") if path.stat().st_mtime >= start]
    page = html is not None and html.exists() and html.stat().st_mtime >= start
    kept = [f"{len(pictures)} pictures in {folder}"] if pictures else []
    kept += [f"the page {html}"] if page else []
    return f"kept: {' and '.join(kept)}" if kept else "nothing was written yet"


def _walk(parser, accepted, folder, html, argv):
    """Walk, report, draw into a folder if there is one; the exit status."""
    progress = Progress()
    counts = html is not None and SIMULATED
    trace = walk(accepted, progress, watching) if counts else walk(accepted, progress)
    drawn = draw_all(trace, folder, progress) if folder else []
    progress.clear()
    print(report(trace))
    print()
    if drawn:
        print(f"pictures: {len(drawn)} in {folder}, {drawn[0].name} to {drawn[-1].name}")
    if html is not None and not trace.failed:
        _make_page(parser, accepted, trace, html, argv)
    print(verdict(trace))
    return 1 if trace.failed else 0


def _make_page(parser, accepted, trace, path, argv):
    """Write the page; where kernels run on a GPU, by a walk of its own on the simulator."""
    if not SIMULATED:
        command = [sys.executable, "-m", "experiments.walk", *argv, "--no-pictures"]
        environment = os.environ | {"NUMBACAPS_TARGET": "sim"}
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
        print(f"page: {path}, from a walk on the simulator")
        return
    progress = Progress()
    try:
        runs = page.make(accepted, trace, path, progress)
    except Refusal as refusal:
        parser.error(str(refusal))
    except ArithmeticError as failure:
        parser.exit(1, f"walk: {failure}\n")
    progress.clear()
    print(f"page: {path}, {runs} runs, {path.stat().st_size:,} bytes")


def _make_parser():
    parser = Parser(
        prog="python -m experiments.walk",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--image",
        metavar="FILE",
        default=str(DIGIT),
        help="a .npy file of two axes, or a picture file, which is turned to grey "
        "(default: an MNIST digit)",
    )
    add("--crop", metavar="H,W", type=_size, help="keep the middle of the image (pixels)")
    add("--kernel", metavar="K", type=_pair(1), default=(3, 3), help="window: 3 (default) or KH,KW")
    add("--stride", metavar="S", type=_pair(1), default=(2, 2), help="2 (default) or a pair")
    add("--padding", metavar="N", type=_pair(0), default=(0, 0), help="0 (default) or a pair")
    add("--dilation", metavar="D", type=_pair(1), default=(1, 1), help="1 (default) or a pair")
    add(
        "--channels",
        metavar="C,P",
        type=_channels,
        default=(1, 2),
        help="input and output channels, or P alone (default 1,2); input channel c is the image "
        "shifted c pixels to the right",
    )
    add(
        "--product",
        metavar="SPEC",
        default="ab,bc->ac",
        help="capsule product in the manner of einsum (default ab,bc->ac); an input capsule is a "
        "patch as wide as its last axis and as high as the product of the others",
    )
    add(
        "--sizes",
        metavar="a=4,b=4",
        type=_sizes,
        default={},
        help="size of the product's axes (default 4; 2 where a capsule has three axes or more)",
    )
    add(
        "--algorithm",
        dest="algorithms",
        nargs="+",
        metavar="NAME",
        choices=device_algorithms(),
        default=tuple(device_algorithms()),
        help=f"whole convolutions to run beside the stages, of {', '.join(device_algorithms())} "
        "(default: all)",
    )
    add("--dtype", choices=("float32", "float64"), default="float32", help="default float32")
    add("--seed", metavar="N", type=_seed, default=0, help="of kernel and target (default 0)")
    add("--out", metavar="DIR", default="walk", help="where the pictures go (default walk/)")
    add(
        "--html",
        metavar="FILE",
        type=Path,
        help="write one interactive page too; its kernels run on the simulator, which can tell "
        "what each thread reads and writes",
    )
    add("--no-pictures", dest="pictures", action="store_false", help="draw nothing")
    return parser


def _refuse(text, takes):
    raise argparse.ArgumentTypeError(f"got {text!r}; it takes {takes}")


def _integers(text):
    """The integers of ``1`` or ``1,2``; none if it is anything else."""
    if re.fullmatch(r"-?[0-9]{1,9}(,-?[0-9]{1,9})*", text) is None:
        return []
    return [int(number) for number in text.split(",")]


def _pair(least):
    """Parser of a number for both directions, or of two: vertical, horizontal."""

    def parse(text):
        numbers = _integers(text)
        if len(numbers) not in (1, 2) or not all(least <= n <= _MOST for n in numbers):
            _refuse(text, f"an integer from {least} to {_MOST}, or two such as 3,2")
        return (numbers[0], numbers[-1])

    return parse


def _size(text):
    """Parser of --crop: two numbers."""
    numbers = _integers(text)
    if len(numbers) != 2 or not all(1 <= n <= _MOST for n in numbers):
        _refuse(text, f"two integers from 1 to {_MOST}, such as 20,20")
    return tuple(numbers)


def _channels(text):
    """Parser of --channels: C,P or P."""
    numbers = _integers(text)
    if len(numbers) not in (1, 2) or not all(1 <= n <= _MOST for n in numbers):
        _refuse(text, f"integers from 1 to {_MOST}: C,P such as 2,3, or P alone")
    return (1, numbers[0]) if len(numbers) == 1 else tuple(numbers)


def _sizes(text):
    """Parser of --sizes: a=4,b=2."""
    found = [re.fullmatch(r"([a-zA-Z])=([0-9]{1,9})", part) for part in text.split(",")]
    if not all(found):
        _refuse(text, "the size of each axis letter, such as a=4,b=2")
    sizes = {match[1]: int(match[2]) for match in found}
    if len(sizes) != len(found) or not all(1 <= size <= _MOST for size in sizes.values()):
        _refuse(text, f"each axis letter once, with a size from 1 to {_MOST}")
    return sizes


def _seed(text):
    """Parser of --seed."""
    numbers = _integers(text)
    if len(numbers) != 1 or numbers[0] < 0:
        _refuse(text, "an integer from 0 to 999999999")
    return numbers[0]


if __name__ == "__main__":
    sys.exit(main())
