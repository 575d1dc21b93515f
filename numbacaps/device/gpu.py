"""What this GPU is: its multiprocessors."""

from numbacaps.device.target import SIMULATED, cuda

_SIMULATED = 2  # so that blocks of the tensor cores' kernels take more than one tile


def multiprocessors():
    """Of this GPU."""
    return _SIMULATED if SIMULATED else cuda.get_current_device().MULTIPROCESSOR_COUNT
