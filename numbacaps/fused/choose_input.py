"""How the input's gradient is computed: a launch for every residue of the stride, one for all, or columns and their sum."""

from dataclasses import replace

from numbacaps.device.gpu import multiprocessors
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
    mma_sync_together,
    much_faster,
    packed_if_much_faster,
    packed_together,
)
from numbacaps.fused.mma_sync import launcher as mma_sync
from numbacaps.fused.mma_sync.tile import LAUNCH
from numbacaps.fused.precision import has_tensor_cores

COLUMNS = "col2im"  # by which columns and their sum are asked for
RUNGS = (*GATHERING, COLUMNS)
_PACK = ("wgmma", *TMA)  # the kernel, each for itself
_TOGETHER = {"mma_sync": mma_sync_together, "warp_specialized_packed": packed_together}
_ADDED = 4  # bytes of columns and results read and written a cycle: guessed
_TAP = 100  # cycles that a thread waits for a column, of some that are under way together


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
    if rung or SIMULATED or not jobs or not jobs[0].terms or jobs[0].activation:
        return [*cleared, *apart]
    apart_on_hopper = all(one.rung in TMA for one in apart)

    def wins(one, before):
        """Whether one launch beats ``before``; TMA's rungs have models of their own."""
        if before is apart and apart_on_hopper:
            return much_faster(one.predicted, apart)
        return one.predicted < sum(each.predicted or 0 for each in before)

    best = apart
    together = _possible(mma_sync_together, jobs) if len(jobs) > 1 else None
    if together and (not apart_on_hopper or wins(together, apart)):
        best = [together]
    columns = _possible(_columns, jobs[0], geometry)
    ordinary = any(one.rung == "register_tiles" for one in best)
    by_columns = columns and (ordinary or wins(columns, best))
    packed = packed_if_much_faster(jobs, [columns] if by_columns else best)
    if packed:
        return [*cleared, packed]
    return [columns] if by_columns else [*cleared, *best]


def _possible(how, *arguments):
    """A choice, or None."""
    try:
        return how(*arguments)
    except NotPossible:
        return None


def _columns(job, geometry, tile=None):
    """Columns by the warps' tensor cores, and col2im."""
    size, terms = col2im.columns_of(geometry), job.terms
    if not terms:
        raise NotPossible(f"{COLUMNS} takes no {job.dtype} at precision {job.precision!r}")
    if not has_tensor_cores():
        raise NotPossible(f"{COLUMNS} takes a GPU of compute capability 8.0 or later")
    if 4 * size > col2im.MOST_BYTES:
        raise NotPossible(f"columns of {4 * size} bytes; {COLUMNS} takes {col2im.MOST_BYTES}")
    if job.result > col2im.MOST_ELEMENTS:
        raise NotPossible(f"{job.result} elements; {COLUMNS} takes {col2im.MOST_ELEMENTS}")
    product = implicit_gemm.input_columns(geometry)
    which = [product], job.images, job.G, job.dtype, terms
    how, why = mma_sync.choose(*which, tile=forced_tile(terms, tile, COLUMNS))
    if how is None:
        raise NotPossible(why or "a thread would have too many copies")
    added = 4 * size * how.splits + job.dtype.itemsize * job.result
    waits = col2im.most_taps(geometry) * how.splits * _TAP
    takes = how.predicted + LAUNCH + waits + added / (_ADDED * multiprocessors())

    def make():
        finish = col2im.Col2im(geometry, job.dtype, how.splits)
        return mma_sync.MmaSyncLauncher(*which, size, how, finish)

    return Choice(COLUMNS, make, how.tile, takes, how.why)
