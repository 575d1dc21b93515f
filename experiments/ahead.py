"""Compile, on a machine without a GPU, what experiments will run on one that has it.

    NUMBACAPS_TARGET=cuda NUMBA_CACHE_DIR=kernels python -m experiments.ahead

compiles our kernels of the experiments fused, rungs and table1, which has the whole network, for a GPU that
the options describe. Where that folder is copied to and ``NUMBA_CACHE_DIR`` names it, nothing is compiled,
if the sources, the versions of Python, Numba, numba-cuda and NVRTC, and the GPU are the same.

The experiments list their cases themselves, and each is called once. :func:`pretend` is all that is pretended
for it: memory is an address, a launch is nothing, and of a kernel that would be loaded only the binary is made.
"""

import argparse
import os
import signal
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from multiprocessing import get_context
from types import SimpleNamespace

from tqdm import tqdm

from experiments import fused, machine_code, rungs, sweep, table1
from experiments.measuring import command, gpu_time, measure, networks
from experiments.measuring.contestants import PRECISIONS, OurRun, PackedRun
from experiments.measuring.problem import NETWORK_PASSES, PASSES, Problem
from experiments.measuring.refusal import Parser
from numbacaps.device.gpu import H100
from numbacaps.device.target import SIMULATED, cuda

EXPERIMENTS = {"fused": fused, "rungs": rungs, "table1": table1, "sweep": sweep}
_BY_DEFAULT = ("fused", "rungs", "table1")
_OURS = (OurRun, PackedRun, rungs.RungRun, networks.OurNetwork)
_ALIGNED = 512  # bytes; where memory begins is a multiple
_MEMORY = 1 << 36  # bytes; workspaces, which are cut to it, are never written
_STREAM = 0
_cases = []  # of this process


def pretend(capability=(9, 0), multiprocessors=H100.multiprocessors):
    """Let this process take it that it has a GPU, for good; see the module.

    It leans on where Numba keeps its context and what it asks of that, and on how our own modules launch.

    Parameters
    ----------
    capability : tuple of int
        The compute capability.
    multiprocessors : int
    """
    from cuda.core._utils.cuda_utils import ComputeCapability
    from numba.cuda.cudadrv import devicearray, devices
    from numba.cuda.cudadrv.driver import MemoryPointer, binding
    from numba.cuda.dispatcher import _Kernel

    from numbacaps import arrays
    from numbacaps.device import compiled, gpu, streams, target, tensor_map

    def nothing(*arguments, **options):
        pass

    class Context:
        device = SimpleNamespace(
            id=0,
            name=gpu.H100.name,
            # Of the driver's own type, whose text is part of what a kernel is found by.
            compute_capability=ComputeCapability(*capability),
            MULTIPROCESSOR_COUNT=multiprocessors,
            MAX_SHARED_MEMORY_PER_BLOCK_OPTIN=gpu.H100.shared_bytes,
            MAX_REGISTERS_PER_MULTIPROCESSOR=gpu.H100.registers,
        )
        free = _ALIGNED
        synchronize = nothing

        def memalloc(self, size):
            address, self.free = self.free, self.free + -(-size // _ALIGNED) * _ALIGNED
            return MemoryPointer(self, binding.CUdeviceptr(address), size)

        def create_module_image(self, *binary):
            function = SimpleNamespace(module=module, kernel=None, handle=None)
            return SimpleNamespace(get_function=lambda name: function)

        def get_memory_info(self):
            return SimpleNamespace(free=_MEMORY, total=_MEMORY)

        def create_stream(self):
            return _STREAM

        def get_default_stream(self):
            return SimpleNamespace(synchronize=nothing)

        def create_event(self, timing):
            passed = {"query": lambda: True, "synchronize": nothing}
            return SimpleNamespace(record=nothing, wait=nothing, **passed)

    module, context = SimpleNamespace(initialized=True), Context()
    devices._runtime.get_or_create_context = lambda number: context
    devices._runtime.ensure_context = nullcontext
    devicearray.DeviceNDArray.copy_to_device = nothing
    _Kernel.launch = nothing
    cuda.is_available = lambda: True
    driver = compiled.driver
    success = driver.CUresult.CUDA_SUCCESS
    compiled.driver = target.driver = SimpleNamespace(
        CUresult=driver.CUresult,
        CUfunction_attribute=driver.CUfunction_attribute,
        cuKernelSetAttribute=nothing,
        cuCtxGetDevice=lambda: (success, 0),
    )
    compiled._config = compiled._stream = compiled.launch = nothing
    tensor_map.encoded = lambda *of: (0,) * tensor_map.MAP_WORDS
    streams._core_stream = nothing
    arrays.Operand.device_ordinal = lambda operand: 0
    gpu_time.clock = lambda: SimpleNamespace(numba=_STREAM, synchronize=nothing)


class _Unwritten(Problem):
    """A convolution whose arrays are memory that nobody wrote."""

    def on_device(self, key, sets, build):
        _, dtype, *wanted = key
        if wanted:
            return [cuda.device_array(self.shape(*wanted), dtype)]
        g = self.geometry
        shapes = g.input_shape, g.kernel_shape, g.output_shape
        return [[cuda.device_array(shape, dtype) for shape in shapes]]


def listed(experiments):
    """The groups of rows that experiments would measure."""
    groups = []
    for name in experiments:
        parser = EXPERIMENTS[name].make_parser()
        groups += EXPERIMENTS[name].groups(parser, parser.parse_args([]))
    return groups


def chosen(groups, options):
    """(workload, pass, geometry, variant) of what the options choose, each once.

    The other kernels of ``"cublas"`` are those of ``"staged"``.
    """
    return list(
        dict.fromkeys(
            (group.workload, group.wanted, group.geometry, variant)
            for group in groups
            for variant in group.variants
            if getattr(variant, "run", None) in _OURS
            and variant.algorithm != "cublas"
            and variant.precision in options.precisions
            and group.wanted in options.passes
            and group.workload in (options.workload or [group.workload])
        )
    )


def _begin(options):
    """Make one of the processes ready to compile cases."""
    pretend(options.compute_capability, options.multiprocessors)
    _cases.extend(chosen(listed(options.experiments), options))


def _compile(number):
    """Compile what a case runs, by its number."""
    _, wanted, geometry, variant = _cases[number]
    if wanted in NETWORK_PASSES:
        variant.run(variant, wanted, networks.task(geometry.N)).call()
    else:
        variant.run(variant, _Unwritten(geometry), wanted, 1, gpu_time.clock()).calls[0]()


def compile_chosen(options, processes):
    """Compile what the options choose in processes side by side.

    Parameters
    ----------
    options : namespace
        ``experiments``, ``passes``, ``precisions``, ``workload``, ``compute_capability`` and ``multiprocessors``,
        as on the command line.
    processes : int

    Returns
    -------
    cases, failed : int
        How many there were, and how many of them failed.
    """
    cases = chosen(listed(options.experiments), options)
    names = [f"{workload} {wanted}: {variant}" for workload, wanted, _, variant in cases]
    failed = side_by_side(names, _compile, _begin, (options,), processes) if names else 0
    return len(names), failed


def _hear_nothing(begin, arguments):
    """Begin in one of several processes: the first one hears Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    begin(*arguments)


def side_by_side(names, work, begin, arguments, processes):
    """Have processes do ``work(number)`` for each name, with a progress bar; how many failed.

    Parameters
    ----------
    names : list of str
        Shown where one fails.
    work, begin : callable
        Of a module; each process calls ``begin`` once, with ``arguments``.
    arguments : tuple
    processes : int

    Raises
    ------
    KeyboardInterrupt
        What was not begun is left out.
    """
    failed = 0
    with (
        ProcessPoolExecutor(
            processes, get_context("spawn"), _hear_nothing, (begin, arguments)
        ) as pool,
        tqdm(total=len(names), unit="case") as bar,
    ):
        futures = {pool.submit(work, number): name for number, name in enumerate(names)}
        try:
            for future in as_completed(futures):
                if future.exception():
                    bar.write(
                        f"{futures[future]}: {measure.note_of(future.exception())}", sys.stderr
                    )
                    failed += 1
                bar.update()
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    return failed


def _capability(text):
    """(9, 0) of "9.0"."""
    numbers = text.split(".")
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        raise argparse.ArgumentTypeError(f"got {text!r}; it takes two numbers, as 9.0")
    return tuple(map(int, numbers))


def count(text):
    """A number of 1 or more, for a command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}; it takes a number of 1 or more")
    return int(text)


def _parser():
    made = Parser(
        prog="python -m experiments.ahead",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit status: 0 done, 1 a case failed, 2 bad input, 130 after Ctrl-C; what was "
        "compiled is kept",
    )
    several = {
        "experiments": (tuple(EXPERIMENTS), _BY_DEFAULT),
        "passes": (PASSES + NETWORK_PASSES, PASSES + NETWORK_PASSES),
        "precisions": (PRECISIONS, PRECISIONS),
    }
    for name, (names, default) in several.items():
        made.add_argument(
            f"--{name}",
            metavar="A,B",
            type=lambda text, names=names: command.choice(text, names),
            default=default,
            help=f"of {', '.join(names)} (default: {', '.join(default)})",
        )
    made.add_argument(
        "--workload",
        metavar="NAME",
        action="append",
        help="by its name in the results; may be given again (default: all)",
    )
    made.add_argument(
        "--compute-capability",
        metavar="X.Y",
        type=_capability,
        default=(9, 0),
        help="of the GPU (default 9.0)",
    )
    made.add_argument(
        "--multiprocessors",
        metavar="N",
        type=count,
        default=H100.multiprocessors,
        help=f"of the GPU (default {H100.multiprocessors}, an H100 SXM's); tiles are chosen by it",
    )
    made.add_argument(
        "--processes",
        metavar="N",
        type=count,
        default=os.cpu_count(),
        help="that compile side by side (default: one a core)",
    )
    machine_code.add_option(made)
    return made


def main(arguments=None):
    parser = _parser()
    options = parser.parse_args(arguments)
    if SIMULATED:
        parser.error("kernels are compiled for a GPU with NUMBACAPS_TARGET=cuda only")
    machine_code.check(parser, options.bare)
    pretend(options.compute_capability, options.multiprocessors)
    groups = listed(options.experiments)
    workloads = dict.fromkeys(group.workload for group in groups)
    for name in options.workload or ():
        if name not in workloads:
            parser.error(f"--workload got {name!r}; it takes one of {list(workloads)}")
    try:
        cases, failed = compile_chosen(options, options.processes)
    except KeyboardInterrupt:
        return 130
    print(f"{cases - failed} of {cases} cases are compiled")
    if options.bare:
        print(f"{machine_code.copy(options.bare)} kernels are in {options.bare}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
