"""The backward pass as one kernel: where things lie, what it is compiled to, and what it makes of images."""

import random
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from numbacaps.device import gpu as devices
from numbacaps.device.streams import Beside
from numbacaps.device.target import cuda
from numbacaps.fused.rung_4_wgmma.tile import SHARED_LIMIT
from numbacaps.nn import Layer
from numbacaps.nn.layer import chain
from numbacaps.nn.passes import BackwardPass, ForwardPass
from numbacaps.nn.resident import backward_layout
from numbacaps.nn.resident import passes as resident_pass
from numbacaps.nn.resident.layout import layout_of
from numbacaps.nn.resident.pack_network import make_pack_network
from numbacaps.nn.resident.packed_kernels import PackedKernels, packings
from numbacaps.nn.state import State, starts_of
from reference import assert_close
from tests.support.kernels import loaded, multiplied
from tests.support.ptx import ptx
from tests.support.resident_networks import NETWORKS, drawn, network, placed_layers

_FLOAT32 = np.dtype(np.float32)


@pytest.mark.tiers("simulator", "gpu")
@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
@pytest.mark.parametrize("name", NETWORKS)
def test_where_things_lie(name, precision):
    placed = placed_layers(name, precision)
    assert layout_of(placed).why_no_backward is None
    _check_places(placed)


@pytest.mark.tiers("simulator")
def test_where_things_of_any_network_lie():
    draw, fit = random.Random(1), 0
    while fit < 50:
        placed = drawn(draw)
        if placed and layout_of(placed).why_no_backward is None:
            _check_places(placed)
            fit += 1


def _check_places(placed):
    """Whatever is in use at the same time lies apart, and all of it in the shared memory of a block."""
    layout = layout_of(placed).backward
    pipeline, first, gradients = layout.pipeline, layout.first, layout.gradients
    assert layout.memory.bytes <= SHARED_LIMIT and pipeline.gate_at + 8 <= 4 * first.x
    fixed = [
        (0, pipeline.gate_at + 8),
        (4 * first.x, 4 * first.layer.image),
        (pipeline.begin, pipeline.early * pipeline.pitch),
    ]
    late = pipeline.begin + pipeline.early * pipeline.pitch + pipeline.gap
    late = late / 4, pipeline.late * pipeline.pitch / 4
    shares = first.shares_at, pipeline.consumers * first.layer.K + first.size
    at_once = [[(first.at, gradients[0].output.size), shares]]
    for one, made, read in zip(layout.layers, gradients, gradients[1:]):
        schedule, chunks, product = one.schedule, one.chunks, one.product
        assert (one.out, one.size, one.at) == (made.at, made.output.size, read.at)
        assert schedule.copies == made.copies
        assert chunks.stages in (pipeline.early, pipeline.stages)
        both = [(one.at, read.output.size * read.copies), (one.out, one.size * schedule.copies)]
        if chunks.stages > pipeline.early:
            both.append(late)
        at_once.append(both)
        if one.kernel:
            transposed = one.size + one.kernel.padding
            at_once.append([(one.at, read.output.size), (one.kernel.at, transposed)])
        assert (one.kernel is None) == (read.d_sums_at is not None) == bool(one.why_apart)
        assert chunks.bytes <= pipeline.pitch and product.steps * 8 >= product.K
        assert product.columns % 8 == 0 and product.N % (8 * product.wide) == 0
        assert product.D % (2 * product.wide) == 0 and one.layer.D3 % product.run == 0
        assert product.taps % product.together == 0 and 2 * product.steps % product.run == 0
    for some in at_once:
        used = sorted(fixed + [(4 * begin, 4 * size) for begin, size in some])
        for (begin, size), (behind, _) in zip(used, used[1:]):
            assert begin % 16 == 0 and begin + size <= behind
        assert used[-1][0] + used[-1][1] + 128 <= layout.memory.bytes


@pytest.mark.tiers("simulator", "gpu")
def test_kernels_whose_gradients_are_apart_say_why():
    layers = layout_of(placed_layers("published")).backward.layers
    assert [one.why_apart is None for one in layers] == [True, False, False, False]
    assert layers[1].why_apart == (
        "capsules of 4 x 16 are, transposed, no core matrices: 4 x 8 are"
    )


@pytest.mark.tiers("simulator", "gpu")
def test_what_does_not_fit_says_why():
    placed = list(placed_layers("published"))
    layer = placed[1].layer
    wide = SimpleNamespace(geometry=SimpleNamespace(P=11, D1=4, D3=8, C=4, D2=16), layer=layer)
    assert "88 elements of a row of outputs" in backward_layout.why_not([placed[0], wide])
    wide = SimpleNamespace(geometry=SimpleNamespace(P=10, D1=4, D3=8, C=7, D2=16), layer=layer)
    assert "112 elements of a row of inputs" in backward_layout.why_not([placed[0], wide])
    steep = SimpleNamespace(geometry=placed[1].geometry, layer=replace(layer, slope=-0.1))
    assert "layers[1]: its slope is negative" in backward_layout.why_not([placed[0], steep])


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
    assert layout_of(placed).why_not is None
    layout = layout_of(placed)
    packed = PackedKernels(placed, layout, True)
    state = State(placed, _FLOAT32, 0)
    packed.pack(state, 0)
    cuda.synchronize()
    all_packed = packed.backward.copy_to_host()
    for of, layer, array in zip(layout.backward.layers, placed[1:], state.kernels[1:]):
        one, chunks = of.product, of.chunks
        g, parts = layer.geometry, 2 if precision == "tf32x3" else 1
        kernel = array.copy_to_host().reshape(g.P, g.C, g.KH * g.KW, g.D2, g.D3)
        found = all_packed[chunks.packed_at : chunks.packed_at + chunks.elements]
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


@pytest.mark.slow(but=["loss-uneven-tf32", "given-uneven-tf32"])
@pytest.mark.tiers("ptx")
@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *(
            (name, precision)
            for name in ("published", "uneven")
            for precision in ("tf32", "tf32x3")
        ),
        ("cores", "tf32"),
    ],
)
@pytest.mark.parametrize("beginning", ["loss", "given"])
def test_kernel(name, precision, beginning, monkeypatch):
    from numba import float32, int64, types
    from numba.cuda import dispatcher

    from numbacaps.nn.resident.backward import make_resident_backward
    from numbacaps.nn.resident.backward_given import make_given
    from numbacaps.nn.resident.backward_loss import make_loss

    gpu = SimpleNamespace(compute_capability=(9, 0))
    monkeypatch.setattr(devices, "current", lambda: devices.H100)
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: gpu)  # device functions' own
    placed = placed_layers(name, precision)
    layout = layout_of(placed).backward
    given, classes = beginning == "given", placed[-1].layer.channels
    begin_with = make_given(layout) if given else make_loss(layout, classes)
    kernel = make_resident_backward(layout, begin_with)
    array, labels = types.Array(float32, 1, "C"), types.Array(int64, 1, "C")
    kinds = (array, labels, *(array,) * 6, int64)
    text = ptx(kernel, kinds, cc=(9, 0))
    assert "__local_depot" not in text, "arrays were spilled to local memory"
    assert not re.search(r"\.f64\b", text), "float64 crept in"
    assert not re.search(r"\b(atom|red)\.", text), "a sum has no fixed order"
    products, wanted = 3 if precision == "tf32x3" else 1, {}
    for one in layout.layers:
        columns, at_once = one.product.columns, one.schedule.at_once
        wanted[columns] = wanted.get(columns, 0) + one.product.steps * at_once * products
        if one.kernel:
            w = one.kernel
            count = w.pairs * w.channels * w.taps[0]
            wanted[w.taps[1] * 8] = wanted.get(w.taps[1] * 8, 0) + count
    for columns, count in wanted.items():
        product = f"wgmma.mma_async.sync.aligned.m64n{columns}k8.f32.tf32.tf32"
        assert text.count(product) == count
    # Of a register that was loaded and only handed on, the assembler thinks that it is free.
    assert multiplied(text) and not multiplied(text) & loaded(text)
    assert f"bar.sync 1, {layout.pipeline.consumers};" in text
    # Unrolled, loops are more code, all of which is fetched once an image.
    assert text.count("cp.async.bulk.shared::cluster") == len(layout.layers)
    for instruction in ("launch_dependents", "wait"):
        assert text.count(f"griddepcontrol.{instruction};") == 1


@pytest.mark.slow(but=["uneven-tf32"])
@pytest.mark.tiers("ptx")
@pytest.mark.parametrize(
    ("name", "precision"),
    [(name, precision) for name in ("published", "uneven") for precision in ("tf32", "tf32x3")],
)
def test_packing(name, precision, monkeypatch):
    from numba import float32, types
    from numba.cuda import dispatcher

    gpu = SimpleNamespace(compute_capability=(9, 0))
    monkeypatch.setattr(devices, "current", lambda: devices.H100)
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: gpu)  # device functions' own
    placed = placed_layers(name, precision)
    kernel = make_pack_network(packings(placed, layout_of(placed), True, starts_of(placed)[1:]))
    array = types.Array(float32, 1, "C")
    text = ptx(kernel, (array, array), cc=(9, 0))
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
