"""Seed faults into a copy of the repository, one at a time, and see that the tests catch each.

``python -m tests.faults`` prints a row a fault: what it is, where, and the first test that failed. Exit status 1 if
one was not caught, 130 after Ctrl-C. ``--only WORD`` takes those whose name has the word. The list is data: a fault
whose text is not in its file exactly once is an error, so that none goes stale.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_COPIED = "numbacaps", "reference", "experiments", "tests", "setup.cfg", "pyproject.toml"
_FAILED = 1  # pytest's exit status where a test failed; 2 and above: nothing was run


@dataclass(frozen=True)
class Fault:
    """A wrong line.

    Attributes
    ----------
    what : str
        In words.
    path : str
        The file, from the repository's root.
    right, wrong : str
        What stands there, once, and what stands there instead.
    tests : str
        What ought to catch it: arguments of pytest, with spaces between.
    tier : str
    """

    what: str
    path: str
    right: str
    wrong: str
    tests: str
    tier: str = "simulator"


_ALGORITHMS = "tests/algorithms/test_pipelines.py -k test_algorithm"
_VOTES = "tests/votes/test_votes.py -k against_the_loops"
_STAGES = "tests/stages/test_stages.py"
_HOPPER = "tests/fused/test_hopper.py"
_MMA_SYNC = "tests/fused/test_mma_sync.py"
_NN_KERNELS = "tests/nn/test_nn_kernels.py"
_EDGES = "tests/algorithms/test_edges.py"
_ROWS = "tests/experiments/test_experiments.py -k rows"
_LOCK = "tests/experiments/test_lock.py"
_WAITING = "tests/device/test_waiting.py"

FAULTS = [
    Fault(
        "off by one in padding: one row below the image counts as inside",
        "numbacaps/algorithms/indices.py",
        "if h < 0 or h >= H or",
        "if h < 0 or h > H or",
        _ALGORITHMS,
    ),
    Fault(
        "swapped axes of the stride",
        "numbacaps/fused/implicit_gemm.py",
        "SH * g.W * g.E1, SW * g.E1, g.D2),\n        unit",
        "SW * g.W * g.E1, SH * g.E1, g.D2),\n        unit",
        _ALGORITHMS,
    ),
    Fault(
        "dx without the dilation",
        "numbacaps/algorithms/gradients.py",
        "top = row + PH - kh * DH",
        "top = row + PH - kh",
        _ALGORITHMS,
    ),
    Fault(
        "dx of the votes without the dilation",
        "numbacaps/algorithms/gradients.py",
        "left = column + PW - kw * DW",
        "left = column + PW - kw",
        _VOTES,
    ),
    Fault(
        "votes that are summed over the window are read as if there were one a tap",
        "numbacaps/votes/indices.py",
        "STEP = 0 if sum_window else 1",
        "STEP = 1",
        _VOTES,
    ),
    Fault(
        "P in place of C, which shows only where they differ",
        "numbacaps/algorithms/indices.py",
        "(((p * C + c) * KH + kh)",
        "(((p * P + c) * KH + kh)",
        _ALGORITHMS,
    ),
    Fault(
        "missing barrier: tiles are multiplied before they are complete",
        "numbacaps/stages/strided_batched_matmul.py",
        "cuda.syncthreads()  # the tiles are complete before anyone multiplies",
        "pass",
        _STAGES,
    ),
    Fault(
        "missing barrier: lane 0 adds sums that are not there yet",
        "numbacaps/algorithms/gradients.py",
        "cuda.syncthreads()  # every lane's sum is there before lane 0 adds them up",
        "pass",
        _ALGORITHMS,
    ),
    Fault(
        "wrong residue: the taps of a residue of the stride, without the dilation",
        "numbacaps/fused/implicit_gemm.py",
        "tap * dilation % stride",
        "tap % stride",
        _ALGORITHMS,
    ),
    Fault(
        "pixels that no window reaches are not cleared",
        "numbacaps/fused/implicit_gemm.py",
        "[_zeros(g), *found]",
        "found",
        _ALGORITHMS,
    ),
    Fault(
        "stale packed kernel: what was packed once serves however the weights change",
        "numbacaps/nn/runs.py",
        "if self._packed != version:",
        "if self._packed is None:",
        "tests/nn/test_nn_network.py",
    ),
    Fault(
        "lost tail: the last, partly filled step of the sum",
        "numbacaps/fused/rung_3_register_tiles/kernel.py",
        "STEPS = -(-K // BK)",
        "STEPS = K // BK",
        _ALGORITHMS,
    ),
    Fault(
        "lost tail: the positions of a slab that fill no round of lanes",
        "numbacaps/stages/kernel_reduce.py",
        "left = (images * positions - term + LANES - 1) // LANES",
        "left = (images * positions - term) // LANES",
        _STAGES,
    ),
    Fault(
        "wrong step of a matrix descriptor: rows and k exchanged",
        "numbacaps/device/instructions/__init__.py",
        "along_k // 16 << 16 | along_rows // 16 << 32",
        "along_k // 16 << 32 | along_rows // 16 << 16",
        _HOPPER,
    ),
    Fault(
        "dropped term of tf32x3: the kernel's small part is zero",
        "numbacaps/fused/pack.py",
        "value = to_tf32(whole - value)",
        "value = kind(ZERO)",
        _HOPPER,
    ),
    Fault(
        "a reduction that loses its last split",
        "numbacaps/fused/rung_3_register_tiles/split_k.py",
        "if first + j * LANES < SPLITS:",
        "if first + j * LANES < SPLITS - 1:",
        _ALGORITHMS,
    ),
    Fault(
        "pixels that no tap reaches are not cleared",
        "numbacaps/fused/clear.py",
        "if first < size:",
        "if first >= size:",
        f"{_MMA_SYNC} -k test_every_geometry[backward_input-float16-1-gaps]",
    ),
    Fault(
        "a tap past the end of the array is read",
        "numbacaps/fused/mma_sync/edges.py",
        "~np.uint32(short(reached - size))",
        "np.uint32(_BITS)",
        f"{_MMA_SYNC} -k test_every_geometry[forward-float32-1-padded]",
    ),
    Fault(
        "columns of a pixel's first tap alone are added",
        "numbacaps/fused/col2im.py",
        "short(min(taps, positions) + 1)",
        "short(1)",
        "tests/fused/test_col2im.py -k test_every_geometry[float32-primes]",
    ),
    Fault(
        "squash without its regulariser",
        "numbacaps/nn/kernels/squash.py",
        "squash_factor(square + REGULARISER)",
        "squash_factor(square)",
        _NN_KERNELS,
    ),
    Fault(
        "squash behind a product without its regulariser",
        "numbacaps/fused/epilogue.py",
        "squash_factor(mine + sums.dtype.type(EPSILON))",
        "squash_factor(mine)",
        "tests/fused/test_epilogue.py tests/nn/test_nn_network.py",
    ),
    Fault(
        "the margin loss punishes present and absent classes alike",
        "numbacaps/nn/kernels/margin_loss.py",
        "slope = TWO * WEIGHT",
        "slope = TWO",
        _NN_KERNELS,
    ),
    Fault(
        "Adam's second moment forgets too fast",
        "numbacaps/nn/kernels/adam.py",
        "v = BETA2 * second[at(i)]",
        "v = BETA1 * second[at(i)]",
        _NN_KERNELS,
    ),
    Fault(
        "a slab of later rows starts the sum again",
        "numbacaps/stages/capsule_col2im.py",
        "if first_row > 0 or chunk > 0:",
        "if chunk > 0:",
        f"{_STAGES} tests/algorithms/test_pipelines.py",
    ),
    Fault(
        "a strided array is read with its axes the other way round",
        "numbacaps/device/strided_copy.py",
        "axis = len(shape) - 1 - step",
        "axis = step",
        "tests/test_interop.py tests/test_api.py",
    ),
    Fault(
        "the method's hash is left out of what makes a row the same",
        "experiments/measuring/records.py",
        'SAME = ("driver", "versions", "method_sha256")',
        'SAME = ("driver", "versions")',
        _ROWS,
    ),
    Fault(
        "the sources are left out of what makes a row the same",
        "experiments/measuring/records.py",
        "and self._sources.is_current(row)",
        "and True",
        _ROWS,
    ),
    Fault(
        "the sources' hash is left out of what makes a short CSV's row the same",
        "experiments/measuring/listing.py",
        '_SAME = ("gpu", "driver", "versions", "source_sha256")',
        '_SAME = ("gpu", "driver", "versions")',
        "tests/experiments/test_host_cost.py -k rows",
    ),
    Fault(
        "a CSV is written from what it held at first, without what another run wrote meanwhile",
        "experiments/measuring/records.py",
        "change(read(self.path))",
        "change(self.rows)",
        _LOCK,
    ),
    Fault(
        "a lock that was taken is not waited for",
        "experiments/measuring/lock.py",
        "fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_SH",
        _LOCK,
    ),
    Fault(
        "an image's pixels are not counted before it is decoded",
        "experiments/walk/image.py",
        "_check_pixels(path, picture.size[::-1])",
        "pass",
        "tests/experiments/test_walk.py -k large",
    ),
    Fault(
        "a plan takes arrays that are not contiguous",
        "numbacaps/plan.py",
        "if not operand.is_contiguous:",
        "if False:",
        "tests/test_plan_arrays.py",
    ),
    Fault(
        "calls on two streams share a plan's workspace",
        "numbacaps/kept.py",
        "key = s, int(stream) if stream else 0, threading",
        "key = s, 0, threading",
        "tests/test_plan_arrays.py",
    ),
    Fault(
        "an axis that is broadcast becomes one with the axis before it",
        "numbacaps/device/strided_copy.py",
        "merged[-1][1] == size * stride",
        "merged[-1][1] == size * (stride or 1)",
        "tests/device/test_strided_copy.py",
    ),
    Fault(
        "a workspace may take all the memory that is free",
        "numbacaps/device/workspace.py",
        "self._limit = free // 2",
        "self._limit = free",
        "tests/device/test_workspace.py",
    ),
    Fault(
        "the second part of a packed kernel is not rounded",
        "numbacaps/fused/pack.py",
        "value = to_tf32(whole - value)",
        "value = whole - value",
        "tests/fused/test_pack.py",
    ),
    Fault(
        "dx with the dilation of the other axis",
        "numbacaps/stages/capsule_col2im.py",
        "kh = down // DH",
        "kh = down // DW",
        _EDGES,
    ),
    Fault(
        "dx of too few windows: their number by the other axis' dilation",
        "numbacaps/stages/capsule_col2im.py",
        "OH_SPAN = DH * (KH - 1)",
        "OH_SPAN = DW * (KH - 1)",
        _EDGES,
    ),
    Fault(
        "dx with the padding of the other axis",
        "numbacaps/stages/capsule_col2im.py",
        "left = i // E1 % W + PW",
        "left = i // E1 % W + PH",
        _EDGES,
    ),
    Fault(
        "dw without the padding to the left",
        "numbacaps/stages/capsule_im2col.py",
        "left = kw * DW - PW",
        "left = kw * DW",
        _EDGES,
    ),
    Fault(
        "a ring of row numbers whose writer never waits",
        "numbacaps/nn/data.py",
        "self._computing.wait_for(self._read[visit % 2])",
        "pass",
        _WAITING,
    ),
    Fault(
        "a stream that does not wait for those that its arrays were made on",
        "numbacaps/device/streams.py",
        "event.wait(stream)",
        "pass",
        _WAITING,
    ),
    Fault(
        "an array that is not aligned counts as aligned",
        "numbacaps/device/compiled.py",
        "if where(argument) % multiple:",
        "if where(argument) % 4:",
        _WAITING,
    ),
    Fault(
        "of a product's arrays the result is not asked whether it is aligned",
        "numbacaps/fused/packing_launcher.py",
        "if aligned(CHUNK, gathered, result, activated):",
        "if aligned(CHUNK, gathered, activated):",
        "tests/fused/test_alignment.py",
    ),
    Fault(
        "a pipeline whose producer never waits for a stage to be empty",
        "numbacaps/device/ring.py",
        "mbarrier_wait(shared, full + TO_EMPTY, phase)",
        "pass",
        _HOPPER,
    ),
    Fault(
        "float64 creeps into a sum of float32",
        "numbacaps/stages/output_reduce.py",
        "total = ZERO",
        "total = 0.0",
        "tests/fused/test_ptx.py -k output_reduce",
        "ptx",
    ),
]


def seed(fault, root):
    """Write a fault into the file of a copy.

    Raises
    ------
    ValueError
        The text is not there, or more than once.
    """
    path = Path(root) / fault.path
    text = path.read_text()
    if text.count(fault.right) != 1:
        raise ValueError(f"{fault.path} holds {fault.right!r} {text.count(fault.right)} times")
    path.write_text(text.replace(fault.right, fault.wrong))


def caught_by(fault, root):
    """The first test that fails in a copy with the fault; None if all pass.

    Raises
    ------
    RuntimeError
        No test was run.
    """
    path = Path(root) / fault.path
    right = path.read_text()
    seed(fault, root)
    words = fault.tests.split()
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    try:
        run = subprocess.run(
            [*command, "--tier", fault.tier, *words],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        path.write_text(right)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+?::.*?)(?: - .*)?$", run.stdout, re.MULTILINE)
    if run.returncode not in (0, _FAILED) or (run.returncode == _FAILED) != bool(failed):
        raise RuntimeError(f"{fault.what}: {run.stdout[-2000:]}{run.stderr[-2000:]}")
    return failed[0] if failed else None


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", metavar="WORD", default="", help="faults whose name has it")
    wanted = [fault for fault in FAULTS if parser.parse_args(arguments).only in fault.what]
    missed = 0
    try:
        with tempfile.TemporaryDirectory() as root:
            for name in _COPIED:
                source, target = _ROOT / name, Path(root) / name
                if source.is_dir():
                    ignored = shutil.ignore_patterns("__pycache__", "figures", ".*")
                    shutil.copytree(source, target, ignore=ignored)
                else:
                    shutil.copy(source, target)
            print("| fault | in | caught by |\n| --- | --- | --- |", flush=True)
            for fault in wanted:
                found = caught_by(fault, root)
                missed += found is None
                test = f"`{found.removeprefix('tests/')}`" if found else "**nothing**"
                print(f"| {fault.what} | `{fault.path}` | {test} |", flush=True)
    except KeyboardInterrupt:
        return 130
    print(f"\n{len(wanted) - missed} of {len(wanted)} faults were caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
