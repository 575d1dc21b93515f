"""What Numba's CUDA simulator needs to run kernels with barriers rightly and in bearable time."""

import sys
import time
from contextlib import contextmanager
from functools import wraps

import numpy as np

_UNWRITTEN = 255  # every byte of shared memory that nobody has written: NaN in all types


def complete(cuda):
    """Give Numba's simulator what kernels ask for and it lacks.

    Parameters
    ----------
    cuda : module
        ``numba.cuda`` as the simulator has it.
    """
    from numba.cuda.simulator.kernelapi import FakeCUDAModule, FakeCUDAShared

    from numbacaps.device.instructions.simulated.block import sync_warp

    _share_arrays_safely()
    jit, begin = cuda.jit, FakeCUDAShared.__init__

    @wraps(jit)
    def jit_of_everything(*arguments, launch_bounds=None, forceinline=None, **options):
        return jit(*arguments, **options)

    def begin_with_nan(self, size):
        begin(self, size)
        self._dynshared.view(np.uint8)[:] = _UNWRITTEN

    cuda.jit = jit_of_everything
    FakeCUDAShared.__init__ = begin_with_nan
    FakeCUDAModule.nanosleep = lambda module, nanoseconds: time.sleep(nanoseconds * 1e-9)
    FakeCUDAModule.syncwarp = lambda module: sync_warp()


def _share_arrays_safely():
    """Give all threads of a simulated block the same shared array.

    Numba looks an array up by the line that asks for it and makes it if it is not there, with no
    lock in between: of two threads that ask at once, each may get an array of its own. It refuses to
    align one, which no instruction asks for here.
    """
    from numba.cuda.np import numpy_support
    from numba.cuda.simulator.kernelapi import FakeCUDAShared
    from numba.cuda.types import Type

    original = FakeCUDAShared.array

    @wraps(original)
    def array(self, shape, dtype, alignment=None):
        if shape == 0:
            dtype = np.dtype(dtype) if isinstance(dtype, type) else dtype
            return original(self, shape, dtype)
        frame = sys._getframe(1)
        line = (frame.f_code.co_filename, frame.f_lineno)
        dtype = numpy_support.as_dtype(dtype) if isinstance(dtype, Type) else np.dtype(dtype)
        # setdefault is one step: whoever comes second gets what the first one put there.
        return self._allocations.setdefault(line, np.empty(shape, dtype))

    FakeCUDAShared.array = array


@contextmanager
def short_turns():
    """Let Python's threads take shorter turns.

    The simulator polls its threads at a barrier; at Python's usual 5 ms a turn that is most of its
    time. A kernel that meets few barriers loses more than it gains.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(interval / 20)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
