"""The whole published network: ours beside its twin in PyTorch, as they infer and as they train.

=============  ==================================================================================
net_forward    from a batch on the device to the lengths of its class capsules; kernels lie as each
               side reads them, folded or packed, because nothing changes them
net_gradients  the same, then the margin loss and its gradient of every kernel
net_step       the same, then Adam
=============  ==================================================================================

Timed as everything is (:mod:`experiments.measuring.measure`), but that all calls read and write the same
buffers, as they do in training. What the timed graph leaves, lengths or gradients, is compared with
float64 too: Adam's rate is so small that no weight moves, so every replay computes the same.
``host_us`` is one launch of a graph of one call, or without graphs one call.
"""

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache, cached_property

import numpy as np

import reference
import reference.network
import reference.nn
from experiments.measuring import ceilings, device_memory, gpu_time, measure, opponents, sources
from experiments.measuring.contestants import Variant, fill_with_nan
from experiments.measuring.problem import WrongResult, side_by_side
from experiments.measuring.workloads import PUBLISHED
from numbacaps import ALGORITHMS
from numbacaps.device.kernel_cache import launched
from numbacaps.device.streams import Beside
from numbacaps.device.target import cuda
from numbacaps.nn import Adam, CapsNet
from numbacaps.nn.passes import ForwardPass
from numbacaps.nn.resident.passes import backward_pass, forward_pass

OURS = "capsnet"  # each pass as one kernel where that can be
LAYERS = (
    "capsnet_layers"  # layer by layer, activations in the convolutions' kernels where they can be
)
APART = "capsnet_apart"  # every activation apart, too
JOINED = "capsnet_joined"  # their gradients in the input gradients' kernels, too, where they can be
NAMES = (OURS, LAYERS, APART, JOINED, *opponents.NETWORKS)
WORKLOADS = {f"network, batch {N}": replace(PUBLISHED["layer 1"], N=N) for N in (128, 1024)}
_STILL = 1e-30  # a rate at which no float32 weight moves
_CALLS = 10  # in the timed graph
_WARM_UPS = 3
_IMAGES = 16  # that the oracle takes at a time


def choose(names, precisions=opponents.PRECISIONS):
    """The variants of those names at those precisions, ours first."""
    float32 = np.dtype(np.float32)
    ours = [
        Variant(name, "capsule", precision, "float32", OurNetwork)
        for name in (OURS, LAYERS, APART, JOINED)
        for precision in ALGORITHMS["fused"].precisions(float32)
    ]
    theirs = [
        Variant(name, layout, precision, "float32", TorchNetwork)
        for name in opponents.NETWORKS
        for layout in ("nchw", "channels_last")
        for precision in ("ieee", "tf32")
    ]
    return [
        variant
        for variant in ours + theirs
        if variant.algorithm in names and variant.precision in precisions
    ]


def published(precision="ieee"):
    """The published network; its steps move nothing."""
    return CapsNet.published(precision=precision, adam=Adam(rate=_STILL))


@cache
def task(N):
    """The one task of a batch size."""
    return Task(N)


class Task:
    """A batch of random images, and what the network must make of it in float64.

    Parameters
    ----------
    N : int
        Images.

    Attributes
    ----------
    x : ndarray (N, 1, 28, 28, 1, 1), float32
    labels : ndarray (N,), int64
    """

    def __init__(self, N):
        rng = np.random.default_rng(0)
        self.x = rng.uniform(0, 1, (N, 1, 28, 28, 1, 1)).astype(np.float32)
        self.labels = rng.integers(0, 10, N)

    def check(self, wanted, results, precision):
        """The largest relative error of a pass's results, each by :func:`reference.relative_error`.

        Raises
        ------
        WrongResult
            It is more than rounding in five layers explains.
        """
        lengths, gradients = self._expected
        expected = [lengths] if wanted == "net_forward" else gradients
        error = max(map(reference.relative_error, results, expected))
        terms = max(len(self.x) * g.L * g.D1 for g in PUBLISHED.values())
        limit = len(PUBLISHED) * reference.tolerance(np.float32, terms, precision)
        if not error <= limit:
            raise WrongResult(f"wrong result: relative error {error:.1e}, at most {limit:.1e}")
        return error

    @cached_property
    def _expected(self):
        """Lengths (N, classes), and the gradient of every kernel, as users see it."""
        net, N = published(), len(self.x)
        layers = [
            {
                "input": (placed.geometry.G, placed.geometry.D1, placed.geometry.D2),
                "stride": placed.geometry.stride,
                "padding": placed.geometry.padding,
                "dilation": placed.geometry.dilation,
                "slope": placed.layer.slope,
                "squash": placed.layer.squash,
            }
            for placed in net.layers
        ]
        kernels = [
            placed.canonical(kernel).astype(np.float64)
            for placed, kernel in zip(net.layers, net.kernels)
        ]
        lengths, sums = np.empty((N, net.classes)), [np.zeros_like(kernel) for kernel in kernels]

        def differentiate(images):
            x, labels = self.x[images].astype(np.float64), self.labels[images]
            capsules, _ = reference.network.network_forward(x, kernels, layers)
            found = reference.nn.capsule_length(capsules, capsules.shape[2])
            lengths[images] = found.reshape(len(x), -1)
            _, gradients = reference.network.network_loss_and_gradients(x, labels, kernels, layers)
            return [len(x) / N * gradient for gradient in gradients]  # of the mean over all

        for gradients in side_by_side(differentiate, N, _IMAGES):
            for total, gradient in zip(sums, gradients):
                total += gradient
        return lengths, [placed.as_given(total) for placed, total in zip(net.layers, sums)]


class OurNetwork:
    """The network on our kernels.

    A run's ``call`` queues the pass on the clock's stream, ``results`` reads what it left,
    ``spoil`` fills that with NaN, and ``capture`` makes a replay of some calls.
    """

    captured = True

    def __init__(self, variant, wanted, task):
        net = published(variant.precision)
        self._net, self._wanted, self._clock = net, wanted, gpu_time.clock()
        which = net.layers, len(task.x), net.dtype, wanted != "net_forward"
        if variant.algorithm == OURS:
            self._forward = forward_pass(*which)
        else:
            how = {"apart": variant.algorithm == APART, "joined": variant.algorithm == JOINED}
            self._forward = ForwardPass(*which, **how)
        self._backward = backward_pass(self._forward) if wanted != "net_forward" else None
        self._batch = cuda.to_device(task.x), cuda.to_device(task.labels)
        self._beside = Beside(self._clock.numba)
        self._forward.pack(net.state, self._beside)
        self._beside.join()
        self._clock.synchronize()

    def environment(self):
        return nullcontext()

    def call(self):
        (x, labels), state, beside = self._batch, self._net.state, self._beside
        if self._wanted == "net_forward":  # whose kernels stay as they were packed
            self._forward.launch(x, state, beside)
        else:
            self._backward.differentiate(x, labels, state, beside)
        if self._wanted == "net_step":
            state.move(self._net.adam, beside.stream)

    @property
    def _written(self):
        of_forward = self._wanted == "net_forward"
        return self._forward.lengths if of_forward else self._net.state.gradients

    def results(self):
        self._clock.synchronize()
        if self._wanted == "net_forward":
            return [self._written.copy_to_host()]
        return self._net.state.read(self._written)

    def spoil(self):
        fill_with_nan(self._written, self._clock.numba)

    def capture(self, calls):
        return self._clock.capture([self.call] * calls)


class TorchNetwork:
    """The twin through PyTorch; its Adam is the fused one."""

    def __init__(self, variant, wanted, task):
        torch = opponents.torch_on_gpu()
        from experiments.training.torch_network import TorchNet, margin_loss

        self._precision, self._wanted, self._clock = variant.precision, wanted, gpu_time.clock()
        self.captured = variant.algorithm != "torch_net"
        twin = self._twin = TorchNet(published(), "cuda", layout=variant.layout)
        self._adam = twin.optimiser(fused=True, capturable=True)
        x, labels = twin.tensor(task.x), twin.tensor(task.labels)

        def forward():
            with torch.no_grad():
                return twin.run(x)[1]

        def loss():
            return margin_loss(twin.run(x)[1], labels)

        self._function = forward if wanted == "net_forward" else loss
        if variant.algorithm == "torch_net_compile":
            torch.compiler.reset()  # it compiles one piece of code a few times only
            how = {"mode": "max-autotune-no-cudagraphs", "fullgraph": True}
            self._function = torch.compile(self._function, **how)
        self._clock.synchronize()

    @contextmanager
    def environment(self):
        with (
            opponents.precision(self._precision),
            opponents.torch().cuda.stream(self._clock.torch),
        ):
            yield

    def call(self):
        found = self._function()
        if self._wanted == "net_forward":
            self._lengths = found
            return
        for parameter in self._twin.parameters:
            parameter.grad = None
        found.backward()
        if self._wanted == "net_step":
            self._adam.step()

    def results(self):
        self._clock.synchronize()
        return (
            [self._lengths.cpu().numpy()] if self._wanted == "net_forward" else self._twin.gradients
        )

    def spoil(self):
        gradients = [parameter.grad for parameter in self._twin.parameters]
        for tensor in [self._lengths] if self._wanted == "net_forward" else gradients:
            tensor.fill_(np.nan)

    def capture(self, calls):
        return self._clock.capture_torch([self.call] * calls, 1)


def measure_network(problem, wanted, variants, tick=lambda variant: None):
    """Check and time some variants of one pass, side by side.

    Parameters
    ----------
    problem : experiments.measuring.problem.Problem
        Of the batch; nothing else of it counts.
    wanted : str
        One of :data:`experiments.measuring.problem.NETWORK_PASSES`.
    variants : list of experiments.measuring.contestants.Variant
    tick : callable
        Called with each variant before it is checked.

    Returns
    -------
    list of dict
        The cells of a row for each variant; the names of experiment and workload are not in it.
    """
    rates, batch = ceilings.ceilings(), task(problem.geometry.N)
    ready, notes = {}, {}
    for variant in variants:
        tick(variant)
        try:
            ready[variant] = _prepare(variant, wanted, batch)
        except Exception as failure:  # whatever a library raises is what its row says
            notes[variant] = measure.note_of(failure)
            device_memory.release()
    replays = {variant: replay for variant, (_, replay, *_) in ready.items()}
    times = gpu_time.replay_in_turns(replays)
    flop, least = work(wanted, len(batch.x))
    rows = []
    for variant in variants:
        row = {"gflop": flop / 1e9, "min_bytes": least, "note": notes.get(variant, "")}
        if variant in ready:
            error, replay, host_us, row["kernel_sources"] = ready[variant]
            p20, p50, p80 = map(float, np.percentile(times[variant], (20, 50, 80)))
            row |= {"ms_p20": p20, "ms_p50": p50, "ms_p80": p80}
            row |= {"host_us": host_us, "rel_error": error}
            row |= measure.fractions(least, flop, p50, rates)
            row["note"] = "" if replay.captured else "calls queued, not in a graph"
        rows.append(measure.common_cells(problem, wanted) | variant.cells | _CACHE | row)
    return rows


_CACHE = {"cache": "the same buffers every call, as in training"}


def work(wanted, N):
    """FLOP of a pass's convolutions, and the fewest bytes that they move by themselves."""
    flop = least = 0
    for at, geometry in enumerate(PUBLISHED.values()):
        g = replace(geometry, N=N)
        # Nobody asks for the gradient of the images.
        convolutions = 1 if wanted == "net_forward" else 3 if at else 2
        flop, least = flop + convolutions * g.flop, least + convolutions * g.min_bytes(4)
    return flop, least


def _prepare(variant, wanted, batch):
    """(largest error, replay, host microseconds, kernel sources) of a variant, checked by itself and as a graph."""
    with launched() as kernels:
        run = variant.run(variant, wanted, batch)
        with run.environment():
            run.call()
    of = sources.name_of(kernels)

    def queue():
        with run.environment():
            run.call()

    with run.environment():
        for _ in range(_WARM_UPS):
            run.call()
        error = batch.check(wanted, run.results(), variant.precision)
        if not run.captured:
            host_us = measure.idle_microseconds(run.call)
            return error, gpu_time.clock().queue([queue], host_us), host_us, of
        for calls in (1, _CALLS):
            replay = run.capture(calls)
            run.spoil()
            replay.run()
            error = max(error, batch.check(wanted, run.results(), variant.precision))
            if calls == 1:
                host_us = measure.idle_microseconds(replay.run)
    return error, replay, host_us, of
