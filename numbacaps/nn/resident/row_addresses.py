"""Addresses of a layer's product: where its rows and k's are read in an image's input, and where its results lie."""

import numpy as np

from numbacaps.device.instructions import short
from numbacaps.device.specialization import specialized
from numbacaps.device.target import cuda


def row_addresses(layer):
    """Device functions: where rows begin to read, where k's are behind that, where a row's results lie, and a column's.

    Parameters
    ----------
    layer : numbacaps.nn.resident.layers.ResidentLayer
    """
    rows = layer.rows
    ROWS, D1, COLUMNS = map(specialized, (rows.count, rows.D1, rows.columns))
    BY_ROW, BY_COLUMN, BY_D1 = map(specialized, rows.reads)
    OUT_ROW, OUT_COLUMN, OUT_D1 = map(specialized, rows.results)
    D3, BY_CAPSULE = map(specialized, (layer.D3, layer.by_capsule))
    D, RUN, CHANNEL = map(specialized, (layer.D, layer.chunks.run, layer.taps.channel_step))

    @cuda.jit(device=True, forceinline=True)
    def input_of(row):
        row = np.uint32(row if row < ROWS else 0)
        pixel = np.uint32(row // D1)
        slot = np.uint32(pixel // COLUMNS) * BY_ROW + np.uint32(pixel % COLUMNS) * BY_COLUMN
        return short(slot + np.uint32(row % D1) * BY_D1)

    @cuda.jit(device=True, forceinline=True)
    def k_at(four, lane):
        """Of four k's of a product that four lanes have, a lane's; whose next ones are its neighbours in a run."""
        four = np.uint32(four)
        k = np.uint32((four // RUN * 4 + lane % 4) * RUN + four % RUN)
        return np.uint32(k // D) * CHANNEL + np.uint32(k % D)

    @cuda.jit(device=True, forceinline=True)
    def result_of(row):
        pixel = np.uint32(row // D1)
        to = np.uint32(pixel // COLUMNS) * OUT_ROW + np.uint32(pixel % COLUMNS) * OUT_COLUMN
        return to + np.uint32(row % D1) * OUT_D1

    @cuda.jit(device=True, forceinline=True)
    def result_of_column(n):
        n = np.uint32(n)
        return np.uint32(n // D3) * BY_CAPSULE + np.uint32(n % D3)

    return input_of, k_at, result_of, result_of_column
