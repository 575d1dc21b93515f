"""A layer's convolution: one algorithm of the registry, for one batch size."""

from numbacaps.pipelines.registry import find_algorithm
from numbacaps.workspace import Workspace


class Convolution:
    """A capsule convolution and its gradients on arrays that are there already.

    What it needs besides, the first call of each pass allocates; no other call does, so that they
    can be captured.

    Parameters
    ----------
    geometry : numbacaps.Geometry
    algorithm : str
        ``"auto"`` or a name of :data:`numbacaps.ALGORITHMS`.
    precision : str
    dtype : numpy.dtype
    """

    def __init__(self, geometry, algorithm, precision, dtype):
        self.geometry = geometry
        self._algorithm = find_algorithm(algorithm, dtype, precision)
        # One each: a pass drops what another one laid out in the same workspace.
        self._forward, self._backward = Workspace(), Workspace()

    @property
    def capturable(self):
        """Calls can be captured into a CUDA graph."""
        return self._algorithm.capturable

    def forward(self, x, w, out, stream):
        """Write the output; arrays in the geometry's layout."""
        self._algorithm.forward(self.geometry, x, w, out, stream=stream, workspace=self._forward)

    def backward(self, x, w, dy, dx, dw, stream):
        """Write both gradients; ``dx`` may be None where it is not wanted."""
        arrays = (x, w, dy, dx, dw)
        self._algorithm.backward(self.geometry, *arrays, stream=stream, workspace=self._backward)
