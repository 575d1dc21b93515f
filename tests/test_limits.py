"""What is counted in 32 bits: the table of limits at its edges, what it rests on, and calls on both sides of it.

Nothing here is large: geometries are numbers, and arrays that look large are one element, read again and again.
"""

import time

import numpy as np
import pytest

import numbacaps
import reference
from numbacaps import ALGORITHMS, Geometry, capsule_conv2d, capsule_conv2d_backward, capsule_votes
from numbacaps.device.target import SIMULATED, cuda
from numbacaps.fused import implicit_gemm
from numbacaps.fused.addressing import find_pixel, numbers_of
from numbacaps.fused.choose import Job, NotPossible, choose
from numbacaps.fused.choose_split_k import choose_split_k
from numbacaps.fused.mma_sync import choose_split_k_tile, choose_tile
from numbacaps.fused.mma_sync.pixels import pixel_of_row
from numbacaps.fused.mma_sync.table import Walk, make_table
from numbacaps.fused.pack import Packing, finder
from numbacaps.fused.rung_3_register_tiles import split_k
from numbacaps.fused.rung_4_wgmma import split_k_tile as mma_tiles
from numbacaps.fused.rung_5_warp_specialized import tile as bulk_tiles
from numbacaps.limits import LIMITS, PASSES, check_limits
from tests.support.cases import ON_DEVICE

_KERNELS = tuple(name for name in ALGORITHMS if name != "numpy")
_GRID = 65535


def _geometry(**sizes):
    """One of everything, but for what is named."""
    names = ("N", "C", "P", "H", "W", "KH", "KW", "G", "D1", "D2", "D3")
    return Geometry(**(dict.fromkeys(names, 1) | sizes))


# (algorithms, passes that the limit bounds, sizes at the edge, what passes it, words of the message)
_EDGES = {
    "height": ("fused", PASSES, {"H": 2**30}, {"H": 2**30 + 1}, "x has 1073741825 rows"),
    "width": ("fused", PASSES, {"W": 2**30}, {"W": 2**30 + 1}, "x has 1073741825 columns"),
    "padding": (
        "fused",
        PASSES,
        {"H": 2, "padding": (2**29 - 1, 0), "stride": 2**30},
        {"H": 3, "padding": (2**29 - 1, 0), "stride": 2**30},
        r"padding is \(536870911, 0\): x has 1073741825 rows with it",
    ),
    "stride": (
        "fused",
        PASSES,
        {"stride": (1, 2**30)},
        {"stride": (1, 2**30 + 1)},
        r"stride is \(1, 1073741825\)",
    ),
    "dilation": (
        "fused",
        PASSES,
        {"dilation": (2**30, 1)},
        {"dilation": (2**30 + 1, 1)},
        r"dilation is \(1073741825, 1\)",
    ),
    "stride of rows": (
        "fused",
        PASSES,
        {"stride": (2**30, 1)},
        {"stride": (2**30 + 1, 1)},
        r"stride is \(1073741825, 1\)",
    ),
    "dilation of columns": (
        "fused",
        PASSES,
        {"dilation": (1, 2**30)},
        {"dilation": (1, 2**30 + 1)},
        r"dilation is \(1, 1073741825\)",
    ),
    "rows of x": (
        "fused",
        ("input",),
        {"N": 2**31 - 1, "H": 32, "stride": 32},
        {"N": 2**31, "H": 32, "stride": 32},
        "x has 68719476736 rows",
    ),
    "span": (
        "fused",
        PASSES,
        {"W": 2**29, "D2": 8, "stride": (2**30 - 1, 1)},
        {"W": 2**29, "D2": 8, "stride": (2**30, 1)},
        "x spans .* elements with padding, stride and dilation",
    ),
    "g": ("fused", PASSES, {"G": _GRID}, {"G": _GRID + 1}, "product takes capsules of G = 65536"),
    "rows of an image": (
        "fused",
        ("forward", "kernel"),
        {"H": 2**20, "W": 2**11},
        {"H": 2**20 + 1, "W": 2**11},
        "an image of the output has 2147485696 rows of D1",
    ),
    "rows of an image of x": (
        "fused",
        ("input",),
        {"H": 2**20, "W": 2**10, "D1": 2, "stride": 2},
        {"H": 2**20 + 1, "W": 2**10, "D1": 2, "stride": 2},
        "an image of x has 2147485696 rows of D1",
    ),
    "rows": (
        "fused",
        ("forward", "kernel"),
        {"N": 2**31 - 1, "H": 32},
        {"N": 2**31, "H": 32},
        "the output has 68719476736 rows",
    ),
    "columns": (
        "fused",
        ("forward", "kernel"),
        {"P": _GRID, "D3": 128},
        {"P": _GRID, "D3": 129},
        "w has 8454015 channels times D3",
    ),
    "columns of x": (
        "fused",
        ("input",),
        {"C": _GRID, "D2": 128},
        {"C": _GRID, "D2": 129},
        "x has 8454015 channels times D2",
    ),
    "residues": (
        "fused",
        ("input",),
        {"H": 64, "W": 64, "KH": 64, "KW": 64, "stride": 64},
        {"H": 65, "W": 64, "KH": 65, "KW": 64, "stride": (65, 64)},
        r"stride is \(65, 64\): the input's gradient is 4160 products",
    ),
    "threads of x": (
        _KERNELS,
        PASSES,
        {"N": 2**31 - 1, "C": 16, "D1": 16},
        {"N": 2**31, "C": 16, "D1": 16},
        "x has 549755813888 elements",
    ),
    "threads of w": (
        _KERNELS,
        PASSES,
        {"P": 2**22, "C": 2**8, "D2": 2**9 - 1},
        {"P": 2**22, "C": 2**8, "D2": 2**9},
        "w has 549755813888 elements",
    ),
    "threads of the output": (
        _KERNELS,
        ("forward", "input", "kernel"),
        {"N": 2**31 - 1, "P": 256},
        {"N": 2**31, "P": 256},
        "the output has 549755813888 elements",
    ),
    "threads of the votes": (
        ("indexed", "staged", "cublas"),
        ("votes",),
        {"N": 2**31 - 1, "C": 16, "P": 16},
        {"N": 2**31, "C": 16, "P": 16},
        "the result has 549755813888 elements",
    ),
    "threads of the summed votes": (
        "indexed",
        ("summed_votes",),
        {"N": 2**31 - 1, "C": 16, "P": 16},
        {"N": 2**31, "C": 16, "P": 16},
        "the result has 549755813888 elements",
    ),
    "threads of products": (
        "naive",
        ("forward", "input", "kernel"),
        {"N": 2**31 - 1, "C": 16, "P": 16},
        {"N": 2**31, "C": 16, "P": 16},
        "x and w make 549755813888 products of a window",
    ),
    "64 bits": (
        ("naive", "staged", "cublas", "indexed"),
        PASSES,
        {"H": 2, "padding": (2**61 - 1, 0), "stride": 2**62},
        {"H": 3, "padding": (2**61 - 1, 0), "stride": 2**62},
        "x has 4611686018427387905 rows with it",
    ),
}


def _passed(geometry, algorithm, one):
    try:
        check_limits(geometry, algorithm, (one,))
    except ValueError as refusal:
        return str(refusal)
    return ""


@pytest.mark.parametrize("edge", _EDGES)
def test_edges(edge):
    """A limit holds at its edge, bounds the passes that it says, and names what passes it."""
    algorithms, passes, inside, beyond, message = _EDGES[edge]
    for algorithm in (algorithms,) if isinstance(algorithms, str) else algorithms:
        for one in passes:
            assert not _passed(_geometry(**inside), algorithm, one)
            assert _passed(_geometry(**beyond), algorithm, one)
        with pytest.raises(ValueError, match=message) as refused:
            check_limits(_geometry(**beyond), algorithm, passes)
        assert f"algorithm {algorithm!r} takes at most" in str(refused.value)
        assert "'numpy'" in str(refused.value)


def test_every_limit_has_an_edge():
    """Of ``"numpy"`` there is none."""
    assert set(LIMITS) == set(ALGORITHMS) and not LIMITS["numpy"]
    counts = {limit.counts for limits in LIMITS.values() for limit in limits}
    passed = set()
    for algorithms, passes, _, beyond, _ in _EDGES.values():
        for name in (algorithms,) if isinstance(algorithms, str) else algorithms:
            g = _geometry(**beyond)
            over = [limit for limit in LIMITS[name] if limit.counts(g) > limit.most]
            passed |= {limit.counts for limit in over if not set(limit.passes).isdisjoint(passes)}
    # Of rows and columns in 64 bits one stands for all.
    in_64_bits = {limit.counts for limit in LIMITS["indexed"] if limit.most == 2**62}
    assert len(in_64_bits) == 6
    assert counts - passed <= in_64_bits and passed & in_64_bits


# What the limits rest on.


def test_rows_that_are_nowhere_reach_no_tap():
    """Kernels mark a row that is none by a number below every tap's reach, and above it lie all rows there are."""
    most = next(limit.most for limit in LIMITS["fused"] if limit.says(_geometry()).endswith("rows"))
    nowhere = split_k._NOWHERE
    assert nowhere + (most - 1) < 0  # with the furthest tap
    assert -(most // 2) > nowhere  # with the widest padding
    assert -(2**31) <= 2 * nowhere and most <= 2**31


@pytest.mark.tiers("simulator")
@pytest.mark.parametrize("sizes", [(2**20, 2**11, 1), (1, 2**30, 2), (2**30, 1, 2)])
def test_pixels_of_the_largest_image(sizes):
    """And of the next one, in which a block and a split may end."""
    ROWS, COLUMNS, D1 = sizes
    image = ROWS * COLUMNS * D1
    assert image == 2**31
    g = _geometry(H=ROWS, W=COLUMNS, D1=D1, KH=1, KW=1)
    product = implicit_gemm.forward(g)
    of, table = numbers_of(product.pixels), make_table([Walk.of(product)], 1, 1)
    for m in (0, 1, image - 1, image, image + 127, image + mma_tiles._MOST_PIXELS):
        rest, d1 = divmod(m, D1)
        rest, column = divmod(rest, COLUMNS)
        images, row = divmod(rest, ROWS)
        assert tuple(map(int, pixel_of_row(m, table, 0))) == (images, row, column, d1)
        assert tuple(map(int, find_pixel(m, of))) == (images, row, column, d1)


@pytest.mark.tiers("simulator")
@pytest.mark.parametrize("parts", [1, 2])
def test_a_packed_kernel_of_more_than_2_to_32_elements(parts):
    """Where its last element comes from, and what comes behind it."""
    columns = implicit_gemm.Columns(58368, 16, (36864, 1), 1)
    steps = implicit_gemm.KernelSteps(0, 9 * 256, 3 * 256, 256, 16)
    p = Packing(256 // 2 * 2, 16, (3, 3), columns, steps, 2, 58368 * 36864, 128, 8, parts, 4, 4)
    assert p.elements > 2**32 and p.form.many
    find = finder(p)
    place, part, filled = map(int, find(np.int64(p.elements - 1)))
    # The last g, capsule and d of n, channel, tap row, tap column and d of k.
    want = 58368 * 36864 + 3647 * 36864 + 15 + 255 * 9 * 256 + 2 * 768 + 2 * 256 + 15 * 16
    assert (place, part, filled) == (want, parts - 1, True)
    columns = implicit_gemm.Columns(58368, 16, (32 * 36864, 1), 1)
    small = Packing(2, 16, (3, 3), columns, steps, 1, 0, 128, 8, parts, 4, 4)
    assert small.reach > 2**32 and small.elements < 2**32 and small.form.many
    columns = implicit_gemm.Columns(512, 16, (36864, 1), 1)
    assert not Packing(2, 16, (3, 3), columns, steps, 1, 0, 128, 8, parts, 4, 4).form.many


def _whole_rows(g):
    """Whether some tile brings rows whole, and some does not."""
    product = implicit_gemm.forward(g)
    return {bulk_tiles.Box.of(product, 1, tile).whole_rows for tile in bulk_tiles.tiles(product)}


def test_rows_of_boxes_have_coordinates_of_32_bits():
    """Elements of a row are one coordinate where rows come whole, else its pixels are."""
    size = {"D1": 4, "D2": 2, "D3": 8, "KW": 3, "H": 2}
    assert True in _whole_rows(_geometry(**size, W=2**27))
    assert _whole_rows(_geometry(**size, W=2**28)) == {False}
    assert _whole_rows(_geometry(**size, W=8, padding=(0, 2**28), stride=(1, 2**28))) == {False}


def test_splits_are_blocks_of_one_grid_and_count_their_pixels_in_32_bits():
    for G, M in ((1, 2**35), (300, 2**22), (_GRID, 2**20), (70, 2**31)):
        g = _geometry(G=G, D2=8, D3=8)
        tile, splits, per_split, _ = mma_tiles.choose_tile(implicit_gemm.forward(g), M, G)
        assert G * splits <= _GRID and splits * per_split >= M
        assert per_split < mma_tiles._MOST_PIXELS + tile.BK


def test_splits_of_warps_are_blocks_of_one_grid():
    for G, M, most in ((1, 2**30, 2**16), (300, 2**22, 2**16), (_GRID, 2**20, 2**20)):
        sizes = M, 4, 4, G, 1, (4, 4), 2, ()
        _, _, splits, per_split, _ = choose_split_k_tile.choose_tile(*sizes, most=most)
        assert G * splits <= _GRID and splits * per_split >= M and per_split <= most
    assert choose_split_k_tile.choose_tile(*sizes, most=2**19) is None
    long = choose_tile.Sizes((64, 64), 4, 2**20, 1000, 1, 2, 8, 8, True, 0, True)
    _, _, splits = choose_tile.choose_tile(long, 2**20)
    assert 1 < splits <= _GRID // 2000


@pytest.mark.parametrize(("images", "reason"), [(2**31, "images; TMA's"), (1, "tiles or more")])
def test_many_images_and_tiles_are_not_for_tma(images, reason):
    g = _geometry(H=2**16, W=2**15, D3=8, D1=64) if images == 1 else _geometry(D2=8, D3=8)
    job = Job(implicit_gemm.forward(g), images, 1, np.dtype(np.float32), "tf32", size=64)
    if images == 1:
        job = Job(job.product, 128, 1, job.dtype, "tf32")
    with pytest.raises(NotPossible, match=reason):
        choose(job, "warp_specialized")
    if images > 1:
        with pytest.raises(NotPossible, match=reason):
            choose_split_k(job, "warp_specialized_split_k")


@pytest.mark.parametrize("stride", [1000, 10**6, 2**30, (7, 10**6)])
def test_residues_that_do_not_occur_are_no_products(stride):
    start = time.perf_counter()
    g = _geometry(H=5, W=4, KH=2, KW=3, stride=stride, padding=1)
    products = implicit_gemm.backward_input(g)
    assert len(products) <= 1 + 2 * 3 and time.perf_counter() - start < 1
    written = np.zeros(g.H * g.W)
    for i, product in enumerate(products):
        p = product.pixels
        _, row, column, _ = p.other
        places = p.first + np.add.outer(np.arange(p.rows) * row, np.arange(p.columns) * column)
        assert (product.taps == 0) == (i == 0)  # the one that clears comes first
        written[places.ravel()] += 1
    assert written.min() == 1


# Calls on both sides of the limits.

_FAR = {
    "stride": ((6, 5), {"stride": (1000, 10**6), "padding": 1}),
    "padding": ((3, 2), {"stride": (2**28, 1), "padding": (2**28, 1)}),
    "dilation": ((3, 2), {"dilation": (2**28, 1), "padding": (2**28, 0), "stride": (2**28, 1)}),
    "columns": ((2, 3), {"dilation": (1, 2**28), "padding": (1, 2**28), "stride": (1, 2**28)}),
}
_NEAR = {  # the same sums, a few rows further apart
    "stride": ((6, 5), {"stride": (10, 10), "padding": 1}),
    "padding": ((3, 2), {"stride": (8, 1), "padding": (8, 1)}),
    "dilation": ((3, 2), {"dilation": (8, 1), "padding": (8, 0), "stride": (8, 1)}),
    "columns": ((2, 3), {"dilation": (1, 8), "padding": (1, 8), "stride": (1, 8)}),
}


def _arrays(case, rng, dtype="float32"):
    """x, w, dy, what to do with them, and the output and gradients that it should give."""
    (size, far), (_, near) = _FAR[case], _NEAR[case]
    x = rng.standard_normal((2, 2, *size, 2, 4)).astype(dtype)
    w = rng.standard_normal((2, 2, 2, 2, 4, 2)).astype(dtype)
    inside = [a[:, :, :, :, None].astype(np.float64) for a in (x, w)]
    y = reference.capsule_convolution(*inside, **near)
    dy = rng.standard_normal(y.shape).astype(dtype)
    dx, dw = reference.capsule_convolution_backward(*inside, dy.astype(np.float64), **near)
    return (x, w, dy[:, :, :, :, 0]), far, [a[:, :, :, :, 0] for a in (y, dx, dw)]


@pytest.mark.slow
@pytest.mark.tiers("simulator", "gpu")
@pytest.mark.parametrize("algorithm", [*ON_DEVICE, "tf32"])
@pytest.mark.parametrize("case", _FAR)
def test_far_apart(case, algorithm, rng):
    arrays, far, wants = _arrays(case, rng)
    how = {"algorithm": algorithm, "precision": "ieee"}
    if algorithm == "tf32":
        how = {"algorithm": "fused", "precision": "tf32"}
        if "tf32" not in ALGORITHMS["fused"].precisions(np.dtype(np.float32)):
            pytest.skip("this GPU has no warpgroup products")
    found = (
        capsule_conv2d(*arrays[:2], **far, **how),
        *capsule_conv2d_backward(*arrays, **far, **how),
    )
    for array, want in zip(found, wants, strict=True):
        reference.assert_close(array, want, 64, precision=how["precision"])


@pytest.mark.parametrize(
    ("function", "x", "w", "how", "message"),
    [
        (capsule_conv2d, (1, 1, 4, 4), (1, 1, 1, 1), {"padding": 2**30, "stride": 2**30}, "rows"),
        (capsule_conv2d, (1, 1, 4, 4), (1, 1, 2, 1), {"dilation": 2**30, "padding": 2**29}, "rows"),
        (capsule_conv2d, (1, 1, 2**31 + 1, 1), (1, 1, 1, 1), {}, "x has 2147483649 rows"),
        (capsule_conv2d, (1, 1, 2**17, 2**16), (1, 1, 1, 1), {}, "the output has 8589934592 rows"),
        (capsule_conv2d, (1, 1, 1, 1), (2**24, 1, 1, 1), {}, "w has 16777216 channels"),
        (capsule_votes, (1, 2**20, 1, 1), (2**20, 2**20, 1, 1), {}, "w has .* elements"),
    ],
)
def test_calls_are_refused_before_anything_is_allocated(function, x, w, how, message, monkeypatch):
    one = np.zeros((), np.float32)
    x, w = (np.broadcast_to(one, (*shape, 1, 1)) for shape in (x, w))
    for name in ("to_device", "device_array"):
        monkeypatch.setattr(cuda, name, None)
    with pytest.raises(ValueError, match=message):
        function(x, w, **how)
    if function is capsule_conv2d:
        with pytest.raises(ValueError, match=message):
            numbacaps.plan(x, w, **how)
        with pytest.raises(ValueError, match="takes at most"):
            numbacaps.explain(x.shape, w.shape, **how)


@pytest.mark.parametrize("N", [1, 0])
def test_results_that_no_array_can_be(N):
    x, w = (np.ones((n, 1, 3, 3, 2, 2), np.float32) for n in (N, 1))
    with pytest.raises(ValueError, match="would have shape .*; an array takes 9223372036854775807"):
        capsule_conv2d(x, w, padding=2**31, algorithm="numpy")


@pytest.mark.tiers("simulator", "gpu")
def test_g_beyond_a_grid(rng):
    """Element by element: refused by the one, computed by another."""
    how = {"product": "ab,ab->ab"}
    x, w = (rng.standard_normal((1, 1, 1, 1, 2, 2**15)).astype(np.float32) for _ in range(2))
    with pytest.raises(ValueError, match="product takes capsules of G = 65536; algorithm 'fused'"):
        capsule_conv2d(x, w, **how)
    with pytest.raises(ValueError, match="product takes capsules of G = 65536; algorithm 'fused'"):
        capsule_conv2d_backward(x, w, x, **how)
    others = ("numpy",) if SIMULATED else ("numpy", "indexed", "naive")
    for algorithm in others:
        np.testing.assert_array_equal(capsule_conv2d(x, w, algorithm=algorithm, **how), x * w)
