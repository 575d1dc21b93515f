"""Arrays that are uploaded once and read by kernels on any stream: tables of offsets, sizes of a geometry."""

from numbacaps.device.bfloat16 import bits
from numbacaps.device.target import SIMULATED, cuda


def uploaded(host):
    """A NumPy array on the device, all there on return.

    The driver sends memory that is not pinned through a buffer of its own, and may return before it has arrived. It
    arrives in the order of the default stream, for which streams of cuda.core and of PyTorch do not wait.
    """
    array = cuda.to_device(bits(host))
    if not SIMULATED:
        cuda.default_stream().synchronize()
    return array if array.dtype == host.dtype else array.view(host.dtype)
