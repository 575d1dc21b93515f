"""Stage 4 where the images share B: as the tiled kernel, but B stays in registers from image to image.

    C[image, channel, z] = A[image, channel, z] @ B[channel, z],   (M x K) @ (K x N)

A block takes BB products and walks the images; a thread owns one column of one product:

    As (2, BB, M, K)  @  B in registers (K a thread)  ->  BB x (M x N) in BB * N threads

Of :mod:`numbacaps.stages.strided_batched_matmul`'s two reads of shared memory for each
multiplication one is left. The tile of A is double-buffered: while an image's is multiplied, the next
image's is on its way, and one barrier an image is enough.

Thread mapping: tiles of A are loaded in the order of their addresses; consecutive threads write
consecutive columns. Matrices are padded against bank conflicts.
"""

from functools import cache

from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import MAX_GRID_Y, ceil_div, launch_tiles
from numbacaps.device.target import SIMULATED, at, cuda
from numbacaps.stages.strided_batched_matmul import check_operands, conflicts

_PRODUCTS = 2 if SIMULATED else 16  # of a block
_BLOCKS = 1 if SIMULATED else 2048  # few enough that a block keeps its B for several images


def suits(M, N, K, batch):
    """Whether this kernel is the faster one: shared B, few rows, a column that registers hold."""
    return batch.b[0] == 0 and batch.images > 1 and M <= 4 and N <= 32 and 8 <= K <= 16


@cache
def matrix_pitch(M, N, K):
    """From one matrix of As to the next: the shortest whose reads by a warp conflict least."""

    def cost(pitch):
        return conflicts(thread // N * pitch for thread in range(32)), pitch

    return min(range(M * K, M * K + 32), key=cost)


@cache
def make_stationary_batched_matmul(M, N, K, b_strides, BB, dtype):
    """Kernel for (M x K) @ (K x N).

    Parameters
    ----------
    M, N, K : int
    b_strides : (int, int)
        Index strides of a matrix of B along k and n: (N, 1), or (1, K) to read it transposed.
    BB : int
        Products of a block.
    dtype : numpy.dtype
    """
    B_K, B_N = b_strides
    A_PITCH = matrix_pitch(M, N, K)
    HALF = BB * A_PITCH
    A_SIZE = 2 * HALF
    THREADS = BB * N
    A_TILE = BB * M * K
    A_LOADS = ceil_div(A_TILE, THREADS)
    A_FITS = A_TILE % THREADS == 0
    ZERO = dtype.type(0)

    @cuda.jit(device=True, inline="always")
    def load_tile(a, a0, t, left, a_loaded):
        """Start loading a thread's elements of the tile at a0; ``left`` products are there."""
        for load in range(A_LOADS):
            i = t + load * THREADS
            value = ZERO
            if (A_FITS or i < A_TILE) and i // (M * K) < left:
                value = a[at(a0 + i)]
            a_loaded[load] = value

    @kept_on_disk
    @cuda.jit
    def stationary_batched_matmul_kernel(
        a,  # in   (images, channels, products, M, K)
        b,  # in   (channels, products, K, N)
        c,  # out  (images, channels, products, M, N)
        images,
        channels,
        products,
        c_first,  # where C begins
        a_image,  # elements from one image to the next, and so on
        a_channel,
        b_channel,
        c_image,
        c_channel,
    ):
        a_tile = cuda.shared.array(A_SIZE, dtype)
        a_loaded = cuda.local.array(A_LOADS, dtype)
        b_column = cuda.local.array(K, dtype)
        total = cuda.local.array(M, dtype)

        t = cuda.threadIdx.x
        n = t % N
        bb = t // N
        z0 = cuda.blockIdx.x * BB
        left = products - z0
        channel = cuda.blockIdx.y
        while channel < channels:
            for k in range(K):
                value = ZERO
                if bb < left:
                    value = b[at(channel * b_channel + (z0 + bb) * (K * N) + k * B_K + n * B_N)]
                b_column[k] = value
            a0 = channel * a_channel + z0 * (M * K)
            c0 = c_first + channel * c_channel + (z0 + bb) * (M * N) + n
            image = cuda.blockIdx.z
            load_tile(a, a0 + image * a_image, t, left, a_loaded)
            half = 0
            while image < images:
                for load in range(A_LOADS):
                    i = t + load * THREADS
                    if A_FITS or i < A_TILE:
                        a_tile[at(half + i // (M * K) * A_PITCH + i % (M * K))] = a_loaded[load]
                cuda.syncthreads()  # the tile is complete; the other half was read before the last
                current = c0 + image * c_image
                image += cuda.gridDim.z
                if image < images:
                    load_tile(a, a0 + image * a_image, t, left, a_loaded)
                for m in range(M):
                    total[m] = ZERO
                for k in range(K):
                    for m in range(M):
                        total[m] += a_tile[at(half + bb * A_PITCH + m * K + k)] * b_column[k]
                if bb < left:
                    for m in range(M):
                        c[at(current + m * N)] = total[m]
                half = HALF - half
            cuda.syncthreads()  # everyone is done with both halves before the next channel's tile
            channel += cuda.gridDim.y

    return stationary_batched_matmul_kernel


def stationary_batched_matmul(a, b, c, size, batch, transpose_b=False, stream=0):
    """Multiply a strided batch of small matrices whose B the images share.

    Parameters
    ----------
    a, b : flat device arrays
    c : flat device array, written
    size : (int, int, int)
        M, N, K.
    batch : numbacaps.stages.strided_batched_matmul.Batch
        With ``b[0]`` 0.
    transpose_b : bool
        Each matrix of B is stored (N x K).
    stream : Numba stream

    Raises
    ------
    ValueError
        An operand is shorter than the batch says, or its images have a B each.
    """
    M, N, K = size
    if batch.b[0] != 0:
        raise ValueError(f"batch has {batch.b[0]} elements of b an image; it takes 0, a shared b")
    check_operands(a, b, c, size, batch)
    b_strides = (1, K) if transpose_b else (N, 1)
    kernel = make_stationary_batched_matmul(M, N, K, b_strides, _PRODUCTS, c.dtype)
    x = ceil_div(batch.products, _PRODUCTS)
    y = min(batch.channels, MAX_GRID_Y, ceil_div(_BLOCKS, x))
    z = min(batch.images, MAX_GRID_Y, ceil_div(_BLOCKS, x * y))
    sizes = (batch.images, batch.channels, batch.products, batch.c_first)
    arguments = (a, b, c, *sizes, *batch.a, batch.b[1], *batch.c)
    launch_tiles(kernel, (x, y, z), _PRODUCTS * N, arguments, stream)
