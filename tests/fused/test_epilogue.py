"""LeakyReLU and squash in the kernels of the forward product, and where they are kept apart."""

from dataclasses import replace

import numpy as np
import pytest

import reference
from numbacaps import Geometry
from numbacaps.device.streams import Beside
from numbacaps.device.target import SIMULATED, cuda
from numbacaps.fused import implicit_gemm
from numbacaps.fused.activation import Activation
from numbacaps.fused.epilogue import Lanes, fit
from numbacaps.fused.precision import has_warpgroups
from numbacaps.fused.rung_3_register_tiles import tile as tiles
from numbacaps.fused.rung_3_register_tiles.launcher import RegisterTilesLauncher
from numbacaps.fused.rung_4_wgmma import tile as warpgroup_tiles
from numbacaps.fused.rung_4_wgmma.launcher import WgmmaLauncher
from numbacaps.fused.rung_5_warp_specialized import tile as bulk_tiles
from numbacaps.fused.rung_5_warp_specialized.launcher import WarpSpecializedLauncher
from numbacaps.nn.passes import BackwardPass, ForwardPass
from reference import nn
from tests.support.cases import nan, operands, sums
from tests.support.nn_networks import batch, network

pytestmark = pytest.mark.tiers("simulator", "gpu")
_F4 = np.dtype(np.float32)
_SLOPE = 0.3

# name: (geometry, group). Groups in a row and over rows; rows past M, columns past N, images and d1
# that fill no 64 rows; groups that are shorter than a warp's block of columns, as long, and longer.
ORDINARY = {
    "part of a block": (Geometry(2, 2, 3, 3, 4, 2, 2, 1, 3, 3, 2), 2),
    "a block": (Geometry(3, 1, 3, 3, 3, 2, 2, 1, 1, 3, 4), 4),
    "rows": (Geometry(3, 1, 1, 3, 2, 2, 2, 1, 4, 2, 4), 8),
    "whole capsules": (Geometry(2, 2, 1, 2, 4, 2, 2, 2, 4, 2, 4), 16),
    "two blocks": (Geometry(1, 2, 3, 3, 2, 2, 1, 1, 2, 3, 8), 8),
}
WARPGROUPS = {
    "a lane's": (Geometry(3, 2, 3, 2, 3, 2, 2, 1, 3, 4, 2), 2),
    "part of a block": (Geometry(17, 2, 3, 2, 2, 2, 2, 1, 4, 4, 4), 4),
    "a block": (Geometry(2, 1, 3, 2, 2, 2, 1, 1, 5, 8, 8), 8),
    "parts of rows": (Geometry(2, 1, 2, 2, 2, 2, 1, 1, 4, 4, 4), 16),
    "rows": (Geometry(5, 2, 3, 2, 2, 2, 2, 1, 4, 4, 8), 16),
    "many rows": (Geometry(3, 1, 1, 2, 3, 1, 2, 1, 8, 4, 8), 64),
    "two blocks": (Geometry(3, 1, 2, 2, 3, 1, 2, 1, 3, 4, 16), 16),
    "groups": (Geometry(2, 2, 1, 3, 2, 2, 2, 2, 4, 4, 8, (2, 1), (0, 1), (1, 2)), 32),
}
_LARGER = {} if SIMULATED else {"N": 37, "C": 11, "P": 19, "H": 17, "W": 13}
# The published layers' capsules, with images, channels and pixels that fill no tile.
BULK = {
    "one row": (Geometry(21, 1, 3, 28, 27, 3, 3, 1, 1, 4, 32, (2, 2)), 8),
    "parts of rows": (Geometry(37, 2, 5, 13, 11, 3, 3, 1, 4, 8, 16), 8),
    "a block": (Geometry(19, 4, 7, 9, 9, 3, 3, 1, 4, 16, 8, (2, 2)), 8),
    "rows": (Geometry(35, 4, 10, 3, 3, 3, 3, 1, 4, 16, 8), 32),
    "two blocks": (Geometry(9, 3, 5, 8, 7, 3, 3, 1, 3, 8, 16), 16),
    "a lane's": (Geometry(9, 3, 5, 8, 7, 3, 3, 1, 4, 4, 4), 2),
}


def _in_register_tiles(g, dtype, tile):
    """What makes the launcher of a product and an activation, of that tile."""
    chosen = tile, "the test's"
    return lambda p, a: RegisterTilesLauncher(p, g.N, g.G, dtype, a, chosen)


def _skip_without_tf32():
    if not has_warpgroups():
        pytest.skip("this GPU has no warpgroup products")


def _fitting(product, group, some):
    """Those of some tiles whose kernels can squash such groups."""
    wanted = Activation(_SLOPE, group)
    return [
        tile
        for tile in some
        if fit(wanted, product, tile.BN, getattr(tile, "lanes", warpgroup_tiles.LANES))[1] is None
    ]


def _check(g, group, dtype, precision, make, rng):
    """What ``make(product, activation)`` yields, with the sums kept and without."""
    x, w, dy = operands(g, dtype, rng)
    how = (g.stride, g.padding, g.dilation)
    wide = (array.astype(np.float64) for array in (x, w))
    want = reference.capsule_convolution_einsum(*wide, *how)
    X, W = (cuda.to_device(array.ravel()) for array in (x, w))
    for keeps_sums in (True, False):
        gather = make(implicit_gemm.forward(g), Activation(_SLOPE, group, keeps_sums))
        assert gather.epilogue.activates and str(gather).endswith("LeakyReLU and squash in it")
        total, out, room = nan(dy.size, dtype), nan(dy.size, dtype), nan(gather.packed, dtype)
        gather(X, W, total, 0, room, out)
        total, out = (array.copy_to_host().reshape(want.shape) for array in (total, out))
        if keeps_sums:
            reference.assert_close(total, want, sums(g)[0], precision=precision)
            # Of these sums, not of the right ones: where they are small, squash shows how far off they are.
            want_activated = nn.squash(nn.leaky_relu(total.astype(np.float64), _SLOPE), group)
        else:
            assert np.isnan(total).all(), "nobody asked for the sums"
        reference.assert_close(out, want_activated, group)


def _check_gradient(g, group, dtype, make, rng, scale=1):
    """What ``make(product, activation)`` yields for each product of dx, behind what it is without.

    ``scale`` is the size of the sums before the activation.
    """
    _, w, dy = operands(g, dtype, rng)
    before = (scale * rng.standard_normal(g.input_shape)).astype(dtype)
    W, DY, BEFORE = (cuda.to_device(array.ravel()) for array in (w, dy, before))
    found = []
    for activation in (None, Activation(_SLOPE, group, backward=True)):
        dx = nan(before.size, dtype)
        for product in implicit_gemm.backward_input(g):
            gather = make(product, activation)
            assert gather.epilogue.differentiates == (activation is not None)
            gather(DY, W, dx, 0, nan(gather.packed, dtype), BEFORE if activation else None)
        found.append(dx.copy_to_host().reshape(before.shape))
    before = before.astype(np.float64)
    through_squash = nn.squash_backward(
        nn.leaky_relu(before, _SLOPE), found[0].astype(np.float64), group
    )
    want = nn.leaky_relu_backward(before, through_squash, _SLOPE)
    reference.assert_close(found[1] * dtype.type(scale), want * scale, group)


# Of the input's gradient, whose columns are D2's: groups in a row and over rows, and a stride.
GRADIENTS = {
    "part of a block": (Geometry(2, 2, 3, 3, 4, 2, 2, 1, 3, 2, 2), 2),
    "a block": (Geometry(3, 1, 3, 4, 4, 2, 2, 1, 1, 4, 3, (2, 1)), 4),
    "rows": (Geometry(3, 1, 1, 3, 2, 2, 2, 1, 4, 4, 2), 8),
    "whole capsules": (Geometry(2, 2, 1, 2, 4, 2, 2, 2, 4, 4, 2, 1, 1), 16),
    "two blocks": (Geometry(1, 2, 3, 3, 2, 2, 1, 1, 2, 8, 3), 8),
}


@pytest.mark.sanitize
@pytest.mark.parametrize(
    ("case", "dtype"), [*((case, "float32") for case in GRADIENTS), ("rows", "float64")]
)
def test_gradients_behind_ordinary_products(case, dtype, rng):
    g, group = GRADIENTS[case]
    g, dtype = replace(g, **_LARGER), np.dtype(dtype)
    wanted = Activation(_SLOPE, group, backward=True)

    product = implicit_gemm.backward_input(g)[0]
    tile = next(t for t in tiles.TILES if not fit(wanted, product, t.BN, t.lanes)[1])
    _check_gradient(g, group, dtype, _in_register_tiles(g, dtype, tile), rng)


@pytest.mark.parametrize("scale", [1e3, 1e10, 1e16])
def test_gradients_of_long_capsules(scale, rng):
    """Both terms of squash's gradient count, however long a capsule is."""
    g, group = GRADIENTS["a block"]
    wanted = Activation(_SLOPE, group, backward=True)
    product = implicit_gemm.backward_input(g)[0]
    tile = next(t for t in tiles.TILES if not fit(wanted, product, t.BN, t.lanes)[1])
    _check_gradient(g, group, _F4, _in_register_tiles(g, _F4, tile), rng, scale)


@pytest.mark.slow(but=["parts of rows-8-1", "a block-8-3", "rows-32-1", "a lane's-2-3"])
@pytest.mark.skipif(SIMULATED, reason="TMA takes a GPU")
@pytest.mark.sanitize
@pytest.mark.parametrize("terms", [1, 3])
@pytest.mark.parametrize(
    ("case", "group"),
    [("one row", 4), ("parts of rows", 8), ("a block", 8), ("rows", 32), ("a lane's", 2)],
)
def test_gradients_behind_bulk_copies(case, group, terms, rng):
    _skip_without_tf32()
    g = BULK[case][0]
    for largest in (True, False):

        def make(product, activation, largest=largest):
            legal = [
                tile
                for tile in bulk_tiles.tiles(product)
                if tile.PW <= bulk_tiles.MOST_DIFFERENTIATED
                and not bulk_tiles.why_not(tile, product, g.G, terms)
            ]
            wanted = Activation(_SLOPE, group, backward=True)
            legal = [t for t in legal if not fit(wanted, product, t.BN, warpgroup_tiles.LANES)[1]]
            tile = legal[0 if largest else -1]
            return WarpSpecializedLauncher(product, g.N, g.G, _F4, tile, "", terms, activation)

        _check_gradient(g, group, _F4, make, rng)


@pytest.mark.sanitize
@pytest.mark.parametrize(
    ("case", "dtype"), [*((case, "float32") for case in ORDINARY), ("rows", "float64")]
)
def test_ordinary_products(case, dtype, rng):
    g, group = ORDINARY[case]
    g, dtype = replace(g, **_LARGER), np.dtype(dtype)
    tile = _fitting(implicit_gemm.forward(g), group, tiles.TILES)[0]
    _check(g, group, dtype, "ieee", _in_register_tiles(g, dtype, tile), rng)


@pytest.mark.skipif(SIMULATED, reason="these tiles have too many threads")
@pytest.mark.parametrize("tile", tiles.TILES)
def test_every_tile_of_ordinary_products(tile, rng):
    for g, group in BULK.values():
        if _fitting(implicit_gemm.forward(g), group, [tile]):
            _check(g, group, _F4, "ieee", _in_register_tiles(g, _F4, tile), rng)


@pytest.mark.slow(but=["a lane's", "parts of rows", "two blocks", "groups"])
@pytest.mark.sanitize
@pytest.mark.parametrize("case", WARPGROUPS)
def test_warpgroup_products(case, rng):
    _skip_without_tf32()
    g, group = WARPGROUPS[case]
    g = replace(g, **_LARGER)

    def make(product, activation):
        tile = warpgroup_tiles.choose_tile(product, g.N, g.G, _F4, 132)
        return WgmmaLauncher(product, g.N, g.G, _F4, *tile, activation)

    _check(g, group, _F4, "tf32", make, rng)


@pytest.mark.slow(but=["one row-1", "parts of rows-3", "a block-1", "two blocks-3", "a lane's-1"])
@pytest.mark.skipif(SIMULATED, reason="TMA takes a GPU")
@pytest.mark.sanitize
@pytest.mark.parametrize("terms", [1, 3])
@pytest.mark.parametrize("case", BULK)
def test_bulk_copies(case, terms, rng):
    """The tile that is chosen, the largest that can be taken, and the smallest."""
    _skip_without_tf32()
    g, group = BULK[case]
    product = implicit_gemm.forward(g)
    legal = [t for t in bulk_tiles.tiles(product) if not bulk_tiles.why_not(t, product, g.G, terms)]
    chosen, _ = bulk_tiles.choose_tile(product, g.N, g.G, terms, 132)
    legal = _fitting(product, group, legal)
    for tile in {legal[0], legal[-1], *_fitting(product, group, [chosen])}:

        def make(product, activation, tile=tile):
            return WarpSpecializedLauncher(product, g.N, g.G, _F4, tile, "", terms, activation)

        _check(g, group, _F4, {1: "tf32", 3: "tf32x3"}[terms], make, rng)


@pytest.mark.parametrize(
    ("D1", "D3", "group", "reason"),
    [
        (2, 6, 4, "groups of 4 are neither parts of rows nor whole rows of 2 x 6"),
        (3, 4, 8, "neither parts of rows nor whole rows of 3 x 4"),
        (2, 3, 3, "a group of 3 columns does not fit 32 in blocks of 8"),
        (2, 24, 24, "a group of 24 columns does not fit 32 in blocks of 8"),
        (2, 4, 1, "a group of 1 columns does not fit 32 in blocks of 8"),
        (16, 8, 128, "a group of 16 rows does not fit the 8 of a warp"),
    ],
)
def test_why_an_activation_is_kept_apart(D1, D3, group, reason):
    product = implicit_gemm.forward(Geometry(1, 1, 3, 2, 2, 1, 1, 1, D1, 2, D3))
    epilogue, why = fit(Activation(0.1, group), product, 32, Lanes(4, 8, width=2, rows=2))
    assert not epilogue.activates and epilogue.keeps_sums and reason in why


@pytest.mark.parametrize("name", ["matrix", "transposed"])
def test_networks_are_the_same_wherever_activations_are(name, rng):
    """Lengths and gradients; without the sums, the lengths still."""
    net = network(name, dtype="float64", seed=3)
    x, labels = batch(net, 3, rng)
    x, labels = cuda.to_device(x), cuda.to_device(labels)
    found, beside = [], Beside(0)
    for how in ({}, {"joined": True}, {"apart": True}):
        forward = ForwardPass(net.layers, len(labels), net.dtype, **how)
        assert "joined" in how or not any(c.differentiates for c in forward.convolutions)
        assert "apart" not in how or not any(c.activates for c in forward.convolutions)
        if name == "matrix" and "joined" in how:
            assert forward.convolutions[1].differentiates
        BackwardPass(forward).differentiate(x, labels, net.state, beside)
        lengths = forward.lengths.copy_to_host()
        found.append([lengths, *net.state.read(net.state.gradients)])
    for arrays in zip(*found):
        for have in arrays[:-1]:
            np.testing.assert_allclose(have, arrays[-1], rtol=1e-10, atol=1e-14)
    inference = ForwardPass(net.layers, len(labels), net.dtype, for_gradients=False)
    inference.pack(net.state, beside)
    inference.launch(x, net.state, beside)
    np.testing.assert_array_equal(inference.lengths.copy_to_host(), found[0][0])
    for convolution, total in zip(inference.convolutions, inference.sums):
        assert (total is None) == convolution.activates


def test_a_network_explains_where_its_activations_are():
    *lines, why = network("matrix").explain(2).splitlines()
    assert why.startswith("layer by layer: ")
    assert [line.split(": ")[0] for line in lines] == ["layers[0]", "layers[1]"]
    for line in lines:
        assert "register_tiles" in line and "LeakyReLU and squash in it" in line
    assert network("odd").explain(2).splitlines()[0].endswith("LeakyReLU apart")
    assert "activation apart" not in network("transposed").explain(2)
    assert "LeakyReLU and squash apart: a group of 3" in network("transposed").explain(2)
    for N, error in (("2", TypeError), (True, TypeError), (0, ValueError)):
        with pytest.raises(error, match=f"N is {N!r}; it takes"):
            network("matrix").explain(N)
    with pytest.raises(TypeError, match="gradients is 1; it takes True or False"):
        network("matrix").explain(2, gradients=1)
