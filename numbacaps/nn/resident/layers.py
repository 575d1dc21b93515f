"""What kernels of resident passes know of a network's layers: sizes, addresses, and who computes what."""

from dataclasses import dataclass

from numbacaps.fused.epilogue import Epilogue
from numbacaps.nn.resident.shared_memory import FLOAT


@dataclass(frozen=True)
class Output:
    """A layer's output of one image, behind its activation.

    Attributes
    ----------
    size, group : int
        Elements, and how many are squashed together.
    slope : float
        Of LeakyReLU.
    groups_before, elements_before : int
        Groups, and elements, of all earlier layers' outputs of an image, in global memory.
    at : int
        Where it lies in shared memory, in elements.
    """

    size: int
    group: int
    slope: float
    groups_before: int
    elements_before: int
    at: int

    @property
    def groups(self):
        """Groups of an image."""
        return self.size // self.group


@dataclass(frozen=True)
class Reads:
    """How the first layer reads its image: steps in elements.

    Attributes
    ----------
    row, column, channel : int
        From a pixel of the result to the one below, to the next; from a channel to the next.
    tap_row, tap_column, first : int
        From a row of taps to the next, from a tap to the next, and where the first pixel's window begins.
    """

    row: int
    column: int
    channel: int
    tap_row: int
    tap_column: int
    first: int


@dataclass(frozen=True)
class FirstLayer:
    """The layer that is computed by ordinary arithmetic.

    Attributes
    ----------
    image : int
        Elements of an image.
    P, N, C, KH, KW, D2, K : int
        As the geometry's and the product's.
    pixels, columns : int
        Of the result, and of a row of it.
    reads : Reads
    run : int
        Elements that a thread loads or stores at once.
    x, kernel : int
        Where the image and the kernel lie in shared memory, in elements.
    output : Output
    """

    image: int
    P: int
    N: int
    C: int
    KH: int
    KW: int
    D2: int
    K: int
    pixels: int
    columns: int
    reads: Reads
    run: int
    x: int
    kernel: int
    output: Output


@dataclass(frozen=True)
class Rows:
    """The rows (pixel, d1) of a layer's product.

    Attributes
    ----------
    count, D1, columns : int
        All rows, rows of a pixel, and pixels of a row of the result.
    reads : tuple of int
        Elements in shared memory from where one row of pixels, one pixel, one d1 reads to the next.
    first : int
        Where the first one reads.
    results : tuple of int
        From one row of pixels, one pixel, one d1 of the result to the next.
    """

    count: int
    D1: int
    columns: int
    reads: tuple
    first: int
    results: tuple


@dataclass(frozen=True)
class Taps:
    """The window of a layer's product.

    Attributes
    ----------
    rows, columns : int
        Rows of taps, and taps of each.
    channel_step, row_step, column_step : int
        Elements of the input from one channel, one row of taps, one tap to the next.
    """

    rows: int
    columns: int
    channel_step: int
    row_step: int
    column_step: int


@dataclass(frozen=True)
class Chunks:
    """A packed kernel, in the chunks of which a pipeline stage holds one.

    Attributes
    ----------
    count, bytes : int
        Chunks, and the size of one.
    packed_at : int
        Where the first one begins, in elements of all packed kernels.
    stages : int
        Of the pipeline, that the layer's chunks take.
    channels, groups, run : int
        A forward chunk is a row of taps of ``channels`` channels, which are ``groups`` times 8 of k; and elements
        that a thread loads of the input at once.
    """

    count: int
    bytes: int
    packed_at: int
    stages: int
    channels: int = 0
    groups: int = 0
    run: int = 0

    @property
    def elements(self):
        """Of the packed kernel."""
        return self.count * self.bytes // FLOAT


@dataclass(frozen=True)
class Schedule:
    """Who computes what of a layer's product, and when.

    Attributes
    ----------
    swapped : bool
        Operands are swapped: the rows, 8 at most, are the columns of products that warps make; see
        :mod:`numbacaps.nn.resident.warp_products`.
    tiles, rounds : int
        Tiles of 64 rows; how often a warpgroup takes one.
    shares : int
        Parts of a tile's sum, each of which has a warpgroup or a warp of its own (split-K).
    batch : int
        Chunks that are multiplied in one go.
    overlaps : bool
        Products of a step are queued before the last step's are done, whose chunks the ring holds until then.
    opens_late : bool
        Behind it the late stages are free, which later layers take.
    """

    swapped: bool
    tiles: int
    rounds: int
    shares: int
    batch: int
    overlaps: bool
    opens_late: bool


@dataclass(frozen=True)
class ResidentLayer:
    """One of the others, a :class:`numbacaps.fused.implicit_gemm.Product` of one image.

    Attributes
    ----------
    N, D, D3 : int
        Columns of the product, elements of a channel's row, elements of a result's row.
    BN : int
        Columns of a tile: all, to a multiple of 8; of swapped operands, of 16.
    by_capsule : int
        Elements from one of the result's capsules to the next.
    terms : int
        TF32 products that stand for one of float32.
    rows : Rows
    taps : Taps
    chunks : Chunks
    schedule : Schedule
    input_at : int
        Where the input lies in shared memory, in elements.
    output : Output
    last : bool
        Inference writes its output, too.
    epilogue : numbacaps.fused.epilogue.Epilogue
        The activation where a tile's sum is in one part.
    """

    N: int
    D: int
    D3: int
    BN: int
    by_capsule: int
    terms: int
    rows: Rows
    taps: Taps
    chunks: Chunks
    schedule: Schedule
    input_at: int
    output: Output
    last: bool
    epilogue: Epilogue
