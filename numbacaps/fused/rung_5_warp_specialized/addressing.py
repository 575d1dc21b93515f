"""Which tile a number stands for, and where a column of the result lies."""

import numpy as np

from numbacaps.device.launch import ceil_div
from numbacaps.device.specialization import specialized
from numbacaps.device.target import cuda
from numbacaps.fused.rung_5_warp_specialized.spec import Place
from numbacaps.fused.rung_5_warp_specialized.tile import parts_of


def make_place_of(spec):
    """Device function ``place_of(index, first)``: the place of a launch's tile, which begins with whole tile ``first``."""
    pixels, tile, whole = spec.pixels, spec.tile, spec.whole
    down, across = ceil_div(pixels.rows, whole.TH), ceil_div(pixels.columns, whole.TW)
    TH, TW, WHOLE_TH, WHOLE_TW = map(specialized, (tile.TH, tile.TW, whole.TH, whole.TW))
    PARTS, PARTS_ACROSS = map(specialized, (parts_of(whole, tile), whole.TW // tile.TW))
    ACROSS, PATCHES, N_TILES = map(specialized, (across, down * across, spec.n_tiles))
    G, IMAGES = map(specialized, (spec.groups, spec.box.images))

    @cuda.jit(device=True, forceinline=True)
    def place_of(index, first):
        part, index = index % PARTS, first + index // PARTS
        # All columns of a patch beside each other: its boxes come from memory once.
        n_tile, patch = index % N_TILES, index // N_TILES % PATCHES
        column = patch % ACROSS * WHOLE_TW + part % PARTS_ACROSS * TW
        row = patch // ACROSS * WHOLE_TH + part // PARTS_ACROSS * TH
        g = index // (PATCHES * N_TILES) % G
        image = index // (PATCHES * N_TILES * G) * IMAGES
        return Place(g, n_tile, image, row, column)

    return place_of


def make_place_of_column(n):
    """Device function ``place_of_column(n)``: where in a pixel of the result a column lies."""
    CAPSULE, BY_CAPSULE = map(specialized, (n.D, n.other))

    @cuda.jit(device=True, forceinline=True)
    def place_of_column(n):
        # Worked out: a table's answer would be waited for.
        n = np.uint32(n)
        return np.uint32(n // CAPSULE) * BY_CAPSULE + np.uint32(n % CAPSULE)

    return place_of_column
