"""Numba compiles kernels in less time, to the same code: those of this package, and a caller's own.

- Numba copies a device function that it inlines (``inline="always"``) block by block, and with each block it copies all
  variables of the function. On the way to a network's kernels on tensor cores these copies took a quarter of the time. Here
  the variables of a function are copied once.
- Python's garbage collector is off while a kernel is compiled. A compilation makes many objects, and almost none of them are
  garbage in cycles, which is all that the collector would find.

All that leans on how Numba inlines is in this file.
"""

import gc
from contextlib import contextmanager
from copy import copy, deepcopy
from functools import wraps
from types import SimpleNamespace

from numbacaps.device.target import SIMULATED


def compile_in_less_time():
    """Let Numba compile all kernels of this process so; on the simulator nothing is compiled."""
    if SIMULATED:
        return
    from numba.cuda.core import inline_closurecall
    from numba.cuda.core.compiler_lock import global_compiler_lock
    from numba.cuda.core.inline_closurecall import InlineWorker
    from numba.cuda.dispatcher import CUDADispatcher

    inline, compile_kernel = InlineWorker.inline_ir, CUDADispatcher.compile
    copied = [{}]  # what was copied, of each function that is being inlined; Numba's lock is held

    @wraps(inline)
    def inline_with_one_copy(*arguments, **options):
        copied.append({})
        try:
            return inline(*arguments, **options)
        finally:
            copied.pop()

    @wraps(compile_kernel)
    def compile_without_collections(*arguments, **options):
        with global_compiler_lock, without_collections():
            return compile_kernel(*arguments, **options)

    InlineWorker.inline_ir = inline_with_one_copy
    CUDADispatcher.compile = compile_without_collections
    inline_closurecall.copy = SimpleNamespace(
        copy=copy, deepcopy=lambda block: deepcopy(block, copied[-1])
    )


@contextmanager
def without_collections():
    """A block, of one thread at a time, in which Python's garbage collector is off."""
    collects = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if collects:
            gc.enable()
