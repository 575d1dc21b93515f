"""The "official APIs" of Table 1: Algorithms 3 and 4 with cuBLAS's strided batched GEMM in stage 4.

All other stages are those of :mod:`numbacaps.algorithms.staged`. CuPy (the extra ``cublas``) binds
cuBLAS; it is given the addresses of our arrays, so nothing is copied.

cuBLAS takes one stride per operand where our kernel takes three (matrix, channel, image), so it is
called once for all images where they lie one behind the other in every operand, and else, as for K',
which the images share, once for each image.
"""

from contextlib import suppress
from functools import partial

import numpy as np

from numbacaps.algorithms import staged
from numbacaps.device.streams import between_captures
from numbacaps.device.target import SIMULATED, cuda, current_device
from numbacaps.extras import require

# Device to the cuBLAS handles that no call uses now. cublasDestroy waits for the device, which breaks captures by other threads
# off. CuPy destroys its own handle of a thread when the thread ends, so its handles are not used.
_idle = {}
_MAX_BATCH = 2**31 - 1  # cuBLAS counts in 32 bits


def unavailable():
    """Why it cannot run here, as the exception to raise, or None."""
    if SIMULATED:
        return RuntimeError("algorithm 'cublas' takes a GPU; the simulator has no cuBLAS")
    try:
        _cublas()
    except ImportError as missing:
        return missing
    return None


def _cublas():
    """CuPy's binding of cuBLAS."""
    return require("cupy_backends.cuda.libs.cublas", "cublas", "algorithm 'cublas'")


def gemm_strided_batched(a, b, c, size, batch, transpose_a=False, transpose_b=False, stream=0):
    """What :func:`numbacaps.stages.batched_matmul` computes, by cuBLAS.

    cuBLAS sees our row-major matrices as their transposes, so it is asked for C^T = B^T @ A^T.
    """
    import cupy

    cublas = _cublas()
    M, N, K = size
    gemm = cublas.sgemmStridedBatched if c.dtype.itemsize == 4 else cublas.dgemmStridedBatched
    one, zero = np.ones(1, c.dtype), np.zeros(1, c.dtype)
    itemsize = c.dtype.itemsize
    address = [array.__cuda_array_interface__["data"][0] for array in (a, b, c)]
    address[2] += batch.c_first * itemsize
    matrices = (M * K, K * N, M * N)
    current = cupy.cuda.Stream.from_external(stream) if stream else cupy.cuda.Stream.null
    with _Handle(cublas) as handle, current:
        for count, *offsets in _runs(batch, matrices):
            at = [first + offset * itemsize for first, offset in zip(address, offsets)]
            gemm(
                handle,
                cublas.CUBLAS_OP_T if transpose_b else cublas.CUBLAS_OP_N,
                cublas.CUBLAS_OP_T if transpose_a else cublas.CUBLAS_OP_N,
                *(N, M, K),
                one.ctypes.data,
                *(at[1], K if transpose_b else N, matrices[1]),
                *(at[0], M if transpose_a else K, matrices[0]),
                zero.ctypes.data,
                *(at[2], N, matrices[2]),
                count,
            )


class _Handle:
    """A ``with`` block's own cuBLAS handle of the current device: one that no call uses now, or else a new one."""

    def __init__(self, cublas):
        self._idle = _idle.setdefault(current_device(), [])
        try:
            self._handle = self._idle.pop()
        except IndexError:
            self._handle = cublas.create()

    def __enter__(self):
        return self._handle

    def __exit__(self, *raised):
        self._idle.append(self._handle)


def destroy_handles():
    """Destroy the handles that no call uses now, with their workspaces, while this package captures no stream."""
    for device, idle in list(_idle.items()):
        with between_captures(), cuda.gpus[device], suppress(IndexError):  # when none is left
            while True:
                _cublas().destroy(idle.pop())


def _runs(batch, matrices):
    """(matrices, offset in a, in b, in c) of every run that has one stride in each operand."""
    operands = (batch.a, batch.b, batch.c)
    # An axis joins the run where its stride is the length of the run so far, in every operand.
    count, images, channels = batch.products, batch.images, batch.channels
    if all(stride[1] == count * matrix for stride, matrix in zip(operands, matrices)):
        count, channels = count * channels, 1
        if count * images <= _MAX_BATCH and all(
            stride[0] == count * matrix for stride, matrix in zip(operands, matrices)
        ):
            count, images = count * images, 1
    for image in range(images):
        for channel in range(channels):
            first = [image * stride[0] + channel * stride[1] for stride in operands]
            for start in range(0, count, _MAX_BATCH):
                yield (
                    min(_MAX_BATCH, count - start),
                    *(offset + start * matrix for offset, matrix in zip(first, matrices)),
                )


forward = partial(staged.forward, matmul=gemm_strided_batched)
backward = partial(staged.backward, matmul=gemm_strided_batched)
votes = partial(staged.votes, matmul=gemm_strided_batched)
