"""Kernels that take floating-point scalars beside arrays: numbers that need no copy to the GPU and no array there."""

from numba import from_dtype

from numbacaps.device.compiled import Compiled, launch_stream, values
from numbacaps.device.recorded import Recording


class CompiledWithScalars:
    """A kernel for flat arrays of some dtypes, then 64-bit integers, then scalars of some dtypes.

    Parameters
    ----------
    kernel
        Of ``cuda.jit``.
    arrays : sequence of dtype_like
    integers : int
    scalars : sequence of dtype_like
    early : bool
        As :class:`numbacaps.device.compiled.Compiled`.
    """

    def __init__(self, kernel, arrays, integers, scalars, early=False):
        self._compiled = Compiled(_Behind(kernel, scalars), arrays, integers, early=early)

    def launch(self, grid, block, stream, arguments, scalars, cluster=None):
        """Launch it on arrays, integers behind them, and a tuple of NumPy's scalars; on a stream or into a recording.

        ``cluster`` is as :meth:`numbacaps.device.compiled.Compiled.on` takes it.
        """
        launched = self._compiled.on(grid, block, cluster=cluster)
        if isinstance(stream, Recording):
            stream.note(launched, arguments, scalars)
        else:
            launched(launch_stream(stream), (*values(arguments), *scalars))


class _Behind:
    """A kernel that is compiled for scalars behind what :class:`numbacaps.device.compiled.Compiled` names."""

    def __init__(self, kernel, scalars):
        self._kernel, self._scalars = kernel, tuple(map(from_dtype, scalars))
        self.py_func = kernel.py_func

    def compile(self, kinds):
        return self._kernel.compile((*kinds, *self._scalars))

    def __getitem__(self, how):
        return self._kernel[how]
