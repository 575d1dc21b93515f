"""Functions of CUDA that kernels use and Numba's simulator lacks."""

import sys
from contextlib import contextmanager, nullcontext
from functools import wraps
from types import SimpleNamespace

import numpy as np

_NOTHING = nullcontext()


def complete(cuda, at_first=None):
    """Give Numba's simulator what kernels ask for and it lacks.

    Parameters
    ----------
    cuda : module
        ``numba.cuda`` as the simulator has it.
    at_first : callable, optional
        Called once, before the first kernel runs.
    """
    from numba.cuda.simulator import kernel, kernelapi
    from numba.cuda.simulator.kernelapi import FakeCUDAModule, FakeCUDAShared

    from numbacaps.device.instructions.simulated.block import FRESH, sync_warp
    from numbacaps.device.turns import Block, this_block, this_thread

    def first_block(*arguments):
        kernel.BlockManager = Block
        at_first()
        return Block(*arguments)

    kernel.BlockManager = first_block if at_first else Block
    FakeCUDAShared.array = _shared_array(FakeCUDAShared.array)
    jit = cuda.jit

    @wraps(jit)
    def jit_of_everything(*arguments, launch_bounds=None, forceinline=None, **options):
        return jit(*arguments, **options)

    def begin(self):
        """Shared memory that was asked for at the launch, as a block finds it. Blocks of a cluster ask for none."""
        self._dynshared.view(np.uint8)[:] = FRESH

    kernel.swapped_cuda_module, known = _swapped(cuda)
    call = kernel.FakeCUDAKernel.__call__

    def call_at_once(self, *arguments):
        """Device functions are called millions of times, nearly all from where the name ``cuda`` is set."""
        if self._device and id(self.fn.__globals__) in known:
            return self.fn(*arguments)
        return call(self, *arguments)

    kernel.FakeCUDAKernel.__call__ = call_at_once
    kernelapi.threading = SimpleNamespace(
        current_thread=this_thread
    )  # kernelapi asks nothing else of it
    cuda.jit = jit_of_everything
    FakeCUDAShared.begin = begin
    FakeCUDAModule.nanosleep = lambda module, nanoseconds: this_block().let_others()
    FakeCUDAModule.syncwarp = lambda module: sync_warp()


def _swapped(cuda):
    """(what replaces the simulator's ``swapped_cuda_module``, ids of the globals where ``cuda`` is set now).

    While a kernel runs, the name ``cuda`` in a function's globals must mean the launch's own module. Numba sets it at every call
    of a device function. Here it is set at the first call in a launch and set back when the launch ends.
    """
    replaced = []  # (a module's globals, their names for cuda)
    known = set()  # ids of these globals

    @contextmanager
    def until_it_ends():
        try:
            yield
        finally:
            for names, meant in replaced:
                names.update(dict.fromkeys(meant, cuda))
            replaced.clear()
            known.clear()

    def swapped(function, module):
        names = function.__globals__
        if id(names) in known:
            return _NOTHING
        of_launch = until_it_ends() if not known else _NOTHING
        meant = [name for name, value in names.items() if value is cuda]
        names.update(dict.fromkeys(meant, module))
        known.add(id(names))
        replaced.append((names, meant))
        return of_launch

    return swapped, known


def _shared_array(original):
    """A maker of shared arrays that can be aligned, which every array here is, and are NaN at first."""
    from numba.cuda.np import numpy_support
    from numba.cuda.types import Type

    from numbacaps.device.instructions.simulated.block import block, fresh_array

    @wraps(original)
    def array(self, shape, dtype, alignment=None):
        if shape == 0:
            dtype = np.dtype(dtype) if isinstance(dtype, type) else dtype
            return original(self, shape, dtype)
        frame = sys._getframe(1)
        line, arrays = (frame.f_code.co_filename, frame.f_lineno), block()
        if line not in arrays:
            made = numpy_support.as_dtype(dtype) if isinstance(dtype, Type) else np.dtype(dtype)
            arrays[line] = fresh_array(shape, made)
        return arrays[line]

    return array
