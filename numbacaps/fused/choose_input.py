"""How the input's gradient is computed: a launch for every residue of the stride, one for all, or columns and their sum."""

from dataclasses import astuple, replace
from math import prod

import numpy as np

from numbacaps.device.gpu import H100, multiprocessors
from numbacaps.device.target import SIMULATED
from numbacaps.fused import col2im, implicit_gemm
from numbacaps.fused.choose import (
    GATHERING,
    TMA,
    Choice,
    NotPossible,
    choose,
    choose_unpacked,
    forced_tile,
    im2col_if_much_faster,
    mma_sync_together,
    much_faster,
    packed_if_much_faster,
    packed_in_lines_together,
    packed_together,
    possible,
    register_tile,
)
from numbacaps.fused.micro_batches import MicroBatchLauncher, begins, images_at_once
from numbacaps.fused.mma_sync import launcher as mma_sync
from numbacaps.fused.mma_sync.choose_tile import LAUNCH
from numbacaps.fused.precision import chosen_for, has_tensor_cores
from numbacaps.fused.rung_3_register_tiles.columns import ColumnsLauncher
from numbacaps.fused.rung_3_register_tiles.tile import TILES

COLUMNS = "col2im"  # by which columns and their sum are asked for
RUNGS = (*GATHERING, COLUMNS)
_PACK = ("wgmma", *TMA)  # the kernel, each for itself
_TOGETHER = {
    "mma_sync": mma_sync_together,
    "warp_specialized_packed": packed_together,
    "warp_specialized_lines_packed": packed_in_lines_together,
}
_ADDED = 4  # bytes of columns and results read and written a cycle: guessed
_TAP = 100  # cycles that a thread waits for a column, of some that are under way together


def is_ordinary(rung, tile=None):
    """Whether a rung of this pass or another, and its tile, are of ordinary arithmetic."""
    if rung == COLUMNS:
        return not has_tensor_cores() or tile in map(astuple, TILES)
    return rung.startswith("register_tiles")


def columns_of_few(jobs, geometry):
    """Columns in three terms where dx itself has too few for these; None where they are not worth it.

    Parameters
    ----------
    jobs : list of numbacaps.fused.choose.Job
        Of :func:`numbacaps.fused.implicit_gemm.backward_input`'s products, by ordinary arithmetic.
    geometry : numbacaps.geometry.Geometry

    Returns
    -------
    Choice or None
        Its results are looked through.
    """
    product = implicit_gemm.input_columns(geometry)
    if chosen_for(jobs[0].dtype, product.N, product.K) != "tf32x3":
        return None
    looked = "backward_input", geometry
    columns = possible(_columns, replace(jobs[0], precision="tf32x3", looked=looked), geometry)
    return columns if columns and _are_fewer_launches(columns, jobs) else None


def _are_fewer_launches(columns, launches):
    """Whether one launch after another takes longer than columns do, whatever the launches multiply."""
    return len(launches) * LAUNCH > columns.predicted


def choose_input(jobs, geometry, rung=None, tile=None):
    """The launches of the pass, which follow one another.

    Parameters
    ----------
    jobs : list of numbacaps.fused.choose.Job
        Of :func:`numbacaps.fused.implicit_gemm.backward_input`'s products, of one result.
    geometry : numbacaps.geometry.Geometry
    rung : str, optional
        One of :data:`RUNGS`, to be taken whatever it costs.
    tile : tuple of int, optional
        Of that rung.

    Returns
    -------
    list of Choice

    Raises
    ------
    NotPossible
        The rung or the tile that was asked for cannot compute the products.
    """
    if rung == COLUMNS:
        return [_columns(jobs[0], geometry, tile)]
    cleared = [choose(job) for job in jobs if job.product.taps == 0]
    jobs = [job for job in jobs if job.product.taps]
    if rung in _TOGETHER and jobs:
        return [*cleared, _TOGETHER[rung](jobs, tile)]
    apart = []
    for job in jobs:
        follows = not cleared and any(one.rung in _PACK for one in apart)
        job = replace(job, follows=follows)
        apart.append(choose(job, rung, tile) if rung else choose_unpacked(job))
    if rung or SIMULATED or not jobs or jobs[0].activation:
        return [*cleared, *apart]
    columns = possible(_columns, jobs[0], geometry)
    if not jobs[0].terms:
        apart = [*cleared, *apart]
        return [columns] if columns and _are_fewer_launches(columns, apart) else apart
    apart_on_hopper = all(one.rung in TMA for one in apart)
    not_timed = 4 * col2im.columns_of(geometry) > col2im.TIMED_BYTES

    def wins(one, before):
        """Whether one launch beats ``before``; TMA's rungs have models of their own, and many columns were not timed."""
        if before is apart and apart_on_hopper or one is columns and not_timed:
            return all(each.predicted for each in before) and much_faster(one.predicted, before)
        return one.predicted < sum(each.predicted or 0 for each in before)

    best = apart
    together = possible(mma_sync_together, jobs) if len(jobs) > 1 else None
    if together and (not apart_on_hopper or wins(together, apart)):
        best = [together]
    ordinary = any(one.rung == "register_tiles" for one in best)
    by_columns = columns and (ordinary or wins(columns, best))
    best = [columns] if by_columns else best
    packed = packed_if_much_faster(jobs, best)
    best = [packed] if packed else best
    matrix = im2col_if_much_faster(jobs[0], best) if len(jobs) == 1 else None
    best = [matrix] if matrix else best
    return best if best == [columns] else [*cleared, *best]


def _columns(job, geometry, tile=None):
    """Columns and col2im: by the warps' tensor cores, or by ordinary arithmetic."""
    of_image = 4 * col2im.columns_of(geometry.of_one_image)
    images, most = geometry.N, col2im.MOST_BYTES // of_image
    at_once = images_at_once(geometry, job.dtype.itemsize, most)
    if not at_once:
        raise NotPossible(
            f"columns of {images} images, {of_image} bytes each; {COLUMNS} takes {col2im.MOST_BYTES} at once, "
            f"of images that begin at multiples of 16 bytes"
        )
    geometry = replace(geometry, N=at_once)
    looked = (job.looked[0], geometry) if job.looked else None
    job = replace(job, images=at_once, result=job.result // images * at_once, looked=looked)
    if job.result > col2im.MOST_ELEMENTS:
        raise NotPossible(f"{job.result} elements; {COLUMNS} takes {col2im.MOST_ELEMENTS}")
    size, product = col2im.columns_of(geometry), implicit_gemm.input_columns(geometry)
    made = _columns_by_warps if job.terms else _columns_by_registers
    chosen = made(job, geometry, product, size, tile)
    if at_once == images:
        return chosen

    def make():
        sizes = (prod(shape[1:]) for shape in (geometry.output_shape, geometry.input_shape))
        return MicroBatchLauncher(chosen.launcher(), images, at_once, *sizes)

    predicted = len(begins(images, at_once)) * chosen.predicted
    return replace(chosen, launcher=make, predicted=predicted)


def _columns_by_warps(job, geometry, product, size, tile):
    if not has_tensor_cores():
        raise NotPossible(f"{COLUMNS} takes a GPU of compute capability 8.0 or later")
    which = [product], job.images, job.G, job.dtype, job.terms
    how, why = mma_sync.choose(*which, tile=forced_tile(job.terms, tile, COLUMNS))
    if how is None:
        raise NotPossible(why or "a thread would have too many copies")

    def make():
        looks = job.looked is not None
        finish = col2im.Col2im(geometry, job.dtype, how.splits, looks)
        return mma_sync.MmaSyncLauncher(*which, size, how, finish)

    takes = how.predicted + _adding(job, geometry, size, how.splits, multiprocessors())
    return Choice(COLUMNS, make, how.tile, takes, how.why)


def _columns_by_registers(job, geometry, product, size, tile):
    """Its prediction is of what is done besides multiplying, which takes as long as the products of dx themselves."""
    if job.dtype != np.float32:
        raise NotPossible(f"{COLUMNS} takes no {job.dtype} at precision {job.precision!r}")
    chosen = register_tile(replace(job, product=product), tile, COLUMNS)

    def make():
        finish = col2im.Col2im(geometry, job.dtype, 1)
        return ColumnsLauncher(product, job.images, job.G, job.dtype, chosen, finish, size)

    # Of an H100, whatever GPU it is: the order of ordinary arithmetic's sums is the same on all.
    takes = LAUNCH + _adding(job, geometry, size, 1, H100.multiprocessors)
    return Choice(COLUMNS, make, chosen[0], takes, chosen[1])


def _adding(job, geometry, size, splits, on):
    """Estimated cycles of the launch that adds columns, on a GPU with ``on`` multiprocessors."""
    added = 4 * size * splits + job.dtype.itemsize * job.result
    waits = col2im.most_taps(geometry) * splits * _TAP
    return LAUNCH + waits + added / (_ADDED * on)
