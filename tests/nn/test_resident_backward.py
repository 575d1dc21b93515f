"""The backward pass as one kernel: where things lie, what it is compiled to, and what it makes of images."""

import random
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from numbacaps.algorithms import fused
from numbacaps.device.streams import Beside
from numbacaps.device.target import cuda
from numbacaps.fused.rung_4_wgmma.tile import SHARED_LIMIT
from numbacaps.nn import Layer
from numbacaps.nn.layer import chain
from numbacaps.nn.passes import BackwardPass, ForwardPass
from numbacaps.nn.resident import backward_layout as backward_residence
from numbacaps.nn.resident import layout as residence
from numbacaps.nn.resident import passes as resident_pass
from numbacaps.nn.resident.pack_network import make_pack_network
from numbacaps.nn.state import State
from reference import assert_close
from tests.support.kernels import loaded, multiplied
from tests.support.resident_networks import NETWORKS, drawn, network, placed_layers

_FLOAT32 = np.dtype(np.float32)


@pytest.mark.tiers("simulator", "gpu")
@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
@pytest.mark.parametrize("name", NETWORKS)
def test_where_things_lie(name, precision):
    placed = placed_layers(name, precision)
    assert backward_residence.why_not(placed) is None
    _check_places(placed)


@pytest.mark.tiers("simulator")
def test_where_things_of_any_network_lie():
    draw, fit = random.Random(1), 0
    while fit < 50:
        placed = drawn(draw)
        if placed and not (residence.why_not(placed) or backward_residence.why_not(placed)):
            _check_places(placed)
            fit += 1


def _check_places(placed):
    """Whatever is in use at the same time lies apart, and all of it in the shared memory of a block."""
    place = backward_residence.place(placed)
    ring, first, outputs = place.ring, place.first, place.outputs
    assert ring.bytes <= SHARED_LIMIT and 16 * ring.slots + 8 <= 4 * first.x
    fixed = [
        (0, 16 * ring.slots + 8),
        (4 * first.x, 4 * first.layer.image),
        (ring.ring_at, ring.ring * ring.pitch),
    ]
    more = (ring.ring_at + ring.ring * ring.pitch + ring.gap, ring.more * ring.pitch)
    shares = first.shares_at, ring.warpgroups * 128 * first.layer.K + first.size
    at_once = [[(first.at, outputs[0].size), shares]]
    for one, made, read in zip(place.layers, outputs, outputs[1:]):
        assert (one.out, one.size, one.at) == (made.at, made.size, read.at)
        assert one.copies == made.copies and one.slots in (ring.ring, ring.slots)
        both = [(one.at, read.size * read.copies), (one.out, one.size * one.copies)]
        if one.slots > ring.ring:
            both.append((more[0] / 4, more[1] / 4))
        at_once.append(both)
        if one.weights:
            transposed = one.size + one.weights.padding
            at_once.append([(one.at, read.size), (one.weights.at, transposed)])
        assert (one.weights is None) == (read.d_sums_at is not None)
        assert one.chunk_bytes <= ring.pitch and one.steps * 8 >= one.K
        assert one.columns % 8 == 0 and one.N % (8 * one.wide) == 0
        assert one.D % (2 * one.wide) == 0 and one.layer.D3 % one.run == 0
        assert one.taps % one.together == 0 and 2 * one.steps % one.run == 0
    for some in at_once:
        used = sorted(fixed + [(4 * begin, 4 * size) for begin, size in some])
        for (begin, size), (behind, _) in zip(used, used[1:]):
            assert begin % 16 == 0 and begin + size <= behind
        assert used[-1][0] + used[-1][1] + 128 <= ring.bytes


@pytest.mark.tiers("simulator", "gpu")
def test_what_does_not_fit_says_why():
    placed = list(placed_layers("published"))
    layer = placed[1].layer
    wide = SimpleNamespace(geometry=SimpleNamespace(P=11, D1=4, D3=8, C=4, D2=16), layer=layer)
    assert "88 elements of a row of outputs" in backward_residence.why_not([placed[0], wide])
    wide = SimpleNamespace(geometry=SimpleNamespace(P=10, D1=4, D3=8, C=7, D2=16), layer=layer)
    assert "112 elements of a row of inputs" in backward_residence.why_not([placed[0], wide])
    steep = SimpleNamespace(geometry=placed[1].geometry, layer=replace(layer, slope=-0.1))
    assert "layers[1]: its slope is negative" in backward_residence.why_not([placed[0], steep])


@pytest.mark.tiers("simulator", "gpu")
@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
@pytest.mark.parametrize("channels", [1, 4])
def test_packed_kernels_hold_every_weight_in_its_place(channels, precision, rng):
    """Undone by its description: core matrices of taps, k in runs, columns in pairs."""
    layers = (
        Layer(channels, (1, 16), window=2, capsule=(2, 8), squash=4),
        Layer(3, (8, 4), window=(2, 3), squash=4, precision=precision),
    )
    placed = chain(layers, (1, 3, 8, 1, 1), _FLOAT32)
    assert residence.why_not(placed) is None
    _, _, _, layers = residence.place(placed, True)
    packed = resident_pass.PackedKernels(placed, layers, True)
    state = State(placed, _FLOAT32, 0)
    packed.pack(state, 0)
    cuda.synchronize()
    all_packed = packed.backward.copy_to_host()
    for one, layer, array in zip(
        backward_residence.place(placed).layers, placed[1:], state.kernels[1:]
    ):
        g, parts = layer.geometry, 2 if precision == "tf32x3" else 1
        kernel = array.copy_to_host().reshape(g.P, g.C, g.KH * g.KW, g.D2, g.D3)
        found = all_packed[one.packed_at : one.packed_at + one.packed]
        found = found.reshape(-1, parts, 2 * one.steps, one.columns, 4)
        assert parts == 1 or np.abs(found[:, 0]).max() <= 2.0**-11 * np.abs(found[:, 1]).max()
        found = found.sum(axis=1, dtype=np.float32)
        for i in rng.choice(found.size, 300):
            taps, chunk, column, e = np.unravel_index(i, found.shape)
            k = (chunk // one.run * 4 + e) * one.run + chunk % one.run
            tap = taps * one.together + column // one.N
            group, inner = divmod(column % one.N, 8 * one.wide)
            block, pair = divmod(inner, 8)
            n = group * 8 * one.wide + pair // 2 * 2 * one.wide + block * 2 + pair % 2
            wanted = 0.0
            if k < one.K:
                wanted = kernel[k // g.D3, n // g.D2, tap, n % g.D2, k % g.D3]
            assert abs(found[taps, chunk, column, e] - wanted) <= 2.0**-11 * abs(wanted)


@pytest.mark.slow(but=["cores-tf32"])
@pytest.mark.tiers("ptx")
@pytest.mark.parametrize(
    ("name", "precision"),
    [("published", "tf32"), ("published", "tf32x3"), ("uneven", "tf32x3"), ("cores", "tf32")],
)
def test_kernel(name, precision, monkeypatch):
    from numba import float32, int64, types
    from numba.cuda import dispatcher

    from numbacaps.nn.resident.backward import make_resident_backward

    gpu = SimpleNamespace(compute_capability=(9, 0))
    monkeypatch.setattr(fused, "has_warpgroups", lambda: True)
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: gpu)  # device functions' own
    placed = placed_layers(name, precision)
    place = backward_residence.place(placed)
    kernel = make_resident_backward(place, placed[-1].layer.channels)
    array, labels = types.Array(float32, 1, "C"), types.Array(int64, 1, "C")
    kinds = (array, labels, *(array,) * 6, int64)
    text, _ = cuda.compile_ptx(kernel, kinds, cc=(9, 0))
    assert "__local_depot" not in text, "arrays were spilled to local memory"
    assert not re.search(r"\.f64\b", text), "float64 crept in"
    assert not re.search(r"\b(atom|red)\.", text), "a sum has no fixed order"
    products, wanted = 3 if precision == "tf32x3" else 1, {}
    for one in place.layers:
        wanted[one.columns] = wanted.get(one.columns, 0) + one.steps * one.at_once * products
        if one.weights:
            w = one.weights
            count = w.pairs * w.channels * w.taps[0]
            wanted[w.taps[1] * 8] = wanted.get(w.taps[1] * 8, 0) + count
    for columns, count in wanted.items():
        product = f"wgmma.mma_async.sync.aligned.m64n{columns}k8.f32.tf32.tf32"
        assert text.count(product) == count
    # Of a register that was loaded and only handed on, the assembler thinks that it is free.
    assert multiplied(text) and not multiplied(text) & loaded(text)
    assert f"bar.sync 1, {place.ring.warpgroups * 128};" in text
    # Unrolled, loops are more code, all of which is fetched once an image.
    assert text.count("cp.async.bulk.shared::cluster") == len(place.layers)
    for instruction in ("launch_dependents", "wait"):
        assert text.count(f"griddepcontrol.{instruction};") == 1


@pytest.mark.slow(but=["tf32x3"])
@pytest.mark.tiers("ptx")
@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
def test_packing(precision, monkeypatch):
    from numba import float32, types

    monkeypatch.setattr(fused, "has_warpgroups", lambda: True)
    placed = placed_layers("published", precision)
    _, _, _, layers = residence.place(placed, True)
    kernel = make_pack_network(resident_pass.packings(placed, layers, True))
    array = types.Array(float32, 1, "C")
    text, _ = cuda.compile_ptx(kernel, (array, array), cc=(9, 0))
    assert "__local_depot" not in text and not re.search(r"\.f64\b", text)
    assert "cvt.rna.tf32.f32" in text
    assert text.index("griddepcontrol.wait;") < text.index("griddepcontrol.launch_dependents;")


def _gradients(backward, net, x, labels):
    """Of a forward pass that has been."""
    beside = Beside(0)
    beside.mark()
    backward.pack(net.state, beside)
    backward.launch(x, labels, net.state, beside)
    cuda.synchronize()
    return net.state.read(net.state.gradients)


@pytest.mark.tiers("gpu")
@pytest.mark.parametrize("N", [1, 3, 140, 300])
@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
@pytest.mark.parametrize("name", NETWORKS)
def test_one_kernel_makes_the_layers_gradients(name, precision, N, rng):
    """Also of more images than there are multiprocessors; the same bits every time."""
    _check(name, precision, N, rng)


@pytest.mark.tiers("gpu")
@pytest.mark.sanitize
@pytest.mark.parametrize("dtype", ["float32"])
@pytest.mark.parametrize("name", ["cores", "primes"])
def test_one_kernel_is_clean(name, dtype, rng):
    _check(name, "tf32", 3, rng)


def _sums(layer, outputs, slopes):
    """What a layer's activation was of."""
    results, factors = outputs.copy_to_host(), slopes.copy_to_host()[..., 0]
    activated = results / np.repeat(factors, layer.squash, axis=1)
    return np.where(activated > 0, activated, activated / np.float32(layer.slope))


def _check(name, precision, N, rng):
    net = network(name, precision)
    if resident_pass.why_not(net.layers, _FLOAT32):
        pytest.skip("this GPU has no warpgroup products")
    x = cuda.to_device(rng.uniform(0, 1, (N, *net.input_shape)).astype(np.float32))
    labels = cuda.to_device(rng.integers(0, net.classes, N))
    forward = resident_pass.ResidentPass(net.layers, N, net.dtype)
    backward, beside = resident_pass.backward_pass(forward), Beside(0)
    assert isinstance(backward, resident_pass.ResidentBackwardPass)
    forward.pack(net.state, beside)
    forward.launch(x, net.state, beside)
    found = _gradients(backward, net, x, labels)
    # From the same sums: of those of another precision some are on the other side of 0.
    other = network(name, "ieee")
    same = ForwardPass(other.layers, N, net.dtype)
    for to, array in zip((same.lengths, *same.outputs), (forward.lengths, *forward.outputs)):
        to.copy_to_device(array)
    for to, *which in zip(same.sums, forward.layers, forward.outputs, forward.slopes):
        to.copy_to_device(_sums(*which))
    wanted = _gradients(BackwardPass(same), other, x, labels)
    for have, want in zip(found, wanted, strict=True):
        assert np.abs(want).max() > 0
        assert_close(have, want.astype(np.float64), 1 << 12, precision)
    for one, again in zip(_gradients(backward, net, x, labels), found):
        np.testing.assert_array_equal(one, again)
