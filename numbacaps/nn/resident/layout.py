"""What of a network can stay in one multiprocessor, and where it lies there; see :mod:`numbacaps.nn.resident.forward`."""

from dataclasses import dataclass

from numbacaps.device.launch import ceil_div
from numbacaps.fused import implicit_gemm
from numbacaps.fused.activation import Activation
from numbacaps.fused.epilogue import Epilogue, fit
from numbacaps.fused.rung_4_wgmma.tile import BM, LANES, SHARED_LIMIT, WARPGROUP, Window
from numbacaps.fused.rung_5_warp_specialized.tile import run as run_of

FLOAT = 4  # bytes
LINE = 128  # bytes, to which everything in shared memory is aligned
BARRIERS = 256  # bytes
MOST_SLOTS = BARRIERS // 16 - 1  # of the ring, two barriers each; there is one more
_FEWEST_SLOTS = 2
_DEPTH = 16  # k's of a chunk, of one tap
_AT_ONCE = {1: 72, 3: 48}  # k's whose fragments a thread can hold, by terms
_MOST_COLUMNS = 128
_FEW_ROWS = 8  # columns of a warp's product
_MOST_WEIGHTS = 96  # of the first layer, that a thread keeps
_GROUPS = (4, 8, 16, 32)  # elements that are squashed together
_REGISTERS = 65536  # of a multiprocessor
COPYING_REGISTERS = 24
WARPGROUPS = 2  # that multiply
WARPS = 4  # of a warpgroup
_TERMS = {"tf32": 1, "tf32x3": 3}


@dataclass(frozen=True)
class FirstLayer:
    """The layer that is computed by ordinary arithmetic.

    Attributes
    ----------
    image, size : int
        Elements of an image, and of what is made of it.
    group : int
        Elements that are squashed together; a part of a capsule's row.
    P, N, C, KH, KW, D2, K : int
        As the geometry's and the product's.
    pixels, columns : int
        Of the result, and of a row of it.
    steps : tuple of int
        Elements of the image from a pixel to the one below, to the next, from a channel to the next, from a row of
        taps, from a tap, and where the first pixel's window begins.
    run : int
        Elements that a thread loads or stores at once.
    slope : float
    x, kernel, out : int
        Where the image, the kernel and the result lie in shared memory, in elements.
    """

    image: int
    size: int
    group: int
    P: int
    N: int
    C: int
    KH: int
    KW: int
    D2: int
    K: int
    pixels: int
    columns: int
    steps: tuple
    run: int
    slope: float
    x: int
    kernel: int
    out: int


@dataclass(frozen=True)
class ResidentLayer:
    """One of the others, a :class:`numbacaps.fused.implicit_gemm.Product` of one image.

    Attributes
    ----------
    N, D, D1, D3, rows, columns : int
        Columns of the product, elements of a channel's row, rows d1 of a pixel, elements of a result's row,
        all rows of the product, and pixels of a row of the result.
    BN : int
        Columns of a tile: all, to a multiple of 8; of few rows, of 16.
    reads : tuple of int
        Elements in shared memory from where one row of pixels, one pixel, one d1 reads to the next; and where the
        first one reads.
    taps_apart : tuple of int
        From one channel, one row of taps, one tap to the next.
    taps : tuple of int
        Rows of them, and taps of each.
    channels_at_once, groups, run, chunks, chunk_bytes, batch : int
        A chunk of the kernel: a row of taps of so many channels, which are so many times 8 of k; what a thread loads
        at once; how many there are, and their bytes; and how many are multiplied in one go.
    slots : int
        Of the ring, that its chunks take.
    follows : bool
        Products of a step are queued before the last step's are done, whose chunks the ring holds so long.
    leaves : bool
        Behind it the further slots are free, which later layers take.
    terms : int
    few : bool
        Rows are the columns of products that warps make; see :mod:`numbacaps.nn.resident.few_rows`.
    tiles, rounds, shares : int
        Tiles of 64 rows; how often a warpgroup takes one; into how many parts a tile's sum is cut.
    results : tuple of int
        From one row of pixels, one pixel, one d1 of the result to the next.
    by_capsule, size : int
        From one of its capsules to the next, and elements of all.
    at, out : int
        Where the input and the result lie in shared memory, in elements.
    packed_at : int
        Where the packed kernel begins.
    slopes_at, output_at : int
        Groups of an image before the layer's, and elements of it before the layer's output, in global memory.
    last : bool
    group, slope
        Of the activation, as the first layer's.
    epilogue : numbacaps.fused.epilogue.Epilogue
        The same where a tile's sum is in one part.
    """

    N: int
    D: int
    D1: int
    D3: int
    rows: int
    columns: int
    BN: int
    reads: tuple
    taps_apart: tuple
    taps: tuple
    channels_at_once: int
    groups: int
    run: int
    chunks: int
    chunk_bytes: int
    batch: int
    slots: int
    follows: bool
    leaves: bool
    terms: int
    few: bool
    tiles: int
    rounds: int
    shares: int
    results: tuple
    by_capsule: int
    size: int
    at: int
    out: int
    packed_at: int
    slopes_at: int
    output_at: int
    last: bool
    group: int
    slope: float
    epilogue: Epilogue


@dataclass(frozen=True)
class Residence:
    """The ring of packed kernels, and the threads that read it.

    Attributes
    ----------
    warpgroups : int
        That multiply; one more copies.
    ring, ring_at, pitch : int
        Chunks at a time; where the first one lies, and from one to the next, in bytes.
    more, gap : int
        Further slots, where large outputs of earlier layers lay; bytes from behind the ring to the first of them.
    bytes : int
        All, and what aligning the beginning may take.
    """

    warpgroups: int
    ring: int
    ring_at: int
    pitch: int
    more: int
    gap: int
    bytes: int

    @property
    def slots(self):
        """All slots of the ring."""
        return self.ring + self.more

    @property
    def threads(self):
        """Threads of a block."""
        return (self.warpgroups + 1) * WARPGROUP

    @property
    def registers(self):
        """What a thread that multiplies may have: what the copying ones leave."""
        all_of_them = _REGISTERS // self.threads // 8 * 8 * (self.warpgroups + 1)
        return min(240, (all_of_them - COPYING_REGISTERS) // self.warpgroups // 8 * 8)


def why_not(placed):
    """Why a network cannot stay in a multiprocessor; None where it can.

    Parameters
    ----------
    placed : sequence of numbacaps.nn.layer.PlacedLayer
    """
    if len(placed) < 2:
        return "it has one layer"
    for number, one in enumerate(placed):
        why = (_why_not_first if number == 0 else _why_not_layer)(one)
        if why:
            return f"layers[{number}]: {why}"
    if len({one.layer.precision for one in placed[1:]}) > 1:
        return "its layers have several precisions"
    return place(placed, True)[0]


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
    if one.layer.precision not in _TERMS:
        return f"precision {one.layer.precision!r} is ordinary arithmetic"
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


def _is_few(product):
    return product.M(1) <= _FEW_ROWS


def _columns(product):
    multiple = 16 if _is_few(product) else 8
    return ceil_div(product.N, multiple) * multiple


def place(placed, for_gradients):
    """(why not, residence, first layer, other layers), of a network each of whose layers can stay.

    Parameters
    ----------
    placed : sequence of numbacaps.nn.layer.PlacedLayer
        The first of the tuple is None where all of it fits, otherwise nothing else counts.
    for_gradients : bool
        All outputs are written, not the last one alone.
    """
    terms = terms_of(placed)
    warpgroups = WARPGROUPS
    sizes = [one.geometry.P * one.geometry.L * one.geometry.E3 for one in placed]
    groups = [size // int(one.layer.squash) for size, one in zip(sizes, placed)]
    g = placed[0].geometry
    image = g.C * g.H * g.W * g.E1
    last = len(placed) - 1
    products = [implicit_gemm.forward(one.geometry) for one in placed[1:]]
    shares = [_shares(product, warpgroups) for product in products]
    # Layers write to two places in turn; where a sum has several shares, all of them lie there.
    room = [sizes[0]] + [size * parts for size, parts in zip(sizes[1:], shares)]
    first_room, second_room = max(room[0::2]), max(room[1::2])
    weights = g.P * g.Q * g.D2 * g.D3
    lines = [in_lines(size * FLOAT) for size in (image, weights, first_room, second_room)]
    image_at, kernel_at, first_at, second_at = (BARRIERS + sum(lines[:i]) for i in range(4))
    ring_at = second_at + lines[3]
    places = [(first_at, second_at)[number % 2] // FLOAT for number in range(len(placed))]
    pitch = in_lines(max(_chunk_bytes(product, terms) for product in products))
    ring = min(MOST_SLOTS, (SHARED_LIMIT - LINE - ring_at) // pitch)
    if ring < _FEWEST_SLOTS:
        return f"outputs of {first_room} and {second_room} elements are too much", None, None, None
    # Once the largest of the second place's outputs was read, what is behind later ones is free.
    largest = max(range(1, last + 1, 2), key=room.__getitem__)
    later = in_lines(max([0, *room[largest + 2 :: 2]]) * FLOAT)
    more = (lines[3] - later) // pitch if largest + 2 <= last else 0
    more = min(more, MOST_SLOTS - ring)
    residence = Residence(
        warpgroups,
        ring,
        ring_at,
        pitch,
        more,
        second_at + later - ring_at - ring * pitch,
        LINE + ring_at + ring * pitch,
    )
    layers, packed_at = [], 0
    for number, (one, product) in enumerate(zip(placed[1:], products), 1):
        opened = more > 0 and number >= largest + 2
        layers.append(
            _resident(
                one,
                product,
                terms,
                warpgroups,
                shares[number - 1],
                slots=ring + (more if opened else 0),
                leaves=more > 0 and number == largest + 1,
                at=places[number - 1],
                out=places[number],
                packed_at=packed_at,
                slopes_at=sum(groups[:number]),
                output_at=sum(sizes[:number]) if for_gradients else 0,
                last=number == last,
            )
        )
        packed_at += layers[-1].chunks * layers[-1].chunk_bytes // FLOAT
    at = image_at // FLOAT, kernel_at // FLOAT, places[0]
    return None, residence, _first(placed[0], sizes[0], image, at), tuple(layers)


def terms_of(placed):
    """Terms of the products of a network for which there is no :func:`why_not`."""
    return _TERMS[placed[1].layer.precision]


def in_lines(size):
    """Bytes, to whole lines."""
    return ceil_div(size, LINE) * LINE


def _shares(product, warpgroups):
    """Into how many parts the sum of a tile is cut, so that more warpgroups have one, or all warps."""
    if _is_few(product):
        return WARPS * warpgroups
    tiles = ceil_div(product.M(1), BM)
    chunks = _chunks(product)[1]
    wanted = max(1, warpgroups // tiles)
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


def _batch(product, terms, shares, slots):
    """(chunks multiplied in one go, whether steps of so many follow each other).

    A thread holds their fragments, and the ring all of them; of steps that follow, twice.
    """
    if _is_few(product):
        return 1, False
    depth, count = _chunks(product)[0] * product.D, _chunks(product)[1] // shares
    most = min(_AT_ONCE[terms] // (len(product.tap_columns) * depth), slots // shares)
    sizes = [some for some in range(1, max(1, most) + 1) if count % some == 0]
    pairs = [some for some in sizes if count // some % 2 == 0 and 2 * shares * some <= slots]
    follows = terms == 1 and bool(pairs)
    return max(pairs if follows else sizes), follows


def _first(one, size, image, at):
    g = one.geometry
    product = implicit_gemm.forward(g)
    p, (down, across) = product.pixels, Window.of(product).step
    steps = (p.gathered[1], p.gathered[2], product.channel_steps[0])
    steps += (down * p.unit[0], across * p.unit[1], _first_slot(product))
    group, run = int(one.layer.squash), 4
    sizes = (g.P, product.N, g.C, g.KH, g.KW, g.D2, g.Q * g.D2, g.L, g.OW)
    return FirstLayer(image, size, group, *sizes, steps, run, float(one.layer.slope), *at)


def _first_slot(product):
    p, window = product.pixels, Window.of(product)
    (row, column), (top, left) = p.unit, window.first
    return (p.top[1] + top + window.start[0]) * row + (p.left[1] + left + window.start[1]) * column


def _resident(one, product, terms, warpgroups, shares, slots, **places):
    g, p, window = one.geometry, product.pixels, Window.of(product)
    BN = _columns(product)
    channels, chunks = _chunks(product)
    groups = channels * product.D // 8
    tiles, (batch, follows) = ceil_div(product.M(1), BM), _batch(product, terms, shares, slots)
    return ResidentLayer(
        N=product.N,
        D=product.D,
        D1=p.D1,
        D3=g.D3,
        rows=product.M(1),
        columns=p.columns,
        BN=BN,
        reads=(*p.gathered[1:], _first_slot(product)),
        taps_apart=(
            product.channel_steps[0],
            window.step[0] * p.unit[0],
            window.step[1] * p.unit[1],
        ),
        taps=window.taps,
        channels_at_once=channels,
        groups=groups,
        run=run_of(product.D),
        chunks=chunks,
        chunk_bytes=_chunk_bytes(product, terms),
        batch=batch,
        slots=slots,
        follows=follows,
        terms=terms,
        few=_is_few(product),
        tiles=tiles,
        rounds=ceil_div(tiles, warpgroups),
        shares=shares,
        results=p.other[1:],
        by_capsule=product.n.other,
        size=g.P * g.L * g.E3,
        group=int(one.layer.squash),
        slope=float(one.layer.slope),
        epilogue=fit(_activation(one), product, BN, LANES)[0],
        **places,
    )
