"""Check thousands of drawn convolutions by ``"fused"`` on this machine's GPU, in one process.

``python -m tests.record_drawn`` compiles what they take in processes side by side (hours of one core; kept where
``NUMBA_CACHE_DIR`` says), compares one after the other with float64 and writes
``experiments/results/<gpu>/gpu_drawn.json``. Exit status 1 if one failed, 2 if there is no GPU, 130 after Ctrl-C:
what was compiled is kept.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter

from tqdm import tqdm

from experiments.ahead import count, pretend, side_by_side
from experiments.measuring import provenance
from experiments.measuring.refusal import Parser
from numbacaps.device.target import SIMULATED, cuda
from tests.support import drawn


def _compile(number):
    """Compile what a convolution takes, in a process that pretends a GPU."""
    drawn.convolution(number).prepare()


def check(convolutions):
    """Check them one after the other.

    Parameters
    ----------
    convolutions : list of drawn.Convolution

    Returns
    -------
    dict
        How many were ``checked``, ``of_each_kind`` and ``of_each_kernel``; those that ``failed``, in words. After an
        error that is no wrong result, as of the device, the others are not checked.
    """
    checked, kinds, kernels, failed = 0, Counter(), Counter(), []
    for one in tqdm(convolutions, unit="convolution"):
        try:
            used = one.prepare()
            one.check()
        except AssertionError as wrong:
            failed.append(f"{one}: {wrong}")
        except Exception as error:  # whichever library's
            failed.append(f"{one}: {error!r}")
            break
        checked += 1
        kinds[f"{one.wanted} {one.dtype} {one.precision}"] += 1
        kernels.update(used)
    return {
        "checked": checked,
        "failed": failed,
        "of_each_kind": dict(sorted(kinds.items())),
        "of_each_kernel": dict(sorted(kernels.items())),
    }


def main(arguments=None):
    parser = Parser(
        prog="python -m tests.record_drawn",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, default, text in (
        ("--count", 2000, "of convolutions (default 2000)"),
        ("--processes", os.cpu_count(), "that compile (default: one a core)"),
    ):
        parser.add_argument(name, metavar="N", type=count, default=default, help=text)
    options = parser.parse_args(arguments)
    if SIMULATED or not cuda.is_available():
        print("drawn: no GPU was found; this takes an NVIDIA GPU and its driver", file=sys.stderr)
        return 2
    device, start, record = cuda.get_current_device(), time.monotonic(), provenance.of_record()
    try:
        convolutions = [drawn.convolution(number) for number in range(options.count)]
        gpu = device.compute_capability, device.MULTIPROCESSOR_COUNT
        names = list(map(str, convolutions))
        if side_by_side(names, _compile, pretend, gpu, options.processes):
            return 1  # it said which
        found = check(convolutions)
    except KeyboardInterrupt:
        return 130
    record |= {"seconds": round(time.monotonic() - start), **found}
    text = json.dumps(record, indent=2)
    provenance.write_text(provenance.RESULTS / record["gpu"] / "gpu_drawn.json", text + "\n")
    print(text)
    return 1 if found["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
