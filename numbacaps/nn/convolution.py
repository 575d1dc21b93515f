"""A layer's convolution: one algorithm of the registry, for one batch size."""

from numbacaps.pipelines.registry import find_algorithm, resolve
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
    activation : numbacaps.activation.Activation, optional
        What the forward pass's kernel computes too, where it can.
    """

    def __init__(self, geometry, algorithm, precision, dtype, activation=None):
        self.geometry, self._activation = geometry, activation
        self._name = resolve(algorithm)
        self._algorithm = find_algorithm(algorithm, dtype, precision)
        self._prepared = None
        if activation is not None and self._algorithm.activated:
            self._prepared = self._algorithm.prepare(geometry, dtype, precision, activation)
        # One each: a pass drops what another one laid out in the same workspace.
        self._forward, self._backward = Workspace(), Workspace()

    @property
    def capturable(self):
        """Calls can be captured into a CUDA graph."""
        return self._algorithm.capturable

    @property
    def activates(self):
        """The forward pass's kernel computes the activation too."""
        return self._prepared is not None and self._prepared.activates

    def forward(self, x, w, out, stream):
        """Write the output; arrays in the geometry's layout."""
        self._algorithm.forward(self.geometry, x, w, out, stream=stream, workspace=self._forward)

    def forward_activated(self, x, w, sums, out, stream):
        """Write the sums and, behind the activation, the output; where it ``activates``.

        ``sums`` is None where the activation does not keep them.
        """
        arrays = (x, w, sums, out, self._activation)
        self._algorithm.activated(self.geometry, *arrays, stream=stream, workspace=self._forward)

    def backward(self, x, w, dy, dx, dw, stream):
        """Write both gradients; ``dx`` may be None where it is not wanted."""
        arrays = (x, w, dy, dx, dw)
        self._algorithm.backward(self.geometry, *arrays, stream=stream, workspace=self._backward)

    def explain(self):
        """What computes the forward pass, and whether the activation is in it."""
        if self._prepared is None:
            return f"{self._name}, activation apart"
        return "; ".join(map(str, self._prepared.forward))
