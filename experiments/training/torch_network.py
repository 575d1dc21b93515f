"""A capsule network's twin in PyTorch (the extra ``torch``): what our network is held against.

Each convolution is one conv2d through the fold; the rest is PyTorch's own operations, its autograd
and its Adam. The twin begins with the weights of the network that it is of, and answers to the same
calls.

Kernels are kept folded, and what one conv2d leaves is what the next one reads: in between, views
show it in capsule layout. Only where the capsule that is read has other rows than the one that was
written does channels_last take a copy.
"""

import math
from typing import NamedTuple

import numpy as np

from experiments.measuring import opponents
from numbacaps.nn import checkpoint

torch = opponents.torch()  # once: what torch.compile traces imports nothing


def squash(x, group, root):
    """x * (1 - exp(-n)) / n over groups of the capsules' elements, with n = hypot(|x|, root).

    Parameters
    ----------
    x : tensor (N, P, OH, OW, G, D1, D3), of any strides
    group : int
        Consecutive elements of a capsule that are squashed together.
    root : tensor ()
        The square root of the published 1e-7.
    """
    a, axes = _grouped(x, group)
    minus_n = -torch.hypot(torch.linalg.vector_norm(a, dim=axes, keepdim=True), root)
    return (a * (torch.expm1(minus_n) / minus_n)).reshape(x.shape)


def _grouped(x, group):
    """A view whose ``axes`` hold the elements of a group and no others, and these axes."""
    shape, left, axes = list(x.shape), group, []
    for axis in (6, 5, 4):
        size = shape[axis]
        if left % size == 0:
            left //= size
            axes.append(axis - 7)
        elif size % left == 0:
            shape[axis : axis + 1] = size // left, left
            return x.reshape(shape), (*axes, axis - 7)
        else:  # groups that end within a row
            return x.flatten(4).unflatten(4, (-1, group)), (-1,)
    return x, tuple(axes)


def margin_loss(lengths, labels):
    """Mean over images of max(0, 0.5 - v)^2 for the label and 0.5 * max(0, v - 0.1)^2 elsewhere."""
    present = labels[:, None] == torch.arange(lengths.shape[1], device=lengths.device)
    gap = torch.where(present, 0.5 - lengths, math.sqrt(0.5) * (lengths - 0.1)).relu()
    return (gap * gap).sum() / len(lengths)


def hits(lengths, labels):
    """How many images have their label's capsule longest; none with a length that is not finite, which argmax takes for it."""
    known = lengths.isfinite().all(1)
    return (known & (lengths.argmax(1) == labels)).sum()


class Fold(NamedTuple):
    """What a layer's conv2d takes, whatever the number of images."""

    reads: tuple  # (C, H, W, G, D1, D2)
    writes: tuple  # (P, OH, OW, G, D1, D3)
    moves: tuple  # stride, padding, dilation, groups
    slope: float
    squash: int | None


def _fold_of(placed):
    g, layer = placed.geometry, placed.layer
    moves = g.stride, g.padding, g.dilation, g.G
    return Fold(g.input_shape[1:], g.output_shape[1:], moves, layer.slope, layer.squash)


class TorchNet:
    """The twin of a network.

    Parameters
    ----------
    network : numbacaps.nn.CapsNet
        Its layers, weights and optimiser's settings are taken over; it is not changed.
    device : str
        Of PyTorch: ``"cuda"`` or ``"cpu"``.
    dtype : dtype_like, optional
        float32 or float64; the network's by default.
    layout : str
        ``"nchw"`` or ``"channels_last"``: how what conv2d reads and writes lies.

    Attributes
    ----------
    parameters : list of tensor
        Every layer's kernel as conv2d takes it, a leaf that wants its gradient.
    """

    def __init__(self, network, device, dtype=None, layout="nchw"):
        self.layers, self.adam, self.description = (
            network.layers,
            network.adam,
            network.description,
        )
        self._folds = [_fold_of(placed) for placed in self.layers]
        self.dtype, self._device, self._layout = np.dtype(dtype or network.dtype), device, layout
        self._root = self.tensor(np.array(math.sqrt(1e-7)))
        self.parameters = list(map(torch.nn.Parameter, self._folded(network.kernels)))
        self._optimiser = self.optimiser()
        self.steps, self._began = 0, 0
        self._losses, self._hits = [], []

    def optimiser(self, **how):
        """PyTorch's Adam, with the network's settings, of the parameters."""
        adam = self.adam
        betas = adam.beta1, adam.beta2
        return torch.optim.Adam(self.parameters, adam.rate, betas, adam.epsilon, **how)

    def forward(self, x):
        """Class capsules and their lengths, as :meth:`numbacaps.nn.CapsNet.forward`."""
        with torch.no_grad(), opponents.precision("ieee"):
            capsules, lengths = self.run(self.tensor(x))
        shape = (*lengths.shape, *self.layers[-1].output_shape[3:])
        return capsules.reshape(shape).cpu().numpy(), lengths.cpu().numpy()

    def loss_and_gradients(self, x, labels):
        """As :meth:`numbacaps.nn.CapsNet.loss_and_gradients`."""
        loss, _ = self._differentiate(*self.place(x, labels))
        return float(loss), self.gradients

    @property
    def gradients(self):
        """A copy of what the last backward pass left: a list of ndarray (P, C, KH, KW, *T2)."""
        return self._as_given([parameter.grad for parameter in self.parameters])

    def step(self, x, labels):
        """As :meth:`numbacaps.nn.CapsNet.step`."""
        self._step(*self.place(x, labels))

    def place(self, x, labels):
        """As :meth:`numbacaps.nn.CapsNet.place`."""
        return self.tensor(x), self.tensor(labels)

    def step_rows(self, data, rows):
        """As :meth:`numbacaps.nn.CapsNet.step_rows`."""
        rows = self.tensor(np.asarray(rows))
        self._step(*(tensor[rows] for tensor in data))

    def history(self, first=None):
        """As of :class:`numbacaps.nn.CapsNet`; every step since the last :meth:`load` is kept."""
        first = self._began if first is None else first
        if not self._began <= first <= self.steps:
            raise ValueError(f"first is {first}; it takes {self._began} to {self.steps}")
        kept = slice(first - self._began, None)
        return tuple(
            np.array([float(number) for number in found[kept]])
            for found in (self._losses, self._hits)
        )

    def save(self, path):
        """As :meth:`numbacaps.nn.CapsNet.save`, which can load the file."""
        moments = [self._optimiser.state[parameter] for parameter in self.parameters]
        zeros = [torch.zeros_like(parameter) for parameter in self.parameters]
        runs = {
            "weights": self.parameters,
            "first": [at.get("exp_avg", zero) for at, zero in zip(moments, zeros)],
            "second": [at.get("exp_avg_sq", zero) for at, zero in zip(moments, zeros)],
        }
        as_given = {name: self._as_given(tensors) for name, tensors in runs.items()}
        checkpoint.write(path, self.description, self.steps, as_given)

    def load(self, path):
        """As :meth:`numbacaps.nn.CapsNet.load`."""
        shapes = [layer.kernel_shape for layer in self.layers]
        steps, runs = checkpoint.read(path, self.description, shapes, self.dtype)
        runs = {name: self._folded(arrays) for name, arrays in runs.items()}
        with torch.no_grad():
            for at, parameter in enumerate(self.parameters):
                parameter.copy_(runs["weights"][at])
                self._optimiser.state[parameter] = {
                    "step": torch.tensor(float(steps)),
                    "exp_avg": runs["first"][at],
                    "exp_avg_sq": runs["second"][at],
                }
        self.steps = self._began = steps
        self._losses, self._hits = [], []

    @property
    def kernels(self):
        """A copy of every layer's kernel, a list of ndarray (P, C, KH, KW, *T2)."""
        return self._as_given(self.parameters)

    def run(self, x):
        """Class capsules (N, P, 1, 1, G, D1, D3) and lengths (N, P) of a tensor of images."""
        for (reads, writes, moves, slope, group), kernel in zip(self._folds, self.parameters):
            shape = len(x), *reads
            folded = opponents.fold(x.reshape(shape), shape, self._layout)
            y = torch.nn.functional.conv2d(folded, kernel, None, *moves)
            y = torch.nn.functional.leaky_relu(y, slope)
            x = opponents.unfold(y, (len(x), *writes))
            if group is not None:
                x = squash(x, group, self._root)
        return x, torch.linalg.vector_norm(x, dim=(2, 3, 4, 5, 6))

    def tensor(self, array):
        """An array on the device: floats in the twin's dtype, labels as int64."""
        dtype = self.dtype if array.dtype.kind == "f" else np.int64
        return torch.tensor(np.array(array, dtype), device=self._device)

    def _step(self, x, labels):
        loss, lengths = self._differentiate(x, labels)
        for group in self._optimiser.param_groups:
            group["lr"] = self.adam.rate_of(self.steps)
        self._optimiser.step()
        self._losses.append(loss)
        self._hits.append(hits(lengths, labels))
        self.steps += 1

    def _differentiate(self, x, labels):
        """The loss of tensors, its gradients left in the parameters, and the lengths."""
        with opponents.precision("ieee"):
            _, lengths = self.run(x)
            loss = margin_loss(lengths, labels)
            self._optimiser.zero_grad()
            loss.backward()
        return loss.detach(), lengths.detach()

    def _folded(self, arrays):
        """Kernels (P, C, KH, KW, *T2) as conv2d takes them."""
        memory_format = opponents.memory_format_of(self._layout)
        return [
            opponents.fold_kernel(
                self.tensor(placed.canonical(array)), placed.geometry.kernel_shape, self._layout
            ).contiguous(memory_format=memory_format)
            for placed, array in zip(self.layers, arrays)
        ]

    def _as_given(self, folded):
        """The inverse, as arrays."""
        return [
            placed.as_given(
                opponents.unfold_kernel(tensor.detach(), placed.geometry.kernel_shape).cpu().numpy()
            )
            for placed, tensor in zip(self.layers, folded)
        ]


class TwinModule(torch.nn.Module):
    """A twin as a module, whose parameters are the twin's; a call returns the lengths (N, P) of its class capsules.

    Parameters
    ----------
    twin : TorchNet
    """

    def __init__(self, twin):
        super().__init__()
        self.kernels = torch.nn.ParameterList(twin.parameters)
        self._twin = twin

    def forward(self, x):
        return self._twin.run(x)[1]
