"""Which rung of the ladder computes a product, with which tile, and why.

:func:`choose` answers for the products that gather one operand, forward and the input's gradient;
:mod:`numbacaps.fused.choose_split_k` for the kernel's gradient, and :mod:`numbacaps.fused.choose_input` for how the products
of the input's gradient go together. All return one shape of answer, a :class:`Choice`. A rung, and a tile of it, can be
forced: for timing one against the other.
"""

from collections.abc import Callable
from dataclasses import astuple, dataclass, fields, is_dataclass, replace
from functools import partial

import numpy as np

from numbacaps.device.dtypes import sum_dtype
from numbacaps.device.gpu import GH100, multiprocessors
from numbacaps.device.target import SIMULATED
from numbacaps.fused import implicit_gemm
from numbacaps.fused.activation import Activation
from numbacaps.fused.clear import ClearLauncher
from numbacaps.fused.im2col_packing import im2col_cycles, of_matrix, why_not_im2col
from numbacaps.fused.mma_sync import launcher as mma_sync
from numbacaps.fused.mma_sync import tile as mma_sync_tiles
from numbacaps.fused.mma_sync.choose_tile import packing_cycles
from numbacaps.fused.pixel_packing import of_capsules, why_not_packed
from numbacaps.fused.precision import has_tensor_cores, has_warpgroups, terms_of
from numbacaps.fused.rung_3_register_tiles import tile as register_tiles
from numbacaps.fused.rung_3_register_tiles.launcher import RegisterTilesLauncher
from numbacaps.fused.rung_4_wgmma import tile as wgmma_tiles
from numbacaps.fused.rung_4_wgmma.launcher import WgmmaLauncher
from numbacaps.fused.rung_5_warp_specialized import tile as warp_specialized_tiles
from numbacaps.fused.rung_5_warp_specialized.launcher import WarpSpecializedLauncher
from numbacaps.fused.rung_5_warp_specialized.lines import LinesLauncher, in_lines
from numbacaps.fused.rung_5_warp_specialized.packed_launcher import Im2colLauncher, PackedLauncher
from numbacaps.fused.rung_6_swap_ab import tile as swap_ab_tiles
from numbacaps.fused.rung_6_swap_ab.launcher import SwapABLauncher

_MOST_COUNTED = 2**31 - 2**16  # in 32 bits, by steps of at most 2^16
_SURELY = 1.2  # times as many cycles: more than the models of two rungs err by
# Between TMA, with images as rows, and mma_sync: times as many cycles, and cycles besides. Forward products whose models were 1.1 to 1.2 times
# apart were timed both ways (H200, 2026-12-01): of 14 drawn ones mma_sync took 0.32 to 1.16 of TMA's time, the geometric mean was 0.74.
# Layer 5 of the published network, where both take about 10,000 cycles by the models, took 1.2 times as long by mma_sync in 2 bytes.
_TIMES_SLOWER, _CYCLES_SLOWER = 1.1, 1_000
# Cycles that a product of TMA waits for itself, which the models of its rungs do not count. Most small drawn
# products took about 4,500 cycles more than their model says, with the packing of the kernel (H200, 2026-11-30).
_TMA_START = 2_000
_PACKS_KERNEL = GH100.pack_cycles + _TMA_START  # the wait where the kernel is packed first
# Cycles more by which packed pixels must win. _PACKS_KERNEL of each product is among these cycles.
_PACKING_AROUND = 20_000
# Cycles of a multiprocessor that warp_specialized takes to write a byte of a pair of elements, and an element that has no pair
# (H200, 2026-11-30: 0.2 to 1.6 at drawn products of 2 bytes).
_WRITTEN_BYTE, _WRITTEN_ALONE = 0.1, 0.8
# Part of these cycles that lines of a matrix by im2col do not take. Fitted by eye to times of 15 drawn products (H200, 2026-12-01).
_LESS_IN_LINES = 0.6
_FEWEST_K = 16  # products of a sum for which it is worth to pack the kernel
# Cycles of a multiprocessor for an element of the result besides its bytes, where pixels are packed.
_STORED = 1
TMA = (
    "warp_specialized",
    "warp_specialized_lines",
    "swap_ab",
)  # rungs whose copies are TMA's, of arrays as they lie


@dataclass(frozen=True)
class Job:
    """A product to be computed.

    Attributes
    ----------
    product : numbacaps.fused.implicit_gemm.Product
    images, G : int
    dtype : numpy.dtype
        Of the arrays.
    precision : str
        A word of :data:`numbacaps.fused.precision.PRECISIONS`.
    activation : numbacaps.fused.activation.Activation, optional
        What is wanted behind it, where its kernel can.
    follows : bool
        Another product of the pass is packed, and multiplied, before this one.
    size : int
        Elements of the kernel; for its gradient.
    result : int
        Elements of the array that a gathering product writes to, or writes a part of.
    looked : tuple of (pass, numbacaps.geometry.Geometry), optional
        The pass whose results of three terms are looked through by the launch that has them last.
    """

    product: implicit_gemm.Product
    images: int
    G: int
    dtype: np.dtype
    precision: str = "ieee"
    activation: Activation | None = None
    follows: bool = False
    size: int = 0
    result: int = 0
    looked: tuple | None = None

    @property
    def terms(self):
        """Products of the tensor cores for one of the dtype's; None for ordinary arithmetic."""
        return terms_of(self.dtype, self.precision)

    @property
    def operands(self):
        """What every launcher of a gathering pass takes first."""
        return self.product, self.images, self.G, self.dtype


@dataclass(frozen=True)
class Choice:
    """A rung, and its tile, for a product.

    Attributes
    ----------
    rung : str
        A key of :data:`GATHERING` or of :data:`numbacaps.fused.choose_split_k.SPLIT_K`.
    launcher : callable
        ``launcher()`` compiles the kernel and makes it ready.
    tile : object
        Of the rung's own ``tile`` module.
    predicted : float or None
        Estimated cycles: by the rung's own model, and what its launches wait for; None where it has no model. Of packed
        pixels, ``_PACKING_AROUND`` is not in it; of columns by ordinary arithmetic, the product is not.
    why : str
    """

    rung: str
    launcher: Callable
    tile: object
    predicted: float | None
    why: str

    @property
    def forced(self):
        """What :func:`numbacaps.plan` takes for a pass in ``rungs``: the rung, and the tile's sizes."""
        return self.rung, _sizes_of(self.tile)


def _sizes_of(tile):
    """A tile's sizes as the tuple by which it can be forced."""
    return astuple(tile) if is_dataclass(tile) else tile


class NotPossible(ValueError):
    """A rung, or a tile of it, cannot compute a product; the message says why."""


def register_tile(job, tile=None, rung="register_tiles"):
    """(tile, why): the one of register tiles that has the sizes, or the one that a job should take.

    ``rung`` is named where there is none.
    """
    if tile is not None:
        return one_of(register_tiles.TILES, tile, rung), "asked for"
    rows, itemsize = job.product.M(job.images) * job.G, sum_dtype(job.dtype).itemsize
    # A narrow tile, which short sums may take, keeps wide groups of an activation apart.
    summed = register_tiles.SHORT if job.activation else job.product.K
    return register_tiles.choose_tile(rows, job.product.N, summed, itemsize)


def _register_tiles(job, tile=None):
    chosen, why = register_tile(job, tile)
    make = partial(RegisterTilesLauncher, *job.operands, job.activation, (chosen, why))
    return Choice("register_tiles", make, chosen, None, why)


def _wgmma(job, tile=None):
    if job.dtype != np.float32 or job.precision != "tf32":
        raise NotPossible("wgmma takes float32 at precision 'tf32'")
    if not has_warpgroups():
        raise NotPossible("wgmma takes a GPU of compute capability 9.0")
    if tile is not None:
        chosen, why = _tile_of(wgmma_tiles.WarpgroupTile, tile), "asked for"
        refuse(wgmma_tiles.why_not(chosen, job.product, job.dtype))
    else:
        chosen, why = wgmma_tiles.choose_tile(*job.operands, multiprocessors())
        refuse(None if chosen else why)
    make = partial(WgmmaLauncher, *job.operands, chosen, why, job.activation, job.follows)
    return Choice("wgmma", make, chosen, None, why)


def _refuse_without_wgmma(job, rung):
    if not job.terms:
        raise NotPossible(f"{rung} takes no {job.dtype} at precision {job.precision!r}")
    if not has_warpgroups():
        raise NotPossible(f"{rung} takes a GPU of compute capability 9.0")


def _warp_specialized(job, tile=None):
    _refuse_without_wgmma(job, "warp_specialized")
    return _persistent(
        "warp_specialized", WarpSpecializedLauncher, job, job.product, job.images, tile
    )


def _warp_specialized_lines(job, tile=None):
    _refuse_without_wgmma(job, "warp_specialized_lines")
    product, columns = job.product, job.product.pixels.columns
    lines = in_lines(product, job.images, job.dtype)
    return _persistent("warp_specialized_lines", LinesLauncher, job, lines, columns, tile)


def _persistent(rung, launcher, job, read, images, tile):
    """The choice of rung 5.

    ``read`` is the product that its kernel computes: the job's own, or in lines the one with images and columns exchanged.
    ``images`` are those of that product.
    """
    terms, counted = job.terms, warp_specialized_tiles.counted(read, job.dtype)
    if not counted:
        raise NotPossible("capsules' rows of 2-byte elements do not come in pairs")
    refuse_many_images(job)
    if tile is not None:
        chosen, why = _tile_of(warp_specialized_tiles.BulkTile, tile), "asked for"
        refuse(warp_specialized_tiles.why_not(chosen, counted, job.G, terms))
    else:
        which = counted, images, job.G, terms, multiprocessors()
        chosen, why = warp_specialized_tiles.choose_tile(*which)
        refuse(None if chosen else why)
    if warp_specialized_tiles.tiles_of(chosen, counted, images, job.G) >= _MOST_COUNTED:
        raise NotPossible(f"{_MOST_COUNTED} tiles or more, which are counted in 32 bits")
    how = chosen, why, terms, job.activation, job.follows
    make = partial(launcher, *job.operands, *how, looked=job.looked)
    which = chosen, counted, images, job.G, terms, multiprocessors()
    written = job.product.M(job.images) * job.product.N * job.G * _write(job) / multiprocessors()
    takes = warp_specialized_tiles.cycles(*which) + written + _PACKS_KERNEL
    return Choice(rung, make, chosen, takes, why)


def _write(job):
    """Cycles of a multiprocessor to write an element of the result."""
    is_paired = job.product.pixels.other[3] % 2 == 0
    return _WRITTEN_BYTE * job.dtype.itemsize if is_paired else _WRITTEN_ALONE


def _warp_specialized_packed(job, tile=None):
    return packed_together([job], tile)


def _warp_specialized_lines_packed(job, tile=None):
    return packed_in_lines_together([job], tile)


def packed_together(jobs, tile=None):
    """Products of one gathered array and one kernel by TMA, of pixels that are packed once for all."""
    return _packed(
        "warp_specialized_packed", WarpSpecializedLauncher, jobs, _warp_specialized, tile
    )


def packed_in_lines_together(jobs, tile=None):
    """The same in lines."""
    how = LinesLauncher, jobs, _warp_specialized_lines, tile
    return _packed("warp_specialized_lines_packed", *how)


def _packed(rung, launcher, jobs, unpacked, tile):
    """The choice of products whose pixels are packed, and which the rung ``unpacked`` computes then."""
    job = jobs[0]
    _refuse_activation_or_other_gpu(job, rung)
    refuse(why_not_packed(job.product, job.G, job.dtype))
    products = [one.product for one in jobs]
    read = [of_capsules(product, job.G, job.dtype) for product in products]
    found = [unpacked(replace(job, product=one), tile) for one in read]
    nbytes = job.images * read[0].pixels.gathered[0] * job.dtype.itemsize
    takes = packing_cycles(nbytes, multiprocessors())
    takes += sum(one.predicted - _PACKS_KERNEL for one in found)
    # _write is in the products' own cycles.
    stored = _STORED + _WRITTEN_BYTE * job.dtype.itemsize - _write(job)
    takes += job.result * stored / multiprocessors()
    how = [(one.tile, one.why) for one in found]
    make = partial(
        PackedLauncher, launcher, products, *job.operands[1:], how, job.terms, job.looked
    )
    return Choice(rung, make, found[0].tile, takes, found[0].why)


def _refuse_activation_or_other_gpu(job, rung):
    """Refuse what TMA's kernel does not compute where the gathered array is laid out first."""
    if job.activation is not None:
        raise NotPossible(f"{rung} takes no activation")
    _refuse_without_wgmma(job, rung)


def _warp_specialized_im2col(job, tile=None):
    return _im2col("warp_specialized_im2col", WarpSpecializedLauncher, job, _warp_specialized, tile)


def _warp_specialized_lines_im2col(job, tile=None):
    how = LinesLauncher, job, _warp_specialized_lines, tile
    return _im2col("warp_specialized_lines_im2col", *how)


def _im2col(rung, launcher, job, unpacked, tile):
    """The choice of a product whose windows are laid out first, and which the rung ``unpacked`` computes then."""
    _refuse_activation_or_other_gpu(job, rung)
    refuse(why_not_im2col(job.product, job.images, job.G, job.dtype))
    read = of_matrix(job.product, job.G, job.dtype)
    found = unpacked(replace(job, product=read), tile)
    takes = im2col_cycles(job.product, job.images, job.G, job.dtype) + found.predicted
    if launcher is LinesLauncher:  # it writes what lies side by side
        results = job.product.M(job.images) * job.product.N * job.G
        takes -= _LESS_IN_LINES * results * _write(job) / multiprocessors()
    how = [(found.tile, found.why)]
    which = launcher, [job.product], *job.operands[1:], how, job.terms, job.looked
    return Choice(rung, partial(Im2colLauncher, *which), found.tile, takes, found.why)


def _swap_ab(job, tile=None):
    if job.dtype != np.float32 or job.precision != "tf32" or job.activation is not None:
        raise NotPossible("swap_ab takes float32 at precision 'tf32', without an activation")
    if not has_warpgroups():
        raise NotPossible("swap_ab takes a GPU of compute capability 9.0")
    which = job.product, job.images, job.G
    if tile is not None:
        refuse(swap_ab_tiles.why_never(*which))
        chosen, why, takes = _tile_of(swap_ab_tiles.SwappedTile, tile), "asked for", None
        refuse(swap_ab_tiles.why_not(chosen, job.product, swap_ab_tiles.Slots.of(job.product)))
    else:
        chosen, why, takes = swap_ab_tiles.choose_tile(*which, multiprocessors())
        refuse(None if chosen else why)
        takes += _TMA_START
    make = partial(SwapABLauncher, *job.operands, chosen, why)
    return Choice("swap_ab", make, chosen, takes, why)


def _tile_of(kind, tile):
    """A tile of a rung's kind from its sizes."""
    names = [field.name for field in fields(kind)]
    if len(tile) != len(names) or min(tile) < 1:
        raise NotPossible(f"tile is {tile}; it takes ({', '.join(names)}), each 1 or more")
    return kind(*tile)


def one_of(tiles, tile, rung):
    """The tile of these that has the sizes; None if none is asked for."""
    if tile is None:
        return None
    found = [one for one in tiles if astuple(one) == tile]
    if not found:
        raise NotPossible(f"tile is {tile}; {rung} takes one of {[astuple(one) for one in tiles]}")
    return found[0]


def forced_tile(terms, tile, rung="mma_sync"):
    """The tile of the warps' kernel that has the sizes; None if none is asked for. ``rung`` is named where there is none."""
    return one_of(mma_sync_tiles.TILES[terms], tile, rung)


def refuse_many_images(job):
    """NotPossible of more images than TMA's coordinates count."""
    if job.images >= _MOST_COUNTED:
        raise NotPossible(f"{job.images} images; TMA's coordinates have 32 bits")


def refuse(why):
    """NotPossible if there is a reason."""
    if why:
        raise NotPossible(why)


def _mma_sync(job, tile=None):
    return mma_sync_together([job], tile)


def mma_sync_together(jobs, tile=None):
    """One launch of the warps' kernel for products of one gathered array, one kernel and one result."""
    job, terms = jobs[0], jobs[0].terms
    if not terms:
        raise NotPossible(f"mma_sync takes no {job.dtype} at precision {job.precision!r}")
    if not has_tensor_cores():
        raise NotPossible("mma_sync takes a GPU of compute capability 8.0 or later")
    forced = forced_tile(terms, tile)
    products = [job.product for job in jobs]
    which = products, job.images, job.G, job.dtype, terms
    whole = sum(product.M(job.images) * product.N * job.G for product in products) >= job.result
    how, why = mma_sync.choose(*which, tile=forced, whole=whole)
    refuse(None if how else why or "a thread has too few registers for its copies")
    if how.splits > 1 and not whole:
        raise NotPossible("splits are added all over the result, and other products write there")
    make = partial(mma_sync.MmaSyncLauncher, *which, job.result, how, looked=job.looked)
    return Choice("mma_sync", make, how.tile, how.predicted, how.why)


# The rungs that gather one operand, from the simplest to the fastest.
GATHERING = {
    "register_tiles": _register_tiles,
    "mma_sync": _mma_sync,
    "wgmma": _wgmma,
    "warp_specialized": _warp_specialized,
    "warp_specialized_lines": _warp_specialized_lines,
    "warp_specialized_packed": _warp_specialized_packed,
    "warp_specialized_lines_packed": _warp_specialized_lines_packed,
    "warp_specialized_im2col": _warp_specialized_im2col,
    "warp_specialized_lines_im2col": _warp_specialized_lines_im2col,
    "swap_ab": _swap_ab,
}


def choose(job, rung=None, tile=None):
    """The rung and tile that should take the least time for a product that gathers one operand.

    Parameters
    ----------
    job : Job
    rung : str, optional
        A key of :data:`GATHERING`, to be taken whatever it costs.
    tile : tuple of int, optional
        Of that rung, as :class:`Choice` prints it.

    Returns
    -------
    Choice

    Raises
    ------
    NotPossible
        The rung or the tile that was asked for cannot compute the product.
    """
    if rung is not None:
        return GATHERING[rung](job, tile)
    if job.product.taps == 0:
        return _clear(job)
    chosen = choose_unpacked(job)
    chosen = packed_if_much_faster([job], [chosen]) or chosen
    return im2col_if_much_faster(job, [chosen]) or chosen


def choose_unpacked(job):
    """What :func:`choose` chooses among the rungs that read the arrays as they lie, and ``mma_sync``."""
    chosen = _without_lines(job)
    few = job.product.K < _FEWEST_K or job.activation
    if few or not job.terms or not has_warpgroups() or SIMULATED:
        return chosen
    lines = possible(_warp_specialized_lines, job)
    if not lines:
        return chosen
    # What both wait for must not make one look fast.
    around = {"warp_specialized": _PACKS_KERNEL, "swap_ab": _TMA_START}.get(chosen.rung, 0)
    wins = not chosen.predicted or much_faster(lines.predicted + around, [chosen])
    return lines if wins else chosen


def _without_lines(job):
    """What is chosen where a product's rows are images."""
    fastest = _on_hopper(job)
    found = possible(_mma_sync, job) if job.terms and not SIMULATED else None
    slow = fastest and found and not job.activation
    slow = slow and _TIMES_SLOWER * found.predicted + _CYCLES_SLOWER < fastest.predicted
    if fastest and not slow:
        return fastest
    if found:
        return found
    if job.precision == "tf32" and job.product.K >= _FEWEST_K:
        found = possible(_wgmma, job)
        if found:
            return found
    return _register_tiles(job)


def much_faster(predicted, choices):
    """Whether cycles are so few beside those of ``choices``, by other models, that the models' errors do not matter."""
    return _SURELY * predicted < sum(one.predicted for one in choices)


def packed_if_much_faster(jobs, chosen):
    """Packed pixels and TMA in place of what was chosen for the same products; None where that is as good."""
    if any(one.rung in TMA for one in chosen):
        return None
    ways = partial(packed_together, jobs), partial(packed_in_lines_together, jobs)
    return _if_much_faster(jobs[0], ways, chosen, _PACKING_AROUND)


def im2col_if_much_faster(job, chosen):
    """im2col and TMA in place of what was chosen for the same product; None where that is as good."""
    if job.product.K < _FEWEST_K:
        return None
    ways = partial(_warp_specialized_im2col, job), partial(_warp_specialized_lines_im2col, job)
    least = im2col_cycles(job.product, job.images, job.G, job.dtype)
    return _if_much_faster(job, ways, chosen, least=least)


def _if_much_faster(job, ways, chosen, around=0, least=0):
    """The fastest of some ways to lay the gathered array out for TMA; None where what was chosen is as good.

    ``around`` are cycles more by which it must win; ``least`` cycles that every way takes, so that no tile need be looked for.
    """
    on_hopper = job.terms and has_warpgroups() and not SIMULATED
    if not on_hopper or job.activation or not all(one.predicted for one in chosen):
        return None
    if not much_faster(least, chosen):
        return None
    found = min(filter(None, map(possible, ways)), key=lambda one: one.predicted, default=None)
    return found if found and much_faster(found.predicted + around, chosen) else None


def _clear(job):
    differentiates = job.activation is not None and job.activation.backward
    make = partial(ClearLauncher, job.result, job.dtype, differentiates)
    return Choice("clear", make, None, None, "no tap reaches some pixels")


def _on_hopper(job):
    """The choice of the rungs whose copies are TMA's and whose rows are images; None where none of them is possible."""
    if not job.terms or not has_warpgroups() or SIMULATED:
        return None
    fast = possible(_warp_specialized, job)
    small = possible(_swap_ab, job) if job.precision == "tf32" else None
    if small and not (fast and fast.predicted < small.predicted):
        return small
    return fast


def possible(how, *arguments):
    """A choice, or None where that is not possible."""
    try:
        return how(*arguments)
    except NotPossible:
        return None
