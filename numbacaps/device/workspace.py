"""Device memory for what an algorithm lays out between its input and its output."""

from math import prod

import numpy as np

from numbacaps.device.compiled import as_argument
from numbacaps.device.target import SIMULATED, cuda


class Workspace:
    """Memory that the calls of one algorithm share: allocated by the first, reused by the others.

    An algorithm allocates nothing else, so calls that reuse a workspace can be captured into a CUDA
    graph, which needs the workspace for as long as it is replayed. Calls that share one must follow
    each other on one stream.

    Parameters
    ----------
    limit : int, optional
        Most bytes; half of the free device memory by default (1 GiB on the simulator, which reports
        infinite memory).
    """

    def __init__(self, limit=None):
        self._limit = limit
        self._arrays = {}
        self._asked, self._views, self._arguments = None, None, None  # by the last call

    @property
    def limit(self):
        """Most bytes."""
        if self._limit is None:
            free = 2 << 30 if SIMULATED else cuda.current_context().get_memory_info().free
            self._limit = free // 2
        return self._limit

    @property
    def nbytes(self):
        """Bytes allocated now."""
        return sum(array.nbytes for array in self._arrays.values())

    def arrays(self, shapes, dtype):
        """Arrays of the named shapes; what a smaller or other set left behind is dropped.

        Parameters
        ----------
        shapes : dict of str to tuple
        dtype : numpy.dtype

        Returns
        -------
        dict of str to device array, contents undefined
        """
        asked = shapes, dtype
        if asked != self._asked:
            self._asked, self._views, self._arguments = None, None, None  # they hold memory
            self._views = self._fitted(shapes, dtype)
            self._arguments = {name: as_argument(view) for name, view in self._views.items()}
            self._asked = asked
        return self._views

    def arguments(self, shapes, dtype):
        """The same arrays, as arguments of kernels of :mod:`numbacaps.device.compiled`.

        Who asks again and again gives the same ``shapes`` and ``dtype``, so that they need not be compared.
        """
        if self._asked is None or self._asked[0] is not shapes or self._asked[1] is not dtype:
            self.arrays(shapes, dtype)
        return self._arguments

    def _fitted(self, shapes, dtype):
        """Views of what there is, if it is large enough, or of new arrays."""
        if any(
            name not in self._arrays
            or self._arrays[name].dtype != dtype
            or self._arrays[name].size < prod(shape)
            for name, shape in shapes.items()
        ):
            self._arrays = {}  # freed before the new ones are asked for
            self._arrays = {
                name: cuda.device_array(prod(shape), dtype) for name, shape in shapes.items()
            }
        return {
            name: self._arrays[name][: prod(shape)].reshape(shape) for name, shape in shapes.items()
        }


class Workspaces:
    """The workspaces of a convolution's passes, each by a name, each made when first asked for.

    A pass drops what another one laid out in the same workspace, so each has its own.

    Parameters
    ----------
    limit : int, optional
        Most bytes of each.
    """

    def __init__(self, limit=None):
        self._limit, self._named = limit, {}

    def __getitem__(self, name):
        if name not in self._named:
            self._named[name] = Workspace(self._limit)
        return self._named[name]

    @property
    def nbytes(self):
        """Bytes allocated now."""
        return sum(workspace.nbytes for workspace in self._named.values())

    def release(self):
        """Free all of it; calls that are queued still have it, as Numba frees behind them."""
        self._named.clear()


def check_limit(limit):
    """``workspace_limit`` as an int, or None."""
    if limit is None:
        return None
    if not isinstance(limit, (int, np.integer)) or isinstance(limit, bool):
        raise TypeError(f"workspace_limit is {limit!r}; it takes a number of bytes or None")
    if limit < 0:
        raise ValueError(f"workspace_limit is {limit}; it takes 0 or more bytes")
    return int(limit)
