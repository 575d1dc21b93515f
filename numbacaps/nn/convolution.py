"""A layer's convolution: one algorithm of the registry, for one batch size."""

from functools import cached_property

from numbacaps.algorithms.registry import find_algorithm, resolve
from numbacaps.device.workspace import Workspace


class Convolution:
    """A capsule convolution and its gradients on arrays that are there already.

    What it needs besides, the first call of each pass allocates; no other call does, so that they
    can be captured. Where a pass packs, the kernel is packed before the first call, and when it has changed.

    Parameters
    ----------
    geometry : numbacaps.Geometry
    algorithm : str
        ``"auto"`` or a name of :data:`numbacaps.ALGORITHMS`.
    precision : str
    dtype : numpy.dtype
    activation : numbacaps.fused.activation.Activation, optional
        What the forward pass's kernel computes too, where it can.
    before : numbacaps.fused.activation.Activation, optional
        ``backward``, of what made the input: the kernel of the input's gradient computes its gradient too,
        where it can.
    """

    def __init__(self, geometry, algorithm, precision, dtype, activation=None, before=None):
        self.geometry, self._activation, self._before = geometry, activation, before
        self._name = resolve(algorithm)
        self._algorithm = find_algorithm(algorithm, dtype, precision)
        # What calls of the algorithm find ready, held for the graphs that they are captured into.
        self._how = geometry, dtype, precision
        self._plain = self._algorithm.prepare and self._algorithm.prepare(*self._how)
        # One each: a pass drops what another one laid out in the same workspace.
        self._forward, self._input, self._kernel = Workspace(), Workspace(), Workspace()

    @cached_property
    def _prepared(self):
        """What the forward pass has ready; None where nothing is."""
        wanted = self._activation if self._algorithm.activated else None
        return self._algorithm.prepare and self._algorithm.prepare(*self._how, wanted)

    @cached_property
    def _gradient(self):
        """The same of the input's gradient."""
        wanted = self._before if self._algorithm.differentiated else None
        return self._algorithm.prepare and self._algorithm.prepare(*self._how, wanted)

    @property
    def capturable(self):
        """Calls can be captured into a CUDA graph."""
        return self._algorithm.capturable

    @property
    def activates(self):
        """The forward pass's kernel computes the activation too."""
        return self._activation is not None and bool(self._prepared) and self._prepared.activates

    @property
    def differentiates(self):
        """The input's gradient is behind that of the activation before it, too."""
        return self._before is not None and bool(self._gradient) and self._gradient.differentiates

    @property
    def packs_forward(self):
        """The forward pass reads what :meth:`pack_forward` made of the kernel."""
        return bool(self._prepared) and self._prepared.packs_forward

    @property
    def packs_backward(self):
        """The input's gradient reads what :meth:`pack_backward` made of the kernel."""
        return bool(self._gradient) and self._gradient.packs_backward

    def pack_forward(self, w, stream):
        """Make the forward pass ready for a kernel, which it takes until the kernel changes."""
        how = {"activation": self._activation} if self.activates else {}
        how |= {"stream": stream, "workspace": self._forward}
        self._algorithm.pack_forward(self.geometry, w, **how)

    def pack_backward(self, w, stream):
        """The same for the input's gradient."""
        how = {"activation": self._before} if self.differentiates else {}
        how |= {"stream": stream, "workspace": self._input}
        self._algorithm.pack_backward(self.geometry, w, **how)

    def forward(self, x, w, out, stream):
        """Write the output; arrays in the geometry's layout."""
        how = {"stream": stream, "workspace": self._forward} | _packed(self.packs_forward)
        self._algorithm.forward(self.geometry, x, w, out, **how)

    def forward_activated(self, x, w, sums, out, stream):
        """Write the sums and, behind the activation, the output; where it ``activates``.

        ``sums`` is None where the activation does not keep them.
        """
        how = {"stream": stream, "workspace": self._forward} | _packed(self.packs_forward)
        self._algorithm.activated(self.geometry, x, w, sums, out, self._activation, **how)

    def backward_input(self, w, dy, dx, stream):
        """Write the input's gradient."""
        how = {"stream": stream, "workspace": self._input} | _packed(self.packs_backward)
        self._algorithm.backward(self.geometry, None, w, dy, dx, None, **how)

    def backward_differentiated(self, w, dy, sums, dx, stream):
        """Write what reaches the sums that the activation before the input was of; where it ``differentiates``."""
        how = {"stream": stream, "workspace": self._input} | _packed(self.packs_backward)
        self._algorithm.differentiated(self.geometry, w, dy, sums, dx, self._before, **how)

    def backward_kernel(self, x, dy, dw, stream):
        """Write the kernel's gradient."""
        how = {"stream": stream, "workspace": self._kernel}
        self._algorithm.backward(self.geometry, x, None, dy, None, dw, **how)

    def explain(self):
        """What computes the forward pass, and whether the activation is in it."""
        if self._prepared is None:
            return f"{self._name}, activation apart"
        kernels = "; ".join(map(str, self._prepared.forward))
        return kernels if self._activation else f"{kernels}, LeakyReLU apart"


def _packed(is_so):
    """A keyword that only algorithms which pack take."""
    return {"packed": True} if is_so else {}
