"""What the instructions of :mod:`numbacaps.device.instructions.ptx.tensor_cores` do.

A product of a warpgroup that reads both operands from shared memory is done at once, each thread its own part. One
whose first operand is in registers is worked out when it is waited for, not when it is asked for, so an operand
that is overwritten too early shows.
"""

import numpy as np

from numbacaps.device.instructions.simulated.block import memory, this_lane
from numbacaps.device.instructions.simulated.registers import cut_tf32, from_bfloat16
from numbacaps.device.instructions.simulated.swizzle import swizzled
from numbacaps.device.turns import this_thread


def _matrix(shared, descriptor, rows):
    """(rows, 8) of the matrix that a descriptor points to, as TF32 sees it, in float64."""
    start = (descriptor & 0x3FFF) * 16
    along_k = (descriptor >> 16 & 0x3FFF) * 16
    along_rows = (descriptor >> 32 & 0x3FFF) * 16
    row, column = np.asarray(rows)[:, None], np.arange(8)[None, :] * 4
    at = start + row // 8 * along_rows + row % 8 * 16 + column // 16 * along_k + column % 16
    bits = shared[at[..., None] + np.arange(4)].view(np.uint32)[..., 0]
    return (bits & 0xFFFFE000).view(np.float32).astype(np.float64)  # the low bits are not read


def wgmma(columns, acc, first, shared, a, b):
    """The product of a warpgroup, both operands in shared memory."""
    thread = this_thread().threadIdx.x % 128
    lane, warp = thread % 32, thread // 32
    A = _matrix(memory(shared), int(a), [warp * 16 + lane // 4, warp * 16 + lane // 4 + 8])
    n = np.arange(0, columns, 8)[:, None] + lane % 4 * 2 + np.arange(2)
    B = _matrix(memory(shared), int(b), n.ravel())
    sums = (A @ B.T).reshape(2, columns // 8, 2).transpose(1, 0, 2).ravel()
    acc[first : first + columns // 2] += sums.astype(np.float32)


def _core_matrices(shared, descriptor, rows):
    """(rows, 8) words of the matrix that a descriptor points to."""
    start, along_k, along_rows = (descriptor >> bit & 0x3FFF for bit in (0, 16, 32))
    assert descriptor >> 46 & 0xFFFF == 0, "a descriptor of another kind"
    width = {0: 0, 1: 128, 2: 64, 3: 32}[descriptor >> 62 & 3]  # of swizzled rows
    row, chunk = np.asarray(rows)[:, None], np.arange(2)[None, :]
    at = 16 * (start + row // 8 * along_rows + row % 8 * (width // 16 or 1) + chunk * along_k)
    at = swizzled(at, width)
    return shared[at[..., None] + np.arange(16)].reshape(len(rows), 32).view(np.uint32)


# Words of an operand as the numbers that a product reads, by the dtype that is multiplied.
_NUMBERS = {
    "float32": lambda words: cut_tf32(words.view(np.float32)).astype(np.float64),
    "float16": lambda words: words.view(np.float16).astype(np.float64),
    "bfloat16": lambda words: from_bfloat16(words.view(np.uint16)).astype(np.float64),
}


class _Product:
    """A product of a warpgroup that a thread has asked for, its first operand in registers."""

    def __init__(self, kind, columns, acc, first, fragment, at, shared, b, add):
        self._read = _NUMBERS[kind]
        self._columns, self._acc, self._first, self._add = columns, acc, int(first), int(add)
        self._fragment, self._at = fragment, int(at)
        self._memory, self._b = memory(shared), int(b)

    @property
    def words(self):
        """The thread's part of the first operand, when it is read."""
        return np.asarray(self._fragment[self._at : self._at + 4], np.float32).view(np.uint32)

    def add(self, product):
        """Add to the sums that the thread holds."""
        held = slice(self._first, self._first + product.size)
        self._acc[held] = product + (self._acc[held] if self._add else np.float32(0))

    @classmethod
    def run(cls, lanes):
        """Work out what the 32 lanes of a warp asked for together."""
        one = lanes[0]
        assert all(lane._b == one._b for lane in lanes), (
            "a warp's second operand has one descriptor"
        )
        # A lane has rows lane // 4 and that + 8, of words lane % 4, then of words lane % 4 + 4.
        words = np.stack([lane.words for lane in lanes]).reshape(8, 4, 2, 2)
        A = one._read(words.transpose(3, 0, 2, 1).reshape(16, 8))
        B = one._read(_core_matrices(one._memory, one._b, np.arange(one._columns)))
        product = (A @ B.T).astype(np.float32).reshape(2, 8, -1, 4, 2)
        for lane, of_lane in zip(lanes, product.transpose(1, 3, 2, 0, 4).reshape(32, -1)):
            lane.add(of_lane)


def _asked(kind):
    def multiply(columns, acc, first, fragment, at, shared, b, add):
        what = columns, acc, first, fragment, at, shared, b, add
        _groups()[-1].append(_Product(kind, *what))

    return multiply


FRAGMENT_PRODUCTS = {name: _asked(name) for name in _NUMBERS}
wgmma_fragment = FRAGMENT_PRODUCTS["float32"]


def _groups():
    """Products of this thread that are not done: those of every group, the last of them open."""
    warp, lane = this_lane()
    return warp.products.setdefault(lane, [[]])


def wgmma_fence():
    """Who has got here with one lane of a warp has got here with all."""
    this_lane()[0].meet()


def wgmma_commit():
    """What was asked for since the last one is a group; of products that are done at once there is none."""
    groups = _groups()
    if groups[-1]:
        groups.append([])


def wgmma_wait():
    """Work out all groups."""
    wgmma_wait_but(0)


def wgmma_wait_but(pending):
    """Work out all groups but the last ``pending``."""
    (warp, _), groups = this_lane(), _groups()
    assert not groups[-1], "products that were not committed"
    done = len(groups) - 1 - pending
    if done < 1:
        return
    warp.meet(lambda: _work_out(warp, done))
    del groups[:done]


def _work_out(warp, groups):
    """All lanes' products of some groups."""
    of_lanes = [warp.products[lane] for lane in range(32)]
    with np.errstate(all="ignore"):  # rows that no image fills hold anything
        for group in range(groups):
            for lanes in zip(*(products[group] for products in of_lanes), strict=True):
                _Product.run(lanes)


def _warp_product(kind):
    """The product of a warp; its threads hand the fragments round."""
    read = _NUMBERS[kind]

    def multiply(acc, first, a, a_first, b, b_first):
        warp, lane = this_lane()
        r, t = divmod(lane, 4)
        warp.a[[r, r + 8, r, r + 8], [t, t, t + 4, t + 4]] = a[a_first : a_first + 4]
        warp.b[r, [t, t + 4]] = b[b_first : b_first + 2]
        warp.sums[lane] = acc[first : first + 4]
        warp.meet(lambda: work_out(warp))

    def work_out(warp):
        with np.errstate(all="ignore"):
            A, B = read(warp.a.view(np.uint32)), read(warp.b.view(np.uint32))
            product = (A @ B.T).astype(np.float32)
            of_lanes = product.reshape(2, 8, 4, 2).transpose(1, 2, 0, 3).reshape(32, 4)
            for sums, added in zip(warp.sums, of_lanes):
                sums += added

    return multiply


WARP_PRODUCTS = {name: _warp_product(name) for name in _NUMBERS}
mma = WARP_PRODUCTS["float32"]


def _rows(shared, address):
    """(4, 8, 16) bytes of four matrices, whose rows' addresses the lanes of a warp give."""
    warp, lane = this_lane()
    assert int(address) % 16 == 0, "a row lies at a multiple of 16 bytes"
    warp.rows[lane] = int(address)
    warp.meet()
    rows = np.array([warp.rows[i] for i in range(32)])
    found = memory(shared)[rows[:, None] + np.arange(16)].reshape(4, 8, 16)
    warp.meet()
    return found, lane


def load_matrices(to, shared, address):
    """Of four matrices the 4 bytes lane % 4 of row lane // 4."""
    matrices, lane = _rows(shared, address)
    to[0:4] = matrices.view(np.float32)[:, lane // 4, lane % 4]


def load_matrices_transposed(to, shared, address):
    """Of four matrices, of 2-byte elements, two neighbours of a column."""
    matrices, lane = _rows(shared, address)
    column = matrices.view(np.uint16)[:, :, lane // 4]
    to[0:4] = np.ascontiguousarray(column).view(np.float32)[:, lane % 4]
