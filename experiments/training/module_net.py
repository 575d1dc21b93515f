"""A module of PyTorch trained like the package's own networks: it answers to the same calls.

With several processes each takes its share of every batch, DistributedDataParallel adds the gradients up, and the
first process writes the files. Steps, losses and gradients are those of one process with the whole batch.
"""

from dataclasses import asdict

import numpy as np

import numbacaps.torch as nt
from experiments.measuring import opponents
from experiments.training import modules
from experiments.training.processes import ALONE
from experiments.training.torch_network import hits
from numbacaps.nn import Adam, checkpoint

torch = opponents.torch()
_PRESENT = 0.5  # margin of the label's class, as in numbacaps.nn
_SABOUR_RATE = 1e-3  # TensorFlow's default, which Sabour et al. kept; at 1e-2 all capsules die out


class ModuleNet:
    """A module, its optimiser, and what its steps came to.

    Parameters
    ----------
    module : torch.nn.Module
        From images (N, 1, H, W, 1, 1) to class capsules (N, classes, ...).
    description : dict
        What decides its function and its weights' meaning, fit for JSON.
    adam : numbacaps.nn.Adam
    device : str
        Of PyTorch.
    job : experiments.training.processes.Job

    Attributes
    ----------
    steps : int
        Steps taken, those before a :meth:`load` among them.
    dtype : numpy.dtype
    """

    def __init__(self, module, description, adam=Adam(), device="cpu", job=ALONE):
        self.module, self.description, self.adam = module.to(device), description, adam
        self._device, self._job = device, job
        self._parameters = list(self.module.parameters())
        self.dtype = np.dtype(str(self._parameters[0].dtype).removeprefix("torch."))
        self._together = job.together(self.module)
        betas = adam.beta1, adam.beta2
        self._optimiser = torch.optim.Adam(self._parameters, adam.rate, betas, adam.epsilon)
        self.steps, self._began, self._totals = 0, 0, []

    def forward(self, x):
        """As :meth:`numbacaps.nn.CapsNet.forward`."""
        with torch.no_grad(), opponents.precision("ieee"):
            capsules = self.module(self._tensor(x))
            return capsules.cpu().numpy(), modules.lengths(capsules).cpu().numpy()

    def place(self, x, labels):
        """As :meth:`numbacaps.nn.CapsNet.place`."""
        return self._tensor(x), self._tensor(labels)

    def step_rows(self, data, rows):
        """As :meth:`numbacaps.nn.CapsNet.step_rows`; ``rows`` are those of all processes.

        Raises
        ------
        ValueError
            There are fewer rows than processes.
        """
        count, job = len(rows), self._job
        if count < job.count:
            raise ValueError(f"rows are {count}; {job.count} processes take {job.count} or more")
        mine = self._tensor(np.asarray(rows)[job.rank :: job.count])
        x, labels = (tensor[mine] for tensor in data)
        with opponents.precision("ieee"):
            scores, total = self._scored(x, labels)
            loss = total / count
            self._optimiser.zero_grad()
            (loss * job.count).backward()  # the mean over processes is then the batch's gradient
        for group in self._optimiser.param_groups:
            group["lr"] = self.adam.rate_of(self.steps)
        self._optimiser.step()
        found = hits(scores, labels).to(loss.dtype)
        self._totals.append(job.add(torch.stack((loss.detach(), found))))
        self.steps += 1

    def history(self, first=None):
        """As :meth:`numbacaps.nn.CapsNet.history`; every step since the last :meth:`load` is kept."""
        first = self._began if first is None else first
        if not self._began <= first <= self.steps:
            raise ValueError(f"first is {first}; it takes {self._began} to {self.steps}")
        found = self._totals[first - self._began :]
        totals = torch.stack(found).cpu().numpy() if found else np.zeros((0, 2), self.dtype)
        return totals[:, 0], totals[:, 1]

    @property
    def kernels(self):
        """A copy of every parameter, a list of ndarray."""
        return self._arrays(self._parameters)

    def save(self, path):
        """As :meth:`numbacaps.nn.CapsNet.save`; of several processes the first one writes."""
        if not self._job.is_first:
            return
        moments = [self._optimiser.state[parameter] for parameter in self._parameters]
        zeros = [torch.zeros_like(parameter) for parameter in self._parameters]
        runs = {
            "weights": self._parameters,
            "first": [at.get("exp_avg", zero) for at, zero in zip(moments, zeros)],
            "second": [at.get("exp_avg_sq", zero) for at, zero in zip(moments, zeros)],
        }
        arrays = {name: self._arrays(tensors) for name, tensors in runs.items()}
        checkpoint.write(path, self.description, self.steps, arrays)

    def load(self, path):
        """As :meth:`numbacaps.nn.CapsNet.load`, whatever number of processes wrote it; all of them read."""
        shapes = [tuple(parameter.shape) for parameter in self._parameters]
        steps, runs = checkpoint.read(path, self.description, shapes, self.dtype)
        with torch.no_grad():
            for at, parameter in enumerate(self._parameters):
                parameter.copy_(torch.from_numpy(runs["weights"][at]))
                self._optimiser.state[parameter] = {
                    "step": torch.tensor(float(steps)),
                    "exp_avg": self._tensor(runs["first"][at]),
                    "exp_avg_sq": self._tensor(runs["second"][at]),
                }
        self.steps = self._began = steps
        self._totals = []

    def _scored(self, x, labels):
        """Scores (N, classes) of images, and the sum of their losses."""
        lengths = modules.lengths(self._together(x))
        return lengths, nt.margin_loss(lengths, labels, _PRESENT, reduction="sum")

    def _tensor(self, array):
        """An array on the device: floats in the module's dtype, whole numbers as int64."""
        dtype = self.dtype if array.dtype.kind == "f" else np.int64
        return torch.tensor(np.array(array, dtype), device=self._device)

    def _arrays(self, tensors):
        return [tensor.detach().cpu().numpy().copy() for tensor in tensors]


def published(network, device="cpu", job=ALONE):
    """A network of :mod:`numbacaps.nn` as modules; each loads the other's files."""
    module = modules.PublishedNet(network)
    return ModuleNet(module, network.description, network.adam, device, job)


def sabour(seed, dtype="float32", device="cpu", job=ALONE, **sizes):
    """:class:`experiments.training.modules.SabourNet` with weights by a seed."""
    module = modules.init_like_he(modules.SabourNet(**sizes), seed)
    return _described("sabour-modules", module, dtype, device, job)


def sabour_twin(seed, dtype="float32", device="cpu", job=ALONE, **sizes):
    """:class:`experiments.training.modules.SabourTwin` with the same weights."""
    module = modules.SabourTwin(modules.init_like_he(modules.SabourNet(**sizes), seed))
    return _described("sabour-torch", module, dtype, device, job)


def _described(name, module, dtype, device, job):
    module, adam = module.to(getattr(torch, dtype)), Adam(rate=_SABOUR_RATE)
    shapes = {key: list(value.shape) for key, value in module.named_parameters()}
    description = {"network": name, "dtype": dtype, "parameters": shapes, "adam": asdict(adam)}
    return ModuleNet(module, description, adam, device, job)
