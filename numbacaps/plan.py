"""The class :class:`Plan`: which kernels compute one capsule convolution, compiled, with their tables and workspaces.

What depends on shapes, dtype and options alone is done when a plan is made: choose kernels and tiles, compile them,
upload tables of offsets, allocate workspaces. What depends on the arrays is done when the plan is called: check them,
and launch. So a call can be captured into a CUDA graph.

Every convolution of this package runs through a plan. The public functions make one for each kind of call and keep the last
64 (:mod:`numbacaps.kept`); a network holds one for each layer. Users make one by :func:`numbacaps.plan`, which is in
:mod:`numbacaps.planning`.
"""

import threading
import weakref

from numbacaps.algorithms.registry import find_algorithm, resolve
from numbacaps.arrays import Array, check_device, resolve_stream
from numbacaps.device.handover import Handover
from numbacaps.device.keeping import keep
from numbacaps.device.linking import linked_side_by_side
from numbacaps.device.streams import between_captures
from numbacaps.device.target import current_device
from numbacaps.device.workspace import Rooms, Workspaces
from numbacaps.forms import form_of
from numbacaps.made_once import made_once
from numbacaps.plan_arrays import PlanArrays

_PASSES = "forward", "input", "kernel"


class Plan(PlanArrays):
    """The kernels of one capsule convolution, of its gradients and of its votes, ready to be launched.

    ``plan(x, w, y)`` computes the output, ``plan.backward(x, w, dy, dx, dw)`` the gradients, ``plan.pack(w)`` prepares a
    kernel that does not change, ``plan.explain()`` says what was chosen. These check their arrays, and several threads may
    call them. Methods whose names begin with ``launch``, or end in ``operands``, check nothing; they are for other modules
    of the package. The former take C-contiguous Numba device arrays in the layout of ``geometry``, and a Numba stream.

    A plan belongs to the GPU that is current when it is made. Each stream on which it is called has workspaces of its own;
    those of the last 8 streams are kept (:class:`numbacaps.device.workspace.Rooms`). The first stream finds them allocated. On
    any other stream the first call allocates, so make one call there before you capture.

    A CUDA graph reads the plan's tables, and the workspaces of the stream that was captured. Hold the plan as long as the
    graph. Do not replay the graph while another call on that stream, or another replay, is under way.

    Parameters
    ----------
    geometry : numbacaps.geometry.Geometry
    dtype : numpy.dtype
    algorithm, precision : str
    workspace_limit : int, optional
    shapes : tuple of three tuples, optional
        Of x, w and y as callers have them; by default the geometry's.
    activation : numbacaps.fused.activation.Activation, optional
        The layer's activation, which the forward pass's kernel computes behind the sum, where it can.
    before : numbacaps.fused.activation.Activation, optional
        The activation of the layer before, whose output is this one's input; its ``backward`` is True. The kernel of the
        input's gradient computes the gradient of that activation, too, where it can.
    rungs : tuple of (pass, rung, tile or None)
        Kernels of ``"fused"`` to take in place of the fastest, as :func:`numbacaps.plan` has them in a dict.
    votes : str
        A word of :data:`numbacaps.algorithms.registry.VOTES` where votes or their gradients are wanted, too; else empty.

    Attributes
    ----------
    geometry : numbacaps.geometry.Geometry
    x_shape, w_shape, y_shape : tuple of int
    dtype : numpy.dtype
    algorithm, precision : str
    """

    def __init__(
        self,
        geometry,
        dtype,
        algorithm="auto",
        precision="auto",
        workspace_limit=None,
        *,
        shapes=None,
        activation=None,
        before=None,
        rungs=(),
        votes="",
    ):
        self.geometry, self.dtype, self.precision = geometry, dtype, precision
        g = geometry
        self.x_shape, self.w_shape, self.y_shape = shapes or (
            g.input_shape,
            g.kernel_shape,
            g.output_shape,
        )
        shapes = self.x_shape, self.w_shape, self.y_shape
        x, w, y = (form_of(shape, None, dtype) for shape in shapes)
        self._forms = {"x": x, "dx": x, "w": w, "dw": w, "dy": y, "out": y}
        found = find_algorithm(algorithm, dtype, precision, votes)
        self.algorithm, self.capturable = resolve(algorithm, votes), found.capturable
        self._on_host, self._stays_on_host = found.on_host, found.stays_on_host
        self._keeps_workspace = found.keeps_workspace
        self._make = found.passes
        self._activation, self._before, self._rungs = activation, before, rungs
        self._device = None if found.on_host else current_device()
        # What was packed ahead has a room of its own: calls that pack anew leave it alone.
        self._packed_room = Workspaces(workspace_limit)
        self._packed, self._handover = None, Handover()  # the kernel that was, and who may read it
        self._kernels = []  # that one, and those before it that graphs read
        self._is_in_graph = False  # that one
        self._lock = threading.Lock()  # nothing comes between a pass's kernels, nor packs meanwhile
        self._tables = {}  # activation to passes, of which queued calls read the tables
        held = self._packed_room, self._kernels, self._tables
        self._rooms = Rooms(workspace_limit, held, self._device)
        if not found.on_host:
            weakref.finalize(self, self._rooms.drop).atexit = False

    def __repr__(self):
        return (
            f"Plan(x {self.x_shape}, w {self.w_shape}, y {self.y_shape}, {self.dtype}, "
            f"algorithm={self.algorithm!r}, precision={self.precision!r})"
        )

    def _passes(self, activation=None):
        made = self._make(self.geometry, self.dtype, self.precision, activation, self._rungs)
        return self._tables.setdefault(activation, made)

    @made_once
    def _plain(self):
        """The kernels of all passes, none with an activation."""
        return self._passes()

    @made_once
    def _forward(self):
        """The kernels that the forward pass takes: those with the activation where there are such, else the plain ones."""
        wanted = self._passes(self._activation) if self._activation else self._plain
        return wanted if wanted.activates else self._plain

    @made_once
    def _input(self):
        """The kernels that the input's gradient takes: those with the gradient of the activation before it, else the plain ones."""
        wanted = self._passes(self._before) if self._before else self._plain
        return wanted if wanted.differentiates else self._plain

    def make_ready(self, passes=_PASSES):
        """Compile the kernels of some passes and allocate their workspaces; where an algorithm does that at the first call, nothing."""
        with linked_side_by_side():
            for wanted in passes:
                self._plain.make_ready(self._rooms.ahead(), wanted)

    @property
    def activates(self):
        """Whether the forward pass's kernel computes the activation, too."""
        return self._forward.activates

    @property
    def differentiates(self):
        """Whether the kernel of the input's gradient computes the gradient of the activation before the layer, too."""
        return self._input.differentiates

    def packs(self, wanted):
        """Whether a pass, "forward" or "input" (its gradient), reads a packed copy of the kernel."""
        return self._of(wanted).packs(wanted)

    def _of(self, wanted):
        return self._forward if wanted == "forward" else self._input

    @property
    def nbytes(self):
        """Bytes of workspace that are allocated now."""
        return self._rooms.nbytes + self._packed_room.nbytes

    @property
    def growth(self):
        """Whether workspaces have grown (:class:`numbacaps.device.workspace.Growth`)."""
        return self._rooms.growth

    def release(self):
        """Free the workspace, where the algorithm's is large."""
        if not self._keeps_workspace:
            self._rooms.release()

    @property
    def alone(self):
        """A ``with`` block for launches of one thread at a time: two passes on one stream would share a workspace."""
        return self._lock

    def launch_pack(self, wanted, w, stream):
        """Write the packed copy that a pass reads when it is told ``packed``."""
        self._rooms.of(stream)  # which outlives what is queued
        self._of(wanted).pack(wanted, w, stream=stream, room=self._packed_room)

    def _where(self, stream, packed=False, room=None, again=False):
        own = self._rooms.of(stream)  # asked always: it outlives what is queued
        if room is None:
            room = self._packed_room if packed else own
        return {"stream": stream, "room": room, "packed": packed or again}

    def launch_forward(self, x, w, out, stream, packed=False, again=False):
        """Write the output, without the activation.

        With ``again`` the pass's last call on this stream had the same ``w``, and what it packed of that is read once more.
        """
        again = again and self._plain.packs("forward")
        self._plain.forward(x, w, out, **self._where(stream, packed, again=again))

    def forward_operands(self, x, w, out, stream, packed=False, room=None):
        """:meth:`launch_forward` of operands (:class:`numbacaps.arrays.Operand`) that have been checked.

        ``room`` gives workspaces (as :class:`numbacaps.device.workspace.Workspaces`) in the place of the plan's own;
        with ``packed`` an earlier call has left the packed kernel there.
        """
        self._plain.forward_operands(x, w, out, **self._where(stream, packed, room))
        if room is not None:  # then several threads may call, and one may have brought a new stream
            self._rooms.of(stream)

    def votes_operands(self, x, w, out, stream, sum_window=False):
        """:meth:`launch_votes` of operands that have been checked."""
        g = self.geometry
        arrays = x.reshaped(g.input_shape), w.reshaped(g.kernel_shape)
        out = out.reshaped(g.summed_votes_shape if sum_window else g.votes_shape)
        self.launch_votes(*arrays, out, stream, sum_window)

    def votes_backward_operands(self, x, w, dvotes, dx, dw, stream, sum_window=False):
        """:meth:`launch_votes_backward` of operands that have been checked."""
        g = self.geometry
        votes = g.summed_votes_shape if sum_window else g.votes_shape
        shapes = g.input_shape, g.kernel_shape, votes, g.input_shape, g.kernel_shape
        operands = zip((x, w, dvotes, dx, dw), shapes)
        arrays = (one and one.reshaped(shape) for one, shape in operands)
        self.launch_votes_backward(*arrays, stream, sum_window)

    def backward_operands(self, x, w, dy, dx, dw, stream, packed=False, room=None):
        """:meth:`launch_backward` of operands that have been checked; the input's gradient alone reads what is ``packed``."""
        run = self._plain.backward_operands
        if dx is not None:
            run(None, w, dy, dx, None, **self._where(stream, packed, room))
        if dw is not None:
            run(x, None, dy, None, dw, **self._where(stream, room=room))
        if room is not None:
            self._rooms.of(stream)

    def launch_activated(self, x, w, sums, out, stream, packed=False):
        """Write the sums and, behind the activation, the output; where the plan ``activates``.

        ``sums`` is None where the activation does not keep them.
        """
        self._forward.forward_activated(x, w, sums, out, **self._where(stream, packed))

    def launch_votes(self, x, w, out, stream, sum_window=False):
        """Write the products before their sum, or, with ``sum_window``, the sums of those of a window."""
        how = {"stream": stream, "room": self._rooms.of(stream), "sum_window": sum_window}
        self._plain.votes(x, w, out, **how)

    def launch_votes_backward(self, x, w, dvotes, dx, dw, stream, sum_window=False):
        """Write both gradients of the votes; ``dx`` or ``dw`` is None where that one is not wanted."""
        how = {"stream": stream, "room": self._rooms.of(stream), "sum_window": sum_window}
        self._plain.votes_backward(x, w, dvotes, dx, dw, **how)

    def launch_backward(self, x, w, dy, dx, dw, stream, packed=False, again=False):
        """Write both gradients; ``dx`` or ``dw`` is None where that one is not wanted. ``again`` as for :meth:`launch_forward`."""
        again = again and self._plain.packs("input")
        self._plain.backward(x, w, dy, dx, dw, **self._where(stream, packed, again=again))

    def launch_differentiated(self, w, dy, sums, dx, stream, packed=False):
        """Write the gradient of the sums before the input's activation; where the plan ``differentiates``."""
        self._input.backward_differentiated(w, dy, sums, dx, **self._where(stream, packed))

    def __call__(self, x: Array, w: Array | None, out: Array, *, stream: object = None) -> Array:
        """Compute the output: queue the kernels of the forward pass on a stream.

        Parameters
        ----------
        x, w, out : device arrays of ``x_shape``, ``w_shape`` and ``y_shape``
            C-contiguous, of the plan's dtype. None for ``w`` takes the kernel that was packed.
        stream : optional
            As :func:`numbacaps.capsule_conv2d`; it may be capturing.

        Returns
        -------
        ``out``

        Raises
        ------
        TypeError, ValueError
            An array does not fit, or ``w`` is None and none was packed.
        """
        with self._lock:
            inputs = self._operand("x", x), self._kernel(w)
            result = self._result("out", out, inputs)
            operands = *inputs, result
            check_device(operands, self._device)
            stream = resolve_stream(stream, operands)
            packed = w is None and self._reads_packed("forward", stream)
            self.forward_operands(*operands, stream, packed)
        return out

    def _reads_packed(self, wanted, stream):
        """Whether a pass reads a copy of the kernel that was packed ahead; the stream is ordered behind the packing."""
        if not self._on_host:
            self._is_in_graph |= self._handover.before_read(stream)
        return self.packs(wanted)

    def pack(self, w: Array, *, stream: object = None) -> None:
        """Lay out a kernel once for many calls: for inference, where it does not change.

        The tensor cores read a copy of the kernel in an order of their own. A call that is given ``w`` makes that copy anew. Calls
        that are given None for ``w`` read the copy that was made here, on any stream: they wait there until it is written.
        Kernels that need no copy read the array itself.

        Packing again waits on the host for other streams and graphs that read the copy before, and, where graphs do, until the new
        copy is written. A graph that was captured before reads the new copy. Where it reads the array itself, it goes on with
        the array before, which the plan holds: capture it again.

        Parameters
        ----------
        w : device array of ``w_shape``
            It must stay as it is, until another one is packed.
        stream : optional
            As for a call.

        Raises
        ------
        TypeError, ValueError
            The array does not fit, or the stream is being captured: a graph packs whenever it is replayed, which no call
            could wait for. Pack before you capture, or capture calls that are given ``w``.
        """
        kernel = self._operand("w", w)
        check_device((kernel,), self._device)
        stream = resolve_stream(stream, (kernel,))
        array = kernel.reshaped(self.geometry.kernel_shape)
        with between_captures(), self._lock:
            if self._on_host:
                self._packed = kernel
                return
            self._handover.before_write(stream)
            self._packed = None  # until all of the new one is queued
            if self._kernels and not self._is_in_graph:
                keep(stream, self._kernels.pop())
            self._kernels.append(kernel)
            self._is_in_graph = False
            for wanted in ("forward", "input"):
                if self.packs(wanted):
                    self.launch_pack(wanted, array, stream)
            self._handover.after_write(stream)
            self._packed = kernel

    def backward(
        self,
        x: Array,
        w: Array | None,
        dy: Array,
        dx: Array | None = None,
        dw: Array | None = None,
        *,
        stream: object = None,
    ) -> tuple[Array | None, Array | None]:
        """Compute both gradients, or the one for which there is an array.

        Parameters
        ----------
        x, w, dy : device arrays of ``x_shape``, ``w_shape`` and ``y_shape``
            None for ``w`` takes the kernel that was packed.
        dx, dw : device arrays of ``x_shape`` and ``w_shape``, or None
            Where to write; None leaves that gradient out.
        stream : optional
            As for a call.

        Returns
        -------
        (``dx``, ``dw``)

        Raises
        ------
        TypeError, ValueError
            An array does not fit, neither gradient is wanted, or ``w`` is None and none was packed.
        """
        if dx is None and dw is None:
            raise ValueError("dx and dw are None; at least one takes an array")
        with self._lock:
            inputs = self._operand("x", x), self._kernel(w), self._operand("dy", dy)
            into_x = None if dx is None else self._result("dx", dx, inputs)
            apart = inputs if into_x is None else (*inputs, into_x)
            into_w = None if dw is None else self._result("dw", dw, apart)
            operands = [*inputs, *filter(None, (into_x, into_w))]
            check_device(operands, self._device)
            stream = resolve_stream(stream, operands)
            packed = w is None and self._reads_packed("input", stream)
            self.backward_operands(*inputs, into_x, into_w, stream, packed)
        return dx, dw

    def explain(self) -> str:
        """Which kernels run, with which tiles, and why; and how long making them ready took."""
        head = f"algorithm {self.algorithm}, precision {self.precision}, {self.dtype}"
        return f"{head}\n{self._plain.explain()}"

    def explain_forward(self):
        """What computes the forward pass, and where the activation is."""
        passes = self._passes(self._activation)
        found = passes.explain_forward()
        return found if self.algorithm == "fused" else f"{self.algorithm}, {found}"

    def _kernel(self, w):
        """The operand of ``w``; for None the kernel that was packed."""
        if w is not None:
            return self._operand("w", w)
        if self._packed is None:
            raise ValueError("w is None, and no kernel was packed; it takes one, or pack(w) before")
        return self._packed
