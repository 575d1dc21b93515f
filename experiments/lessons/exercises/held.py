"""Lesson 7: what a lane holds of the first operand of a warp's product."""

import numpy as np

from experiments.lessons.exercise import Case, Exercise, Mistake
from numbacaps.device.instructions import mma
from numbacaps.device.target import cuda

_LANES = np.array((0, 1, 6, 13, 18, 31))


@cuda.jit
def _probe_kernel(
    asked,  # in   (lanes,)
    found,  # out  (lanes, 4, 2): row and column of the elements in the registers of a lane
):
    a = cuda.local.array(4, np.float32)
    b = cuda.local.array(2, np.float32)
    c = cuda.local.array(4, np.float32)
    lane, which, register = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockIdx.y
    for i in range(4):
        a[i], c[i] = 0, 0
    if lane == asked[which]:
        a[register] = 1
    b[0], b[1] = 1 + lane % 4, 5 + lane % 4  # of every column k + 1, so that C tells which k met it
    mma(c, 0, a, 0, b, 0)
    for half in range(2):
        if lane % 4 == 0 and c[2 * half] > 0:
            found[which, register, 0] = lane // 4 + 8 * half
            found[which, register, 1] = c[2 * half] - 1


def _cases():
    found = cuda.to_device(np.full((_LANES.size, 4, 2), -1, np.int64))
    _probe_kernel[(_LANES.size, 4), 32](cuda.to_device(_LANES), found)
    held = found.copy_to_host().tolist()
    return [
        Case((int(lane),), tuple(map(tuple, places)), f"held({lane})")
        for lane, places in zip(_LANES, held)
    ]


def _places(rows, columns):
    return tuple((r, c) for r, c in zip(rows, columns))


def _columns_first(lane):
    r, t = divmod(lane, 4)
    return _places((r, r, r + 8, r + 8), (t, t + 4, t, t + 4))


def _side_by_side(lane):
    r, t = lane // 4, 2 * (lane % 4)
    return _places((r, r, r + 8, r + 8), (t, t + 1, t, t + 1))


def _exchanged(lane):
    t, r = divmod(lane, 4)
    return _places((r, r + 8, r, r + 8), (t, t, t + 4, t + 4))


def _in_a_run(lane):
    return tuple(divmod(4 * lane + i, 8) for i in range(4))


EXERCISE = Exercise(
    wants="takes the number of a lane, 0 to 31; returns four pairs (row, column) of A, in the order of its registers",
    cases=_cases,
    mistakes=(
        Mistake(
            _columns_first,
            "the order: the second register is 8 rows below the first, not 4 columns on",
        ),
        Mistake(
            _side_by_side,
            "neighbours side by side is how C is held; of A a lane's columns are 4 apart",
        ),
        Mistake(_exchanged, "lane // 4 is the row, lane % 4 the column"),
        Mistake(
            _in_a_run,
            "a lane's elements do not lie in one run: read how the kernel loads a_part",
        ),
    ),
    hint="group, t = lane // 4, lane % 4; the kernel loads a_part[0] from row group, column t",
)
