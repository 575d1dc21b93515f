"""A capsule network's twin in PyTorch (the extra ``torch``): what our training is held against.

Each convolution is one conv2d through the fold; the rest is PyTorch's own operations, its autograd
and its Adam. The twin begins with the weights of the network that it is of, and answers to the same
calls.
"""

from dataclasses import replace

import numpy as np

from experiments import opponents
from experiments.opponents import torch
from numbacaps.nn import checkpoint

_FOLD = next(
    opponent
    for opponent in opponents.OPPONENTS
    if (opponent.algorithm, opponent.layout) == ("torch_fold", "capsule")
)


def squash(x, group):
    """x * (1 - exp(-n)) / n over groups of the last axis, with n = sqrt(|x|^2 + 1e-7)."""
    a = x.reshape(*x.shape[:-1], -1, group)
    n = torch().sqrt((a * a).sum(-1, keepdim=True) + 1e-7)
    return (a * (-torch().expm1(-n) / n)).reshape(x.shape)


def margin_loss(lengths, labels):
    """Mean over images of max(0, 0.5 - v)^2 for the label and 0.5 * max(0, v - 0.1)^2 elsewhere."""
    present = torch().nn.functional.one_hot(labels, lengths.shape[1]).to(lengths.dtype)
    near, far = (0.5 - lengths).clamp(min=0) ** 2, (lengths - 0.1).clamp(min=0) ** 2
    return (present * near + 0.5 * (1 - present) * far).sum() / len(lengths)


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

    Raises
    ------
    ImportError
        PyTorch is not installed; the message names the extra.
    """

    def __init__(self, network, device, dtype=None):
        self.layers, self.adam, self.description = (
            network.layers,
            network.adam,
            network.description,
        )
        self.dtype, self._device = np.dtype(dtype or network.dtype), device
        self._parameters = [
            self._tensor(kernel).requires_grad_() for kernel in self._canonical(network.kernels)
        ]
        adam = self.adam
        self._optimiser = torch().optim.Adam(
            self._parameters, adam.rate, (adam.beta1, adam.beta2), adam.epsilon
        )
        self.steps, self._began = 0, 0
        self._losses, self._hits = [], []

    def forward(self, x):
        """Class capsules and their lengths, as :meth:`numbacaps.nn.CapsNet.forward`."""
        with torch().no_grad(), opponents.precision("ieee"):
            capsules, lengths = self._pass(self._tensor(x))
        shape = (*lengths.shape, *self.layers[-1].output_shape[3:])
        return capsules.reshape(shape).cpu().numpy(), lengths.cpu().numpy()

    def loss_and_gradients(self, x, labels):
        """As of :class:`numbacaps.nn.CapsNet`; the gradients are (P, C, KH, KW, G, D2, D3)."""
        loss, _ = self._differentiate(x, labels)
        return float(loss), [parameter.grad.cpu().numpy() for parameter in self._parameters]

    def step(self, x, labels):
        """As :meth:`numbacaps.nn.CapsNet.step`."""
        loss, lengths = self._differentiate(x, labels)
        for group in self._optimiser.param_groups:
            group["lr"] = self.adam.rate_of(self.steps)
        self._optimiser.step()
        self._losses.append(loss)
        self._hits.append((lengths.argmax(1) == self._tensor(labels)).sum())
        self.steps += 1

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
        moments = [self._optimiser.state[parameter] for parameter in self._parameters]
        zeros = [torch().zeros_like(parameter) for parameter in self._parameters]
        runs = {
            "weights": self._parameters,
            "first": [at.get("exp_avg", zero) for at, zero in zip(moments, zeros)],
            "second": [at.get("exp_avg_sq", zero) for at, zero in zip(moments, zeros)],
        }
        as_given = {name: self._as_given(tensors) for name, tensors in runs.items()}
        checkpoint.write(path, self.description, self.steps, as_given)

    def load(self, path):
        """As :meth:`numbacaps.nn.CapsNet.load`."""
        shapes = [layer.kernel_shape for layer in self.layers]
        steps, runs = checkpoint.read(path, self.description, shapes, self.dtype)
        runs = {name: self._canonical(arrays) for name, arrays in runs.items()}
        with torch().no_grad():
            for at, parameter in enumerate(self._parameters):
                parameter.copy_(self._tensor(runs["weights"][at]))
                self._optimiser.state[parameter] = {
                    "step": torch().tensor(float(steps)),
                    "exp_avg": self._tensor(runs["first"][at]),
                    "exp_avg_sq": self._tensor(runs["second"][at]),
                }
        self.steps = self._began = steps
        self._losses, self._hits = [], []

    @property
    def kernels(self):
        """A copy of every layer's kernel, a list of ndarray (P, C, KH, KW, *T2)."""
        return self._as_given(self._parameters)

    def _pass(self, x):
        """Class capsules (N, P, E) and lengths (N, P)."""
        for placed, kernel in zip(self.layers, self._parameters):
            g, layer = replace(placed.geometry, N=len(x)), placed.layer
            y = _FOLD.forward(g, x.reshape(g.input_shape), kernel, None).flatten(4)
            y = torch().where(y > 0, y, layer.slope * y)
            x = y if layer.squash is None else squash(y, layer.squash)
        capsules = x.flatten(2)
        return capsules, torch().linalg.vector_norm(capsules, dim=2)

    def _differentiate(self, x, labels):
        """The loss, its gradients left in the parameters, and the lengths."""
        with opponents.precision("ieee"):
            _, lengths = self._pass(self._tensor(x))
            loss = margin_loss(lengths, self._tensor(labels))
            self._optimiser.zero_grad()
            loss.backward()
        return loss.detach(), lengths.detach()

    def _tensor(self, array):
        dtype = self.dtype if array.dtype.kind == "f" else np.int64
        return torch().tensor(np.ascontiguousarray(array, dtype), device=self._device)

    def _canonical(self, arrays):
        return [placed.canonical(array) for placed, array in zip(self.layers, arrays)]

    def _as_given(self, tensors):
        parts = (tensor.detach().cpu().numpy() for tensor in tensors)
        return [placed.as_given(part) for placed, part in zip(self.layers, parts)]
