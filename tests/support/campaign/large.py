"""Drawn images of more than 2^31 elements: rows that repeat, looked at on both sides of 2^31 and at both ends."""

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
    """The output and the gradient of the input of an image whose window stands upright."""
    rng = np.random.default_rng((seed, number))
    dtype = ("float16", "float32")[int(rng.integers(2))]
    D, KH = int(rng.choice((2, 4, 8))), int(rng.choice((1, 3, 5)))
    count = _BEYOND // (_PERIOD * _WIDTH * D) + 1 + int(rng.integers(3))
    part = rng.integers(-4, 5, (_PERIOD, _WIDTH, 1, D)).astype(dtype)
    w = rng.integers(-2, 3, (1, 1, KH, 1, D, D)).astype(dtype)
    x = _tiled(part, count).reshape(1, 1, _PERIOD * count, _WIDTH, 1, D)
    assert x.size > _BEYOND
    kernel, padding = cuda.to_device(w), (KH // 2, 0)
    y = numbacaps.capsule_conv2d(x, kernel, padding=padding)
    compare("y", y, count, part, w[0, 0, :, 0])
    del y
    dx, _ = numbacaps.capsule_conv2d_backward(x, kernel, x, padding=padding, needs=["input"])
    compare("dx", dx, count, part, w[0, 0, ::-1, 0].swapaxes(1, 2))
    del x, dx
    numbacaps.clear_caches()
    device_memory.release()
    return f"auto {dtype} auto", f"more than 2^31 elements, window {KH}x1, capsules 1x{D}"


def compare(name, array, count, part, w, beyond=_BEYOND):
    """Compare parts that are at no border; small integers, so that every precision has them exactly."""
    rows, reach = part.astype(np.float32), len(w) // 2
    want = sum(np.roll(rows, reach - at, 0) @ w[at].astype(np.float32) for at in range(len(w)))
    array = array.reshape(count * len(part), *part.shape[1:])
    for i in (1, beyond // part.size - 1, count - 2):
        got = array[i * len(part) : (i + 1) * len(part)].copy_to_host()
        wrong = np.count_nonzero(got != want.astype(part.dtype))
        assert not wrong, (
            f"{wrong} elements of {name} are wrong in the rows from {i * len(part)} on"
        )
