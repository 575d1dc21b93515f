"""The backward pass in one multiprocessor: what fits, and where it lies; see :mod:`numbacaps.nn.resident.backward`."""

from dataclasses import dataclass
from itertools import accumulate
from math import prod

from numbacaps.device.launch import ceil_div
from numbacaps.fused.rung_4_wgmma.tile import BM, SHARED_LIMIT, WARPGROUP
from numbacaps.nn.resident.layers import Chunks, FirstLayer, Output, ResidentLayer
from numbacaps.nn.resident.shared_memory import (
    BARRIERS,
    FEWEST_STAGES,
    FLOAT,
    LINE,
    MOST_STAGES,
    WARPGROUPS,
    DoesNotFit,
    Pipeline,
    Region,
    SharedMemory,
    in_lines,
)

CORE_MATRIX = 4, 8  # k's, 16 bytes of TF32, and rows of the core matrices that wgmma reads
_MOST_DEPTH = 80  # k's whose fragments a thread holds
_MOST_COLUMNS = 96  # of a product
_MOST_HELD = 64  # elements of the first operand, and of sums, that a thread holds
_WIDE = 32  # columns: the tensor cores take as long for fewer
_MOST_CHUNK = 24 * 1024  # bytes
_MOST_WEIGHTS = 96  # rows of a kernel whose gradient the consumers' registers keep
_PAIRS = 6  # of pixels, whose fragments are loaded ahead


@dataclass(frozen=True)
class Gradient:
    """The gradient of a layer's output. The kernel turns it into the gradient of the layer's sums, in the same place.

    Attributes
    ----------
    output : numbacaps.nn.resident.layers.Output
        The layer's output in the forward pass.
    at, copies : int
        Offset in shared memory, in elements; and number of copies there, one behind the other, whose sum is the gradient.
    d_sums_at : int or None
        Offset in an image's part of global memory, in elements, of the gradient of the layer's sums; None if no other kernel
        reads it.
    """

    output: Output
    at: int
    copies: int
    d_sums_at: int | None


@dataclass(frozen=True)
class KernelGradient:
    """The gradient of a kernel, where a block computes its images' part on tensor cores.

    Attributes
    ----------
    channels, pixels, input : tuple or int
        C; rows and columns of the output; and of the input.
    taps, stride, dilation : tuple of int
        Rows and columns.
    at, padding : int
        Where the input's capsules lie, transposed, in elements; and how many zeros lie behind them.
    input_before : int
        Elements of an image before the layer's input, in global memory.
    size, partial_at : int
        Elements of the gradient; and of all partial sums of a block before these.
    pairs, batches : int
        Pairs of neighbouring pixels multiplied in one go, and how many times that is a row of pixels.
    """

    channels: int
    pixels: tuple
    input: tuple
    taps: tuple
    stride: tuple
    dilation: tuple
    at: int
    padding: int
    input_before: int
    size: int
    partial_at: int
    pairs: int
    batches: int


@dataclass(frozen=True)
class TapProduct:
    """How a layer's taps are multiplied.

    Attributes
    ----------
    K, steps, run : int
        Elements of a pixel's d1 of the output; how many times 8 of k that is; k's that a thread loads at once.
    N, D : int
        Columns, of all channels; elements of a channel's row.
    taps, together : int
        Window positions, and how many are multiplied in one go.
    wide : int
        How many times 8 columns a thread has neighbours of, in one run.
    """

    K: int
    steps: int
    run: int
    N: int
    D: int
    taps: int
    together: int
    wide: int

    @property
    def columns(self):
        """Of a chunk."""
        return self.together * self.N


@dataclass(frozen=True)
class TapSchedule:
    """Who computes which taps of which tiles.

    Attributes
    ----------
    takes_taps : bool
        Warpgroups take the taps of all tiles in turn; otherwise each takes tiles of its own.
    tiles, at_once, rounds, copies : int
        Tiles of 64 rows; how many a warpgroup takes at once, and how often; and warpgroups that add to an input of
        their own.
    """

    takes_taps: bool
    tiles: int
    at_once: int
    rounds: int
    copies: int


@dataclass(frozen=True)
class InputGradient:
    """The gradient of a layer's input: a product of each tap, added up where the taps' windows lie.

    Attributes
    ----------
    layer : numbacaps.nn.resident.layers.ResidentLayer
        The layer forward.
    product : TapProduct
    schedule : TapSchedule
    chunks : numbacaps.nn.resident.layers.Chunks
    size : int
        Elements of the input.
    at, out : int
        Where the gradients of the sums and of the input lie in shared memory, in elements.
    kernel : KernelGradient or None
        Where it is computed here, too.
    why_apart : str or None
        Why it is not.
    """

    layer: ResidentLayer
    product: TapProduct
    schedule: TapSchedule
    chunks: Chunks
    size: int
    at: int
    out: int
    kernel: KernelGradient | None
    why_apart: str | None


@dataclass(frozen=True)
class FirstKernelGradient:
    """The gradient of the first layer's kernel, by ordinary arithmetic.

    Attributes
    ----------
    layer : numbacaps.nn.resident.layers.FirstLayer
        The layer forward.
    x, at, shares_at : int
        Where the image, the gradient of the layer's sums, and the threads' shares lie in shared memory, in elements;
        behind the shares what earlier images add.
    partial_at : int
        As that of :class:`KernelGradient`.
    """

    layer: FirstLayer
    x: int
    at: int
    shares_at: int
    partial_at: int

    @property
    def size(self):
        """Elements of the gradient."""
        return self.layer.K * self.layer.N


@dataclass(frozen=True)
class BackwardLayout:
    """The backward pass of a network.

    Attributes
    ----------
    first : FirstKernelGradient
    layers : tuple of InputGradient
        Of all layers but the first.
    gradients : tuple of Gradient
        Of all layers.
    pipeline : numbacaps.nn.resident.shared_memory.Pipeline
    memory : numbacaps.nn.resident.shared_memory.SharedMemory
        Steps are counted from the last layer down, two of each: its kernel's gradient, its input's.
    """

    first: FirstKernelGradient
    layers: tuple
    gradients: tuple
    pipeline: Pipeline
    memory: SharedMemory

    @property
    def apart(self):
        """Numbers of the layers whose kernel's gradient is not computed here."""
        return [k for k, one in enumerate(self.gradients) if one.d_sums_at is not None]


def why_not(placed):
    """Why a network's backward pass cannot stay in a multiprocessor, as far as sizes say; None where it can.

    Parameters
    ----------
    placed : sequence of numbacaps.nn.layer.PlacedLayer
        Whose forward pass can.
    """
    for number, one in enumerate(placed):
        if one.layer.slope < 0:
            return (
                f"layers[{number}]: its slope is negative, so outputs do not tell the signs of sums"
            )
    for number, one in enumerate(placed[1:], 1):
        g = one.geometry
        if g.P * g.D3 > _MOST_DEPTH:
            return f"layers[{number}]: {g.P * g.D3} elements of a row of outputs, more than {_MOST_DEPTH}"
        if g.C * g.D2 > _MOST_COLUMNS:
            return f"layers[{number}]: {g.C * g.D2} elements of a row of inputs, more than {_MOST_COLUMNS}"
    first = placed[0].geometry
    if first.P * first.D3 > WARPGROUPS * WARPGROUP:
        return f"layers[0]: {first.P * first.D3} columns"
    return None


def backward_layout(placed, forward):
    """The layout of a network's backward pass.

    Parameters
    ----------
    placed : sequence of numbacaps.nn.layer.PlacedLayer
    forward : numbacaps.nn.resident.forward_layout.ForwardLayout
        Of the same network.

    Returns
    -------
    BackwardLayout

    Raises
    ------
    DoesNotFit
        With the reason.
    """
    if reason := why_not(placed):
        raise DoesNotFit(reason)
    geometries = [one.geometry for one in placed]
    shapes = [_shape(g, forward.terms) for g in geometries[1:]]
    reasons = [_why_apart(g) for g in geometries[1:]]
    pipeline, memory, largest = _place(geometries, shapes, reasons, forward)
    at = [memory[f"gradient {number}"].element for number in range(len(placed))]
    image, shares_at = memory["image"].element, memory["first kernel's shares"].element
    first = FirstKernelGradient(forward.first, image, at[0], shares_at, 0)
    copies = [*(schedule.copies for _, schedule, _ in shapes), 1]
    layers, packed_at, partial_at = [], 0, first.size
    gradients, d_sums_at = [Gradient(forward.first.output, at[0], copies[0], None)], 0
    for number, (layer, shape, reason) in enumerate(zip(forward.layers, shapes, reasons), 1):
        g, (product, schedule, chunks), kernel = geometries[number], shape, None
        written_at = d_sums_at if reason else None
        gradients.append(Gradient(layer.output, at[number], copies[number], written_at))
        if reason:
            d_sums_at += layer.output.size
        else:
            before = forward.outputs[number - 1].elements_before
            kernel = _kernel_gradient(g, at[number - 1], before, partial_at)
            partial_at += WARPGROUPS * kernel.size
        stages = pipeline.stages if number > largest + 1 else pipeline.early
        chunks = Chunks(*chunks, packed_at, stages)
        size, places = g.C * g.H * g.W * g.E1, (at[number], at[number - 1])
        found = InputGradient(layer, product, schedule, chunks, size, *places, kernel, reason)
        layers.append(found)
        packed_at += chunks.elements
    return BackwardLayout(first, tuple(layers), tuple(gradients), pipeline, memory)


def _place(geometries, shapes, reasons, forward):
    """(pipeline, memory, the layer from behind which late stages are free).

    What reaches a layer's output lies in two places in turn; before it, in the same place, what else is needed.
    """
    first, last, sizes = forward.first, len(shapes), [out.size for out in forward.outputs]
    copies = [*(schedule.copies for _, schedule, _ in shapes), 1]
    needed = [size * count for size, count in zip(sizes, copies)]
    transposed = [0 if why else _transposed(g) for g, why in zip(geometries[1:], reasons)]
    shares = (WARPGROUPS * WARPGROUP + first.N) * first.K
    room = [max(both) for both in zip(needed, [*transposed, 0])]
    room[1] = max(room[1], shares)
    rooms = max(room[0::2]), max(room[1::2])
    lines = [in_lines(size * FLOAT) for size in (first.image, *rooms)]
    x_at, *places, ring_at = accumulate(lines, initial=BARRIERS)
    pitch = in_lines(max(size for _, _, (_, size) in shapes))
    early = min(MOST_STAGES, (SHARED_LIMIT - LINE - ring_at) // pitch)
    if early < FEWEST_STAGES:  # both parts of a kernel are multiplied in one go
        raise DoesNotFit(f"gradients of {rooms[0]} and {rooms[1]} elements are too much")
    # Until the largest is made, what is behind earlier ones in its place is free.
    largest = max(range(len(room)), key=room.__getitem__)
    later = in_lines(max([0, *room[largest + 2 :: 2]]) * FLOAT)
    late = (lines[1 + largest % 2] - later) // pitch if largest + 2 <= last else 0
    late = min(late, MOST_STAGES - early)
    gap = places[largest % 2] + later - ring_at - early * pitch
    pipeline = Pipeline(WARPGROUPS, early, ring_at, pitch, late, gap)
    steps = 2 * last + 1
    regions = [
        Region("image", x_at, first.image * FLOAT, 0, steps - 1),
        *pipeline.regions(steps, (0, 2 * (last - largest - 2) + 1)),
        Region("first kernel's shares", places[1], shares * FLOAT, steps - 1, steps - 1),
    ]
    for number, size in enumerate(needed):
        step = 2 * (last - number)
        lives, place = (max(0, step - 1), min(step + 1, steps - 1)), places[number % 2]
        regions.append(Region(f"gradient {number}", place, size * FLOAT, *lives))
        if number and transposed[number - 1]:
            size, place = transposed[number - 1], places[(number - 1) % 2]
            name = f"transposed input of {number}"
            regions.append(Region(name, place, size * FLOAT, step, step))
    return pipeline, SharedMemory(tuple(regions), LINE + ring_at + early * pitch), largest


def _shape(g, terms):
    """(product, schedule, (chunks, bytes of one)) of a layer's taps."""
    K, N, taps = g.P * g.D3, g.C * g.D2, g.KH * g.KW
    steps = ceil_div(K, 8)
    run = max(count for count in (1, 2, 4) if g.D3 % count == 0 and 2 * steps % count == 0)
    column = steps * 8 * N * FLOAT
    tiles = ceil_div(g.L * g.D1, BM)
    takes_taps = N >= _WIDE
    held = max(4 * steps, N // 2)
    at_once = max(1, min(tiles, _MOST_HELD // held)) if takes_taps else 1
    at_once = max(count for count in range(1, at_once + 1) if tiles % count == 0)
    most = 1 if takes_taps else max(1, min(_MOST_COLUMNS // N, _MOST_CHUNK // column))
    together = max(count for count in range(1, most + 1) if taps % count == 0)
    product = TapProduct(K, steps, run, N, g.D2, taps, together, 2 if N % 16 == 0 else 1)
    rounds = ceil_div(tiles, at_once if takes_taps else WARPGROUPS)
    copies = 1 if takes_taps else min(tiles, WARPGROUPS)
    schedule = TapSchedule(takes_taps, tiles, at_once, rounds, copies)
    return product, schedule, (taps // together * (2 if terms > 1 else 1), together * column)


def _why_apart(g):
    """Why the gradient of a layer's kernel is not computed in the pass; None where it is."""
    D1, D2 = CORE_MATRIX
    if (g.D1, g.D2) != CORE_MATRIX:
        return f"capsules of {g.D1} x {g.D2} are, transposed, no core matrices: {D1} x {D2} are"
    if g.P * g.D3 > BM:
        return f"{g.P * g.D3} columns, more than {BM}"
    if g.Q * g.D2 > _MOST_WEIGHTS:
        return f"{g.Q * g.D2} weights of a column, more than {_MOST_WEIGHTS}"
    return None


def _pairs(g):
    """(pairs of pixels multiplied in one go, how many times that is a row)."""
    batches = ceil_div(g.OW, 2 * _PAIRS)
    return ceil_div(g.OW, 2 * batches), batches


def _padding(g):
    """Elements that the last pairs of pixels read behind the input."""
    return (2 * prod(_pairs(g)) - g.OW) * g.stride[1] * g.E1


def _transposed(g):
    """Elements of a layer's input, and of the zeros behind it."""
    return g.C * g.H * g.W * g.E1 + _padding(g)


def _kernel_gradient(g, at, input_before, partial_at):
    pairs, batches = _pairs(g)
    return KernelGradient(
        channels=g.C,
        pixels=(g.OH, g.OW),
        input=(g.H, g.W),
        taps=(g.KH, g.KW),
        stride=g.stride,
        dilation=g.dilation,
        at=at,
        padding=_padding(g),
        input_before=input_before,
        size=g.P * g.Q * g.E2,
        partial_at=partial_at,
        pairs=pairs,
        batches=batches,
    )
