"""What a plan runs: the passes of one convolution by one algorithm, made ready.

Arrays are C-contiguous device arrays in the layout of :mod:`numbacaps.geometry`. ``room`` is a
:class:`numbacaps.device.workspace.Workspaces`: a pass takes all its memory from there, by the pass's name.
"""

from textwrap import wrap

_WIDTH = 100  # characters of a line of what is explained
_LABEL = 8  # of them in front of a part


class Passes:
    """The passes of an algorithm that keeps nothing for a geometry: its functions, called.

    Parameters
    ----------
    functions : module or object
        With ``forward(geometry, x, w, out, *, stream, workspace)``, ``backward(geometry, x, w, dy, dx, dw, *, stream,
        workspace)`` and, where the algorithm has them, ``votes`` and ``votes_backward``, which take ``sum_window`` too.
    geometry : numbacaps.geometry.Geometry
    dtype : numpy.dtype
    precision : str
    activation
        Is computed apart.
    rungs : tuple
        It has none.

    Attributes
    ----------
    activates, differentiates : bool
        An activation behind the forward pass, or the gradient of one behind the input's gradient, is computed too.
    """

    activates = differentiates = False

    def __init__(self, functions, geometry, dtype, precision, activation=None, rungs=()):
        if rungs:
            raise ValueError("rungs are given; algorithm 'fused' alone takes them")
        self._functions, self.geometry = functions, geometry

    def compile(self, wanted):
        """Compile a pass, "forward", "input" or "kernel": nothing here, the first call does."""

    def make_ready(self, room, wanted):
        """Compile a pass, and allocate its workspace: nothing here, the first call does."""

    def packs(self, wanted):
        """Whether a pass, "forward" or "input", reads a packed copy of the kernel."""
        return False

    def pack(self, wanted, w, *, stream, room):
        """Write that copy."""

    def forward(self, x, w, out, *, stream, room, packed=False):
        """Write the output."""
        self._functions.forward(self.geometry, x, w, out, stream=stream, workspace=room["forward"])

    def votes(self, x, w, out, *, stream, room, sum_window=False):
        """Write the products before their sum; ``sum_window``, where the algorithm has it, sums the window's."""
        run = {"stream": stream, "workspace": room["forward"]}
        if sum_window:
            run["sum_window"] = True
        self._functions.votes(self.geometry, x, w, out, **run)

    def votes_backward(self, x, w, dvotes, dx, dw, *, stream, room, sum_window=False):
        """Write both gradients of the votes; ``dx`` or ``dw`` is None where that one is not wanted."""
        run = {"stream": stream, "workspace": room["backward"], "sum_window": sum_window}
        self._functions.votes_backward(self.geometry, x, w, dvotes, dx, dw, **run)

    def backward(self, x, w, dy, dx, dw, *, stream, room, packed=False):
        """Write both gradients; ``dx`` or ``dw`` is None where that one is not wanted."""
        # Each lays out arrays of its own: in one workspace they would take turns, also under graphs that read them.
        name = "input" if dw is None else "kernel" if dx is None else "backward"
        run = {"stream": stream, "workspace": room[name]}
        self._functions.backward(self.geometry, x, w, dy, dx, dw, **run)

    def forward_operands(self, x, w, out, *, stream, room, packed=False):
        """:meth:`forward` of operands (:class:`numbacaps.arrays.Operand`), C-contiguous on the device."""
        g = self.geometry
        arrays = x.reshaped(g.input_shape), w.reshaped(g.kernel_shape), out.reshaped(g.output_shape)
        self.forward(*arrays, stream=stream, room=room, packed=packed)

    def backward_operands(self, x, w, dy, dx, dw, *, stream, room, packed=False):
        """The same of :meth:`backward`; None where nothing is read or written."""
        g = self.geometry
        shapes = g.input_shape, g.kernel_shape, g.output_shape, g.input_shape, g.kernel_shape
        operands = zip((x, w, dy, dx, dw), shapes)
        arrays = (one and one.reshaped(shape) for one, shape in operands)
        self.backward(*arrays, stream=stream, room=room, packed=packed)

    def explain(self):
        """What runs for each pass, how, and why it was chosen."""
        return "kernels are compiled at the first call"

    def explain_forward(self):
        """The forward pass's kernels, and where an activation is computed."""
        return "activation apart"


def told(head, **parts):
    """A kernel as ``explain`` tells it: what runs, then a line or more for each part that there is."""
    lines = [head]
    for label, text in parts.items():
        label = f"  {label}".ljust(_LABEL)
        indents = {"initial_indent": label, "subsequent_indent": " " * _LABEL}
        lines += wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False, **indents)
    return "\n".join(lines)
