"""What a Hopper GPU's copy engine, barriers and warpgroup products do, for the simulator.

The kernels that use them take their instructions from :mod:`numbacaps.fused.ptx`, which takes a GPU.
:func:`emulate` gives them these instead. A block is one Python thread for each of its own, so a case must
be tiny, and takes seconds. What is checked: every index, address, descriptor, coordinate and phase, that
barriers count what arrives, and that nothing hangs. A product is worked out when it is waited for, not when it is
asked for, so an operand that is overwritten too early shows; a copy is done at once. Not checked: fences, types,
registers, what runs at the same time by chance.
"""

import threading
import time

import numpy as np

from numbacaps.fused import emulated, tensor_map
from numbacaps.fused.bulk_tiles import MAP_WORDS
from numbacaps.fused.emulated import _bytes, _nothing, _Warp
from numbacaps.pipelines import fused
from numbacaps.target import cuda

_PATIENCE = 200  # seconds after which nobody will come any more
_UNKNOWN = 255  # every byte of shared memory that nobody has written: NaN in all types
MULTIPROCESSORS = 2


def emulate(monkeypatch, *modules):
    """Have these modules' kernels run on the simulator, as long as ``monkeypatch`` lives.

    Parameters
    ----------
    monkeypatch : pytest.MonkeyPatch
    modules : module
        Each with a cached factory, ``make_`` and the module's own name.
    """
    from numba.cuda.simulator.kernelapi import FakeCUDAModule, FakeCUDAShared

    for module in modules:
        factory = getattr(module, "make_" + module.__name__.rpartition(".")[2])
        factory.cache_clear()
        for name, instruction in INSTRUCTIONS.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, instruction)
    monkeypatch.setattr(tensor_map, "tensor_map", _tensor_map)
    monkeypatch.setattr(fused, "address_of", lambda array: array)  # a map's is the array itself
    monkeypatch.setattr(fused, "_aligned", lambda array: True)
    monkeypatch.setattr(fused, "multiprocessors", lambda: MULTIPROCESSORS)
    jit, array, init = cuda.jit, FakeCUDAShared.array, FakeCUDAShared.__init__

    def typed(self, shape, dtype, **how):
        return array(self, shape, np.dtype(dtype) if isinstance(dtype, type) else dtype, **how)

    def unknown(self, size):
        init(self, size)
        self._dynshared.view(np.uint8)[:] = _UNKNOWN

    # What the simulator's own module has not.
    monkeypatch.setattr(cuda, "jit", lambda *a, launch_bounds=None, **how: jit(*a, **how))
    monkeypatch.setattr(FakeCUDAShared, "array", typed)
    monkeypatch.setattr(FakeCUDAShared, "__init__", unknown)
    monkeypatch.setattr(FakeCUDAModule, "nanosleep", _nap, raising=False)
    monkeypatch.setattr(FakeCUDAModule, "syncwarp", lambda self: _meet(), raising=False)


def _nap(module, nanoseconds):
    time.sleep(nanoseconds * 1e-9)


def _block():
    """What the threads of a block share, which goes when the block does."""
    return vars(threading.current_thread()._manager)


def _warp():
    return _Warp.of(threading.current_thread())


def _meet():
    _warp().meet.wait(_PATIENCE)


def shared_address(shared):
    """0, in 64 bits."""
    return np.int64(0)


class _Barrier:
    """Arrivals and bytes that a phase still takes."""

    def __init__(self, count, change):
        self._count, self._left, self._bytes, self._parity = count, count, 0, 0
        self._change = change

    def take(self, arrivals=0, size=0):
        """Count in arrivals, and bytes that are expected (or, below 0, that came)."""
        with self._change:
            self._left -= arrivals
            self._bytes += size
            assert self._left >= 0, "more arrivals than a phase takes"
            if self._left == 0 and self._bytes == 0:
                self._left, self._parity = self._count, self._parity ^ 1
                self._change.notify_all()

    def wait(self, parity):
        """Until a phase of this parity is over."""
        with self._change:
            over = self._change.wait_for(lambda: self._parity != parity, _PATIENCE)
            assert over, "nobody completes a barrier that is waited for"


def _barrier(address):
    return _block()["barriers"][int(address)]


def mbarrier_init(shared, address, count):
    """See :mod:`numbacaps.fused.ptx`, as for all that follow."""
    assert address % 8 == 0
    change = _block().setdefault("change", threading.Condition())
    _block().setdefault("barriers", {})[int(address)] = _Barrier(int(count), change)


def mbarrier_arrive(shared, address):
    _barrier(address).take(1)


def mbarrier_expect(shared, address, size):
    _barrier(address).take(1, int(size))


def mbarrier_wait(shared, address, parity):
    _barrier(address).wait(int(parity))


def bulk_copy(shared, address, array, index, size, barrier):
    first, address, size = int(index) * array.dtype.itemsize, int(address), int(size)
    assert address % 16 == 0 and first % 16 == 0 and size % 16 == 0
    read, to = _bytes(array)[first : first + size], _bytes(shared)[address : address + size]
    assert first >= 0 and read.size == to.size == size
    to[:] = read
    _barrier(barrier).take(size=-size)


class _Map:
    """A tensor map: as :func:`numbacaps.fused.tensor_map.tensor_map`, but of an array."""

    def __init__(self, array, sizes, strides, box, steps=(1,) * 5, swizzled=False):
        self.words = _bytes(array).view(np.uint32)
        self.sizes, self.strides, self.box, self.steps = sizes, (1, *strides), box, steps
        self.row = 4 * box[0] if swizzled else 0
        assert all(1 <= size <= 256 for size in box) and box[0] % 4 == 0
        assert all(stride % 4 == 0 for stride in strides)
        assert not swizzled or (self.row in (32, 64, 128) and steps[0] == 1)

    def fetch(self, coordinates):
        """The words of the box that begins there; zeros outside of the tensor."""
        assert coordinates[0] % 4 == 0, "a box begins at a multiple of 16 bytes"
        place, inside = np.int64(0), True
        axes = zip(coordinates, self.sizes, self.strides, self.box, self.steps)
        for axis, (first, size, stride, span, step) in enumerate(axes):
            i = first + np.arange(0, span, step)
            i = i.reshape(i.size, *[1] * axis)
            place, inside = place + i * stride, inside & (i >= 0) & (i < size)
        words = np.where(inside, self.words[np.where(inside, place, 0)], np.uint32(0)).ravel()
        return emulated.to_tf32(words.view(np.float32)).view(np.uint32) if self.row else words


def _tensor_map(*what):
    return _Map(*what), *[0] * (MAP_WORDS - 1)


def map_address(words, which):
    return words[MAP_WORDS * which]


def tensor_copy(shared, address, map, *rest):
    *coordinates, barrier = (int(value) for value in rest)
    address, words = int(address), map.fetch(coordinates)
    assert address % 128 == 0
    assert not map.row or address % (8 * map.row) == 0
    at, memory = address + np.arange(4 * words.size), _bytes(shared)
    assert at[-1] < memory.size
    memory[_swizzled(at, map.row)] = words.view(np.uint8)
    _barrier(barrier).take(size=-at.size)


def _swizzled(at, row):
    """Where bytes lie of rows of so many, whose 16 bytes change places by what their address is: 0 for none."""
    return at ^ (at >> 7 & (row // 16 - 1)) << 4 if row else at


class _Product:
    """A product of a warpgroup that a thread has asked for, its first operand in registers."""

    def __init__(self, kind, columns, acc, first, fragment, at, shared, b, add):
        self._read = _NUMBERS[kind]
        self._columns, self._acc, self._first, self._add = columns, acc, int(first), int(add)
        self._fragment, self._at = fragment, int(at)
        self._memory, self._b = _bytes(shared), int(b)

    @property
    def words(self):
        """The thread's part of the first operand, when it is read."""
        return np.asarray(self._fragment[self._at : self._at + 4], np.float32).view(np.uint32)

    def run(self, lane, quad):
        """Add to a lane's sums; ``quad`` are the same products of the four lanes that have its rows."""
        rows = np.stack([product.words for product in quad], 1)  # 0, 0 + 8, then both of k + 4
        A = self._read(np.concatenate([rows[:2], rows[2:]], 1))
        n = np.arange(0, self._columns, 8)[:, None] + lane % 4 * 2 + np.arange(2)
        B = self._read(_core_matrices(self._memory, self._b, n.ravel()))
        sums = (A @ B.T).reshape(2, -1, 2).transpose(1, 0, 2).ravel().astype(np.float32)
        held = slice(self._first, self._first + sums.size)
        self._acc[held] = sums + (self._acc[held] if self._add else np.float32(0))


def _core_matrices(memory, descriptor, rows):
    """(rows, 8) words of the matrix that a descriptor points to."""
    start, along_k, along_rows = (descriptor >> bit & 0x3FFF for bit in (0, 16, 32))
    assert descriptor >> 46 & 0xFFFF == 0, "a descriptor of another kind"
    width = {0: 0, 1: 128, 2: 64, 3: 32}[descriptor >> 62 & 3]  # of swizzled rows
    row, chunk = np.asarray(rows)[:, None], np.arange(2)[None, :]
    at = 16 * (start + row // 8 * along_rows + row % 8 * (width // 16 or 1) + chunk * along_k)
    at = _swizzled(at, width)
    return memory[at[..., None] + np.arange(16)].reshape(len(rows), 32).view(np.uint32)


def _tf32(words):
    return emulated.cut_tf32(words.view(np.float32)).astype(np.float64)


def _float16(words):
    return words.view(np.float16).astype(np.float64)


def _bfloat16(words):
    return emulated.from_bfloat16(words.view(np.uint16)).astype(np.float64)


# Words of an operand as the numbers that a product reads.
_NUMBERS = {"float32": _tf32, "float16": _float16, "bfloat16": _bfloat16}


def _groups():
    """Products of this thread that are not done: those of every group, the last of them open."""
    thread = threading.current_thread()
    lanes = vars(_warp()).setdefault("groups", {})
    return lanes.setdefault(thread.threadIdx.x % 32, [[]])


def _asked(kind):
    def multiply(*arguments):
        _groups()[-1].append(_Product(kind, *arguments))

    return multiply


def wgmma_commit():
    _groups().append([])


def wgmma_wait():
    thread, groups = threading.current_thread(), _groups()
    lane = thread.threadIdx.x % 32
    _meet()
    lanes = _warp().groups
    with np.errstate(all="ignore"):  # rows that no image fills hold anything
        quads = [
            [lanes[lane // 4 * 4 + i][group] for i in range(4)] for group in range(len(groups))
        ]
        for quad in quads:
            for own, *same in zip(quad[lane % 4], *quad):
                own.run(lane, same)
    _meet()
    assert not groups[-1], "products that nobody has committed"
    groups[:] = [[]]


def _number(number):
    """What concerns registers."""


def permuted_bytes(one, other, selector):
    both = np.array([one, other], np.float32).view(np.uint8)
    return both[[int(selector) >> 4 * i & 7 for i in range(4)]].view(np.float32)[0]


def store_pair_where(condition, array, index, *values):
    if condition:
        emulated.store_pair(array, index, *values)


def store_quad(array, index, *values):
    assert int(index) % 4 == 0
    array[index : index + 4] = values


def store_words(array, index, *words):
    first = int(index) * array.dtype.itemsize
    assert first % 16 == 0
    _bytes(array)[first : first + 16] = np.array(words, np.float32).view(np.uint8)


def _halves(bits_of):
    def halves(one, other):
        low, high = (int(bits_of(value)) for value in (one, other))
        return np.uint32(high << 16 | low).view(np.float32)

    return halves


def _bits_of_float16(value):
    return np.float16(value).view(np.uint16)


INSTRUCTIONS = {
    **{
        instruction.__name__: instruction
        for instruction in (
            *(shared_address, mbarrier_init, mbarrier_arrive, mbarrier_expect, mbarrier_wait),
            *(bulk_copy, map_address, tensor_copy, wgmma_commit, wgmma_wait, permuted_bytes),
            *(store_pair_where, store_quad, store_words),
            *(emulated.cut_tf32, emulated.load_run, emulated.prefetch, emulated.store_pair),
        )
    },
    "fence_proxy_async": _nothing,
    "let_next_start": _nothing,
    "wait_for_last": _nothing,
    "wgmma_fence": _meet,  # who has got here with one lane of a warp has got here with all
    "more_registers": _number,
    "fewer_registers": _number,
    "unforeseen": lambda value: value,
    "clock": time.perf_counter_ns,
    "FRAGMENT_PRODUCTS": {name: _asked(name) for name in _NUMBERS},
    "HALVES": {
        "float16": _halves(_bits_of_float16),
        "bfloat16": _halves(emulated.to_bfloat16),
    },
}
