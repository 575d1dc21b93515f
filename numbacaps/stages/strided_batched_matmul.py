"""The tiled kernel of stage 4 of Algorithm 3 (Figure 6), and of both multiplications of Algorithm 4.

    C[image, channel, z] = A[image, channel, z] @ B[image, channel, z],   (M x K) @ (K x N)

The small matrices of one (image, channel) lie one behind the other (z); images and channels have
strides of their own, so an operand that has no such axis is shared, with stride 0. Either operand may
be read transposed: its matrices are then stored (K x M) or (N x K).

A tile of A and one of B are staged in shared memory, then every thread multiplies TM x TN elements
of TB matrices in registers. Capsules are small, so a block takes BB matrices at once and a tile
mostly holds a whole one:

    As (BB, BM, BK)  @  Bs (BB, BK, BN)  ->  BB x (BM x BN) in BB/TB * BM/TM * BN/TN threads

Thread mapping: tiles are loaded along the operand's unit stride, so consecutive threads read
consecutive addresses (over the matrices of a block too, where a tile is a whole matrix). A thread's
elements lie BB/TB, BM/TM and BN/TN apart, so consecutive threads also write consecutive addresses.
A thread has all its loads of a tile under way before it stores the first in shared memory. Rows of
As and the matrices of both tiles are padded against bank conflicts.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cache, cached_property

from numbacaps.device.kernel_cache import kept_on_disk
from numbacaps.device.launch import BLOCKS, MAX_GRID_Y, ceil_div, launch_tiles
from numbacaps.device.target import SIMULATED, at, cuda

_THREADS = 64 if SIMULATED else 256
_SHARED_BYTES = 24 * 1024  # of a block: half of what every device gives it without being asked
_LOADS = 24  # most elements of the tiles that a thread loads before it stores the first


@dataclass(frozen=True)
class Tile:
    """What a block and a thread take: BB (TB) matrices, BM x BN (TM x TN) of each, BK of the sum."""

    BB: int
    BM: int
    BN: int
    BK: int
    TB: int
    TM: int
    TN: int

    def __post_init__(self):
        if self.BB % self.TB or self.BM % self.TM or self.BN % self.TN:
            raise ValueError(f"tile is {self}; it takes TB, TM, TN that divide BB, BM, BN")

    @property
    def threads(self):
        """Threads of a block."""
        return (self.BB // self.TB) * (self.BM // self.TM) * (self.BN // self.TN)

    @cached_property
    def padding(self):
        """(row of As, matrix of As, matrix of Bs): lengths in shared memory that conflict least.

        The reads of a warp conflict where different addresses share one of the 32 banks. They are
        counted for every padding of less than 32 elements; the shortest of the best is taken.
        """
        warp = [self.place(t) for t in range(min(32, self.threads))]

        def a_conflicts(lengths):
            row_length, pitch = lengths
            return conflicts(bb * pitch + row * row_length for bb, row, _ in warp), pitch

        def b_conflicts(pitch):
            return conflicts(bb * pitch + column for bb, _, column in warp), pitch

        row_lengths = (self.BK, self.BK + 1)
        a_lengths = [(row, self.BM * row + pad) for row in row_lengths for pad in range(32)]
        b_pitches = [self.BK * self.BN + pad for pad in range(32)]
        return *min(a_lengths, key=a_conflicts), min(b_pitches, key=b_conflicts)

    def place(self, thread):
        """(matrix, row, column) at which a thread's elements begin."""
        rows, columns = self.BM // self.TM, self.BN // self.TN
        return thread // (columns * rows), thread // columns % rows, thread % columns

    @property
    def shared_elements(self):
        """Elements of As and Bs together."""
        _, a_pitch, b_pitch = self.padding
        return self.BB * (a_pitch + b_pitch)


def conflicts(addresses):
    """Most different addresses that fall into one of shared memory's 32 banks."""
    return max(Counter(address % 32 for address in set(addresses)).values())


@cache
def choose_tile(M, N, K, itemsize):
    """The tile for matrices of one size.

    ==========  =================================================================================
    BM, BN      the whole matrix: up to 8 as it is, up to 32 in fours, else 32
    BK          the whole sum up to 32, else 16; less where few threads would have it all to load
    TM, TN      4, 2 or 1, dividing BM (BN) into 2 parts or more, TM*TN <= 4 (8 from 16 x 16 on): of
                those that leave a thread at most 24 elements of the tiles to load, the fewest reads
    TB          4, 2 or 1: as many as leave a thread at most 12 elements to load
    BB          as many matrices as fit the block's threads and its shared memory
    ==========  =================================================================================
    """
    BM, BN = (size if size <= 8 else min(32, 4 * ceil_div(size, 4)) for size in (M, N))
    BK = next(
        size
        for size in (min(K, 32) if K <= 32 else 16, 16, 8, 4, 2, 1)
        if size <= K and (BM + BN) * size <= _LOADS * BM * BN
    )

    def loads(TM, TN):
        return (BM + BN) * BK * TM * TN // (BM * BN)

    if SIMULATED:  # its threads are dear, so one takes whole matrices
        TB, TM, TN = 4, BM, BN
    else:
        parts = [
            (TM, TN)
            for TM in (4, 2, 1)
            for TN in (4, 2, 1)
            if TM * TN <= (8 if BM * BN >= 256 else 4)
            and all(t == 1 or size % t == 0 and size >= 2 * t for size, t in ((BM, TM), (BN, TN)))
            and loads(TM, TN) <= _LOADS
        ]
        TM, TN = min(parts, key=lambda part: 1 / part[0] + 1 / part[1])
        TB = next(t for t in (4, 2, 1) if 2 * t * loads(TM, TN) <= _LOADS or t == 1)
    BB = TB * max(1, _THREADS // ((BM // TM) * (BN // TN)))
    BB = min(BB, TB * max(1, _SHARED_BYTES // (TB * BK * (BM + BN) * itemsize)))
    # What padding adds depends on the tile, so the last matrices give way to it.
    tiles = (Tile(count, BM, BN, BK, TB, TM, TN) for count in range(BB, 0, -TB))
    return next(tile for tile in tiles if tile.shared_elements * itemsize <= _SHARED_BYTES)


@cache
def make_strided_batched_matmul(M, N, K, a_strides, b_strides, b_shared, tile, dtype):
    """Kernel for (M x K) @ (K x N).

    Parameters
    ----------
    M, N, K : int
    a_strides : (int, int)
        Index strides of a matrix of A along m and k: (K, 1), or (1, M) to read it transposed.
    b_strides : (int, int)
        Index strides of a matrix of B along k and n: (N, 1), or (1, K) to read it transposed.
    b_shared : bool
        The images share B; a block whose tile holds all of K then loads B once for its images.
    tile : Tile
    dtype : numpy.dtype
    """
    BB, BM, BN, BK, TB, TM, TN = tile.BB, tile.BM, tile.BN, tile.BK, tile.TB, tile.TM, tile.TN
    A_M, A_K = a_strides
    B_K, B_N = b_strides
    A_K_INNER, B_N_INNER = A_K == 1, B_N == 1
    A_ROW, A_PITCH, B_PITCH = tile.padding
    A_SIZE, B_SIZE = BB * A_PITCH, BB * B_PITCH
    THREADS = tile.threads
    A_TILE, B_TILE = BB * BM * BK, BB * BK * BN
    A_LOADS, B_LOADS = ceil_div(A_TILE, THREADS), ceil_div(B_TILE, THREADS)
    ROWS, COLUMNS, BATCHES = BM // TM, BN // TN, BB // TB  # threads along m, n and the matrices
    M_TILES, N_TILES, K_STEPS = ceil_div(M, BM), ceil_div(N, BN), ceil_div(K, BK)
    # What is known to fit needs no bounds check, and whole matrices lie in one run.
    A_FITS, B_FITS = A_TILE % THREADS == 0, B_TILE % THREADS == 0
    M_FITS, N_FITS, K_FITS = M % BM == 0, N % BN == 0, K % BK == 0
    A_WHOLE, B_WHOLE = (BM, BK) == (M, K), (BK, BN) == (K, N)
    B_STAYS = b_shared and K_STEPS == 1  # in shared memory, from image to image
    ACCUMULATORS = TB * TM * TN
    ZERO = dtype.type(0)

    @kept_on_disk
    @cuda.jit
    def strided_batched_matmul_kernel(
        a,  # in   (images, channels, products, M, K)
        b,  # in   (images, channels, products, K, N)
        c,  # out  (images, channels, products, M, N)
        images,
        channels,
        products,
        c_first,  # where C begins
        a_image,  # elements from one image to the next, and so on
        a_channel,
        b_image,
        b_channel,
        c_image,
        c_channel,
    ):
        a_tile = cuda.shared.array(A_SIZE, dtype)
        b_tile = cuda.shared.array(B_SIZE, dtype)
        a_loaded = cuda.local.array(A_LOADS, dtype)
        b_loaded = cuda.local.array(B_LOADS, dtype)
        total = cuda.local.array(ACCUMULATORS, dtype)

        t = cuda.threadIdx.x
        column = t % COLUMNS
        row = t // COLUMNS % ROWS
        bb = t // (COLUMNS * ROWS)
        n0 = cuda.blockIdx.x % N_TILES * BN
        m0 = cuda.blockIdx.x // N_TILES % M_TILES * BM
        z0 = cuda.blockIdx.x // (N_TILES * M_TILES) * BB

        first_image = cuda.blockIdx.z
        image, channel = first_image, cuda.blockIdx.y
        while channel < channels:
            a0 = image * a_image + channel * a_channel + z0 * (M * K)
            b0 = image * b_image + channel * b_channel + z0 * (K * N)
            c0 = c_first + image * c_image + channel * c_channel + z0 * (M * N)
            for i in range(ACCUMULATORS):
                total[i] = ZERO

            for step in range(K_STEPS):
                k0 = step * BK
                for load in range(A_LOADS):
                    i = t + load * THREADS
                    z = i // (BM * BK)
                    m = i // BK % BM if A_K_INNER else i % BM
                    k = i % BK if A_K_INNER else i // BM % BK
                    value = ZERO
                    if (
                        (A_FITS or i < A_TILE)
                        and (M_FITS or m0 + m < M)
                        and (K_FITS or k0 + k < K)
                        and z0 + z < products
                    ):
                        source = z * (M * K) + (m0 + m) * A_M + (k0 + k) * A_K
                        value = a[at(a0 + (i if A_WHOLE else source))]
                    a_loaded[load] = value
                if image == first_image or not B_STAYS:
                    for load in range(B_LOADS):
                        i = t + load * THREADS
                        z = i // (BK * BN)
                        k = i // BN % BK if B_N_INNER else i % BK
                        n = i % BN if B_N_INNER else i // BK % BN
                        value = ZERO
                        if (
                            (B_FITS or i < B_TILE)
                            and (K_FITS or k0 + k < K)
                            and (N_FITS or n0 + n < N)
                            and z0 + z < products
                        ):
                            source = z * (K * N) + (k0 + k) * B_K + (n0 + n) * B_N
                            value = b[at(b0 + (i if B_WHOLE else source))]
                        b_loaded[load] = value
                for load in range(A_LOADS):
                    i = t + load * THREADS
                    m = i // BK % BM if A_K_INNER else i % BM
                    k = i % BK if A_K_INNER else i // BM % BK
                    if A_FITS or i < A_TILE:
                        a_tile[at(i // (BM * BK) * A_PITCH + m * A_ROW + k)] = a_loaded[load]
                if image == first_image or not B_STAYS:
                    for load in range(B_LOADS):
                        i = t + load * THREADS
                        k = i // BN % BK if B_N_INNER else i % BK
                        n = i % BN if B_N_INNER else i // BK % BN
                        if B_FITS or i < B_TILE:
                            b_tile[at(i // (BK * BN) * B_PITCH + k * BN + n)] = b_loaded[load]
                cuda.syncthreads()  # the tiles are complete before anyone multiplies
                for k in range(BK):
                    for s in range(TB):
                        z = bb + s * BATCHES
                        for i in range(TM):
                            for j in range(TN):
                                total[(s * TM + i) * TN + j] += (
                                    a_tile[at(z * A_PITCH + (row + i * ROWS) * A_ROW + k)]
                                    * b_tile[at(z * B_PITCH + k * BN + column + j * COLUMNS)]
                                )
                cuda.syncthreads()  # everyone is done before the tiles are written again

            for s in range(TB):
                z = bb + s * BATCHES
                for i in range(TM):
                    for j in range(TN):
                        m = m0 + row + i * ROWS
                        n = n0 + column + j * COLUMNS
                        if z0 + z < products and (M_FITS or m < M) and (N_FITS or n < N):
                            c[at(c0 + z * (M * N) + m * N + n)] = total[(s * TM + i) * TN + j]
            image += cuda.gridDim.z
            if image >= images:
                image = first_image
                channel += cuda.gridDim.y

    return strided_batched_matmul_kernel


@dataclass(frozen=True)
class Batch:
    """How the matrices of the three operands lie.

    ``images`` x ``channels`` x ``products`` matrices; ``a``, ``b`` and ``c`` are each operand's
    elements from one image to the next and from one channel to the next. C begins at ``c_first``.
    """

    images: int
    channels: int
    products: int
    a: tuple
    b: tuple
    c: tuple
    c_first: int = 0


def check_operands(a, b, c, size, batch):
    """Refuse operands that are shorter than the batch says.

    Raises
    ------
    ValueError
    """
    M, N, K = size
    for name, array, matrix, (image, channel), first in (
        ("a", a, M * K, batch.a, 0),
        ("b", b, K * N, batch.b, 0),
        ("c", c, M * N, batch.c, batch.c_first),
    ):
        last = first + (batch.images - 1) * image + (batch.channels - 1) * channel
        if array.size < last + batch.products * matrix:
            raise ValueError(
                f"{name} has {array.size} elements; it takes {last + batch.products * matrix}"
            )


def strided_batched_matmul(
    a,
    b,
    c,
    size,
    batch,
    transpose_a=False,
    transpose_b=False,
    tile=None,
    stream=0,
):
    """Multiply a strided batch of small matrices.

    Parameters
    ----------
    a, b : flat device arrays
    c : flat device array, written
    size : (int, int, int)
        M, N, K.
    batch : Batch
    transpose_a, transpose_b : bool
        Read each matrix of A (of B) transposed: it is stored (K x M), (N x K).
    tile : Tile, optional
        Default :func:`choose_tile`.
    stream : Numba stream

    Raises
    ------
    ValueError
        An operand is shorter than the batch says.
    """
    M, N, K = size
    check_operands(a, b, c, size, batch)
    tile = tile or choose_tile(M, N, K, c.dtype.itemsize)
    kernel = make_strided_batched_matmul(
        M,
        N,
        K,
        (1, M) if transpose_a else (K, 1),
        (1, K) if transpose_b else (N, 1),
        batch.b[0] == 0,
        tile,
        c.dtype,
    )
    x = ceil_div(batch.products, tile.BB) * ceil_div(M, tile.BM) * ceil_div(N, tile.BN)
    y = min(batch.channels, MAX_GRID_Y, ceil_div(BLOCKS, x))
    z = min(batch.images, MAX_GRID_Y, ceil_div(BLOCKS, x * y))
    sizes = (batch.images, batch.channels, batch.products, batch.c_first)
    arguments = (a, b, c, *sizes, *batch.a, *batch.b, *batch.c)
    launch_tiles(kernel, (x, y, z), tile.threads, arguments, stream)
