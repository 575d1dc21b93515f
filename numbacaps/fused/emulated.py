"""What the instructions of :mod:`numbacaps.fused.ptx` do, for the simulator, a thread at a time.

A warpgroup's product reads both operands from shared memory, so each thread can compute its own part of
the result. A warp's product reads the registers of all its threads, which hand them round; so do shuffles.
Copies are done at once: a missing wait or fence does not show here.
"""

import threading

import numpy as np

from numbacaps.bfloat16 import bits


class Compiled:
    """See :class:`numbacaps.fused.compiled.Compiled`; nothing is compiled here."""

    def __init__(self, kernel, arrays, integers, shared=0, words=0, early=False):
        self._kernel = kernel

    def __getitem__(self, how):
        kernel = self._kernel[how]

        def launched(*arguments):
            kernel(*(bits(a) if hasattr(a, "dtype") else a for a in arguments))

        return launched


def address_of(array):
    """Everything lies as copies want it."""
    return 0


def _nothing():
    """An instruction that orders what is in order here."""


let_next_start = wait_for_last = cp_async_commit = fence_proxy_async = _nothing
wgmma_fence = wgmma_commit = wgmma_wait = _nothing


def cp_async_wait(pending):
    """Copies are done at once."""


def prefetch(array, index):
    """Nothing is nearer than the rest here."""
    assert 0 <= index < array.size, "not in the array"


def _bytes(array):
    """An array's memory."""
    return np.asarray(getattr(array, "_ary", array)).reshape(-1).view(np.uint8)


def shared_address(shared):
    """Shared memory begins at 0."""
    return 0


def cp_async(size, shared, address, array, index, valid):
    """See :func:`numbacaps.fused.ptx.cp_async`."""
    to = _bytes(shared)[address : address + size]
    assert to.size == size and address % size == 0, "outside of shared memory, or misaligned"
    to[:] = 0
    if valid:
        first = int(index) * array.dtype.itemsize
        assert first >= 0 and first % size == 0, "before the array, or misaligned"
        to[:] = _bytes(array)[first : first + size]


def _matrix(memory, descriptor, rows):
    """(rows, 8) of the matrix that a descriptor points to, as TF32 sees it, in float64."""
    start = (descriptor & 0x3FFF) * 16
    along_k = (descriptor >> 16 & 0x3FFF) * 16
    along_rows = (descriptor >> 32 & 0x3FFF) * 16
    row, column = np.asarray(rows)[:, None], np.arange(8)[None, :] * 4
    at = start + row // 8 * along_rows + row % 8 * 16 + column // 16 * along_k + column % 16
    bits = memory[at[..., None] + np.arange(4)].view(np.uint32)[..., 0]
    return (bits & 0xFFFFE000).view(np.float32).astype(np.float64)  # the low bits are not read


def wgmma(columns, acc, first, shared, a, b):
    """See :func:`numbacaps.fused.ptx.wgmma`."""
    thread = threading.current_thread().threadIdx.x % 128
    lane, warp = thread % 32, thread // 32
    memory = _bytes(shared)
    A = _matrix(memory, int(a), [warp * 16 + lane // 4, warp * 16 + lane // 4 + 8])
    n = np.arange(0, columns, 8)[:, None] + lane % 4 * 2 + np.arange(2)
    B = _matrix(memory, int(b), n.ravel())
    sums = (A @ B.T).reshape(2, columns // 8, 2).transpose(1, 0, 2).ravel()
    acc[first : first + columns // 2] += sums.astype(np.float32)


class _Warp:
    """32 threads, or what a small block has, and what each of them hands round."""

    def __init__(self, threads):
        self.meet = threading.Barrier(threads)
        self.a, self.b = np.empty((16, 8), np.float32), np.empty((8, 8), np.float32)
        self.values = {}

    @classmethod
    def of(cls, thread):
        """A thread's warp."""
        number = thread.threadIdx.x // 32
        threads = min(32, thread._manager._block_dim[0] - 32 * number)
        # setdefault is one step, so all threads of a warp get the same one; it goes when the block does.
        return vars(thread._manager).setdefault(f"warp {number}", cls(threads))


def mma(acc, first, a, a_first, b, b_first):
    """See :func:`numbacaps.fused.ptx.mma`."""
    thread = threading.current_thread()
    warp = _Warp.of(thread)
    r, t = divmod(thread.threadIdx.x % 32, 4)
    warp.a[[r, r + 8, r, r + 8], [t, t, t + 4, t + 4]] = a[a_first : a_first + 4]
    warp.b[[t, t + 4], r] = b[b_first : b_first + 2]
    warp.meet.wait()
    A, B = (cut_tf32(factor).astype(np.float64) for factor in (warp.a[[r, r + 8]], warp.b))
    acc[first : first + 4] += (A @ B[:, [2 * t, 2 * t + 1]]).ravel().astype(np.float32)
    warp.meet.wait()


def shuffle(value, lane):
    """See :func:`numbacaps.fused.ptx.shuffle`."""
    thread = threading.current_thread()
    warp = _Warp.of(thread)
    # Who has met the others has read what they gave the time before, so two places take turns.
    turn = thread.shuffles = 1 - vars(thread).get("shuffles", 0)
    warp.values[turn, thread.threadIdx.x % 32] = value
    warp.meet.wait()
    return warp.values[turn, lane]


expm1 = np.expm1  # which keeps the type, as a GPU does


def inverse_root(value):
    """See :func:`numbacaps.fused.ptx.inverse_root`."""
    return 1 / np.sqrt(value)


def load_run(count, to, array, index):
    """See :func:`numbacaps.fused.ptx.load_run`."""
    assert int(index) % count == 0
    to[0:count] = array[index : index + count]


def cut_tf32(value):
    """See :func:`numbacaps.fused.ptx.cut_tf32`."""
    return (np.asarray(value, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def to_tf32(value):
    """See :func:`numbacaps.fused.ptx.to_tf32`."""
    whole = np.asarray(value, np.float32).view(np.uint32)
    return ((whole + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)[()]


def from_bfloat16(element):
    """See :func:`numbacaps.fused.ptx.from_bfloat16`."""
    return (np.asarray(element, np.uint32) << np.uint32(16)).view(np.float32)[()]


def to_bfloat16(value):
    """See :func:`numbacaps.fused.ptx.to_bfloat16`."""
    whole = np.asarray(value, np.float32).view(np.uint32)
    if np.isnan(value):
        return np.uint16(0x7FFF)
    return np.uint16((whole + np.uint32(0x7FFF) + (whole >> 16 & np.uint32(1))) >> 16)


def store_pair(array, index, first, second):
    """See :func:`numbacaps.fused.ptx.store_pair`."""
    assert int(index) % 2 == 0
    array[index], array[index + 1] = first, second


def store_run(count, array, index, values):
    """See :func:`numbacaps.fused.ptx.store_run`."""
    assert int(index) % count == 0
    array[index : index + count] = values[0:count]
