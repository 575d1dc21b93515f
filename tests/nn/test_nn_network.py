"""CapsNet against the reference: passes, steps, files, and what it refuses."""

import copy
import gc
import json
import os
import pickle
import re
import stat
import sys
import threading
import weakref
import zipfile
from dataclasses import replace
from fractions import Fraction
from io import BytesIO
from math import sqrt
from pathlib import Path

import numpy as np
import pytest

from numbacaps import Geometry
from numbacaps.algorithms import fused
from numbacaps.device.streams import Beside, Repeated, Stream
from numbacaps.device.target import SIMULATED, cuda
from numbacaps.fused.precision import precisions
from numbacaps.nn import Adam, CapsNet, Layer, checkpoint, runs, state
from numbacaps.nn import data as data_module
from numbacaps.nn import network as network_module
from reference import assert_close, nn
from tests.support.cases import ON_DEVICE
from tests.support.nn_networks import NETWORKS, batch, canonical, expected, network

pytestmark = pytest.mark.tiers("simulator", "gpu")

_ALGORITHMS = ON_DEVICE
_TERMS = 1 << 12  # five sums one after the other, each of up to a few hundred terms


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NETWORKS)
def test_loss_and_gradients(name, dtype, rng):
    net = network(name, dtype=dtype, seed=3)
    x, labels = batch(net, 3, rng)
    loss, gradients = net.loss_and_gradients(x, labels)
    want_loss, want = expected(net, x, labels)
    assert_close(np.array([loss], dtype), [want_loss], _TERMS)
    for have, gradient, layer in zip(canonical(net, gradients), want, net.layers):
        assert np.abs(gradient).max() > 0
        assert_close(have.astype(dtype), gradient, _TERMS)
    for kernel, layer in zip(gradients, net.layers):
        assert kernel.shape == layer.kernel_shape


def test_gradients_by_differences(rng):
    """Of the reference's whole network, so of the network that agrees with it."""
    net = network("matrix", dtype="float64", seed=1)
    x, labels = batch(net, 2, rng)
    _, gradients = net.loss_and_gradients(x, labels)
    kernels = net.kernels
    for number, kernel in enumerate(kernels):
        for at in (0, kernel.size // 2, kernel.size - 1):
            ends = []
            for step in (1e-5, -1e-5):
                moved = [k.copy() for k in kernels]
                moved[number].flat[at] += step
                net.state.write(net.state.weights, moved)
                ends.append(expected(net, x, labels)[0])
            difference = (ends[0] - ends[1]) / 2e-5
            assert gradients[number].flat[at] == pytest.approx(difference, rel=1e-4, abs=1e-8)


def test_forward(rng):
    net = network("matrix")
    x, labels = batch(net, 4, rng)
    capsules, lengths = net.forward(x)
    assert capsules.shape == (4, 3, 2, 2) and lengths.shape == (4, 3)
    np.testing.assert_allclose(
        lengths, np.linalg.norm(capsules.reshape(4, 3, 4), axis=2), rtol=1e-6
    )
    again, _ = net.forward(x[::-1])
    np.testing.assert_array_equal(again[::-1], capsules)
    # The loss of these lengths is the loss of the batch.
    loss, _ = net.loss_and_gradients(x, labels)
    assert loss == pytest.approx(nn.margin_loss(lengths.astype(np.float64), labels), rel=1e-5)


def test_steps_are_adams(rng):
    net = network("matrix", dtype="float64", seed=5)
    first = second = None
    for t in range(1, 4):
        x, labels = batch(net, 3, rng)
        before, (loss, gradients) = net.kernels, net.loss_and_gradients(x, labels)
        first = first or [np.zeros_like(kernel) for kernel in before]
        second = second or [np.zeros_like(kernel) for kernel in before]
        net.step(x, labels)
        moved = [nn.adam(t, *parts) for parts in zip(gradients, first, second, before)]
        first, second = [list(parts) for parts in zip(*moved)][:2]
        for have, (_, _, want) in zip(net.kernels, moved):
            assert_close(have, want, _TERMS)
        losses, hits = net.history(t - 1)
        assert losses.tolist() == [loss] and 0 <= hits[0] <= 3
    assert net.steps == 3 and len(net.history()[0]) == 3


def test_batch_sizes_share_the_weights(rng):
    net = network("matrix")
    for N in (2, 3, 2):
        net.step(*batch(net, N, rng))
    assert net.steps == 3 and np.isfinite(net.history()[0]).all()


def test_same_bits_every_time(rng):
    """Two networks of one seed take the same steps; one of another seed does not."""
    runs = []
    batches = [batch(network("matrix"), 2, rng) for _ in range(2)]
    for seed in (1, 1, 2):
        net = network("matrix", seed=seed)
        for x, labels in batches:
            net.step(x, labels)
        runs.append(np.concatenate([kernel.ravel() for kernel in net.kernels]))
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


@pytest.mark.parametrize("algorithms", [*zip(_ALGORITHMS, _ALGORITHMS), ("staged", "indexed")])
def test_any_algorithm_in_any_layer(algorithms, rng):
    layers, shape = NETWORKS["matrix"]
    layers = [replace(layer, algorithm=name) for layer, name in zip(layers, algorithms)]
    net = CapsNet(layers, shape, dtype="float64", seed=1)
    x, labels = batch(net, 2, rng)
    want_loss, want = expected(net, x, labels)
    for _ in range(2):  # a second time with the workspaces of the first
        loss, gradients = net.loss_and_gradients(x, labels)
        assert loss == pytest.approx(want_loss, rel=1e-12)
        for have, gradient in zip(canonical(net, gradients), want):
            assert_close(have, gradient, _TERMS)


def test_initial_weights():
    net = network("matrix", seed=9)
    for number, (layer, kernel) in enumerate(zip(net.layers, net.kernels)):
        want = nn.he_normal(kernel.size, layer.terms, 9, number)
        assert_close(kernel.ravel(), want, 1 << 6)


@pytest.fixture
def published(monkeypatch):
    """The published network; on the simulator, where they would take a minute, without weights."""
    if SIMULATED:
        monkeypatch.setattr(state, "he_normal", lambda *arguments: None)
    return CapsNet.published()


def test_published(published):
    net = published
    shapes = [layer.geometry.of_one_image for layer in net.layers]
    assert [g.flop * 128 / 1e6 for g in shapes] == pytest.approx(
        [12.5, 570.9, 943.7, 339.7, 47.2], abs=0.06
    )
    assert [layer.layer.squash for layer in net.layers] == [8, 8, 8, 8, 32]
    assert [layer.output_shape for layer in net.layers] == [
        (1, 13, 13, 4, 8),
        (4, 11, 11, 4, 16),
        (8, 5, 5, 4, 8),
        (4, 3, 3, 4, 16),
        (10, 1, 1, 4, 8),
    ]


@pytest.mark.tiers("gpu")
def test_published_weights(published):
    net = published
    deviations = [
        kernel.std() * sqrt(layer.terms) for kernel, layer in zip(net.kernels, net.layers)
    ]
    assert deviations == pytest.approx([sqrt(2)] * 5, rel=0.15)


# ---- one launch a step


class _FakeStream:
    """A stream that captures: it keeps the work, and replays it."""

    numba, captures = 0, True

    def __init__(self):
        self.captured = 0

    def capture(self, work):
        self.captured += 1
        return work


def test_work_is_captured_once_and_replayed():
    done, stream = [], _FakeStream()
    repeated = Repeated(lambda: done.append(1), stream, capturable=True)
    assert not repeated.captured
    for calls in (1, 2, 3):
        repeated()
        assert len(done) == calls and repeated.captured and stream.captured == 1


@pytest.mark.parametrize(("captures", "capturable"), [(False, True), (True, False)])
def test_work_that_cannot_be_captured_is_launched(captures, capturable):
    done, stream = [], _FakeStream()
    stream.captures = captures
    repeated = Repeated(lambda: done.append(1), stream, capturable)
    repeated(), repeated()
    assert len(done) == 2 and not repeated.captured and stream.captured == 0


def test_work_that_is_refused_while_it_is_captured_is_launched():
    class Refuses(_FakeStream):
        def capture(self, work):
            raise RuntimeError("no branches here")

    done = []
    repeated = Repeated(lambda: done.append(1), Refuses(), capturable=True)
    repeated(), repeated()
    with pytest.warns(RuntimeWarning, match="kernel by kernel, .* no branches here"):
        repeated()
    repeated(), repeated()
    assert len(done) == 5 and not repeated.captured


def test_a_capture_that_another_thread_breaks_off_is_tried_again():
    class Disturbed(_FakeStream):
        def capture(self, work):
            if not self.captured:
                self.captured += 1
                raise RuntimeError("invalidated")
            return super().capture(work)

    done = []
    repeated = Repeated(lambda: done.append(1), Disturbed(), capturable=True)
    repeated()
    assert not repeated.captured
    for calls in (2, 3):
        repeated()
        assert len(done) == calls and repeated.captured


@pytest.mark.tiers("gpu")
def test_a_captured_step_is_the_step_kernel_by_kernel(rng, monkeypatch):
    """The same bits, with graphs and without, of batches from the host and of rows."""
    batches = [batch(network("matrix"), 5, rng) for _ in range(6)]
    runs = []
    for captures in (True, False):
        net = network("matrix", seed=1)
        net._computing.captures = captures
        data = net.place(*batches[0])
        for x, labels in batches:
            net.step(x, labels)
            net.step_rows(data, [4, 3, 2, 1, 0])
        training = net._training(5)
        steps = [*training._steps, *(step for _, step in training._row_steps.values())]
        assert all(step.captured == captures for step in steps)
        runs.append((net.history()[0], *net.kernels, *net.forward(batches[0][0])))
    for one, other in zip(*runs):
        np.testing.assert_array_equal(one, other)


@pytest.mark.tiers("gpu")
@pytest.mark.parametrize("precision", ["ieee", "tf32x3", "tf32"])
def test_a_captured_step_of_the_published_network(precision, rng):
    """Kernels packed ahead and gradients beside each other, with graphs and without: the same bits."""
    if precision not in precisions(np.dtype(np.float32)):
        pytest.skip("this GPU has no tensor cores for float32")
    x, labels = rng.uniform(0, 1, (9, 1, 28, 28, 1, 1)).astype("float32"), rng.integers(0, 10, 9)
    runs = []
    for captures in (True, True, False):
        net = CapsNet.published(seed=1, precision=precision)
        net._computing.captures = captures
        for _ in range(5):
            net.step(x, labels)
        runs.append((net.history()[0], *net.kernels, *net.forward(x)))
    for run in runs[1:]:
        for one, other in zip(runs[0], run):
            np.testing.assert_array_equal(one, other)


@pytest.mark.tiers("gpu")
def test_the_published_network_by_default(rng):
    """One kernel a pass, of three terms: the same bits as by name."""
    if "tf32x3" not in precisions(np.dtype(np.float32)):
        pytest.skip("this GPU has no tensor cores for float32")
    x, labels = rng.uniform(0, 1, (9, 1, 28, 28, 1, 1)).astype("float32"), rng.integers(0, 10, 9)
    runs = []
    for how in ({}, {"precision": "tf32x3"}):
        net = CapsNet.published(seed=1, **how)
        for _ in range(3):
            net.step(x, labels)
        runs.append((net.explain(9), net.history()[0], *net.kernels, *net.forward(x)))
    for one, other in zip(*runs):
        np.testing.assert_array_equal(one, other)


@pytest.mark.tiers("simulator")
def test_sums_that_are_looked_through_have_their_activation_behind_them(rng, monkeypatch):
    """At the default, as on a GPU; the simulator computes the sums by ordinary arithmetic."""
    monkeypatch.setattr(fused, "chosen_for", lambda *of: "tf32x3")
    layers = Layer(2, (4, 4), window=2, squash=4), Layer(3, (4, 4), window=2, squash=4)
    net = CapsNet(layers, (1, 3, 3, 4, 4), seed=2)
    x, labels = batch(net, 2, rng)
    for line in net.explain(2, gradients=True).splitlines()[:2]:
        assert line.endswith(", LeakyReLU and squash apart")
    loss, gradients = net.loss_and_gradients(x, labels)
    want_loss, want = expected(net, x, labels)
    assert loss == pytest.approx(want_loss, rel=1e-5)
    for one, other in zip(canonical(net, gradients), want, strict=True):
        assert_close(one.astype(np.float32), other, _TERMS, "tf32x3")


@pytest.mark.slow
def test_packed_kernels_follow_the_weights(rng, tmp_path):
    """What an inference packed once is packed anew when weights have moved, and when they are loaded."""
    if "tf32" not in precisions(np.dtype(np.float32)):
        pytest.skip("this GPU has no tensor cores for float32")
    how = {"window": 2, "squash": 4, "precision": "tf32"}
    layers = Layer(2, (4, 4), **how), Layer(3, (4, 4), **how)

    def made():
        return CapsNet(layers, (1, 3, 3, 4, 4), seed=1, adam=Adam(rate=0.1))

    net, other = made(), made()
    x, labels = batch(net, 2, rng)
    assert net._inference(2).forward.convolutions[0].packs_forward
    before = net.forward(x)[1]
    net.save(tmp_path / "first.npz")
    net.step(x, labels)
    after = net.forward(x)[1]
    assert np.abs(after - before).max() > 1e-3
    net.save(tmp_path / "second.npz")
    other.load(tmp_path / "second.npz")
    np.testing.assert_array_equal(other.forward(x)[1], after)
    net.load(tmp_path / "first.npz")
    np.testing.assert_array_equal(net.forward(x)[1], before)
    net.state.write(net.state.weights, other.kernels)
    np.testing.assert_array_equal(net.forward(x)[1], after)


@cuda.jit
def _add_one(read, written, turns):
    """Slowly, so that who does not wait reads what was there before."""
    i = cuda.grid(1)
    value = read[i]
    for _ in range(turns):
        value = (value * 3 + 1) % 1021
    written[i] = value


def test_what_is_run_beside_is_waited_for():
    count, turns = (4, 3) if SIMULATED else (4096, 3000)
    main = Stream()
    beside = Beside(main.numba, count=2)
    arrays = [cuda.to_device(np.arange(count) % 7) for _ in range(5)]
    want = arrays[0].copy_to_host()
    cuda.synchronize()

    def launch(read, written, stream):
        _add_one[count // 4, 4, stream](arrays[read], arrays[written], turns)

    launch(0, 1, main.numba)
    for written in (2, 3, 4):
        beside.run(lambda stream, written=written: launch(1, written, stream))
    beside.join()
    launch(4, 0, main.numba)
    main.synchronize()
    for rounds, result in enumerate((1, 4, 0), start=1):
        for _ in range(turns):
            want = (want * 3 + 1) % 1021
        np.testing.assert_array_equal(arrays[result].copy_to_host(), want, err_msg=str(rounds))


def test_what_is_ready_stays_ready_while_it_is_held():
    """Captured graphs have the addresses of its tables."""
    geometries = [Geometry(N, 1, 1, 2, 2, 1, 1, 1, 1, 1, 1) for N in range(1, 70)]
    held = fused.passes(geometries[0], np.dtype(np.float32))
    assert held is fused.passes(geometries[0], np.dtype(np.float32), "auto", None)
    for geometry in geometries:
        fused.passes(geometry, np.dtype(np.float32))
    assert held is fused.passes(geometries[0], np.dtype(np.float32))


def test_work_that_broke_off_is_not_waited_for(rng):
    """The next step is the first, not what an error left of one before."""
    net, other = network("matrix", seed=1), network("matrix", seed=1)
    x, labels = batch(net, 2, rng)
    with pytest.raises(ZeroDivisionError):
        net._beside.run(lambda stream: 1 // 0)
    net.step(x, labels), other.step(x, labels)
    assert not net._beside._busy
    for one, same in zip(net.kernels, other.kernels):
        np.testing.assert_array_equal(one, same)


def test_batches_may_be_overwritten_at_once(rng):
    """A step has taken its batch in when it returns."""
    nets = [network("matrix", seed=1) for _ in range(2)]
    batches = [batch(nets[0], 2, rng) for _ in range(3)]
    x, labels = np.empty_like(batches[0][0]), np.empty_like(batches[0][1])
    for given in batches:
        nets[0].step(*given)
        x[...], labels[...] = given
        nets[1].step(x, labels)
        x.fill(np.nan), labels.fill(0)
    np.testing.assert_array_equal(nets[0].history()[0], nets[1].history()[0])


# ---- batches of rows


@pytest.mark.slow(but=["2"])
@pytest.mark.parametrize("places", [256, 2])
def test_steps_on_rows_are_steps(rng, monkeypatch, places):
    """The same bits; through more steps than a short ring has places, and beside other steps."""
    monkeypatch.setattr(data_module, "PLACES", places)
    nets = [network("matrix", seed=1) for _ in range(2)]
    x, labels = batch(nets[0], 7, rng)
    data = nets[0].place(x, labels)
    assert len(data) == 7
    for rows in ([6, 0, 6], np.array([1, 2], np.uint8), [3, 4, 5], [0, 1, 2], [2, 2, 2]):
        nets[0].step_rows(data, rows)
        nets[1].step(x[rows], labels[rows])
        if len(rows) == 2:
            for net in nets:
                net.step(x[:3], labels[:3])
    for one, other in zip(*((net.history()[0], *net.kernels) for net in nets)):
        np.testing.assert_array_equal(one, other)


def test_rows_may_be_overwritten_at_once(rng):
    nets = [network("matrix", seed=1) for _ in range(2)]
    x, labels = batch(nets[0], 5, rng)
    data, rows = nets[0].place(x, labels), np.empty(2, int)
    x_before = x.copy()
    x.fill(np.nan)  # it was copied
    for given in ([0, 1], [4, 2], [3, 3]):
        rows[:] = given
        nets[0].step_rows(data, rows)
        rows.fill(-1)
        nets[1].step(x_before[given], labels[given])
    np.testing.assert_array_equal(nets[0].history()[0], nets[1].history()[0])


def test_networks_share_data(rng):
    nets = [network("matrix", seed=seed) for seed in (1, 2)]
    data = nets[0].place(*batch(nets[0], 4, rng))
    for net in nets:
        net.step_rows(data, [3, 1])
    assert all(net.steps == 1 for net in nets)


@pytest.mark.parametrize(
    ("rows", "error", "said"),
    [
        ([0, 4], ValueError, "rows hold 4; they take 0 to 3"),
        ([-1, 0], ValueError, "rows hold -1; they take 0 to 3"),
        ([0.0, 1.0], TypeError, "rows have dtype float64; they take ints"),
        ([[0, 1]], ValueError, r"rows have shape \(1, 2\); they take \(N,\)"),
        (np.empty(0, int), ValueError, r"rows have shape \(0,\)"),
        (np.ma.array([0, 1]), TypeError, "rows is a masked array; it takes one without a mask"),
    ],
)
def test_bad_rows(rows, error, said, rng):
    net = network("matrix")
    data = net.place(*batch(net, 4, rng))
    with pytest.raises(error, match=said):
        net.step_rows(data, rows)
    assert net.steps == 0


def test_data_of_another_kind_is_refused(rng):
    net, other = network("matrix"), network("matrix", dtype="float64")
    data = other.place(*batch(other, 4, rng))
    with pytest.raises(ValueError, match=r"data has images .*'float64'.* takes .*'float32'"):
        net.step_rows(data, [0])
    with pytest.raises(TypeError, match="data is a tuple; it takes what place"):
        net.step_rows(batch(net, 4, rng), [0])
    with pytest.raises(TypeError, match="x has dtype float64"):
        net.place(*batch(other, 4, rng))


@pytest.mark.tiers("gpu")
def test_the_host_runs_ahead_of_the_ring(rng):
    """More steps than the ring has places, queued as fast as they can be."""
    nets = [network("matrix", seed=1) for _ in range(2)]
    x, labels = batch(nets[0], 50, rng)
    data = nets[0].place(x, labels)
    every = [rng.integers(0, 50, 3) for _ in range(3 * data_module.PLACES + 5)]
    for rows in every:
        nets[0].step_rows(data, rows)
    for rows in every:
        nets[1].step(x[rows], labels[rows])
    for one, other in zip(*((net.history()[0], *net.kernels) for net in nets)):
        np.testing.assert_array_equal(one, other)


class _Queue:
    """A stream that never does anything before somebody waits: its events are places in what was queued."""

    numba = 0

    def __init__(self):
        self.queued, self.done = 0, 0

    def event(self):
        return [self.queued]

    def record(self, event):
        event[0] = self.queued

    def wait_for(self, event):
        self.done = max(self.done, event[0])

    def synchronize(self):
        self.done = self.queued


@pytest.mark.parametrize("turn", [1, 3, 4, 8, 11])
def test_two_data_sets_in_turns_keep_the_rows_of_queued_steps(turn, rng, monkeypatch):
    """No place is written again before the step that reads it is done, whoever took the steps in between."""
    monkeypatch.setattr(data_module, "PLACES", 8)
    net, queue = network("matrix"), _Queue()
    step = cuda.to_device(np.zeros(1, np.int64))
    data = [net.place(*batch(net, 3, rng)) for _ in range(2)]
    batches = [data_module.RowBatch(one, 2, step, queue) for one in data]
    written, ahead = [{}, {}], 0
    for number in range(100):
        which = number // turn % 2
        batches[which].write([0, 1], number)
        before = written[which].get(number % 8)
        assert before is None or before < queue.done, f"step {number} over step {before}"
        written[which][number % 8] = number
        queue.queued += 1
        ahead = max(ahead, queue.queued - queue.done)
    assert ahead >= 4, "the host runs ahead"


# ---- interruptions


_WATCHED = {Path(module.__file__).name for module in (network_module, runs, data_module, state)}
_WATCHED |= {"batches.py", "adam.py", "streams.py"}


def _interrupted(call, line):
    """Call, with a KeyboardInterrupt before that line that it runs of the modules watched; whether there was one."""
    left = line

    def each_line(frame, event, argument):
        nonlocal left
        if event == "line":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return each_line

    def each_call(frame, event, argument):
        path = Path(frame.f_code.co_filename)
        watched = "numbacaps" in path.parts and path.name in _WATCHED
        is_kernel = frame.f_code.co_name.endswith(
            "_kernel"
        )  # on the simulator; a GPU's are not cut
        return each_line if watched and not is_kernel else None

    before = sys.gettrace()
    sys.settrace(each_call)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.slow
@pytest.mark.parametrize("stride", [1, 13])
@pytest.mark.parametrize("by_rows", [True, False])
def test_a_step_that_is_interrupted_is_done_or_not(by_rows, stride, rng):
    """Wherever that is, host and device agree; what was not done is done once more, and all is as it would have been."""
    nets = [network("matrix", seed=1) for _ in range(2)]
    x, labels = batch(nets[0], 6, rng)
    data = [net.place(x, labels) for net in nets]

    def step(which, rows):
        if by_rows:
            nets[which].step_rows(data[which], rows)
        else:
            nets[which].step(x[rows], labels[rows])

    line, was, done, undone = 1, True, 0, 0
    while was:
        rows, steps = rng.integers(0, 6, 2), nets[0].steps
        was = _interrupted(lambda: step(0, rows), line)
        if nets[0].steps == steps:
            step(0, rows)
            undone += 1
        done += 1
        step(1, rows)
        assert nets[0].steps == nets[1].steps == done
        cuda.synchronize()  # networks' streams do not wait for others
        assert nets[0].state.step.copy_to_host()[0] == done
        line += stride
    assert stride > 1 or undone < done - 1, "of the interruptions some were behind the launch"
    for one, other in zip(*((*net.history(), *net.kernels, *net.forward(x)) for net in nets)):
        np.testing.assert_array_equal(one, other)


def test_inference_behind_an_interrupted_step_has_its_weights(rng):
    """The step was taken but not counted by the host."""
    net, other = network("matrix", seed=1), network("matrix", seed=1)
    x, labels = batch(net, 2, rng)
    net.forward(x), other.forward(x)

    def step_and_break_off(x, labels):
        type(training).step(training, x, labels)
        raise KeyboardInterrupt

    training = net._training(2)
    training.step = step_and_break_off
    with pytest.raises(KeyboardInterrupt):
        net.step(x, labels)
    other.step(x, labels)
    np.testing.assert_array_equal(net.forward(x)[1], other.forward(x)[1])
    assert net.steps == 1 and net._inference(2)._packed == other._inference(2)._packed
    np.testing.assert_array_equal(net.history()[0], other.history()[0])


@pytest.mark.slow
def test_loading_that_is_interrupted_has_loaded_all_or_nothing(tmp_path, rng):
    net, other = network("matrix", seed=1), network("matrix", seed=2)
    x, labels = batch(net, 2, rng)
    other.step(x, labels), other.step(x, labels)
    other.save(tmp_path / "other.npz")
    net.step(x, labels)
    cuda.synchronize()  # what is read here does not wait for the network's streams
    everything = "weights", "first", "second", "step"
    before = [getattr(net.state, name).copy_to_host() for name in everything]
    line, interruptions = 1, 0
    while _interrupted(lambda: net.load(tmp_path / "other.npz"), line):
        for name, array in zip(everything, before):
            np.testing.assert_array_equal(getattr(net.state, name).copy_to_host(), array)
        assert net.steps == 1 and len(net.history()[0]) == 1
        line, interruptions = line + 3, interruptions + 1
    assert interruptions > 10 and net.steps == 2 and not len(net.history()[0])
    for one, loaded in zip(other.kernels, net.kernels):
        np.testing.assert_array_equal(one, loaded)


# ---- what is kept, and for how long


def _dies(make):
    """What ``make()`` returns weak references to is gone; on the simulator with no help of the collector of circles."""
    gc.collect()
    gc.disable()
    try:
        references = make()
        if not SIMULATED:
            gc.collect()
        assert [reference() for reference in references] == [None] * 3
    finally:
        gc.enable()


def test_data_does_not_keep_the_networks_that_trained_on_it(rng):
    keeper = network("matrix")
    data = keeper.place(*batch(keeper, 4, rng))

    def train():
        net = network("matrix")
        net.step_rows(data, [0, 1])
        net.step(*batch(net, 2, rng)), net.forward(batch(net, 2, rng)[0])
        return [weakref.ref(one) for one in (net, net._training(2), net._inference(2))]

    _dies(train)
    keeper.step_rows(data, [2, 3])


def test_networks_do_not_keep_the_data_they_trained_on(rng):
    net = network("matrix")

    def train():
        data = net.place(*batch(net, 4, rng))
        net.step_rows(data, [0, 1])
        ((rows, _),) = net._training(2)._row_steps.values()
        return [weakref.ref(one) for one in (data, data.x, rows)]

    _dies(train)
    assert not net._training(2)._row_steps


@pytest.mark.slow
def test_few_batch_sizes_are_kept(rng, monkeypatch):
    """Those that were used last; one that has gone is made anew, and computes the same."""
    monkeypatch.setattr(runs, "KEPT", 2)
    net, other = network("matrix", seed=1), network("matrix", seed=1)
    x, labels = batch(net, 3, rng)
    first = weakref.ref(net._training(1)), weakref.ref(net._inference(1))
    for N in (1, 2, 1, 3, 2, 1):
        for one in (net, other):
            one.step(x[:N], labels[:N])
        monkeypatch.setattr(runs, "KEPT", 100)
        want = other.forward(x[:N])[1]
        monkeypatch.setattr(runs, "KEPT", 2)
        np.testing.assert_array_equal(net.forward(x[:N])[1], want)
        assert len(net._trainings) <= 2 and len(net._inferences) <= 2
        if N == 3:
            assert first[0]() is not None, "1 was used after 2"
    gc.collect()
    assert [reference() for reference in first] == [None, None]


# ---- files


def _trained(rng, steps=2, **how):
    net = network("matrix", **how)
    for _ in range(steps):
        net.step(*batch(net, 2, rng))
    return net


def test_training_goes_on_from_a_file(tmp_path, rng):
    net = _trained(rng)
    net.save(tmp_path / "net.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["net.npz"]
    other = network("matrix", seed=77)
    other.load(tmp_path / "net.npz")
    assert other.steps == 2
    x, labels = batch(net, 2, rng)
    net.step(x, labels), other.step(x, labels)
    for one, two in zip(net.kernels, other.kernels):
        np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(net.history(2)[0], other.history(2)[0])


def _refused(net, path, said):
    """Loading is refused with those words, and nothing has changed."""
    before, steps = net.kernels, net.steps
    with pytest.raises(ValueError, match=re.escape(str(path))) as refusal:
        net.load(path)
    assert re.search(said, str(refusal.value)), refusal.value
    assert "keeps its weights" in str(refusal.value)
    assert net.steps == steps
    for one, two in zip(before, net.kernels):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("kept", [0, 10, 100, 0.5, 0.99])
def test_a_cut_file_is_refused(kept, tmp_path, rng):
    path, net = tmp_path / "net.npz", _trained(rng, 1)
    net.save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content)) if kept < 1 else kept])
    _refused(network("matrix"), path, "damaged")


def test_flipped_bits_are_refused(tmp_path, rng):
    path, net = tmp_path / "net.npz", _trained(rng, 1)
    net.save(path)
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as file:
        at = file.getinfo("weights_1.npy").header_offset + 300  # within the numbers
    content[at] ^= 0xFF
    path.write_bytes(content)
    _refused(network("matrix"), path, "damaged")


def test_files_of_something_else_are_refused(tmp_path):
    net = network("matrix")
    for name, content in (("text", b"no network"), ("array", None)):
        path = tmp_path / f"{name}.npz"
        if content is None:
            with open(path, "wb") as file:
                np.save(file, np.zeros(3))
        else:
            path.write_bytes(content)
        _refused(net, path, "damaged, or no file of a network")
    np.savez(tmp_path / "other.npz", a=np.zeros(2))
    _refused(net, tmp_path / "other.npz", "no file of a network")
    with pytest.raises(FileNotFoundError, match="absent.npz"):
        net.load(tmp_path / "absent.npz")


def _other_layers(**change):
    (first, second), shape = NETWORKS["matrix"]
    return CapsNet((first, replace(second, **change)), shape)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: network("odd"), r"network\.input_shape is \[2, 4, 5, 3, 1, 2\] there and \[1, 5"),
        (lambda: network("matrix", dtype="float64"), "network.dtype is float64 there and float32"),
        (lambda: _other_layers(channels=4), r"layers\[1\]\.kernel is \[4, 1, 2"),
        (lambda: _other_layers(slope=0.2), r"layers\[1\]\.slope is 0\.2 there and 0\.1 here"),
        (lambda: _other_layers(squash=2), r"layers\[1\]\.squash is 2 there and 4 here"),
        (lambda: network("matrix", adam=Adam(rate=1.0)), "network.adam.rate is 1.0 there and 0.01"),
    ],
)
def test_files_of_other_networks_are_refused(make, said, tmp_path):
    make().save(tmp_path / "net.npz")
    _refused(network("matrix"), tmp_path / "net.npz", said)


def test_numbers_that_are_not_finite_are_neither_saved_nor_loaded(tmp_path, rng):
    path, net = tmp_path / "net.npz", _trained(rng, 1)
    net.save(path)
    good = path.read_bytes()
    kernels = net.kernels
    kernels[1][0] = np.nan
    net.state.write(net.state.weights, kernels)
    with pytest.raises(
        ValueError, match=r"weights of layers\[1\] are not all finite after 1 steps"
    ):
        net.save(path)
    assert path.read_bytes() == good
    with np.load(path) as content:
        arrays = {name: content[name] for name in content.files}
    arrays["second_0"] = arrays["second_0"] * np.nan
    np.savez(path, **arrays)
    _refused(network("matrix"), path, r"second of layers\[0\] are not all finite")
    arrays["second_0"] = np.zeros(3, np.float32)
    np.savez(path, **arrays)
    _refused(network("matrix"), path, r"second of layers\[0\] have shape \(3,\)")


def _full(file, **arrays):
    file.write(b"some of it")
    raise OSError("no space left on device")


def _gone(old, new):
    raise OSError("no space left on device")


@pytest.mark.parametrize(
    ("module", "name", "fails"), [(np, "savez", _full), (os, "replace", _gone)]
)
def test_writing_that_fails_leaves_the_file(module, name, fails, tmp_path, rng, monkeypatch):
    path, net = tmp_path / "net.npz", _trained(rng, 1)
    net.save(path)
    good = path.read_bytes()
    monkeypatch.setattr(module, name, fails)
    with pytest.raises(OSError, match="no space"):
        net.save(path)
    assert path.read_bytes() == good
    assert [path.name for path in tmp_path.iterdir()] == ["net.npz"]


def test_a_description_is_plain_json(tmp_path):
    """Whatever kinds of numbers the layers were given."""
    layers, shape = NETWORKS["matrix"]
    layers = [replace(layer, squash=np.int64(layer.squash), slope=1) for layer in layers]
    CapsNet(layers, np.array(shape)).save(tmp_path / "net.npz")
    with np.load(tmp_path / "net.npz") as content:
        description = json.loads(str(content["description"]))
    assert description["input_shape"] == list(shape) and description["layers"][0]["squash"] == 2


# ---- where files are written


def test_a_link_is_followed(tmp_path, rng):
    net = _trained(rng, 1)
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "link.npz", tmp_path / "there" / "net.npz"
    link.symlink_to(Path("there", "net.npz"))
    for _ in range(2):  # to a file that is not there, then to one that is
        net.save(link)
        assert link.is_symlink() and target.is_file() and not target.is_symlink()
        assert [path.name for path in target.parent.iterdir()] == ["net.npz"]
    network("matrix").load(link)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_modes_are_kept(mode, tmp_path, rng):
    path, net = tmp_path / "net.npz", _trained(rng, 1)
    net.save(path)
    new = stat.S_IMODE(path.stat().st_mode)
    (tmp_path / "empty").touch()
    assert new == stat.S_IMODE((tmp_path / "empty").stat().st_mode), "a new one's is the umask's"
    path.chmod(mode)
    net.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_what_is_no_regular_file_is_left(tmp_path):
    net = network("matrix")
    fifo, folder, link = tmp_path / "fifo", tmp_path / "folder", tmp_path / "link"
    os.mkfifo(fifo), folder.mkdir(), link.symlink_to("fifo")
    for path in (fifo, folder, link, Path("/dev/null")):
        with pytest.raises(OSError, match=f"{path} is no regular file; it takes one"):
            net.save(path)
    assert stat.S_ISFIFO(fifo.stat().st_mode) and folder.is_dir() and link.is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {"fifo", "folder", "link"}
    link.unlink(), link.symlink_to("link")
    with pytest.raises(OSError):
        net.save(link)


def test_threads_save_to_one_path(tmp_path, rng, monkeypatch):
    """Each by a name of its own: all are in the middle of writing at once, and the last one stays."""
    path, net = tmp_path / "net.npz", _trained(rng, 1)
    kernels = net.kernels  # which waits for the step
    runs = {name: net.state.read(getattr(net.state, name)) for name in checkpoint.RUNS}
    together, savez, failed = threading.Barrier(4, timeout=20), np.savez, []

    def slowly(file, **arrays):
        together.wait()
        savez(file, **arrays)
        together.wait()

    def write():
        try:
            checkpoint.write(path, net.description, net.steps, runs)
        except BaseException as error:
            failed.append(error)

    monkeypatch.setattr(np, "savez", slowly)
    threads = [threading.Thread(target=write) for _ in range(4)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    assert not failed and [path.name for path in tmp_path.iterdir()] == ["net.npz"]
    other = network("matrix")
    other.load(path)
    for one, same in zip(kernels, other.kernels):
        np.testing.assert_array_equal(one, same)


# ---- what is read of them


def _changed(path, **changes):
    """The file with other arrays under these names."""
    with np.load(path) as content:
        arrays = {name: content[name] for name in content.files}
    np.savez(path, **arrays | changes)


class _Planted:
    """What makes a file where it is unpickled."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return Path.touch, (self._path,)


@pytest.mark.parametrize("name", ["description", "steps", "weights_0"])
def test_nothing_is_unpickled(name, tmp_path, rng):
    path, planted = tmp_path / "net.npz", tmp_path / "planted"
    _trained(rng, 1).save(path)
    array = np.empty((), object)
    array[()] = _Planted(planted)
    pickle.loads(pickle.dumps(array))
    assert planted.exists(), "it would be seen"
    planted.unlink()
    _changed(path, **{name: array})
    _refused(network("matrix"), path, "damaged, or no file of a network")
    assert not planted.exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"steps": np.array(2**63, np.uint64)}, "counts 9223372036854775808 steps .*takes an int"),
        ({"steps": np.array(-1)}, r"counts -1 steps"),
        ({"steps": np.array(2.0)}, r"counts 2.0 steps \(float64\); it takes an int"),
        ({"steps": np.array([2])}, r"counts \[2\] steps"),
        ({"second_1": None}, r"second of layers\[1\] are not all 0 or more"),
    ],
)
def test_numbers_that_no_training_has_are_refused(change, said, tmp_path, rng):
    path, net = tmp_path / "net.npz", _trained(rng, 1)
    net.save(path)
    if "second_1" in change:
        with np.load(path) as content:
            change = {"second_1": -content["second_1"] - np.float32(1e-9)}
    _changed(path, **change)
    _refused(network("matrix"), path, said)


def test_steps_of_any_int_are_read(tmp_path, rng):
    path, net = tmp_path / "net.npz", _trained(rng, 2)
    net.save(path)
    _changed(path, steps=np.array(2, np.uint8))
    other = network("matrix")
    other.load(path)
    assert type(other.steps) is int and other.steps == 2
    for one in (net, other):
        one.step(*batch(net, 2, np.random.default_rng(3)))
    cuda.synchronize()
    assert other.state.step.copy_to_host()[0] == 3
    np.testing.assert_array_equal(net.kernels[0], other.kernels[0])


def test_adam_of_numpys_numbers_is_saved(tmp_path, rng):
    adam = Adam(rate=np.float32(0.5), halve_every=np.int64(100))
    net = _trained(rng, 1, adam=adam)
    net.save(tmp_path / "net.npz")
    network("matrix", adam=Adam(rate=0.5, halve_every=100)).load(tmp_path / "net.npz")


@pytest.mark.parametrize("name", ["bomb", "weights_0", "steps", "description"])
def test_members_are_read_by_name_and_within_a_limit(name, tmp_path, rng, monkeypatch):
    """One that nobody asked for is left; one that is far too large is refused before it is inflated."""
    path, inflated = tmp_path / "net.npz", []
    _trained(rng, 1).save(path)
    with np.load(path) as content:
        arrays = {key: content[key] for key in content.files}
    arrays.pop(name, None)
    np.savez_compressed(path, **arrays)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as file:
        written = BytesIO()
        np.save(written, np.zeros(1 << 22, np.uint8))
        file.writestr(f"{name}.npy", written.getvalue())
    assert path.stat().st_size < 1 << 16
    read = zipfile.ZipExtFile.read

    def counted(file, n=-1):
        inflated.append(len(found := read(file, n)))
        return found

    monkeypatch.setattr(zipfile.ZipExtFile, "read", counted)
    net = network("matrix")
    if name == "bomb":
        net.load(path)
    else:
        _refused(net, path, f"{name} has 4194432 bytes; it takes")
    assert sum(inflated) < 1 << 16


# ---- bad input


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (
            lambda x, y: (x[:, :, :-1], y),
            ValueError,
            r"x has shape \(2, 1, 4, 5, 1, 1\); it takes \(N, 1, 5, 5, 1, 1\)",
        ),
        (lambda x, y: (x[:0], y[:0]), ValueError, "N of 1 or more"),
        (
            lambda x, y: (x.astype(np.float64), y),
            TypeError,
            "x has dtype float64; it takes float32",
        ),
        (lambda x, y: (x.tolist(), y), TypeError, "x is a list; it takes a NumPy array"),
        (lambda x, y: (np.ma.array(x), y), TypeError, "x is a masked array; it takes one without"),
        (lambda x, y: (x, np.ma.array(y)), TypeError, "labels is a masked array"),
        (lambda x, y: (x, y[:1]), ValueError, r"labels have shape \(1,\); they take \(2,\)"),
        (lambda x, y: (x, y * 1.0), TypeError, "labels have dtype float64; they take ints"),
        (lambda x, y: (x, y > 0), TypeError, "labels have dtype bool"),
        (lambda x, y: (x, y * 0 + 3), ValueError, "labels hold 3; they take 0 to 2"),
        (lambda x, y: (x, y * 0 - 1), ValueError, "labels hold -1; they take 0 to 2"),
    ],
)
def test_a_bad_batch(change, error, said, rng):
    net = network("matrix")
    x, labels = change(*batch(net, 2, rng))
    for call in (net.step, net.loss_and_gradients, net.place):
        with pytest.raises(error, match=said):
            call(x, labels)
    assert net.steps == 0 and not net._trainings, "nothing was allocated"


_FIRST = Layer(2, (1, 8), stride=2, capsule=(2, 4), squash=4)


@pytest.mark.parametrize(
    ("layers", "error", "said"),
    [
        ((), ValueError, "layers is empty"),
        ((_FIRST, "conv"), TypeError, r"layers\[1\] is a str; it takes a Layer"),
        (
            (_FIRST, Layer(3, (8, 2))),
            ValueError,
            r"layers\[1\], of kernel capsules \(8, 2\) .* does not fit the output of layers\[0\], "
            r"of shape \(2, 3, 3, 2, 4\): w has size 8",
        ),
        (
            (_FIRST, Layer(3, (4, 2), window=5)),
            ValueError,
            r"layers\[1\], .*window 5 x 5, does not fit the output of layers\[0\], .*: w spans 5",
        ),
        (
            (Layer(3, (2, 2)),),
            ValueError,
            r"layers\[0\], .* does not fit the input, of shape \(1, 7",
        ),
        ((Layer(3, (1, 2, 2)),), ValueError, "takes 2 axes"),
        (
            (Layer(2, (1, 8), squash=3),),
            ValueError,
            r"squash=3; it takes a divisor of the 8 elements",
        ),
        ((Layer(2, (1, 8), squash=0),), ValueError, r"layers\[0\].squash is \(0,\)"),
        (
            (Layer(2, (1, 8), capsule=(2, 3)),),
            ValueError,
            r"capsules of shape \(1, 8\), 8 elements; capsule=\(2, 3\) has 6",
        ),
        ((Layer(0, (1, 8)),), ValueError, r"layers\[0\].channels is \(0,\)"),
        ((Layer(2, (1, 8.0)),), TypeError, r"layers\[0\].kernel is \(1, 8.0\)"),
        ((Layer(2, (1, 8), window=(3, 3, 3)),), ValueError, r"layers\[0\].window is \(3, 3, 3\)"),
        ((Layer(2, (1, 8), slope=float("nan")),), ValueError, "slope=nan"),
        ((Layer(2, (1, 8), stride=0),), ValueError, "stride is 0"),
        ((Layer(2, (1, 8), algorithm="fast"),), ValueError, "algorithm is 'fast'; it takes one of"),
        ((Layer(2, (1, 8), precision="int8"),), ValueError, r"layers\[0\]: precision is 'int8'"),
        ((Layer(2, (1, 8), product="ab,bc->ca"),), ValueError, "output capsule has its axes"),
        ((_FIRST,), ValueError, r"layers\[0\] has an output of 3 x 3 positions"),
    ],
)
def test_layers_that_do_not_fit(layers, error, said, monkeypatch):
    monkeypatch.setattr(network_module, "State", None)  # nothing is allocated before
    with pytest.raises(error, match=said):
        CapsNet(layers, (1, 7, 7, 1, 1))


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        ({"input_shape": (1, 7)}, ValueError, r"input_shape is \(1, 7\); it takes \(C, H, W"),
        ({"input_shape": (1, 7, 7, 1, 0)}, ValueError, "input_shape is"),
        ({"seed": -1}, ValueError, "seed is -1; it takes 0 to"),
        ({"seed": 1.5}, TypeError, "seed is 1.5; it takes an int"),
        ({"dtype": "float16"}, TypeError, "dtype is 'float16'; it takes float32 or float64"),
        ({"dtype": "numbers"}, TypeError, "dtype is 'numbers'"),
        ({"dtype": None}, TypeError, "dtype is None; it takes float32 or float64"),
        ({"adam": 0.01}, TypeError, "adam is a float; it takes an Adam"),
    ],
)
def test_bad_options(how, error, said):
    layers, shape = NETWORKS["matrix"]
    with pytest.raises(error, match=said):
        CapsNet(layers, **{"input_shape": shape} | how)


def test_history_keeps_the_last_steps(rng, tmp_path):
    net = _trained(rng)
    for first in (-1, 3):
        with pytest.raises(ValueError, match=f"first is {first}; it takes 0 to 2"):
            net.history(first)
    net.save(tmp_path / "net.npz")
    net.load(tmp_path / "net.npz")
    assert not len(net.history()[0])
    with pytest.raises(ValueError, match="first is 1; it takes 2 to 2"):
        net.history(1)
    net._steps = 5000
    assert len(net.history()[0]) == state.PLACES - 1
    with pytest.raises(ValueError, match="first is 904; it takes 905 to 5000"):
        net.history(904)


@pytest.mark.tiers("simulator")
def test_reprs_say_what_a_network_is_made_of():
    layers = Layer(2, (1, 4), squash=4, stride=2), Layer(3, (4, 2), window=2)
    net = CapsNet(layers, (1, 5, 5, 1, 1))
    assert repr(net) == "<CapsNet 1x5x5x1x1 -> 2x2x2x1x4 -> 3x1x1x1x2, float32, 0 steps>"
    first, second = net.layers
    assert repr(first) == "<layer 2x1x3x3x1x4, stride 2x2, slope 0.1, squash 4 -> 2x2x2x1x4>"
    assert repr(second) == "<layer 3x2x2x2x4x2, slope 0.1 -> 3x1x1x1x2>"
    assert repr(net._inference(2).forward) == "<ForwardPass of 2 images, 2 layers>"


@pytest.mark.parametrize("member", ["steps", "weights_0"])
def test_a_member_that_is_no_array_is_refused(member, tmp_path):
    net, path, other = network("matrix"), tmp_path / "net.npz", tmp_path / "other.npz"
    net.save(path)
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(other, "w") as changed:
        for name in whole.namelist():
            changed.writestr(name, b"hello" if name == f"{member}.npy" else whole.read(name))
    with pytest.raises(ValueError, match=f"is damaged.*{member} is no array"):
        net.load(other)


@pytest.mark.parametrize("what", [{"epsilon": 1e-50}, {"rate": 1e39}])
def test_adam_s_numbers_are_numbers_of_the_network_s_dtype(what):
    """An epsilon of 0 would make NaN of a weight without a gradient."""
    (name,) = what
    with pytest.raises(ValueError, match=f"adam.{name} is .*; float32 takes 1.18e-38 to 3.4e"):
        network("matrix", adam=Adam(**what))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_network_is_not_copied(copied):
    with pytest.raises(TypeError, match=r"not copied or pickled: .*save\(\)"):
        copied(network("odd"))


@pytest.mark.parametrize("first", [0.0, True, "0", np.zeros(2)])
def test_history_from_what_is_no_int(first):
    with pytest.raises(TypeError, match="first is .*takes an int or None"):
        network("odd").history(first)


def test_history_from_an_int_of_numpy(rng):
    net = network("odd")
    net.step(*batch(net, 2, rng))
    assert len(net.history(np.int64(0))[0]) == 1


def _small(layers=None, **how):
    layers = (Layer(2, (2, 2), **how),) if layers is None else layers
    return CapsNet(layers, (1, 3, 3, 2, 2))


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        ({"slope": 1e39}, ValueError, "slope=1e.39; it takes a number that is finite in float32"),
        ({"slope": 10**400}, ValueError, "it takes a number that is finite in float32"),
        ({"slope": True}, TypeError, "slope=True; it takes a number"),
        ({"slope": "a"}, TypeError, "slope='a'; it takes a number"),
        ({"layers": Layer(2, (2, 2))}, TypeError, "layers is Layer.*takes a sequence of Layer"),
        ({"layers": 3}, TypeError, "layers is 3; it takes a sequence of Layer"),
        ({"layers": np.array(2)}, TypeError, r"layers is array\(2\); it takes a sequence of Layer"),
        ({"squash": True}, TypeError, "squash is .*True.*; it takes ints of 1 or more"),
        ({"window": True}, TypeError, "window is .*True.*; it takes ints of 1 or more"),
    ],
)
def test_what_layers_refuse(how, error, said):
    with pytest.raises(error, match=said):
        _small(**how)


def test_layers_take_numpy_s_numbers():
    net = _small(
        slope=np.float32(0.5), stride=np.array(1), window=np.array([3, 3]), padding=np.array([0, 0])
    )
    assert net.layers[0].layer == _small(slope=0.5, padding=(0, 0), window=(3, 3)).layers[0].layer


@pytest.mark.parametrize(
    ("adam", "said"),
    [
        (Adam(beta1=1 - Fraction(1, 10**30)), "beta1 is 1.0 as a float"),
        (Adam(beta2=Fraction(1, 10**400)), "beta2 is 0.0 as a float"),
        (Adam(halve_every=2**64), "halve_every is 18446744073709551616; it takes"),
    ],
)
def test_numbers_of_adam_that_are_out_of_range_as_floats(adam, said):
    with pytest.raises(ValueError, match=said):
        CapsNet((Layer(2, (2, 2)),), (1, 3, 3, 2, 2), adam=adam)


@pytest.mark.parametrize("spelled", ["ab, bc -> ac", "xy,yz->xz"])
def test_a_file_of_the_same_product_spelled_in_another_way(spelled, tmp_path):
    one, other = _small(), _small(product=spelled)
    one.save(tmp_path / "net.npz")
    other.load(tmp_path / "net.npz")
    np.testing.assert_array_equal(one.kernels[0], other.kernels[0])
    with pytest.raises(ValueError, match="another network: layers.0..product"):
        _small(product="ab,cb->ac").load(tmp_path / "net.npz")
