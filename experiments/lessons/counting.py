"""What kernels read and write, counted while they run on the simulator."""

import numpy as np

from experiments.lessons.example import unwritten
from experiments.walk.watch import READ, SECTOR, watching
from numbacaps.device.launch import ceil_div
from numbacaps.device.target import cuda
from numbacaps.fused import implicit_gemm
from numbacaps.fused.rung_2_shared_tiles import make_shared_tiles
from numbacaps.fused.rung_3_register_tiles.tile import Tile

FLOAT = np.dtype(np.float32)


def elements(launches, kind=READ):
    """Numbers in float32 of global memory that launches read (or write, or add to by atomics).

    Tables of offsets, which are 8-byte integers, are not counted.
    """
    return sum(
        len(launch.of(number, kind))
        for launch in launches
        for number, memory in enumerate(launch.memories)
        if not memory.shared and memory.itemsize == FLOAT.itemsize
    )


def sectors(launches, kind=READ):
    """Different sectors of 32 bytes of float32 that each launch reads (or writes) in global memory.

    They come from memory, or go there, once at the least; what a launch reads again may come from a cache.
    """
    return sum(
        len(np.unique(launch.of(number, kind)[:, 4] * memory.itemsize // SECTOR))
        for launch in launches
        for number, memory in enumerate(launch.memories)
        if not memory.shared and memory.itemsize == FLOAT.itemsize
    )


def shared_tiles(g, x, w, BM, BN, BK=4):
    """The forward pass by rung 2 of the fused kernels, in tiles of a size.

    Parameters
    ----------
    g : numbacaps.Geometry
    x, w : ndarray of float32, of the geometry's shapes
    BM, BN, BK : int
        A block makes BM x BN elements, a thread each, and loads BK of the sum at a time.

    Returns
    -------
    out : ndarray of float32, of the geometry's shape
    launches : list of experiments.walk.watch.Launch
    """
    product = implicit_gemm.forward(g)
    tile, M = Tile(BM, BN, BK, 1, 1), product.M(g.N)
    kernel = make_shared_tiles(product.pixels, product.inside, product.N, product.K, tile, FLOAT)
    grid = ceil_div(M, BM), ceil_div(product.N, BN), g.G
    out = unwritten(np.prod(g.output_shape))
    operands = cuda.to_device(x.reshape(-1)), cuda.to_device(w.reshape(-1)), out
    with watching({}) as launches:
        kernel[grid, tile.threads](*operands, cuda.to_device(product.table), M)
    return out.copy_to_host().reshape(g.output_shape), launches
