"""The forward pass as one kernel: which networks fit, where things lie, and what it makes of images."""

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
from numbacaps.nn.passes import ForwardPass
from numbacaps.nn.resident import forward_layout
from numbacaps.nn.resident import passes as resident_pass
from numbacaps.nn.resident.layout import layout_of
from numbacaps.nn.resident.shared_memory import Region, SharedMemory
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
    assert layout_of(placed).why_not is None
    _check_places(placed)


@pytest.mark.tiers("simulator")
def test_where_things_of_any_network_lie():
    draw, fit = random.Random(0), 0
    while fit < 100:
        placed = drawn(draw)
        if placed and layout_of(placed).why_not is None:
            _check_places(placed)
            fit += 1


def _check_places(placed):
    """Whatever is in use at the same time lies apart, and all of it in the shared memory of a block."""
    layout = layout_of(placed).forward
    pipeline, first, layers = layout.pipeline, layout.first, layout.layers
    assert layout.memory.bytes <= SHARED_LIMIT and pipeline.gate_at + 8 <= 4 * first.x
    fixed = [
        (0, pipeline.gate_at + 8),
        (4 * first.x, 4 * first.image),
        (4 * first.kernel, 4 * first.K * first.N),
        (pipeline.begin, pipeline.early * pipeline.pitch),
    ]
    late = pipeline.begin + pipeline.early * pipeline.pitch + pipeline.gap
    late = late, pipeline.late * pipeline.pitch
    results = [(first.output.at, first.output.size)]
    results += [(one.output.at, one.output.size * one.schedule.shares) for one in layers]
    opened = False
    for one, read, written in zip(layers, results, results[1:]):
        schedule, chunks = one.schedule, one.chunks
        assert one.input_at == read[0] and chunks.stages in (pipeline.early, pipeline.stages)
        opened |= chunks.stages > pipeline.early
        assert not (schedule.opens_late and opened)
        used = fixed + [(4 * begin, 4 * size) for begin, size in (read, written)]
        used += [late] if opened else []
        used = sorted(used)
        for (begin, size), (behind, _) in zip(used, used[1:]):
            assert begin % 4 == 0 and begin + size <= behind
        assert used[-1][0] + used[-1][1] + 128 <= layout.memory.bytes
        assert chunks.bytes <= pipeline.pitch
        if not schedule.swapped:
            assert schedule.batch * schedule.shares <= chunks.stages
            assert chunks.count % (schedule.batch * schedule.shares) == 0
    assert opened == (pipeline.late > 0)


@pytest.mark.tiers("simulator")
@pytest.mark.parametrize(
    ("regions", "said"),
    [
        ([("one", 0, 32, 0, 2), ("other", 16, 16, 2, 3)], "overlap"),
        ([("one", 8, 32, 0, 2)], "not aligned to 16 bytes"),
        ([("one", 0, 32, 2, 1)], "never in use"),
        ([("one", 64, 880, 0, 0)], "reaches over the 1024 bytes"),
    ],
)
def test_regions_that_meet_or_reach_over_the_end_are_refused(regions, said):
    with pytest.raises(ValueError, match=said):
        SharedMemory(tuple(Region(*one) for one in regions), 1024)


@pytest.mark.tiers("simulator")
def test_regions_of_different_steps_may_share_bytes():
    memory = SharedMemory((Region("one", 0, 64, 0, 1), Region("other", 32, 64, 2, 3)), 1024)
    assert memory["other"].element == 8
    with pytest.raises(ValueError, match="more than the"):
        SharedMemory((), SHARED_LIMIT + 1)


@pytest.mark.tiers("simulator")
def test_a_network_has_one_layout_whose_layers_may_hold_lists():
    layers = [
        Layer(2, [1, 16], window=[2, 2], capsule=(4, 4), squash=4),
        Layer(4, (4, 4), squash=4),
    ]
    placed = [chain(layers, (1, 5, 8, 1, 1), _FLOAT32) for _ in range(2)]
    assert layout_of(placed[0]) is layout_of(placed[1])


@pytest.mark.tiers("simulator", "gpu")
@pytest.mark.parametrize(
    ("number", "change", "said"),
    [
        (1, {"precision": "ieee"}, "layers[1]: precision 'ieee' is ordinary arithmetic"),
        (1, {"precision": "tf32x3"}, "several precisions"),
        (1, {"squash": 64}, "layers[1]: groups of 64"),
        (0, {"squash": None}, "layers[0]: groups of None"),
        (0, {"padding": 1}, "layers[0]: windows reach over the edge"),
        (1, {"algorithm": "indexed", "precision": "ieee"}, "layers[1]"),
        (0, {"window": 4}, "layers[0]: 16 weights of 8 elements"),
    ],
)
def test_what_does_not_fit_says_why(number, change, said):
    layers, shape = NETWORKS["published"]
    layers = [replace(one, precision="tf32") for one in layers]
    layers[number] = replace(layers[number], **change)
    if change.get("window") or change.get("padding"):
        last = replace(layers[1], window=13 if change.get("window") else 14)
        layers = [layers[0], last]
    assert said in layout_of(chain(layers, shape, _FLOAT32)).why_not


@pytest.mark.tiers("simulator")
def test_by_default_three_terms_where_sums_are_long(monkeypatch):
    """Forward, and of the input's gradient; as on a GPU, which the simulator is not."""
    monkeypatch.setattr(
        forward_layout, "chosen_for", lambda *of: "tf32x3" if of[2] >= 32 else "ieee"
    )
    layers, shape = NETWORKS["published"]
    placed = chain([replace(one, precision="auto") for one in layers], shape, _FLOAT32)
    assert [forward_layout.precision_of(one) for one in placed[1:]] == ["tf32x3"] * 4
    assert layout_of(placed).why_not is None
    few = Layer(16, (1, 16), capsule=(4, 4), squash=4), Layer(1, (4, 4), window=1, squash=4)
    placed = chain(few, (1, 5, 8, 1, 1), _FLOAT32)
    assert placed[1].terms == 64  # products of a sum forward; 4 of the input's gradient
    said = "layers[1]: precision 'auto' is ordinary arithmetic where sums are this short"
    assert layout_of(placed).why_not == said


@pytest.mark.tiers("simulator", "gpu")
def test_large_outputs_do_not_fit():
    layers, _ = NETWORKS["published"]
    layers = [replace(one, precision="tf32") for one in (*layers[:2], layers[4])]
    assert "are too much" in layout_of(chain(layers, (1, 64, 64, 1, 1), _FLOAT32)).why_not
    assert "one layer" in layout_of(chain(layers[:1], (1, 3, 3, 1, 1), _FLOAT32)).why_not


@pytest.mark.slow(but=["uneven-tf32-*"])
@pytest.mark.tiers("ptx")
@pytest.mark.parametrize(
    ("name", "precision", "for_gradients"),
    [("published", "tf32", True), ("uneven", "tf32", False), ("uneven", "tf32x3", False)],
)
def test_kernel(name, precision, for_gradients, monkeypatch):
    from numba import float32, int64, types
    from numba.cuda import dispatcher

    from numbacaps.nn.resident.forward import make_resident_forward

    gpu = SimpleNamespace(compute_capability=(9, 0))
    monkeypatch.setattr(devices, "current", lambda: devices.H100)
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: gpu)  # device functions' own
    placed = placed_layers(name, precision)
    layout = layout_of(placed).forward
    layers, pipeline = layout.layers, layout.pipeline
    kernel = make_resident_forward(layout, placed[-1].layer.channels, for_gradients)
    array = types.Array(float32, 1, "C")
    text = ptx(kernel, (array,) * 6 + (int64,), cc=(9, 0))
    assert "__local_depot" not in text, "arrays were spilled to local memory"
    assert not re.search(r"\.f64\b", text), "float64 crept in"
    assert not re.search(r"\b(atom|red)\.", text), "a sum has no fixed order"
    products, possible = 3 if precision == "tf32x3" else 1, {}
    few = sum(one.taps.columns * one.BN // 16 for one in layers if one.schedule.swapped)
    assert text.count("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32") == products * few > 0
    assert text.count("ldmatrix.sync.aligned.m8n8.x4") == few * (2 if products > 1 else 1)
    for one in layers:
        if one.schedule.swapped:
            continue
        chunks = one.schedule.batch * (2 if one.schedule.overlaps else 1)
        count, turns = (
            one.taps.columns * one.chunks.groups * chunks * products,
            one.chunks.count // one.schedule.shares // chunks,
        )
        # Of few turns the compiler may unroll the loop, all of it or nothing.
        before = possible.get(one.BN, {0})
        possible[one.BN] = {some + count * times for some in before for times in (1, turns)}
    for BN, counts in possible.items():
        product = f"wgmma.mma_async.sync.aligned.m64n{BN}k8.f32.tf32.tf32"
        assert text.count(product) in counts
    # Of a register that was loaded and only handed on, the assembler thinks that it is free.
    assert multiplied(text) and not multiplied(text) & loaded(text)
    assert f"setmaxnreg.inc.sync.aligned.u32 {pipeline.registers};" in text
    assert f"bar.sync 1, {pipeline.consumers};" in text
    assert "cp.async.bulk.shared::cluster" in text and "cp.async.cg.shared.global" in text
    # Unrolled, loops are more code, all of which is fetched once an image.
    assert text.count("cp.async.bulk.shared::cluster") == len(layers)
    for instruction in ("launch_dependents", "wait"):
        assert text.count(f"griddepcontrol.{instruction};") == (1 if "launch" in instruction else 2)


@pytest.mark.slow
@pytest.mark.tiers("ptx")
@pytest.mark.parametrize(("channels", "columns", "squash"), [(12, 8, 8), (8, 16, 4), (16, 4, 4)])
def test_sums_of_wide_tiles_stay_in_registers(channels, columns, squash, monkeypatch):
    from numba import float32, int64, types
    from numba.cuda import dispatcher

    from numbacaps.nn.resident.forward import make_resident_forward

    gpu = SimpleNamespace(compute_capability=(9, 0))
    monkeypatch.setattr(devices, "current", lambda: devices.H100)
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: gpu)
    layers = (
        Layer(1, (1, 32), stride=2, capsule=(4, 8), squash=8),
        Layer(channels, (8, columns), window=5, squash=squash, precision="tf32"),
    )
    placed = chain(layers, (1, 16, 16, 1, 1), _FLOAT32)
    assert layout_of(placed).why_not is None
    which = layout_of(placed).forward, channels, True
    array = types.Array(float32, 1, "C")
    kinds = (array,) * 6 + (int64,)
    text = ptx(make_resident_forward(*which), kinds, cc=(9, 0))
    assert "__local_depot" not in text, "arrays were spilled to local memory"


def _run(forward, net, x):
    """Everything that a forward pass leaves, of an image the elements in a row."""
    beside = Beside(0)
    forward.pack(net.state, beside)
    forward.launch(cuda.to_device(x), net.state, beside)
    cuda.synchronize()
    arrays = [forward.lengths, *forward.outputs]
    return [array.copy_to_host() for array in arrays if array is not None]


def _resident(*arguments):
    """The pass by one kernel, where this GPU has it."""
    if resident_pass.why_not(arguments[0], _FLOAT32):
        pytest.skip("this GPU has no warpgroup products")
    return resident_pass.ResidentPass(*arguments)


@pytest.mark.tiers("gpu")
@pytest.mark.parametrize("N", [1, 3, 140, 300])
@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
@pytest.mark.parametrize("name", NETWORKS)
def test_one_kernel_makes_what_the_layers_make(name, precision, N, rng):
    """Also more images than there are multiprocessors; the same bits every time, and without the sums."""
    _check(name, precision, N, rng)


@pytest.mark.tiers("gpu")
@pytest.mark.sanitize
@pytest.mark.parametrize("dtype", ["float32"])
@pytest.mark.parametrize("name", ["primes", "primes_few"])
def test_one_kernel_is_clean(name, dtype, rng):
    _check(name, "tf32", 3, rng)


def _check(name, precision, N, rng):
    net = network(name, precision)
    x = rng.uniform(0, 1, (N, *net.input_shape)).astype(np.float32)
    resident = _resident(net.layers, N, net.dtype, True)
    found = _run(resident, net, x)
    wanted = _run(ForwardPass(network(name, "ieee").layers, N, net.dtype), net, x)
    for have, want in zip(found, wanted, strict=True):
        assert np.abs(want).max() > 0
        assert_close(have, want.astype(np.float64), 1 << 12, precision)
    for k, group in enumerate(layer.squash for layer in resident.layers):
        _check_slopes(found[1 + k].reshape(N, -1, group), resident.slopes[k].copy_to_host())
    for one, other in zip(_run(resident, net, x), found):
        np.testing.assert_array_equal(one, other)
    inference = _run(_resident(net.layers, N, net.dtype, False), net, x)
    for one, other in zip(inference, (found[0], found[-1]), strict=True):
        np.testing.assert_array_equal(one, other)


def _check_slopes(results, slopes):
    """Both numbers of every group of results, from the length that the first one says it had before."""
    results, slopes = results.astype(np.float64), slopes.astype(np.float64)
    f, k = slopes[..., 0], slopes[..., 1]
    length = np.sqrt((results**2).sum(axis=-1) / f**2 + 1e-7)
    shorter = -np.expm1(-length)
    np.testing.assert_allclose(f, shorter / length, rtol=1e-5)
    np.testing.assert_allclose(k, (1 - shorter - shorter / length) / shorter**2, rtol=1e-3)


@pytest.mark.tiers("gpu")
def test_a_network_takes_it_where_it_is_faster_and_explains_it():
    net = network("published", "tf32x3")
    if resident_pass.why_not(net.layers, _FLOAT32):
        pytest.skip("this GPU has no warpgroup products")
    most = 2 * resident_pass.multiprocessors()
    assert "all layers in one kernel" in net.explain(most)
    assert "all layers in one kernel" in network("published", "tf32").explain(most + 1)
    *lines, why = net.explain(most + 1).splitlines()
    assert len(lines) == 5 and lines[0].startswith("layers[0]: ")
    assert why.endswith(
        f"{most + 1} images in three terms are more than {most}, 2 a multiprocessor"
    )
    assert "all layers in one kernel" in net.explain(most + 1, gradients=True)
