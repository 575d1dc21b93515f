"""PyTorch's tensors, recognised and read without importing PyTorch."""

import sys


def is_on_gpu(array):
    """Whether an array is a tensor of PyTorch's own, dense, on a GPU, and no part of what autograd follows."""
    torch = sys.modules.get("torch")
    return (
        torch is not None
        and type(array) is torch.Tensor
        and array.is_cuda
        and not array.requires_grad
        and array.layout is torch.strided
    )


def memory_beside(tensor, nbytes):
    """(address, owner) of memory on a tensor's GPU, allocated by PyTorch for its current stream."""
    memory = tensor.new_empty(nbytes, dtype=sys.modules["torch"].uint8)
    return memory.data_ptr(), memory
