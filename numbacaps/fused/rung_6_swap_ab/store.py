"""The result: sums added up over the channels' parts where there are several, and written where they are a pixel's."""

import numpy as np

from numbacaps.device.instructions import (
    load_run,
    short,
    store_pair_where,
    store_quad,
    unforeseen,
)
from numbacaps.device.specialization import specialized
from numbacaps.device.target import at, cuda
from numbacaps.fused.rung_6_swap_ab.tile import BARRIERS


def make_store_block(spec):
    """Device function ``store_block(c, to_columns, row0, j, quarter, n, block)``."""
    pixels, n = spec.pixels, spec.n
    ROWS, COLUMNS, D1 = map(specialized, (pixels.rows, pixels.columns, pixels.D1))
    PITCH, USED = map(specialized, (spec.slots.columns, spec.used_rows))
    _, C_ROW, C_COLUMN, C_D1 = map(specialized, pixels.other)
    N, CAPSULE, BY_CAPSULE = map(specialized, (n.N, n.D, n.other))
    PAIRED, D1_IS_EVEN = map(specialized, (spec.paired, pixels.D1 % 2 == 0))

    @cuda.jit(device=True, forceinline=True)
    def place_of(row, row0):
        """Where in an image a row of a tile's product lies, and whether that is a pixel."""
        slot, d1 = np.uint32(row // D1), np.uint32(row % D1)
        h, w = short(row0 + slot // PITCH), short(slot % PITCH)
        to = short(h * C_ROW + w * C_COLUMN + d1 * C_D1)
        return to, (row < USED) & (h < ROWS) & (w < COLUMNS)

    @cuda.jit(device=True, forceinline=True)
    def store(c, to, inside, n, one, other):
        """Write two neighbouring columns of a row of a tile's product, where it is a pixel's."""
        if PAIRED == 1:
            store_pair_where(inside & (n < N), c, to, one, other)
        elif inside and n < N:
            c[at(to)] = one
            if n + 1 < N:
                c[at(to + (1 if n % CAPSULE < CAPSULE - 1 else BY_CAPSULE - CAPSULE + 1))] = other

    @cuda.jit(device=True, forceinline=True)
    def store_block(c, to_columns, row0, j, quarter, n, block):
        """Write a thread's part of 8 rows of a tile's product: two rows of two columns."""
        row = np.uint32(j * 8 + quarter)
        to, inside = place_of(row, row0)
        store(c, to_columns + to, inside, n, block[0], block[2])
        if D1_IS_EVEN == 1:
            store(c, to_columns + to + C_D1, inside, n, block[1], block[3])
        else:
            to, inside = place_of(np.uint32(row + 1), row0)
            store(c, to_columns + to, inside, n, block[1], block[3])

    return store_block


def make_store_tile(spec):
    """Device function ``store_tile(c, acc, shared, own, target, channel_part)``.

    ``own`` is where in shared memory a thread's sums go that others add, ``target`` (where the image's columns lie,
    the tile's row of pixels, n).
    """
    tile, blocks = spec.tile, spec.rows // 8
    BLOCKS, CHANNEL_PARTS = map(specialized, (blocks, tile.CHANNEL_PARTS))
    OWN_BLOCKS = specialized(-(-blocks // tile.CHANNEL_PARTS))
    PARTIAL = specialized((BARRIERS + tile.IMAGES * spec.image_bytes) // 4)
    store_block = make_store_block(spec)

    @cuda.jit(device=True, forceinline=True)
    def store_tile(c, acc, shared, own, target, channel_part):
        to_columns, row0, n = target
        total = cuda.local.array(4, np.float32)
        others = cuda.local.array(4, np.float32)
        # Worked out here for each tile: kept, the rows' places would take the registers.
        lane = cuda.threadIdx.x & 31
        quarter = np.uint32(unforeseen(short(lane % 4 * 2)))
        if CHANNEL_PARTS == 1:
            for j in range(BLOCKS):
                for i in range(4):
                    total[i] = acc[j * 4 + i]
                store_block(c, to_columns, row0, j, quarter, n, total)
        else:
            cuda.syncthreads()  # the last tile's sums were read
            own += PARTIAL
            for j in range(BLOCKS):
                to, k = own + (channel_part * BLOCKS + j) * 512, j * 4
                store_quad(shared, to, acc[k], acc[k + 1], acc[k + 2], acc[k + 3])
            cuda.syncthreads()
            for i in range(OWN_BLOCKS):
                # Past the last there is no pixel.
                j = short(i * CHANNEL_PARTS + channel_part)
                at_j = own + min(j, short(BLOCKS - 1)) * 512
                load_run(4, total, shared, at_j)
                for part in range(1, CHANNEL_PARTS):
                    load_run(4, others, shared, at_j + part * (BLOCKS * 512))
                    for e in range(4):
                        total[e] += others[e]
                store_block(c, to_columns, row0, j, quarter, n, total)

    return store_tile
