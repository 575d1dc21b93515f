"""Training steps of modules of PyTorch, ours and plain PyTorch's, and numbacaps.nn's own; each is checked.

A step is the forward pass, the loss, its gradients, and Adam, whose rate is so small that no weight moves: every step
computes the same, and what the last one has left can be compared with float64. Workloads:

- published: the five layers of the paper, and the margin loss. The twin is
  :class:`experiments.training.torch_network.TorchNet`, which keeps its kernels folded;
- primary-caps: the layer PrimaryCaps of Sabour et al. and its squash, as it stands in their network: its input's gradient is
  wanted too. The loss is the mean over images of the capsules' squared lengths;
- capsnet, matrix-capsules: the networks with routing of :mod:`experiments.training.paper_net`, with their papers' losses. The
  twin stores the votes.

In eager mode a step is called; as a graph it is a launch of the CUDA graph that was captured of one; compiled, the
forward pass and the loss are torch.compile's, and their gradients; Adam is PyTorch's fused one always.
"""

from copy import deepcopy
from functools import cache, cached_property

import numpy as np

import reference
from experiments.measuring import gpu_time, networks, opponents
from experiments.measuring.clocks import peak_bytes, queueing_us
from experiments.measuring.contestants import Variant
from experiments.measuring.problem import WrongResult
from experiments.measuring.torch_rows import MODULES, NETWORK, TWINS
from experiments.measuring.workloads import PUBLISHED
from reference.compare import ROUTING_TIMES

_RATE = 1e-30  # at which no float32 weight moves
_WARM_UPS = 4  # the first compile, and cuDNN tries its algorithms
_QUEUED = 3  # steps between two waits: more would fill the queue, and the host would wait
_AS_EXACT = {"auto": "tf32x3"}


def precision_of(contestant, name):
    """What a contestant takes for a class of precision."""
    if name == "tf32":
        return "tf32"
    return {MODULES: "auto", NETWORK: "tf32x3"}.get(contestant, "ieee")


def _arrays(tensors):
    return [tensor.detach().cpu().numpy() for tensor in tensors]


class Step:
    """A training step of PyTorch.

    Parameters
    ----------
    loss : callable
        Of no arguments: the loss of a batch, a tensor ().
    moved : list of tensor
        What Adam moves.
    inputs : list of tensor
        What else is differentiated.
    deliver : callable
        ``deliver(gradients)``, of ``inputs`` and then of ``moved``: the arrays that are compared.
    """

    counts_memory = True  # all of it is PyTorch's

    def __init__(self, loss, moved, inputs=(), deliver=_arrays):
        self._loss, self._leaves, self._deliver = loss, [*inputs, *moved], deliver
        on_gpu = moved[0].is_cuda
        self._adam = opponents.torch().optim.Adam(moved, _RATE, fused=True, capturable=on_gpu)

    def compile(self):
        """Let torch.compile make the loss."""
        self._loss = opponents.torch().compile(self._loss, fullgraph=True, dynamic=False)

    def call(self):
        """Take the step on the current stream."""
        for leaf in self._leaves:
            leaf.grad = None
        loss = self._loss()
        loss.backward()
        self._adam.step()
        self._found = loss.detach()

    def results(self):
        """(the loss, the gradients) that the last step has left, as arrays."""
        return float(self._found), self._deliver([leaf.grad for leaf in self._leaves])

    def spoil(self):
        """Make them NaN."""
        for tensor in (self._found, *(leaf.grad for leaf in self._leaves)):
            tensor.fill_(np.nan)

    def capture(self):
        """A replay of the step as one graph launch; it was called before, on the clock's stream."""
        return gpu_time.clock().capture_torch([self.call], 1)


class NetworkStep:
    """The same of :mod:`numbacaps.nn`, whose memory is not PyTorch's; its loss is not read."""

    counts_memory = False

    def __init__(self, precision, images):
        variant = Variant(networks.OURS, "capsule", precision, "float32", networks.OurNetwork)
        self._run = networks.OurNetwork(variant, "net_step", networks.task(images))
        self.call, self.spoil = self._run.call, self._run.spoil

    def results(self):
        """(None, the gradients)."""
        return None, self._run.results()

    def capture(self):
        """As :meth:`Step.capture`."""
        return self._run.capture(1)


class Task:
    """A workload: who takes its step, and what the step must give.

    Attributes
    ----------
    contestants : tuple of str
    depth, terms : int
        Convolutions whose rounding adds up; products of their longest sum.
    """

    def make(self, contestant, precision):
        """A contestant's step, at its own word for the precision; PyTorch's own is set by who takes the step."""
        raise NotImplementedError

    @cached_property
    def expected(self):
        """(loss, gradients) by the twin in float64."""
        raise NotImplementedError

    def check(self, loss, gradients, precision):
        """The largest relative error.

        Raises
        ------
        WrongResult
            It is more than rounding explains.
        """
        right, wanted = self.expected
        pairs = [] if loss is None else [(loss, right)]
        pairs += zip(gradients, wanted, strict=True)
        error, limit = max(reference.relative_error(*pair) for pair in pairs), self.limit(precision)
        if not error <= limit:
            raise WrongResult(f"wrong result: relative error {error:.1e}, at most {limit:.1e}")
        return error

    def limit(self, precision):
        """The largest relative error that rounding explains."""
        exact = _AS_EXACT.get(precision, precision)
        return self.depth * reference.tolerance(np.float32, self.terms, exact)


class Published(Task):
    """The published network.

    Parameters
    ----------
    images : int
    device : str
        Of PyTorch.
    """

    contestants = (MODULES, *TWINS, NETWORK)
    depth = len(PUBLISHED)

    def __init__(self, images=128, device="cuda"):
        self._device, self._images, self._batch = device, images, networks.task(images)
        self.terms = max(images * g.L * g.D1 for g in PUBLISHED.values())

    def make(self, contestant, precision):
        if contestant == NETWORK:
            return NetworkStep(precision, self._images)
        if contestant == MODULES:
            return self._modules(precision)
        return self._twin(contestant.removeprefix("twin-"))

    def share(self, array):
        """What of a batch's array is computed here; all of it, where a process takes steps alone."""
        return array

    def called(self, module):
        """What computes a module; its gradients are those of the batch."""
        return module

    def called_twin(self, twin):
        """What computes the lengths of a twin's class capsules, likewise."""
        return lambda x: twin.run(x)[1]

    def _modules(self, precision):
        import numbacaps.torch as nt
        from experiments.training import modules

        torch = opponents.torch()
        module = modules.PublishedNet(networks.published(precision)).to(self._device)
        call = self.called(module)
        x, labels = (
            torch.from_numpy(np.ascontiguousarray(self.share(array))).to(self._device)
            for array in (self._batch.x, self._batch.labels)
        )

        def loss():
            return nt.margin_loss(modules.lengths(call(x)), labels, m_plus=0.5)

        return Step(loss, list(module.parameters()))

    def _twin(self, layout):
        from experiments.training.torch_network import TorchNet, margin_loss

        twin = TorchNet(networks.published(), self._device, layout=layout)
        call = self.called_twin(twin)
        x, labels = twin.place(self.share(self._batch.x), self.share(self._batch.labels))

        def loss():
            return margin_loss(call(x), labels)

        return Step(loss, twin.parameters, deliver=lambda folded: twin.gradients)

    @cached_property
    def expected(self):
        from experiments.training.torch_network import TorchNet

        twin = TorchNet(networks.published(), self._device, dtype="float64")
        return twin.loss_and_gradients(self._batch.x, self._batch.labels)


class PrimaryCaps(Task):
    """PrimaryCaps, its input and weights by a seed.

    Parameters
    ----------
    images : int
    device : str
        Of PyTorch.
    filters, capsules, window, grid : int
        Channels that it reads, capsules a position that it makes, side of its window and of what it reads.
    """

    contestants = (MODULES, *TWINS)
    depth = 2  # the convolution, and its gradients behind it

    def __init__(self, images=128, device="cuda", filters=256, capsules=32, window=9, grid=20):
        from experiments.training import modules

        side, rows = grid + window - 1, (grid - window) // 2 + 1
        self._net = modules.init_like_he(modules.SabourNet(side, filters, capsules, window), 0)
        features = np.random.default_rng(0).standard_normal((images, filters, grid, grid), "f4")
        self._features, self._device = np.maximum(features, 0), device  # as behind Conv1's ReLU
        self.terms = max(filters * window**2, images * rows**2)

    def make(self, contestant, precision):
        from experiments.training import modules

        if contestant != MODULES:
            layout = contestant.removeprefix("twin-")
            return self._step(modules.SabourTwin(self._net), layout=layout)
        net = deepcopy(self._net)
        net.primary.precision = precision

        def as_twin(gradients):
            dx, dw, db = gradients
            return _arrays((dx, modules.folded(dw), db.flatten()))

        return self._step(net, deliver=as_twin)

    def _step(self, net, dtype="float32", layout="nchw", deliver=_arrays):
        torch = opponents.torch()
        how = {"dtype": getattr(torch, dtype), "device": self._device}
        how["memory_format"] = opponents.memory_format_of(layout)
        net.primary.to(**how)
        x = torch.from_numpy(self._features).to(**how).requires_grad_()

        def loss():
            return net.capsules(x).square().sum() / len(x)

        return Step(loss, list(net.primary.parameters()), [x], deliver)

    @cached_property
    def expected(self):
        from experiments.training import modules

        step = self._step(modules.SabourTwin(self._net), "float64")
        with opponents.precision("ieee"):
            step.call()
        return step.results()


class Routed(Task):
    """A network of a paper that routes its votes, its weights by a seed.

    EM routing divides by variances, so that rounding grows: a gradient may be as far from float64 as some times the
    twin's own in float32.

    Parameters
    ----------
    images : int, optional
        By default its paper's batch.
    device : str
        Of PyTorch.
    **sizes
        Of its module.

    Attributes
    ----------
    network : str
        Of :data:`experiments.training.paper_net.NETWORKS`.
    batch : int
    """

    contestants = (MODULES, *TWINS)
    depth = 6  # layers, and the routing

    def __init__(self, images=None, device="cuda", **sizes):
        images = images or self.batch
        self._device, self._sizes = device, sizes
        side = sizes.get("side", 28)
        batch = networks.task(images)
        self._x, self._labels = batch.x[:, :, :side, :side], batch.labels
        self.terms = images * side**2

    def make(self, contestant, precision):
        if contestant == MODULES:
            return self._step(False, precision=precision)
        return self._step(True, layout=contestant.removeprefix("twin-"))

    def _step(self, twin, dtype="float32", layout="nchw", precision="auto"):
        from experiments.training import capsnet, paper_net

        torch = opponents.torch()
        how = {"twin": twin, "dtype": dtype, "device": self._device, **self._sizes}
        module = paper_net.make(self.network, 0, **how).module
        for part in module.modules():
            if isinstance(part, torch.nn.Conv2d):
                part.to(memory_format=opponents.memory_format_of(layout))
            if isinstance(part, capsnet.PrimaryCaps):
                part.precision = precision
        x = torch.from_numpy(self._x).to(self._device, getattr(torch, dtype))
        labels = torch.from_numpy(self._labels).to(self._device)

        def loss():
            return module.loss(module(x, labels), x, labels, 0) / len(x)

        return Step(loss, list(module.parameters()))

    @cached_property
    def expected(self):
        return self._twins("float64", "ieee")

    @cached_property
    def _plain(self):
        """The largest relative error of the twin in float32, by the word of its precision."""
        return {word: self._error_of_twin(word) for word in ("ieee", "tf32")}

    def _error_of_twin(self, word):
        (right, wanted), (loss, gradients) = self.expected, self._twins("float32", word)
        pairs = zip((loss, *gradients), (right, *wanted))
        return max(reference.relative_error(*pair) for pair in pairs)

    def _twins(self, dtype, word):
        step = self._step(True, dtype)
        with opponents.precision(word):
            step.call()
        return step.results()

    def limit(self, precision):
        plain = self._plain["tf32" if precision == "tf32" else "ieee"]
        return max(super().limit(precision), ROUTING_TIMES * plain)


class CapsNet(Routed):
    """CapsNet of Sabour et al., with its decoder."""

    network, batch = "capsnet", 128


class MatrixCapsules(Routed):
    """The matrix capsules of Hinton et al., A = B = C = D = 32."""

    network, batch = "matrix-capsules", 64


WORKLOADS = {
    "published": Published,
    "primary-caps": PrimaryCaps,
    "capsnet": CapsNet,
    "matrix-capsules": MatrixCapsules,
}


@cache
def task(name):
    """The one task of a workload's name."""
    return WORKLOADS[name]()


def prepare(step, mode, check, before):
    """Warm up, check and count: on the clock's stream, with the precision set.

    Parameters
    ----------
    step : Step or NetworkStep
    mode : str
        One of :data:`experiments.measuring.torch_rows.MODES`.
    check : callable
        ``check(loss, gradients)``: the error; it raises where they are wrong.
    before : int
        Bytes that PyTorch held before the step was made.

    Returns
    -------
    call : callable
        What is timed.
    cells : dict
        ``host_us``, ``peak_mb`` and ``error``.
    """
    clock = gpu_time.clock()
    if mode.startswith("compiled"):
        step.compile()
    for _ in range(_WARM_UPS):
        step.call()
    clock.synchronize()
    error, made = check(*step.results()), []
    if mode.endswith("graph"):
        peak = _peak(step, lambda: made.append(step.capture()), before)
        step.spoil()

        def call(replay=made[0]):  # which keeps what its graph reads
            replay.run()

        call()
        clock.synchronize()
        error = max(error, check(*step.results()))
    else:
        peak, call = _peak(step, step.call, before), step.call
    host_us = queueing_us(call, clock.synchronize, _QUEUED)
    return call, {"host_us": host_us, "peak_mb": peak, "error": error}


def _peak(step, call, before):
    """Megabytes that a call takes at most; it is made either way."""
    if step.counts_memory:
        return peak_bytes(call, before) / 1e6
    call()
    return None
