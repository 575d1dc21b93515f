"""Images of more than 2^31 elements: rows that repeat, looked at on both sides of 2^31 and at both ends."""

import numpy as np

import numbacaps
from experiments.measuring import device_memory
from numbacaps.device.target import cuda

_PERIOD, _WIDTH = 64, 1 << 14  # rows of a part, and their length
_BEYOND = 1 << 31


def _tiled(part, count):
    """A device array of ``part`` again and again."""
    made = cuda.device_array(count * part.size, part.dtype)
    for i in range(count):
        made[i * part.size : (i + 1) * part.size].copy_to_device(part.ravel())
    return made


def check(seed, number):
    """A drawn one, by what ``"auto"`` stands for."""
    rng = np.random.default_rng((seed, number))
    dtype = ("float16", "float32")[int(rng.integers(2))]
    D, KH = int(rng.choice((2, 4, 8))), int(rng.choice((1, 3, 5)))
    check_image(rng, dtype, D, KH, more=int(rng.integers(3)))
    numbacaps.clear_caches()
    device_memory.release()
    return f"auto {dtype} auto", f"more than 2^31 elements, window {KH}x1, capsules 1x{D}"


def check_image(rng, dtype, D, KH, more=0):
    """The output and both gradients of an image whose window stands upright, KH rows of one column.

    Parameters
    ----------
    rng : numpy.random.Generator
    dtype : str
        ``"float16"`` or ``"float32"``.
    D : int
        Columns of a capsule, which has one row.
    KH : int
        An odd number.
    more : int
        Parts besides the fewest of which one that is at no border lies beyond 2^31 elements.
    """
    count = _BEYOND // (_PERIOD * _WIDTH * D) + 2 + more
    part = rng.integers(-4, 5, (_PERIOD, _WIDTH, 1, D)).astype(dtype)
    w = rng.integers(-2, 3, (1, 1, KH, 1, D, D)).astype(dtype)
    shape = 1, 1, _PERIOD * count, _WIDTH, 1, D
    x, kernel, how = (
        _tiled(part, count).reshape(shape),
        cuda.to_device(w),
        {"padding": (KH // 2, 0)},
    )
    assert x.size > _BEYOND
    y = numbacaps.capsule_conv2d(x, kernel, **how)
    compare("y", y, count, part, w[0, 0, :, 0])
    del y
    dx, _ = numbacaps.capsule_conv2d_backward(x, kernel, x, needs=["input"], **how)
    compare("dx", dx, count, part, w[0, 0, ::-1, 0].swapaxes(1, 2))
    del dx
    # Of the same sums dw has billions: all are 0 but those of a column in the parts that are looked at.
    column = np.zeros_like(part)
    column[:, _WIDTH // 3, 0] = rng.integers(-1, 2, (_PERIOD, D))
    dy = _tiled(np.zeros_like(part), count)
    looked_at = _looked_at(count, part)
    for i in looked_at:
        dy[i * part.size : (i + 1) * part.size].copy_to_device(column.ravel())
    _, dw = numbacaps.capsule_conv2d_backward(x, kernel, dy.reshape(shape), needs=["kernel"], **how)
    rows, reach = part.astype(np.float64), KH // 2
    moved = (np.roll(rows, reach - at, 0) for at in range(KH))
    want = [len(looked_at) * np.einsum("rwgd,rwge->de", one, column) for one in moved]
    np.testing.assert_array_equal(dw.copy_to_host()[0, 0, :, 0], np.stack(want))


def _looked_at(count, part, beyond=_BEYOND):
    """Numbers of the parts that are looked at: none is at a border."""
    return 1, beyond // part.size - 1, count - 2


def compare(name, array, count, part, w, beyond=_BEYOND):
    """Compare parts that are at no border; small integers, so that every precision has them exactly."""
    rows, reach = part.astype(np.float32), len(w) // 2
    want = sum(np.roll(rows, reach - at, 0) @ w[at].astype(np.float32) for at in range(len(w)))
    array = array.reshape(count * len(part), *part.shape[1:])
    for i in _looked_at(count, part, beyond):
        got = array[i * len(part) : (i + 1) * len(part)].copy_to_host()
        wrong = np.count_nonzero(got != want.astype(part.dtype))
        assert not wrong, (
            f"{wrong} elements of {name} are wrong in the rows from {i * len(part)} on"
        )
