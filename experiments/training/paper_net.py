"""Capsule networks of papers, or their twins with stored votes, trained as their papers say.

A network's module brings its own loss, its optimiser's settings and its schedule
(:mod:`experiments.training.capsnet`, :mod:`experiments.training.matrix_capsules`); here is what drives its steps.
"""

from dataclasses import asdict

import numpy as np

from experiments.measuring import opponents
from experiments.training import capsnet, matrix_capsules
from experiments.training.module_net import ModuleNet
from experiments.training.processes import ALONE

torch = opponents.torch()
_AT_ONCE = 64  # images classified together: a twin stores their votes
# network: (ours, its twin)
NETWORKS = {
    "capsnet": (capsnet.SabourCapsNet, capsnet.SabourCapsNetTwin),
    "matrix-capsules": (matrix_capsules.MatrixCapsNet, matrix_capsules.MatrixCapsNetTwin),
    "matrix-capsules-small": (matrix_capsules.MatrixCapsNet, matrix_capsules.MatrixCapsNetTwin),
}


class PaperNet(ModuleNet):
    """A paper's network, its optimiser, and what its steps came to.

    Parameters
    ----------
    module : torch.nn.Module
        ``module(x, labels)`` returns class capsules (N, classes, ...), scores (N, classes) and what its loss takes
        beyond them; ``module.loss(outputs, x, labels, step)`` is the sum over images; ``module.adam`` are a
        :class:`experiments.training.schedules.DecayingAdam`.
    name : str
        Of the network, for its file.
    device : str
        Of PyTorch.
    job : experiments.training.processes.Job
    """

    def __init__(self, module, name, device="cpu", job=ALONE):
        shapes = {key: list(value.shape) for key, value in module.named_parameters()}
        dtype = str(next(module.parameters()).dtype).removeprefix("torch.")
        adam = asdict(module.adam)
        description = {"network": name, "dtype": dtype, "parameters": shapes, "adam": adam}
        super().__init__(module, description, module.adam, device, job)
        for group in self._optimiser.param_groups:
            group["weight_decay"] = module.adam.weight_decay

    def forward(self, x):
        """As :meth:`numbacaps.nn.CapsNet.forward`, some images at a time."""
        found = []
        with torch.no_grad(), opponents.precision("ieee"):
            for start in range(0, len(x), _AT_ONCE):
                outputs = self.module(self._tensor(x[start : start + _AT_ONCE]))
                found.append([tensor.cpu().numpy() for tensor in outputs[:2]])
        return tuple(map(np.concatenate, zip(*found)))

    def _scored(self, x, labels):
        outputs = self._together(x, labels)
        return outputs[1], self.module.loss(outputs, x, labels, self.steps)


def make(network, seed, twin=False, dtype="float32", device="cpu", job=ALONE, **sizes):
    """A network of :data:`NETWORKS`, or its twin, with weights by a seed; both begin with the same.

    ``sizes`` are those of its module.
    """
    ours, twins = NETWORKS[network]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = ours(**sizes)
    if twin:
        module, first = twins(**sizes), module
        module.load_state_dict(first.state_dict())
    name = f"{network}-{'torch' if twin else 'modules'}"
    return PaperNet(module.to(getattr(torch, dtype)), name, device, job)


def test_loss(network):
    """What a network's scores (N, classes) and labels of test images, two ndarrays, come to: a function."""
    of = NETWORKS[network][0].test_loss
    return lambda scores, labels: float(of(torch.from_numpy(scores), torch.from_numpy(labels)))
