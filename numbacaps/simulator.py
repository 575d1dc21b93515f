"""What Numba's CUDA simulator needs to run kernels with barriers rightly and in bearable time."""

import sys
from contextlib import contextmanager
from functools import wraps

import numpy as np


def share_arrays_safely():
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
            return original(self, shape, dtype)
        frame = sys._getframe(1)
        line = (frame.f_code.co_filename, frame.f_lineno)
        dtype = numpy_support.as_dtype(dtype) if isinstance(dtype, Type) else dtype
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
