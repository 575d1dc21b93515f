"""The packed kernel of the tensor cores: what every element is, in one part and in two."""

import itertools

import numpy as np
import pytest

from numbacaps import Geometry
from numbacaps.device.bfloat16 import to_device
from numbacaps.device.compiled import Compiled, as_argument, as_words, launch_stream
from numbacaps.device.launch import spread
from numbacaps.fused import implicit_gemm
from numbacaps.fused.pack import NUMBERS, Packing, make_pack
from numbacaps.fused.rung_4_wgmma.tile import Window
from tests.support.cases import nan

_G = Geometry(5, 3, 2, 4, 4, 2, 2, 1, 4, 4, 5)
_CUT = np.uint32(0x1FFF)  # bits of float32 that TF32 has not


def _packing(p, G, parts, BN=8, CHUNKS=2, run=1):
    """What is packed of a product's kernel."""
    depths = p.channels, p.D, Window.of(p).taps, p.n, p.kernel_steps
    return Packing(*depths, G, p.pixels.steps[1], BN, CHUNKS, parts, 4, run)


def _packed(parts, w):
    """The kernel packed for the forward pass, as (parts, elements)."""
    packing = _packing(implicit_gemm.forward(_G), _G.G, parts)
    kernel = make_pack(packing.form, w.dtype, False)
    pack = Compiled(kernel, (w.dtype, w.dtype), 0, words=NUMBERS, early=True)
    packed = nan(packing.elements, np.float32)
    arguments = *as_argument(to_device(w.ravel())), *as_argument(packed)
    arguments = *arguments, *as_words(packing.numbers)
    pack.on(*spread(packing.elements))(launch_stream(0), arguments)
    run = packing.CHUNKS * packing.BN * packing.chunk  # elements of a part of a tap
    return packed.copy_to_host().reshape(-1, parts, run).swapaxes(0, 1).reshape(parts, -1)


@pytest.mark.parametrize("parts", [1, 2])
def test_every_part_is_what_tf32_has(parts, rng):
    packed = _packed(parts, rng.standard_normal(_G.kernel_shape, dtype=np.float32))
    assert np.isfinite(packed).all() and not (packed.view(np.uint32) & _CUT).any()


def test_two_parts_are_the_kernel_to_22_bits(rng):
    w = rng.standard_normal(_G.kernel_shape, dtype=np.float32)
    high, low = _packed(2, w).astype(np.float64)
    filled = high != 0
    assert np.count_nonzero(filled) == w.size and not low[~filled].any()
    both = np.sort((high + low)[filled])
    np.testing.assert_allclose(both, np.sort(w, axis=None), rtol=2.0**-22)
    assert (np.abs(low[filled]) <= np.abs(high[filled]) * 2.0**-10).all()
    assert np.count_nonzero(low) > w.size / 2


def test_one_kernel_packs_all_sizes():
    """Of every capsule up to 16, for both passes, with any tile."""
    kernels, sizes = set(), range(1, 17)
    for D1, D2, D3 in itertools.product(sizes, sizes, sizes):
        g = Geometry(32, 8, 8, 14, 14, 3, 3, 1, D1, D2, D3, (2, 1))
        tile = 8 * D3, 2 * D2, 1 + D1 % 4
        for p in (implicit_gemm.forward(g), implicit_gemm.backward_input(g)[-1]):
            kernels.add(make_pack(_packing(p, 1, 1, *tile).form, np.dtype(np.float32), False))
    assert len(kernels) == 1
