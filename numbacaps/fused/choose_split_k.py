"""Which rung computes the kernel's gradient, whose sum is cut into splits, with which tile, and why."""

from functools import partial

from numbacaps.device.target import SIMULATED
from numbacaps.fused import implicit_gemm
from numbacaps.fused.choose import Choice, NotPossible, one_of, possible, refuse, refuse_many_images
from numbacaps.fused.mma_sync import split_k_launcher as mma_sync_split_k
from numbacaps.fused.mma_sync import split_k_tile as mma_sync_split_k_tiles
from numbacaps.fused.precision import TERMS, has_tensor_cores, has_warpgroups
from numbacaps.fused.rung_3_register_tiles.launcher import RegisterTilesSplitK
from numbacaps.fused.rung_4_wgmma import split_k_tile as mma_tiles
from numbacaps.fused.rung_4_wgmma.launcher import MmaSplitK
from numbacaps.fused.rung_5_warp_specialized import split_k_tile as split_k_tiles
from numbacaps.fused.rung_5_warp_specialized.launcher import WarpSpecializedSplitK

# Cycles that warp_specialized_split_k takes, over the cycles of its model, and what is less of them. Chosen by eye from 27 rows of
# nine workloads of experiments.fused (H200, 0.8 to 1.7 times, least below 20,000 cycles) and 7 drawn rows (H200, 2026-12-01, 1.35 to
# 1.9 times, most of them larger).
_SPLIT_K_LONGER, _SPLIT_K_LESS = 1.65, 6_000


def _register_tiles_split_k(job, tile=None):
    if tile is not None:
        raise NotPossible("register_tiles_split_k chooses its tile itself")
    chosen, why, *_ = RegisterTilesSplitK.cut(*job.operands)
    make = partial(RegisterTilesSplitK, *job.operands[:3], job.size, job.dtype)
    return Choice("register_tiles_split_k", make, chosen, None, why)


def _mma_split_k(job, tile=None):
    if job.precision != "tf32" or tile is not None:
        raise NotPossible("mma_split_k takes float32 at precision 'tf32', and chooses its tile")
    chosen, _, _, why = mma_tiles.choose_tile(job.product, job.product.M(job.images), job.G)
    make = partial(MmaSplitK, *job.operands[:3], job.size, job.dtype)
    return Choice("mma_split_k", make, chosen, None, why)


def _warp_specialized_split_k(job, tile=None):
    if not job.terms or not has_warpgroups() or tile is not None:
        raise NotPossible(
            "warp_specialized_split_k takes tensor cores of 9.0, and chooses its tile"
        )
    refuse_many_images(job)
    pair = 4 // job.dtype.itemsize
    which = job.product, job.images, job.G, job.terms
    chosen, strips, why = split_k_tiles.choose_tile(*which, pair=pair)
    refuse(None if chosen else why)
    how = job.size, job.dtype, job.terms, chosen, strips, why
    make = partial(WarpSpecializedSplitK, *job.operands[:3], *how, looked=job.looked)
    _, takes = split_k_tiles.choose_strips(chosen, *which)
    takes = _SPLIT_K_LONGER * takes - _SPLIT_K_LESS
    return Choice("warp_specialized_split_k", make, chosen, takes, why)


def _mma_sync_split_k(job, tile=None):
    terms = job.terms
    if not terms:
        raise NotPossible(f"mma_sync_split_k takes no {job.dtype} at precision {job.precision!r}")
    if not has_tensor_cores():
        raise NotPossible("mma_sync_split_k takes a GPU of compute capability 8.0 or later")
    forced = one_of(mma_sync_split_k_tiles.TILES[terms], tile, "mma_sync_split_k")
    which = job.product, job.images, job.G, job.size, job.dtype, terms
    how, why = mma_sync_split_k.choose_split_k(*which, forced)
    refuse(None if how else why)
    make = partial(mma_sync_split_k.MmaSyncSplitK, *which, how, job.looked)
    return Choice("mma_sync_split_k", make, how.tile, how.predicted, how.why)


# The rungs of the kernel's gradient.
SPLIT_K = {
    "register_tiles_split_k": _register_tiles_split_k,
    "mma_split_k": _mma_split_k,
    "mma_sync_split_k": _mma_sync_split_k,
    "warp_specialized_split_k": _warp_specialized_split_k,
}


def choose_split_k(job, rung=None, tile=None):
    """The rung and tile that should take the least time for the kernel's gradient.

    Parameters
    ----------
    job : numbacaps.fused.choose.Job
    rung : str, optional
        A key of :data:`SPLIT_K`, to be taken whatever it costs.
    tile : tuple of int, optional
        Of that rung.

    Returns
    -------
    numbacaps.fused.choose.Choice

    Raises
    ------
    numbacaps.fused.choose.NotPossible
        The rung or the tile that was asked for cannot compute the product.
    """
    if rung is not None:
        return SPLIT_K[rung](job, tile)
    on_tensor_cores = job.precision in TERMS
    found = possible(_mma_sync_split_k, job) if job.terms and not SIMULATED else None
    if has_warpgroups() and not SIMULATED and (on_tensor_cores or job.dtype.itemsize == 2):
        slow = on_tensor_cores and split_k_tiles.why_slow(job.product, job.images, job.G)
        fast = None if slow else possible(_warp_specialized_split_k, job)
        if fast and not (found and found.predicted < fast.predicted):
            return fast
    if found:
        return found
    return _mma_split_k(job) if job.precision == "tf32" else _register_tiles_split_k(job)


def split_k_beside(geometries, dtype, precision):
    """Launchers of kernels' gradients that run at the same time and share the GPU; None where one cannot.

    Parameters
    ----------
    geometries : sequence of numbacaps.geometry.Geometry
        Of as many images, with G of 1.
    dtype : numpy.dtype
    precision : str
        ``"tf32"`` or ``"tf32x3"``.

    Returns
    -------
    list of WarpSpecializedSplitK, or None
    """
    products, terms = [implicit_gemm.forward(g) for g in geometries], TERMS[precision]
    sizes = [g.C * g.H * g.W * g.E1 + g.P * g.L * g.E3 for g in geometries]
    found = split_k_tiles.choose_beside(products, sizes, geometries[0].N, terms)
    # Not early: where a few blocks find a multiprocessor and wait on it, the others come later still (measured).
    return found and [
        WarpSpecializedSplitK(product, g.N, 1, g.P * g.Q * g.E2, dtype, terms, *how, early=False)
        for product, g, how in zip(products, geometries, found)
    ]
