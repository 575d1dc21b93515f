"""A capsule convolution decided once and run many times: the only way in which one runs.

Checking, the choice of kernels and tiles, compilation, tables of offsets and workspace are done when a
plan is made. A call of it only launches, so it can be captured into a CUDA graph. The public functions keep their
plans (:mod:`numbacaps.kept`), networks hold one a layer, and experiments time them.
"""

import threading
import weakref
from functools import cached_property

from numbacaps.algorithms.registry import find_algorithm, resolve
from numbacaps.arrays import (
    Array,
    check_device,
    check_out,
    describe,
    resolve_stream,
)
from numbacaps.device.handover import Handover
from numbacaps.device.keeping import keep
from numbacaps.device.target import current_device
from numbacaps.device.workspace import Rooms, Workspaces
from numbacaps.forms import form_of


class Plan:
    """A capsule convolution made ready; :func:`numbacaps.plan` makes one, which is called with device arrays.

    Methods that begin with ``launch`` check nothing: they take C-contiguous Numba device arrays in the layout of
    ``geometry``, and a Numba stream. The others check what they are given, and may be called by several threads.

    A plan belongs to the device that is current when it is made. Each stream that calls it has workspaces of its
    own, those of the last 8 streams are kept (:class:`numbacaps.device.workspace.Rooms`). A CUDA graph that has
    captured calls reads the plan's tables and the workspaces of the stream that was captured: hold the plan as
    long as the graph, and do not replay it while calls on that stream, or other replays, are under way. The first
    stream finds its workspaces allocated; on another one the first call allocates, so it is not to be captured.

    Parameters
    ----------
    geometry : numbacaps.geometry.Geometry
    dtype : numpy.dtype
    algorithm, precision : str
    workspace_limit : int, optional
    shapes : tuple of three tuples, optional
        Of x, w and y as callers have them; by default the geometry's.
    activation : numbacaps.fused.activation.Activation, optional
        What the forward pass's kernel computes too, where it can.
    before : numbacaps.fused.activation.Activation, optional
        ``backward``, of what made the input: the kernel of the input's gradient computes its gradient too,
        where it can.
    rungs : tuple of (pass, rung, tile or None)
    votes : str
        Of :data:`numbacaps.algorithms.registry.VOTES`, what the plan is made for beside the convolution.

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
        self._kernels = []  # that and, where graphs read them, those before it
        self._lock = threading.Lock()  # nothing comes between a pass's kernels, nor packs meanwhile
        self._tables = {}  # activation to passes, of which queued calls read the tables
        held = self._packed_room, self._kernels, self._tables
        self._rooms = Rooms(workspace_limit, held)
        if not found.on_host:
            weakref.finalize(self, self._rooms.drop).atexit = False

    def __repr__(self):
        return (
            f"Plan(x {self.x_shape}, w {self.w_shape}, y {self.y_shape}, {self.dtype}, "
            f"algorithm={self.algorithm!r}, precision={self.precision!r})"
        )

    def _passes(self, activation=None):
        made = self._make(self.geometry, self.dtype, self.precision, activation, self._rungs)
        self._tables[activation] = made
        return made

    @cached_property
    def _plain(self):
        """The passes without an activation."""
        return self._passes()

    @cached_property
    def _forward(self):
        """The passes that have the forward one."""
        wanted = self._passes(self._activation) if self._activation else self._plain
        return wanted if wanted.activates else self._plain

    @cached_property
    def _input(self):
        """The passes that have the input's gradient."""
        wanted = self._passes(self._before) if self._before else self._plain
        return wanted if wanted.differentiates else self._plain

    def make_ready(self):
        """Compile every pass and allocate its workspace, where the algorithm does that ahead."""
        self._plain.make_ready(self._rooms.ahead())

    @property
    def activates(self):
        """The forward pass's kernel computes the activation too."""
        return self._forward.activates

    @property
    def differentiates(self):
        """The input's gradient is behind that of the activation before it, too."""
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

    def launch_pack(self, wanted, w, stream):
        """Write the packed copy that a pass reads when it is told ``packed``."""
        self._rooms.of(stream)  # which outlives what is queued
        self._of(wanted).pack(wanted, w, stream=stream, room=self._packed_room)

    def _where(self, stream, packed=False, room=None):
        own = self._rooms.of(stream)  # asked always: it outlives what is queued
        return {
            "stream": stream,
            "room": room or (self._packed_room if packed else own),
            "packed": packed,
        }

    def launch_forward(self, x, w, out, stream, packed=False):
        """Write the output, without the activation."""
        self._plain.forward(x, w, out, **self._where(stream, packed))

    def forward_operands(self, x, w, out, stream, packed=False, room=None):
        """:meth:`launch_forward` of operands (:class:`numbacaps.arrays.Operand`) that have been checked.

        ``room`` gives workspaces (as :class:`numbacaps.device.workspace.Workspaces`) in the place of the plan's own;
        with ``packed`` an earlier call has left the packed kernel there.
        """
        self._plain.forward_operands(x, w, out, **self._where(stream, packed, room))

    def votes_operands(self, x, w, out, stream, sum_window=False):
        """The same of :meth:`launch_votes`."""
        g = self.geometry
        arrays = x.reshaped(g.input_shape), w.reshaped(g.kernel_shape)
        out = out.reshaped(g.summed_votes_shape if sum_window else g.votes_shape)
        self.launch_votes(*arrays, out, stream, sum_window)

    def votes_backward_operands(self, x, w, dvotes, dx, dw, stream, sum_window=False):
        """The same of :meth:`launch_votes_backward`."""
        g = self.geometry
        votes = g.summed_votes_shape if sum_window else g.votes_shape
        shapes = g.input_shape, g.kernel_shape, votes, g.input_shape, g.kernel_shape
        operands = zip((x, w, dvotes, dx, dw), shapes)
        arrays = (one and one.reshaped(shape) for one, shape in operands)
        self.launch_votes_backward(*arrays, stream, sum_window)

    def backward_operands(self, x, w, dy, dx, dw, stream, packed=False, room=None):
        """The same of :meth:`launch_backward`; ``packed`` is about the gradient of the input."""
        run = self._plain.backward_operands
        if dx is not None:
            run(None, w, dy, dx, None, **self._where(stream, packed, room))
        if dw is not None:
            run(x, None, dy, None, dw, **self._where(stream, room=room))

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

    def launch_backward(self, x, w, dy, dx, dw, stream, packed=False):
        """Write both gradients; ``dx`` or ``dw`` is None where that one is not wanted."""
        self._plain.backward(x, w, dy, dx, dw, **self._where(stream, packed))

    def launch_differentiated(self, w, dy, sums, dx, stream, packed=False):
        """Write what reaches the sums before the input's activation; where the plan ``differentiates``."""
        self._input.backward_differentiated(w, dy, sums, dx, **self._where(stream, packed))

    def __call__(self, x: Array, w: Array | None, out: Array, *, stream: object = None) -> Array:
        """The forward pass.

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
            self._handover.before_read(stream)
        return self.packs(wanted)

    def pack(self, w: Array, *, stream: object = None) -> None:
        """Do ahead what depends on the kernel alone: for inference, where it does not change.

        Calls that are given None for ``w`` take it from then on, on any stream: they wait for the packing there. The
        tensor cores' products read a copy in their own order, which other calls make anew each time; other
        kernels read the array itself. Where other streams or graphs read what was packed before, the host waits for them,
        and for the packing where graphs do. A graph reads the new copy, or, where it reads the array, the one before, which
        the plan holds: capture it again.

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
        with self._lock:
            if self._on_host:
                self._packed = kernel
                return
            self._handover.before_write(stream)
            self._packed = None  # until all of the new one is queued
            if self._kernels and not self._handover.replayed:
                keep(stream, self._kernels[:])
                self._kernels.clear()
            self._kernels.append(kernel)
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
        """Both gradients, or the one that there is an array for.

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

    def _operand(self, name, array):
        """An operand that is read, checked but for its device."""
        operand, form = describe(name, array), self._forms[name]
        if operand.form is not form or operand.on_device is self._on_host:
            if operand.shape != form.shape:
                raise ValueError(f"{name} has shape {operand.shape}; the plan takes {form.shape}")
            self._check(operand)
        return operand

    def _kernel(self, w):
        """The same of the kernel; of None the packed one."""
        if w is not None:
            return self._operand("w", w)
        if self._packed is None:
            raise ValueError("w is None, and no kernel was packed; it takes one, or pack(w) before")
        return self._packed

    def _result(self, name, array, inputs):
        """The operand to write to, checked but for its device."""
        result, form = describe(name, array), self._forms[name]
        if result.form is not form or result.on_device is self._on_host:
            self._check(result)
        check_out(result, form.shape, inputs)
        return result

    def _check(self, operand):
        """Refuse what a plan cannot use as it lies."""
        if not (self._stays_on_host(operand) or operand.on_device):
            raise TypeError(f"{operand.name} is on the host; a plan takes device arrays")
        if operand.dtype != self.dtype:
            raise TypeError(
                f"{operand.name} has dtype {operand.dtype}; the plan takes {self.dtype}"
            )
        if not operand.is_contiguous:
            raise ValueError(
                f"{operand.name} is not C-contiguous; a plan takes C-contiguous arrays"
            )
