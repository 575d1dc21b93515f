"""Numba compiles kernels in less time, to the same code.

- Numba copies the blocks of a device function that it inlines (``inline="always"``) one after another, each with all variables
  of the function. Of kernels on tensor cores these copies were a quarter of the time. Here all copies of one function
  share what they refer to, as the originals do; the caller's variables then take its place as before.
- While a kernel is compiled, Python looks for no garbage in cycles: of all that Numba makes then almost nothing is.

All that leans on how Numba inlines is in this file.
"""

import gc
from contextlib import contextmanager, nullcontext
from copy import copy, deepcopy
from types import SimpleNamespace

from numbacaps.device import linking
from numbacaps.device.target import SIMULATED


def compile_in_less_time():
    """Let Numba compile so from now on; nothing is compiled on the simulator."""
    if SIMULATED:
        return
    from numba.cuda.core import inline_closurecall
    from numba.cuda.core.inline_closurecall import InlineWorker
    from numba.cuda.dispatcher import CUDADispatcher

    inline, compile_kernel = InlineWorker.inline_ir, CUDADispatcher.compile
    copied = [{}]  # by the functions that are inlined now; one thread compiles at a time

    def inline_with_one_copy(*arguments, **options):
        copied.append({})
        try:
            return inline(*arguments, **options)
        finally:
            copied.pop()

    def compile_without_collections(*arguments, **options):
        with _without_collections():
            return compile_kernel(*arguments, **options)

    InlineWorker.inline_ir = inline_with_one_copy
    CUDADispatcher.compile = compile_without_collections
    inline_closurecall.copy = SimpleNamespace(
        copy=copy, deepcopy=lambda block: deepcopy(block, copied[-1])
    )


def linked_together():
    """A block as :func:`numbacaps.device.linking.linked_side_by_side`; inside such a block nothing, as that one links all."""
    return nullcontext() if linking._block.get() else linking.linked_side_by_side()


@contextmanager
def _without_collections():
    """A block in which Python does not look for garbage in cycles."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
