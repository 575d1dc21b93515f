"""Kernels that are linked beside each other, in threads, while Numba goes on with the next one.

NVVM and nvJitLink, which make a kernel's machine code of what Numba makes of it, do not hold Python's lock. In a block of
:func:`linked_side_by_side` they run in threads; what takes the machine code waits for the end of the block. Numba
itself works on one kernel after another, in the same order as without such a block, so the code is the same.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

_block = ContextVar("block", default=None)  # (threads, what is left for its end)


@contextmanager
def linked_side_by_side():
    """A block in which kernels are compiled; behind it all of them are linked, kept on disk and loaded.

    Raises
    ------
    Exception
        What the first of them raised that could not be linked, kept or loaded.
    """
    left = []
    with ThreadPoolExecutor() as threads:
        outer = _block.set((threads, left))
        try:
            yield
        finally:
            _block.reset(outer)
        for work in left:
            work()


def link(library):
    """Have machine code made of what Numba has compiled: at once, or in such a block beside what follows."""
    block = _block.get()
    # Without nvJitLink the driver links, in this thread's context.
    if block is None or not library._lto:
        library.get_cubin()
        return
    threads, left = block
    library.llvm_strs  # of modules that other kernels share: a thread would read them while they change
    made = threads.submit(library.get_cubin, library._ensure_cc(None))

    def wait(capability=None):
        vars(library).pop("get_cubin", None)  # another thread may have waited, too
        made.result()
        return library.get_cubin(capability)

    library.get_cubin = wait
    left.append(lambda: library.get_cubin())


def when_linked(work):
    """Do what takes machine code: at once, or at the end of such a block."""
    block = _block.get()
    if block is None:
        work()
    else:
        block[1].append(work)


def link_in_blocks():
    """Let Numba's kernels be linked so from now on."""
    from numba.cuda.dispatcher import _Kernel

    bind = _Kernel.bind

    def linked(self):
        link(self._codelibrary)
        when_linked(partial(bind, self))

    _Kernel.bind = linked
