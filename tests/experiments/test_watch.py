"""Watching a kernel: every access is kept, once, and it computes what it would unwatched."""

import numpy as np
import pytest

from experiments.walk.page.addresses import runs, written_short
from experiments.walk.watch import ATOMIC, READ, WRITE, watching
from numbacaps import Geometry
from numbacaps.algorithms.registry import device_algorithms
from numbacaps.device.instructions import shared_array, store_run
from numbacaps.device.target import cuda
from numbacaps.plan import Plan


@cuda.jit
def copy_kernel(source, target, step):
    i = cuda.grid(1)
    if i < target.size:
        target[i] = source[i * step]


@cuda.jit
def reverse_kernel(source, target):
    tile = cuda.shared.array((2, 8), np.float32)
    t = cuda.threadIdx.x
    tile[t // 8, t % 8] = source[t]
    cuda.syncthreads()
    target[t] = tile[1 - t // 8, 7 - t % 8]


@cuda.jit
def sum_kernel(source, total):
    cuda.atomic.add(total, 0, source[cuda.grid(1)])


@cuda.jit
def swap_kernel(source, target):
    tile = shared_array(16, np.float32)
    t = cuda.threadIdx.x
    tile[t] = source[t]
    cuda.syncthreads()
    target[t] = tile[15 - t]


def device(count):
    return cuda.to_device(np.arange(count, dtype=np.float32))


@cuda.jit
def clear_kernel(target):
    zeros = cuda.local.array(4, np.float32)
    zeros[:] = 0
    store_run(4, target, cuda.grid(1) * 4, zeros)


def test_an_instruction_of_several_elements():
    """It is the kernel's own line that stores, and one access of a warp: 32 times 16 bytes are 16 sectors."""
    target = device(128)
    with watching({}) as launches:
        clear_kernel[1, 32](target)
    (launch,) = launches
    assert not target.copy_to_host().any()
    assert launch.count(WRITE, False) == 128
    assert launch.transactions(0, WRITE)[:3] == (1, 16, 16)


@pytest.mark.parametrize("step, sectors, lines", [(1, 12, 3), (2, 20, 5), (8, 80, 20)])
def test_copy(step, sectors, lines):
    """80 threads are three warps, the last one half full; a sector holds 8 elements, a line 32."""
    source, target = device(640), device(80)
    with watching({"S": source}) as launches:
        copy_kernel[2, 40](source, target, step)
    (launch,) = launches
    assert np.array_equal(target.copy_to_host(), np.arange(80) * step)
    assert [memory.name for memory in launch.memories] == ["S", "target"]
    assert launch.count(READ, False) == launch.count(WRITE, False) == 80
    # Warps of 32 and 8 threads in each of 2 blocks; the fewest sectors are 4 and 1.
    requests, moved, fewest, touched = launch.transactions(0, READ)
    assert (requests, fewest) == (4, 10)
    expected = [
        {(block * 40 + lane) * step * 4 // size for lane in warp}
        for size in (32, 128)
        for block in range(2)
        for warp in (range(32), range(32, 40))
    ]
    assert moved == sum(map(len, expected[:4])) and touched == sum(map(len, expected[4:]))
    assert launch.count(READ, True) == 0


@pytest.mark.parametrize("kernel", [reverse_kernel, swap_kernel])
def test_shared_memory_and_barrier(kernel):
    """Numba's shared arrays and those of :mod:`numbacaps.device.instructions` alike."""
    source, target = device(16), device(16)
    with watching({}) as launches:
        kernel[1, 16](source, target)
    (launch,) = launches
    assert np.array_equal(target.copy_to_host(), np.arange(16)[::-1])
    tile = next(memory for memory in launch.memories if memory.shared)
    assert (tile.name, tile.size, tile.itemsize) == ("tile", 16, 4)
    assert launch.count(READ, True) == launch.count(WRITE, True) == 16
    rows = launch.of(launch.memories.index(tile), READ)
    assert rows[:, 4].tolist() == list(range(15, -1, -1))


def test_atomic_add_is_one_access():
    source, total = device(10), cuda.to_device(np.zeros(1, np.float32))
    with watching({}) as launches:
        sum_kernel[1, 10](source, total)
    assert total.copy_to_host()[0] == 45
    assert launches[0].count(ATOMIC, False) == 10
    assert launches[0].count(WRITE, False) == 0 and launches[0].count(READ, False) == 10


def test_kernel_that_fails_says_so_and_leaves_nothing_behind():
    from numba.cuda.simulator.kernel import FakeCUDAKernel

    before = FakeCUDAKernel.__call__
    with pytest.raises(IndexError), watching({}):
        copy_kernel[1, 4](device(2), device(4), 5)
    assert FakeCUDAKernel.__call__ is before
    copy_kernel[1, 4](device(4), device(4), 1)


@pytest.mark.parametrize("name", device_algorithms())
def test_watched_algorithms_compute_the_same(name, rng):
    g = Geometry(1, 1, 2, 4, 3, 2, 2, 1, 2, 3, 2, padding=1)
    x, w, dy = (
        cuda.to_device(rng.standard_normal(shape, dtype=np.float32))
        for shape in (g.input_shape, g.kernel_shape, g.output_shape)
    )

    def run():
        out, dx, dw = (
            cuda.to_device(np.full(shape, np.nan, np.float32))
            for shape in (g.output_shape, g.input_shape, g.kernel_shape)
        )
        plan = Plan(g, x.dtype, name, "ieee", 1 << 20)
        plan.launch_forward(x, w, out, 0)
        plan.launch_backward(x, w, dy, dx, dw, 0)
        return [array.copy_to_host() for array in (out, dx, dw)]

    with watching({}) as launches:
        watched = run()
    assert launches
    for one, other in zip(watched, run()):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def expand(runs, start):
    """Elements of flat (start, step, count, times)."""
    found = []
    for i in range(0, len(runs), 4):
        first, step, count, times = runs[i : i + 4]
        found += [start + first + k * step for k in range(count)] * times
    return found


@pytest.mark.parametrize(
    "elements", [[0], [0, 1, 2, 5], [0, 0, 0], [0, 4, 8, 0, 4, 8, 1, 0], list(range(9)) * 3]
)
def test_runs_spread_out_to_the_same(elements):
    assert expand(runs(elements), 0) == elements


@pytest.mark.slow
def test_written_short_loses_nothing(rng):
    g = Geometry(1, 2, 2, 5, 4, 3, 2, 1, 2, 2, 3, stride=(2, 1), padding=(1, 0))
    x, w, out = (
        cuda.to_device(rng.standard_normal(shape, dtype=np.float32))
        for shape in (g.input_shape, g.kernel_shape, g.output_shape)
    )
    with watching({}) as launches:
        for name in ("naive", "staged", "indexed"):
            Plan(g, x.dtype, name, "ieee", 1 << 20).launch_forward(x, w, out, 0)
    for launch in launches:
        size = int(np.prod(launch.block))
        for number, told in enumerate(written_short(launch)["memories"]):
            for kind, word in ((READ, "read"), (WRITE, "write"), (ATOMIC, "atomic")):
                rows = launch.of(number, kind)
                assert (word in told) == bool(len(rows))
                if not len(rows):
                    continue
                assert told[word]["count"] == len(rows)
                kept = {}
                for block, thread, element in rows[:, [0, 1, 4]].tolist():
                    kept.setdefault(block * size + thread, []).append(element)
                assert spread(told, word) == (
                    {thread: len(elements) for thread, elements in kept.items()}
                    if told["shared"]
                    else kept
                )


def spread(told, word):
    """thread -> elements, or how many of them in shared memory, as the page reads its notes."""
    notes, found = told[word]["threads"], {}
    if told["shared"]:
        for thread, count, alike in zip(*[iter(notes)] * 3):
            found |= {thread + k: count for k in range(0, alike)}
        return found
    for thread, pattern, start, step, alike in zip(*[iter(notes)] * 5):
        for k in range(alike):
            found[thread + k] = expand(told[word]["patterns"][pattern], start + k * step)
    return found
