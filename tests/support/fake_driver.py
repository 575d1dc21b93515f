"""A driver that captures streams, or breaks captures off, on machines that have none."""

import gc
from types import SimpleNamespace

from cuda.bindings import driver

STREAM = SimpleNamespace(handle=7)  # as cuda.core has it


class FakeDriver:
    """What :func:`numbacaps.device.streams.captured` asks for.

    Parameters
    ----------
    breaks_off : bool
        Captures are broken off, as another thread may do.

    Attributes
    ----------
    asked : list of str
        The functions that were called.
    collects : list of bool
        Whether Python collected garbage at each.
    """

    CUresult = driver.CUresult

    def __init__(self, breaks_off=False):
        self._breaks_off, self.asked, self.collects = breaks_off, [], []

    def cuGetErrorString(self, status):
        return self.CUresult.CUDA_SUCCESS, b"said"

    def __getattr__(self, name):
        def answer(*arguments):
            self.asked.append(name)
            self.collects.append(gc.isenabled())
            broken = self._breaks_off and name == "cuStreamEndCapture"
            error = self.CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
            return (error if broken else self.CUresult.CUDA_SUCCESS), name

        return answer
