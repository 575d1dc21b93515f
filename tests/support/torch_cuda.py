"""What :mod:`numbacaps.torch.kernels` and what launches as it does on CUDA tensors, in CPU tensors' memory, by the simulator."""

import torch

from numbacaps.arrays import Operand
from numbacaps.device.compiled import as_argument
from numbacaps.device.target import cuda
from numbacaps.torch import kernels, routing_kernels


class OnSimulator:
    """Patches it for a test.

    Attributes
    ----------
    stream : int
        Address of what is PyTorch's current stream.
    capturing : bool
        It is being captured.
    """

    def __init__(self, monkeypatch):
        self.stream, self.capturing = 0, False
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
        monkeypatch.setattr(kernels, "torch_stream", lambda tensor: self.stream)
        monkeypatch.setattr(kernels, "current_device", lambda: -1)  # the index of "cpu"
        monkeypatch.setattr(kernels, "numba_stream", lambda address: address)
        monkeypatch.setattr(kernels.Call, "_described", _described)
        monkeypatch.setattr(kernels, "argument", lambda tensor: as_argument(_array(tensor)))
        monkeypatch.setattr(kernels._Room, "_new", _new)
        monkeypatch.setattr(routing_kernels, "new_bytes", _undefined_bytes)
        monkeypatch.setattr(routing_kernels, "memory_of", _bytes)


def _described(call, which, tensor):
    return Operand(which, _array(tensor), call._of.forms[which], True)


def _new(room, size, dtype):
    tensor = _undefined(room, size, dtype)
    room._held.append(tensor)
    return as_argument(_array(tensor))


def _undefined(room, size, dtype):
    return torch.full((size,), float("nan"), dtype=kernels.TENSORS[dtype])


def _undefined_bytes(count, device):
    return torch.full((count,), 255, dtype=torch.uint8)  # NaN, as numbers of 4 and 8 bytes


def _bytes(tensor, first=0):
    return _array(tensor.reshape(-1).view(torch.uint8)[first:])


def _array(tensor):
    """The simulator's array of a tensor's memory."""
    array = tensor.detach().numpy()
    return type(cuda.to_device(array))(array)
