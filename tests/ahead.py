"""Compile, on a machine without a GPU, the kernels that the gpu tier runs.

    NUMBA_CACHE_DIR=kernels python -m tests.ahead --bare carried
    NUMBA_CACHE_DIR=kernels python -m tests.ahead tests/fused -k wgmma

Every test runs with a GPU that is pretended (:func:`experiments.ahead.pretend`): nothing is launched, what comes back from the
GPU is zeros, and asserts are left out. Some tests fail all the same, such as the tests of PyTorch's CUDA tensors; their
kernels are compiled on the GPU's machine. Where ``NUMBA_CACHE_DIR`` names the folder of ``--bare`` there, the tier compiles little.

Other arguments go to pytest. All tests take about ten minutes of two cores.
"""

import argparse
import os
import subprocess
import sys

from experiments import ahead, machine_code
from experiments.measuring import provenance
from numbacaps.device.target import SIMULATED

_PLUGIN = "tests.support.pretended"
_PYTEST = ["-m", "pytest", "--tier", "gpu", "--assert=plain", "-W", "ignore", "--tb=no", "-q"]
_FAILED, _INTERRUPTED = 1, 2  # pytest's exit status where tests failed, and after Ctrl-C


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m tests.ahead",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit status: 0 done, whatever the tests say; 2 bad input, or pytest was not able to run them; "
        "130 after Ctrl-C; what was compiled is kept",
    )
    machine_code.add_option(parser)
    parser.add_argument(
        "--processes",
        metavar="N",
        type=ahead.count,
        default=os.cpu_count(),
        help="that compile side by side (default: one a core)",
    )
    options, of_pytest = parser.parse_known_args(arguments)
    if SIMULATED:
        parser.error("kernels are compiled for a GPU with NUMBACAPS_TARGET=cuda only")
    machine_code.check(parser, options.bare)
    side_by_side = ["-n", str(options.processes), "--dist", "worksteal"]
    command = [sys.executable, *_PYTEST, "-p", _PLUGIN, "-p", "no:cacheprovider", *side_by_side]
    environment = os.environ | {"PYTHONOPTIMIZE": "1"}  # no asserts
    command += of_pytest
    try:
        status = subprocess.run(command, cwd=provenance.ROOT, env=environment).returncode
    except KeyboardInterrupt:
        return 130
    if status == _INTERRUPTED:
        return 130
    if status not in (0, _FAILED):
        return 2
    if options.bare:
        ahead.pretend()
        print(f"{machine_code.copy(options.bare)} kernels are in {options.bare}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
