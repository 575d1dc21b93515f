"""The forward pass in one multiprocessor: what fits, and where it lies; see :mod:`numbacaps.nn.resident.forward`."""

from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from numbacaps.device.launch import ceil_div
from numbacaps.fused import implicit_gemm
from numbacaps.fused.activation import Activation
from numbacaps.fused.epilogue import fit
from numbacaps.fused.precision import AUTO, TERMS, chosen_for
from numbacaps.fused.rung_4_wgmma.tile import BM, LANES, SHARED_LIMIT, WARPGROUP, Window
from numbacaps.fused.rung_5_warp_specialized.tile import run as run_of
from numbacaps.nn.resident.layers import (
    Chunks,
    FirstLayer,
    Output,
    Reads,
    ResidentLayer,
    Rows,
    Schedule,
    Taps,
)
from numbacaps.nn.resident.shared_memory import (
    BARRIERS,
    FEWEST_STAGES,
    FLOAT,
    LINE,
    MOST_STAGES,
    WARPGROUPS,
    WARPS,
    DoesNotFit,
    Pipeline,
    Region,
    SharedMemory,
    in_lines,
)

_DEPTH = 16  # k's of a chunk, of one tap
_AT_ONCE = {1: 72, 3: 48}  # k's whose fragments a thread can hold, by terms
_MOST_COLUMNS = 128
_FEW_ROWS = 8  # columns of a warp's product
_MOST_WEIGHTS = 96  # of the first layer, that a thread keeps
_GROUPS = (4, 8, 16, 32)  # elements that are squashed together
_RUN = 4  # elements of the first layer that a thread loads or stores at once: 16 bytes


@dataclass(frozen=True)
class ForwardLayout:
    """The forward pass of a network.

    Attributes
    ----------
    first : FirstLayer
    layers : tuple of ResidentLayer
        All others.
    pipeline : numbacaps.nn.resident.shared_memory.Pipeline
    memory : numbacaps.nn.resident.shared_memory.SharedMemory
        A step is a layer, counted from 0.
    """

    first: FirstLayer
    layers: tuple
    pipeline: Pipeline
    memory: SharedMemory

    @property
    def terms(self):
        """TF32 products that stand for one of float32."""
        return self.layers[0].terms

    @property
    def outputs(self):
        """Of all layers."""
        return self.first.output, *(layer.output for layer in self.layers)


def forward_layout(placed):
    """The layout of a network's forward pass.

    Parameters
    ----------
    placed : sequence of numbacaps.nn.layer.PlacedLayer

    Returns
    -------
    ForwardLayout

    Raises
    ------
    DoesNotFit
        With the reason.
    """
    _check(placed)
    terms = TERMS[precision_of(placed[1])]
    products = [implicit_gemm.forward(one.geometry) for one in placed[1:]]
    shares = [1, *map(_shares, products)]
    sizes = [one.geometry.P * one.geometry.L * one.geometry.E3 for one in placed]
    # Where a sum has several shares, all of them lie where the output will.
    room = [size * parts for size, parts in zip(sizes, shares)]
    pitch = in_lines(max(_chunk_bytes(product, terms) for product in products))
    pipeline, memory, largest = _place(placed, room, pitch)
    outputs = _outputs(placed, sizes, memory)
    layers, packed_at = [], 0
    for number, (one, product) in enumerate(zip(placed[1:], products), 1):
        opened = pipeline.late > 0 and number >= largest + 2
        stages = pipeline.stages if opened else pipeline.early
        chunks = _packed(product, terms, packed_at, stages)
        batch, overlaps = _batch(product, terms, shares[number], stages)
        tiles = ceil_div(product.M(1), BM)
        schedule = Schedule(
            swapped=_is_swapped(product),
            tiles=tiles,
            rounds=ceil_div(tiles, WARPGROUPS),
            shares=shares[number],
            batch=batch,
            overlaps=overlaps,
            opens_late=pipeline.late > 0 and number == largest + 1,
        )
        where = outputs[number - 1].at, outputs[number], number == len(placed) - 1
        layers.append(_layer(one, product, terms, chunks, schedule, where))
        packed_at += chunks.elements
    return ForwardLayout(_first(placed[0], memory, outputs[0]), tuple(layers), pipeline, memory)


def _place(placed, room, pitch):
    """(pipeline, memory, the layer whose output gives its room to late stages), for outputs of ``room`` elements.

    Layers write to two places in turn.
    """
    g, last = placed[0].geometry, len(placed) - 1
    image, weights = g.C * g.H * g.W * g.E1, g.P * g.Q * g.D2 * g.D3
    places = max(room[0::2]), max(room[1::2])
    lines = [in_lines(size * FLOAT) for size in (image, weights, *places)]
    *begins, ring_at = accumulate(lines, initial=BARRIERS)
    early = min(MOST_STAGES, (SHARED_LIMIT - LINE - ring_at) // pitch)
    if early < FEWEST_STAGES:
        raise DoesNotFit(f"outputs of {places[0]} and {places[1]} elements are too much")
    # Once the largest of the second place's outputs was read, what is behind later ones is free.
    largest = max(range(1, last + 1, 2), key=room.__getitem__)
    later = in_lines(max([0, *room[largest + 2 :: 2]]) * FLOAT)
    late = (lines[3] - later) // pitch if largest + 2 <= last else 0
    late = min(late, MOST_STAGES - early)
    gap = begins[3] + later - ring_at - early * pitch
    pipeline = Pipeline(WARPGROUPS, early, ring_at, pitch, late, gap)
    regions = [
        Region("image", begins[0], image * FLOAT, 0, last),  # a step's, then the next image
        Region("first kernel", begins[1], weights * FLOAT, 0, last),
        *pipeline.regions(len(placed), (largest + 2, last)),
    ]
    for number, size in enumerate(room):
        lives = number, min(number + 1, last)
        regions.append(Region(f"output {number}", begins[2 + number % 2], size * FLOAT, *lives))
    return pipeline, SharedMemory(tuple(regions), LINE + ring_at + early * pitch), largest


def _outputs(placed, sizes, memory):
    """Every layer's :class:`Output`."""
    found, groups, elements = [], 0, 0
    for number, (one, size) in enumerate(zip(placed, sizes)):
        group, at = int(one.layer.squash), memory[f"output {number}"].element
        found.append(Output(size, group, float(one.layer.slope), groups, elements, at))
        groups, elements = groups + size // group, elements + size
    return found


def _check(placed):
    """Refuse a network one of whose layers cannot stay in a multiprocessor."""
    if len(placed) < 2:
        raise DoesNotFit("it has one layer")
    for number, one in enumerate(placed):
        why = (_why_not_first if number == 0 else _why_not_layer)(one)
        if why:
            raise DoesNotFit(f"layers[{number}]: {why}")
    if len(set(map(precision_of, placed[1:]))) > 1:
        raise DoesNotFit("its layers have several precisions")


def precision_of(placed):
    """The precision of a layer in a pass as one kernel.

    ``"auto"`` becomes ``"tf32x3"`` where the sums of the forward pass and those of the input's gradient are long enough, else ``"ieee"``.
    """
    if placed.layer.precision != AUTO:
        return placed.layer.precision
    forward = implicit_gemm.forward(placed.geometry)
    backward = implicit_gemm.backward_input(placed.geometry)
    columns, summed = min(forward.N, backward[0].N), min(forward.K, max(p.K for p in backward))
    return chosen_for(np.dtype(np.float32), columns, summed)


def _why_not_any(one):
    g, layer = one.geometry, one.layer
    if layer.algorithm not in ("auto", "fused"):
        return f"its algorithm is {layer.algorithm!r}"
    if g.G > 1:
        return f"G is {g.G}"
    if layer.squash not in _GROUPS:
        return f"groups of {layer.squash} elements are not squashed: {_GROUPS} are"
    if g.L * g.E3 % 4:
        return "a channel of its output is no multiple of 16 bytes"
    if not implicit_gemm.forward(g).inside:
        return "windows reach over the edge"
    return None


def _why_not_first(one):
    g, group = one.geometry, one.layer.squash or 1
    if g.Q * g.D2 * group > _MOST_WEIGHTS:
        return f"{g.Q * g.D2} weights of {group} elements, more than {_MOST_WEIGHTS}"
    if g.D1 > 1 or g.D3 % group:
        return f"groups of {group} are no parts of rows of {g.D3}"
    if g.P * g.D3 // group > WARPGROUP or (g.C * g.H * g.W * g.E1) % 4:
        return f"{g.P * g.D3 // group} groups a pixel, or images of no multiple of 16 bytes"
    return _why_not_any(one)


def _why_not_layer(one):
    g, product = one.geometry, implicit_gemm.forward(one.geometry)
    if precision_of(one) not in TERMS:
        where = " where sums are this short" if one.layer.precision == AUTO else ""
        return f"precision {one.layer.precision!r} is ordinary arithmetic{where}"
    if product.N > _MOST_COLUMNS or product.N % 2:
        return f"{product.N} columns"
    if g.D2 % 4 or _DEPTH % g.D2 or (g.C * g.D2) % 8:
        return f"{g.C} channels of {g.D2} do not come in 8 and {_DEPTH} of k"
    if g.D3 % 2:
        return f"D3 is {g.D3}: sums are stored in pairs"
    why = _why_not_any(one)
    return why or fit(_activation(one), product, _columns(product), LANES)[1]


def _activation(one):
    return Activation(float(one.layer.slope), int(one.layer.squash))


def _is_swapped(product):
    return product.M(1) <= _FEW_ROWS


def _columns(product):
    multiple = 16 if _is_swapped(product) else 8
    return ceil_div(product.N, multiple) * multiple


def _shares(product):
    """Parts of a tile's sum, so that every warpgroup has one, or every warp."""
    if _is_swapped(product):
        return WARPS * WARPGROUPS
    tiles = ceil_div(product.M(1), BM)
    chunks = _chunks(product)[1]
    wanted = max(1, WARPGROUPS // tiles)
    return max(count for count in range(1, wanted + 1) if chunks % count == 0)


def _chunks(product):
    """(channels, count): of a row of taps' chunks."""
    depth = _DEPTH if product.channels * product.D % _DEPTH == 0 else 8
    channels = max(1, depth // product.D)
    return channels, product.channels // channels * len(product.tap_rows)


def _chunk_bytes(product, terms):
    """Of a row of taps of some channels."""
    depth = _chunks(product)[0] * product.D
    return len(product.tap_columns) * depth * _columns(product) * FLOAT * (2 if terms > 1 else 1)


def _batch(product, terms, shares, stages):
    """(chunks multiplied in one go, whether steps of that size overlap).

    A thread holds their fragments, and the ring all of them; of steps that overlap, twice.
    """
    if _is_swapped(product):
        return 1, False
    depth, count = _chunks(product)[0] * product.D, _chunks(product)[1] // shares
    most = min(_AT_ONCE[terms] // (len(product.tap_columns) * depth), stages // shares)
    sizes = [some for some in range(1, max(1, most) + 1) if count % some == 0]
    pairs = [some for some in sizes if count // some % 2 == 0 and 2 * shares * some <= stages]
    overlaps = terms == 1 and bool(pairs)
    return max(pairs if overlaps else sizes), overlaps


def _packed(product, terms, packed_at, stages):
    channels, count = _chunks(product)
    groups, run = channels * product.D // 8, run_of(product.D)
    return Chunks(count, _chunk_bytes(product, terms), packed_at, stages, channels, groups, run)


def _first(one, memory, output):
    g = one.geometry
    product = implicit_gemm.forward(g)
    p, (down, across) = product.pixels, Window.of(product).step
    steps = (p.gathered[1], p.gathered[2], product.channel_steps[0])
    reads = Reads(*steps, down * p.unit[0], across * p.unit[1], _first_read(product))
    sizes = (g.P, product.N, g.C, g.KH, g.KW, g.D2, g.Q * g.D2, g.L, g.OW)
    at = memory["image"].element, memory["first kernel"].element
    return FirstLayer(g.C * g.H * g.W * g.E1, *sizes, reads, _RUN, *at, output)


def _first_read(product):
    """Where the first pixel's window begins in the input, in elements."""
    p, window = product.pixels, Window.of(product)
    (row, column), (top, left) = p.unit, window.first
    return (p.top[1] + top + window.start[0]) * row + (p.left[1] + left + window.start[1]) * column


def _layer(one, product, terms, chunks, schedule, where):
    p, window, BN = product.pixels, Window.of(product), _columns(product)
    reads = p.gathered[1:]
    rows = Rows(product.M(1), p.D1, p.columns, reads, _first_read(product), p.other[1:])
    steps = window.step[0] * p.unit[0], window.step[1] * p.unit[1]
    return ResidentLayer(
        product.N,
        product.D,
        one.geometry.D3,
        BN,
        product.n.other,
        terms,
        rows,
        Taps(*window.taps, product.channel_steps[0], *steps),
        chunks,
        schedule,
        *where,
        fit(_activation(one), product, BN, LANES)[0],
    )
