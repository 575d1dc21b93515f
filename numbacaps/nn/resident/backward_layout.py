"""What of a network's backward pass can stay in one multiprocessor, and where it lies there.

See :mod:`numbacaps.nn.resident.backward`.
"""

from dataclasses import dataclass
from math import prod

from numbacaps.device.launch import ceil_div
from numbacaps.fused.rung_4_wgmma.tile import BM, SHARED_LIMIT, WARPGROUP
from numbacaps.nn.resident import layout as residence
from numbacaps.nn.resident.layout import (
    BARRIERS,
    FLOAT,
    LINE,
    FirstLayer,
    Residence,
    ResidentLayer,
    in_lines,
)

_MOST_DEPTH = 80  # k's whose fragments a thread holds
_MOST_COLUMNS = 96  # of a product
_MOST_HELD = 64  # elements of the first operand, and of sums, that a thread holds
_WIDE = 32  # columns: the tensor cores take as long for fewer
_MOST_CHUNK = 24 * 1024  # bytes
_FEWEST_SLOTS = 2  # both parts of a kernel are multiplied in one go
_CORE = 4, 8  # D1 and D2 of capsules that are, transposed, the tensor cores' core matrices
_MOST_WEIGHTS = 96  # rows of a kernel whose gradient two warpgroups keep
_PAIRS = 6  # of pixels, whose fragments are loaded ahead


@dataclass(frozen=True)
class Output:
    """A layer's output, whose gradient becomes its sums' gradient in place.

    Attributes
    ----------
    size, group : int
        Elements of an image, and how many are squashed together.
    slope : float
    slopes_at, output_at : int
        Groups of an image before the layer's, and elements of it before the layer's output, in global memory.
    at, copies : int
        Where the gradient lies in shared memory, in elements; and how many of it, one behind the other, whose sum it is.
    d_sums_at : int or None
        Elements of an image before what reaches the layer's sums, in global memory; None where nobody reads it there.
    """

    size: int
    group: int
    slope: float
    slopes_at: int
    output_at: int
    at: int
    copies: int
    d_sums_at: int | None


@dataclass(frozen=True)
class Weights:
    """The gradient of a kernel, where a block computes its images' part.

    Attributes
    ----------
    channels, pixels, input : tuple or int
        C; rows and columns of the output; and of the input.
    taps, step, apart : tuple of int
        Rows and columns of taps; the stride; the dilation.
    at, padding : int
        Where the input's capsules lie, transposed, in elements; and how many of zeros lie behind them.
    read_at : int
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
    step: tuple
    apart: tuple
    at: int
    padding: int
    read_at: int
    size: int
    partial_at: int
    pairs: int
    batches: int


@dataclass(frozen=True)
class BackwardLayer:
    """The gradient of a layer's input: a product of each tap, added up where the taps' windows lie.

    Attributes
    ----------
    layer : numbacaps.nn.resident.layout.ResidentLayer
        The layer forward.
    K, steps, run : int
        Elements of a pixel's d1 of the output; so many times 8 of k; k's that a thread loads at once.
    N, D, size : int
        Columns, of all channels; elements of a channel's row; elements of the whole input.
    together, wide : int
        Taps multiplied in one go; and how many times 8 columns a thread has neighbours of, in one run.
    takes_taps : bool
        Warpgroups take the taps of all tiles in turn; otherwise each takes tiles of its own.
    tiles, at_once, rounds, copies : int
        Tiles of 64 rows; how many a warpgroup takes at once, and how often; and warpgroups that add to an input of
        their own.
    chunks, chunk_bytes, slots : int
        Of the packed kernel: so many taps of a part of it each; and the slots of the ring that they take.
    at, out : int
        Where what reaches the sums, and what reaches the input, lie in shared memory, in elements.
    packed_at : int
        Where the packed kernel begins.
    weights : Weights or None
    """

    layer: ResidentLayer
    K: int
    steps: int
    run: int
    N: int
    D: int
    size: int
    together: int
    wide: int
    takes_taps: bool
    tiles: int
    at_once: int
    rounds: int
    copies: int
    chunks: int
    chunk_bytes: int
    slots: int
    at: int
    out: int
    packed_at: int
    weights: Weights | None

    @property
    def taps(self):
        """Window positions."""
        return prod(self.layer.taps)

    @property
    def columns(self):
        """Of a chunk."""
        return self.together * self.N

    @property
    def packed(self):
        """Elements of the packed kernel."""
        return self.chunks * self.chunk_bytes // FLOAT


@dataclass(frozen=True)
class FirstWeights:
    """The gradient of the first layer's kernel, by ordinary arithmetic.

    Attributes
    ----------
    layer : numbacaps.nn.resident.layout.FirstLayer
        The layer forward.
    x, at, shares_at : int
        Where the image, what reaches the layer's sums, and the threads' shares lie in shared memory, in elements;
        behind the shares what earlier images add.
    partial_at : int
        As that of :class:`Weights`.
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
class BackwardResidence:
    """All of it.

    Attributes
    ----------
    ring : numbacaps.nn.resident.layout.Residence
    first : FirstWeights
    layers : tuple of BackwardLayer
        All but the first.
    outputs : tuple of Output
        Of all layers.
    """

    ring: Residence
    first: FirstWeights
    layers: tuple
    outputs: tuple


def why_not(placed):
    """Why a network's backward pass cannot stay in a multiprocessor; None where it can.

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
    if first.P * first.D3 > residence.WARPGROUPS * WARPGROUP:
        return f"layers[0]: {first.P * first.D3} columns"
    return _place(placed)[0]


def place(placed):
    """The :class:`BackwardResidence` of a network for which there is no :func:`why_not`."""
    return _place(placed)[1]


def _place(placed):
    """(why not, residence)."""
    _, forward, first, others = residence.place(placed, True)
    warpgroups = forward.warpgroups
    sizes = [first.size, *(one.size for one in others)]
    inside = [_is_inside(one.geometry) for one in placed[1:]]
    # What reaches a layer's output lies in two places in turn; before it, in the same place, what else is needed.
    room = list(sizes)
    shapes = [_shape(one.geometry, layer.terms) for one, layer in zip(placed[1:], others)]
    for number, (one, shape, computed) in enumerate(zip(placed[1:], shapes, inside)):
        room[number] *= shape["copies"]
        if computed:
            room[number] = max(room[number], _transposed(one.geometry))
    room[1] = max(room[1], (warpgroups * WARPGROUP + first.N) * first.K)
    rooms = max(room[0::2]), max(room[1::2])
    lines = [in_lines(size * FLOAT) for size in (first.image, *rooms)]
    x_at, *places = (BARRIERS + sum(lines[:i]) for i in range(3))
    ring_at = BARRIERS + sum(lines)
    regions, places = places, [places[number % 2] // FLOAT for number in range(len(placed))]
    pitch = in_lines(max(shape["chunk_bytes"] for shape in shapes))
    slots = min(residence.MOST_SLOTS, (SHARED_LIMIT - LINE - ring_at) // pitch)
    if slots < _FEWEST_SLOTS:
        return f"gradients of {rooms[0]} and {rooms[1]} elements are too much", None
    # Until the largest is made, what is behind earlier ones in its place is free.
    largest = max(range(len(room)), key=room.__getitem__)
    later = in_lines(max([0, *room[largest + 2 :: 2]]) * FLOAT)
    more = (lines[1 + largest % 2] - later) // pitch if largest + 2 < len(placed) else 0
    more = min(more, residence.MOST_SLOTS - slots)
    gap = regions[largest % 2] + later - ring_at - slots * pitch
    size = LINE + ring_at + slots * pitch
    ring = Residence(warpgroups, slots, ring_at, pitch, more, gap, size)
    weights = FirstWeights(first, x_at // FLOAT, places[0], places[1], 0)
    layers, packed_at, partial_at = [], 0, weights.size
    copies = [*(shape["copies"] for shape in shapes), 1]
    outputs, d_sums_at = [_output(first, 0, 0, places[0], copies[0], None)], 0
    for number, (one, shape, computed) in enumerate(zip(others, shapes, inside), 1):
        g, found = placed[number].geometry, None
        written_at = None if computed else d_sums_at
        read = one.slopes_at, one.output_at
        outputs.append(_output(one, *read, places[number], copies[number], written_at))
        if computed:
            found = _weights(g, places[number - 1], outputs[number - 1].output_at, partial_at)
            partial_at += warpgroups * found.size
        else:
            d_sums_at += one.size
        layers.append(
            BackwardLayer(
                layer=one,
                slots=slots + (more if number > largest + 1 else 0),
                at=places[number],
                out=places[number - 1],
                packed_at=packed_at,
                weights=found,
                **shape,
            )
        )
        packed_at += layers[-1].packed
    return None, BackwardResidence(ring, weights, tuple(layers), tuple(outputs))


def _shape(g, terms):
    """How a layer's taps are multiplied."""
    K, N, taps = g.P * g.D3, g.C * g.D2, g.KH * g.KW
    steps = ceil_div(K, 8)
    run = max(count for count in (1, 2, 4) if g.D3 % count == 0 and 2 * steps % count == 0)
    column = steps * 8 * N * FLOAT
    tiles = ceil_div(g.L * g.D1, BM)
    warpgroups = residence.WARPGROUPS
    takes_taps = N >= _WIDE
    held = max(4 * steps, N // 2)
    at_once = max(1, min(tiles, _MOST_HELD // held)) if takes_taps else 1
    at_once = max(count for count in range(1, at_once + 1) if tiles % count == 0)
    most = 1 if takes_taps else max(1, min(_MOST_COLUMNS // N, _MOST_CHUNK // column))
    together = max(count for count in range(1, most + 1) if taps % count == 0)
    return {
        "K": K,
        "steps": steps,
        "run": run,
        "N": N,
        "D": g.D2,
        "size": g.C * g.H * g.W * g.E1,
        "together": together,
        "wide": 2 if N % 16 == 0 else 1,
        "takes_taps": takes_taps,
        "tiles": tiles,
        "at_once": at_once,
        "rounds": ceil_div(tiles, at_once if takes_taps else warpgroups),
        "copies": 1 if takes_taps else min(tiles, warpgroups),
        "chunks": taps // together * (2 if terms > 1 else 1),
        "chunk_bytes": together * column,
    }


def _output(layer, *places):
    return Output(layer.size, layer.group, layer.slope, *places)


def _is_inside(g):
    """Whether the gradient of a layer's kernel is small enough, and of capsules that are core matrices."""
    return (g.D1, g.D2) == _CORE and g.P * g.D3 <= BM and g.Q * g.D2 <= _MOST_WEIGHTS


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


def _weights(g, at, read_at, partial_at):
    pairs, batches = _pairs(g)
    return Weights(
        channels=g.C,
        pixels=(g.OH, g.OW),
        input=(g.H, g.W),
        taps=(g.KH, g.KW),
        step=g.stride,
        apart=g.dilation,
        at=at,
        padding=_padding(g),
        read_at=read_at,
        size=g.P * g.Q * g.E2,
        partial_at=partial_at,
        pairs=pairs,
        batches=batches,
    )
