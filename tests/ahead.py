"""Compile, on a machine without a GPU, the kernels that the gpu tier runs.

    NUMBA_CACHE_DIR=kernels python -m tests.ahead --bare carried
    NUMBA_CACHE_DIR=kernels python -m tests.ahead tests/fused -k wgmma

Every test runs with a GPU that is pretended (:func:`experiments.ahead.pretend`): nothing is launched, what comes back from the
GPU is zeros, and asserts are left out. Tests that cannot go on so, as those of PyTorch's CUDA tensors, are counted as failed;
their kernels are compiled where the GPU is. With ``--bare`` the machine code is copied to a folder, without what it was
made of: a fifteenth of the bytes. Where that folder is ``NUMBA_CACHE_DIR``, the tier compiles little.

What else is given goes to pytest. All tests take about ten minutes of two cores.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from experiments import ahead
from experiments.measuring import provenance
from numbacaps.device.gpu import H100
from numbacaps.device.target import SIMULATED

_PLUGIN = "tests.support.pretended"
_PYTEST = ["-m", "pytest", "--tier", "gpu", "--assert=plain", "-W", "ignore", "--tb=no", "-q"]
_FAILED = 1  # pytest's exit status where tests failed


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m tests.ahead",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit status: 0 done, whatever the tests say; 2 bad input, or pytest was not able to run them",
    )
    parser.add_argument("--bare", metavar="DIR", type=Path, help="copies of the machine code")
    parser.add_argument("--processes", metavar="N", type=ahead.count, default=os.cpu_count())
    options, of_pytest = parser.parse_known_args(arguments)
    if SIMULATED:
        parser.error("kernels are compiled for a GPU with NUMBACAPS_TARGET=cuda only")
    folder = os.environ.get("NUMBA_CACHE_DIR")
    if options.bare and not folder:
        parser.error("--bare copies what NUMBA_CACHE_DIR names, which is not set")
    side_by_side = ["-n", str(options.processes), "--dist", "worksteal"]
    command = [sys.executable, *_PYTEST, "-p", _PLUGIN, "-p", "no:cacheprovider", *side_by_side]
    environment = os.environ | {"PYTHONOPTIMIZE": "1"}  # no asserts
    command += of_pytest
    status = subprocess.run(command, cwd=provenance.ROOT, env=environment, check=False).returncode
    if status not in (0, _FAILED):
        return 2
    if options.bare:
        ahead.pretend((9, 0), H100.multiprocessors)  # to read them
        count = ahead.copy_machine_code(Path(folder) / "numbacaps", options.bare / "numbacaps")
        print(f"{count} kernels are in {options.bare}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
