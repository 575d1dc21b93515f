"""Memory over many networks and geometries: what a second turn over the same ones leaves behind, which is nothing.

The first turn compiles and loads kernels, which stay; the second one has them all.
"""

import gc
import os
from pathlib import Path

import numpy as np

import numbacaps
from experiments.measuring import device_memory
from numbacaps.device.target import SIMULATED, cuda
from numbacaps.nn import CapsNet, Layer
from tests.support.campaign.networks import compile_step
from tests.support.campaign.part import Part
from tests.support.freed import free_now

_GEOMETRIES = 4 if SIMULATED else 1000  # of a case
_NETWORKS = 1 if SIMULATED else 100
_PIECES = 1 if SIMULATED else 100  # of a case, each with as many geometries and networks
_MOST = 2 if SIMULATED else 16  # images and channels
# (T1, T2, dtype, precision). Kernels are compiled for capsules, and on tensor cores for every geometry, so there are few of both.
_CAPSULES = ((4, 4), (4, 4), "float32", "ieee"), ((3, 2), (2, 3), "float64", "ieee")
_ON_TENSOR_CORES = ((4, 4), (4, 4), "float32", "auto"), ((1, 8), (8, 4), "float16", "auto")
_SHARE = 0.1  # of the geometries, on tensor cores
_DEVICE = 4 << 20  # bytes that the device may have less: a pool of the driver's
# What an item may leave on the host, in the mean: less than the smallest array that is made for one.
_HOST = 4 << 10
_HOST_AT_LEAST = 24 << 20  # bytes by which the allocator's pools may grow


def _convolve(rng):
    """Call the functions once with a drawn geometry; nothing is fetched."""
    some = _ON_TENSOR_CORES if rng.random() < _SHARE else _CAPSULES
    t1, t2, dtype, precision = some[int(rng.integers(len(some)))]
    N, C, P = (int(one) for one in rng.integers(1, _MOST + 1, 3))
    KH, KW = (int(one) for one in rng.integers(1, 4, 2))
    H, W = KH + int(rng.integers(0, 5)), KW + int(rng.integers(0, 5))
    x = cuda.to_device(np.zeros((N, C, H, W, *t1), dtype))
    w = cuda.to_device(np.zeros((P, C, KH, KW, *t2), dtype))
    how = {"stride": int(rng.integers(1, 3)), "padding": int(rng.integers(0, 3))}
    how |= {"precision": precision}
    y = numbacaps.capsule_conv2d(x, w, **how)
    numbacaps.capsule_conv2d_backward(x, w, y, **how)


def _network(rng):
    """A network of a drawn number of channels, and how many images it takes at a time."""
    P, N = int(rng.integers(1, 4)), int(rng.integers(1, 5))
    layers = (Layer(P, (1, 4), stride=2, capsule=(2, 2), squash=2), Layer(3, (2, 2), window=2))
    return CapsNet(layers, (1, 5, 5, 1, 1), seed=int(rng.integers(1 << 30))), N


def _train(net, N):
    """Take a few steps and an inference."""
    x = np.random.default_rng(N).standard_normal((N, *net.input_shape)).astype(net.dtype)
    data = net.place(x, np.arange(N) % 3)
    for _ in range(3):
        net.step_rows(data, np.arange(N))
    net.forward(x)


def _turn(seed, number, use, pieces=range(_PIECES)):
    """The geometries and networks of some pieces of a case, once; ``use(net, N)`` says what for."""
    every, of_piece = _GEOMETRIES // _NETWORKS, _GEOMETRIES // _PIECES
    for at in range(pieces.start * of_piece, pieces.stop * of_piece):
        rng = np.random.default_rng((seed, number, at))
        _convolve(rng)
        if at % every == 0:
            use(*_network(rng))


def used():
    """Bytes that the device and this process hold, when all that can be given back is."""
    numbacaps.clear_caches()
    gc.collect()
    if SIMULATED:
        return 0, _resident()
    cuda.synchronize()
    device_memory.release()
    free_now()
    memory = cuda.current_context().get_memory_info()
    return memory.total - memory.free, _resident()


def _resident():
    """Bytes of this process that are in memory."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def check(seed, number):
    """Take the turns and compare what is held behind each."""
    _turn(seed, number, _train)
    before = used()
    _turn(seed, number, _train)
    device, host = (after - one for after, one in zip(used(), before))
    most = max(_HOST_AT_LEAST, _HOST * (_GEOMETRIES + _NETWORKS))
    what = f"{_GEOMETRIES} geometries and {_NETWORKS} networks left"
    assert device <= _DEVICE, f"{what} {device} bytes on the device; {_DEVICE} are taken for none"
    assert host <= most, f"{what} {host} bytes on the host; {most} are taken for none"
    return f"{_GEOMETRIES} geometries", f"{_NETWORKS} networks"


def compile_piece(seed, piece):
    """Compile what a piece of a turn takes, inference left out."""
    number, piece = divmod(piece, _PIECES)
    _turn(seed, number, compile_step, range(piece, piece + 1))


PART = Part(
    summary=f"memory over {_GEOMETRIES} geometries and {_NETWORKS} networks, again and again",
    unit="turn",
    check=check,
    compile=compile_piece,
    pieces=_PIECES,
    amount=10,
    few=1,
    alone=True,
)
