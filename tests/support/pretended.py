"""For pytest's ``-p``: a GPU that is pretended, so that tests of the gpu tier compile their kernels (:mod:`tests.ahead`)."""

import numpy as np
import pytest


def _zeros(shape, dtype=np.float64, strides=None, order="C"):
    return np.zeros(shape, dtype)


def _copied(array, ary=None, stream=0):
    """What comes back from the GPU."""
    return np.zeros(array.shape, array.dtype) if ary is None else ary


def _nothing(*arguments, **options):
    pass


def pytest_sessionstart(session):
    """Whatever is compared is alike: before tests import what compares."""
    import reference.compare

    reference.compare.relative_error = lambda *_: 0.0
    for name in ("assert_allclose", "assert_array_equal", "assert_array_less"):
        setattr(np.testing, name, _nothing)


@pytest.hookimpl(trylast=True)
def pytest_collection(session):
    """Once all tests are imported."""
    from numba.cuda.cudadrv import devicearray

    from experiments.ahead import pretend
    from numbacaps.device.target import cuda

    pretend()
    devicearray.DeviceNDArray.copy_to_host = _copied
    cuda.pinned_array = _zeros
