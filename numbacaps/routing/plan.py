"""The class :class:`RoutingPlan`, and :func:`routing_plan`, which makes one: routing decided once, and run often.

As a plan of a convolution (:mod:`numbacaps.plan`), a call checks its arrays and launches, so it can be captured into a CUDA graph.
"""

import threading

import numpy as np

from numbacaps.algorithms.registry import ALGORITHMS
from numbacaps.arrays import Array, check_device, resolve_stream
from numbacaps.device.target import current_device
from numbacaps.forms import form_of
from numbacaps.geometry import Pair
from numbacaps.limits import check_limits
from numbacaps.messages import shown
from numbacaps.plan_arrays import PlanArrays
from numbacaps.planning import _dtype, _shape, check_can_be_planned
from numbacaps.product import parse_product
from numbacaps.routing.api import RoutingGradients
from numbacaps.routing.call import Problem, children_of, is_shared, shapes_of_operands
from numbacaps.routing.options import Options, check_given
from numbacaps.routing.planned import OPERANDS, OnDevice, OnHost, Stored, StoredSums
from numbacaps.signature import signature_of

_PASSES = "forward", "input", "kernel"
_COMES_WITH = {"activations": "x", "logits": "w"}  # gradients, and with whose they are computed


class RoutingPlan(PlanArrays):
    """The kernels of one routing problem and of its gradients, compiled; made by :func:`routing_plan`.

    ``plan(x, w, out)`` computes the parents, ``plan.backward(x, w, dy, dx, dw)`` the gradients, ``plan.explain()`` says what
    is launched. Calls take C-contiguous device arrays of the plan's dtype, of ``algorithm="numpy"`` NumPy arrays. Several
    threads may call one.

    A plan belongs to the GPU that is current when it is made. Each stream on which it is called has a workspace of its own,
    those of the last 8 are kept, and its first calls there allocate it: make one of each kind that you capture, before you
    capture on that stream. A CUDA graph reads that workspace. Hold the plan as long as the graph, and do not
    replay the graph while another call on that stream, or another replay, is under way.

    Attributes
    ----------
    geometry : numbacaps.geometry.Geometry
    options : numbacaps.routing.options.Options
    x_shape, w_shape, y_shape : tuple of int
    dtype : numpy.dtype
    algorithm, precision : str
    """

    def __init__(self, signature, w_shape, problem, logits, couplings):
        self.geometry, self.options = g, o = signature.geometry, problem.options
        self.dtype, self.algorithm, self.precision = (
            signature.dtype,
            problem.name,
            problem.precision,
        )
        shapes = signature.shapes
        self.x_shape, self.w_shape, self.y_shape = shapes["x"], w_shape, shapes["y"]
        self._logits, self._couplings = logits, couplings
        found = ALGORITHMS[signature.algorithm]
        self._on_host, self._stays_on_host = found.on_host, found.stays_on_host
        self._device = None if found.on_host else current_device()
        self._forms = self._forms_of_arrays(shapes_of_operands(g, o))
        self._lock = threading.Lock()  # nothing comes between a call's kernels
        if found.on_host:
            self._run = OnHost(problem, couplings)
        else:
            stored = StoredSums if o.is_summed else Stored
            made = stored if problem.name == "stored" else OnDevice
            is_own = w_shape == shapes["w"]
            self._run = made(g, self.dtype, problem, not is_own, logits, couplings)
        self._run.make_ready()

    def _forms_of_arrays(self, operands):
        """The form of every array by its name in errors."""
        parents = self.y_shape[:4]
        shapes = operands | {"x": self.x_shape, "w": self.w_shape, "dx": self.x_shape}
        shapes |= {"dw": self.w_shape, "dy": self.y_shape, "out": self.y_shape}
        shapes["out_activations"] = parents
        shapes["couplings"] = *parents, *children_of(self.geometry, self.options)
        shapes |= {f"into[{name!r}]": operands[name] for name in OPERANDS[self.options.routing]}
        return {name: form_of(shape, None, self.dtype) for name, shape in shapes.items()}

    def __repr__(self):
        return (
            f"RoutingPlan(x {self.x_shape}, w {self.w_shape}, y {self.y_shape}, {self.dtype}, "
            f"routing={self.options.routing!r}, algorithm={self.algorithm!r}, precision={self.precision!r})"
        )

    @property
    def nbytes(self):
        """Bytes of workspace that are allocated now."""
        return self._run.nbytes

    def __call__(
        self,
        x: Array,
        w: Array,
        out: Array,
        *,
        activations: Array | None = None,
        beta_u: Array | None = None,
        beta_a: Array | None = None,
        logits: Array | None = None,
        out_activations: Array | None = None,
        couplings: Array | None = None,
        stream: object = None,
    ) -> Array:
        """Compute the parents: queue the kernels of the forward pass on a stream.

        Parameters
        ----------
        x, w, out : device arrays of ``x_shape``, ``w_shape`` and ``y_shape``
        activations, beta_u, beta_a, logits : device arrays, optional
            As :func:`numbacaps.capsule_routing`; logits if the plan was made with ``logits=True``, and then always.
        out_activations : device array (N, P, OH, OW)
            Where EM routing writes the parents' activations.
        couplings : device array (N, P, OH, OW, C, KH, KW), of summed votes (N, P, OH, OW, C, 1, 1)
            Where they are written, if the plan was made with ``couplings=True``.
        stream : optional
            As :func:`numbacaps.capsule_conv2d`; it may be capturing.

        Returns
        -------
        ``out``

        Raises
        ------
        TypeError, ValueError
            An array does not fit, or is lacking.
        """
        results = {"out": out}
        self._want("out_activations", out_activations, self.options.is_em, "routing 'em' alone")
        self._want("couplings", couplings, self._couplings, "a plan with couplings=True alone")
        results |= _those_given({"out_activations": out_activations, "couplings": couplings})
        more = {"activations": activations, "beta_u": beta_u, "beta_a": beta_a, "logits": logits}
        with self._lock:
            given = self._operands({"x": x, "w": w}, more)
            into = self._results({name: (name, array) for name, array in results.items()}, given)
            self._run.forward(given, into, self._stream(stream, given, into))
        return out

    def backward(
        self,
        x: Array,
        w: Array,
        dy: Array,
        dx: Array | None = None,
        dw: Array | None = None,
        *,
        activations: Array | None = None,
        beta_u: Array | None = None,
        beta_a: Array | None = None,
        logits: Array | None = None,
        d_activations: Array | None = None,
        into: dict[str, Array] | None = None,
        stream: object = None,
    ) -> RoutingGradients:
        """Compute the gradients for which there are arrays. Nothing of the forward pass is needed.

        Parameters
        ----------
        x, w, activations, beta_u, beta_a, logits, stream
            As for a call.
        dy : device array of ``y_shape``
        dx, dw : device arrays of ``x_shape`` and ``w_shape``, or None
            Where to write; None leaves that gradient out.
        d_activations : device array (N, P, OH, OW), optional
            Gradient of EM routing's activations, zeros by default.
        into : dict, optional
            Where to write the gradients of what else is given, by its name, as ``{"logits": array}``. That of the
            activations comes with ``dx``, that of the logits with ``dw``.

        Returns
        -------
        RoutingGradients
            The arrays that were written.

        Raises
        ------
        TypeError, ValueError
            An array does not fit, or is lacking, or neither ``dx`` nor ``dw`` is wanted.
        """
        if dx is None and dw is None:
            raise ValueError("dx and dw are None; at least one takes an array")
        more = {"activations": activations, "beta_u": beta_u, "beta_a": beta_a, "logits": logits}
        wanted = _those_given({"x": dx, "w": dw})
        others = self._check_into({} if into is None else into, _those_given(more), wanted)
        with self._lock:
            given = self._operands({"x": x, "w": w, "dy": dy}, more, d_activations=d_activations)
            named = {name: (f"d{name}", array) for name, array in wanted.items()}
            named |= {name: (f"into[{name!r}]", array) for name, array in others.items()}
            results = self._results(named, given)
            self._run.backward(given, results, self._stream(stream, given, results))
        return RoutingGradients(dx, dw, **others)

    def explain(self) -> str:
        """What is launched, how often votes are computed, and what memory takes, as :func:`numbacaps.explain_routing`."""
        return self._run.explain()

    def _want(self, name, array, is_wanted, who):
        """Refuse an array that is lacking, or that the plan does not take."""
        if is_wanted and array is None:
            raise ValueError(f"{name} is None; this plan takes an array")
        if not is_wanted and array is not None:
            raise ValueError(f"{name} is given; {who} takes it")

    def _check_into(self, into, given, wanted):
        """``into``, where it names operands that are given and whose gradient is computed."""
        if not isinstance(into, dict):
            raise TypeError(f"into is {shown(into)}; it takes a dict such as {{'logits': array}}")
        for name in into:
            if name not in given:
                raise ValueError(
                    f"into names {shown(name)}; it takes what is given of {list(OPERANDS[self.options.routing])}"
                )
            by = _COMES_WITH.get(name)
            if by is not None and by not in wanted:
                raise ValueError(f"into names {name!r}, and d{by} is None; they come together")
        return into

    def _operands(self, arrays, more, **of_results):
        """Operands that are read, by name."""
        check_given(more | of_results, self.options)
        if not self.options.is_em:
            self._want("logits", more["logits"], self._logits, "a plan with logits=True alone")
        named = arrays | _those_given(more | of_results)
        return {name: self._operand(name, array) for name, array in named.items()}

    def _results(self, named, given):
        """Operands to write to, from (name in errors, array) by name."""
        apart, found = list(given.values()), {}
        for name, (word, array) in named.items():
            found[name] = self._result(word, array, apart)
            apart.append(found[name])
        return found

    def _stream(self, stream, given, into):
        """The Numba stream to work on, where all arrays are on the plan's device."""
        operands = [*given.values(), *into.values()]
        check_device(operands, self._device)
        return resolve_stream(stream, operands)


def _those_given(arrays):
    return {name: array for name, array in arrays.items() if array is not None}


def routing_plan(
    x_shape,
    w_shape,
    dtype: object = None,
    *,
    routing: str = "dynamic",
    iterations: int = 3,
    softmax_over: str = "parents",
    detach: bool = False,
    normalise: str = "window",
    lam: float = 0.01,
    epsilon: float = 1e-6,
    votes: str = "children",
    logits: bool = False,
    couplings: bool = False,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    product: str = "ab,bc->ac",
    algorithm: str = "auto",
    precision: str = "auto",
) -> RoutingPlan:
    """Decide and compile a routing problem, to run it many times or to capture it into a CUDA graph.

    Parameters
    ----------
    x_shape : tuple of int, or array
        (N, C, H, W, *T1), N at least 1; of an array its shape is taken.
    w_shape : tuple of int, or array
        (P, C, KH, KW, *T2); of summed votes also (P, 1, KH, KW, *T2), shared by all channels.
    dtype : str or numpy.dtype, optional
        As :func:`numbacaps.plan`.
    logits : bool
        Calls of dynamic routing take logits.
    couplings : bool
        Calls write the last iteration's couplings, too.
    routing, iterations, softmax_over, normalise, lam, epsilon, votes, stride, padding, dilation, algorithm, precision
        As :func:`numbacaps.capsule_routing`.
    detach : bool
        As :func:`numbacaps.capsule_routing_backward`.
    product : str
        As :func:`numbacaps.plan` takes it.

    Returns
    -------
    RoutingPlan

    Raises
    ------
    TypeError, ValueError, ImportError, RuntimeError
        As :func:`numbacaps.capsule_routing`; ValueError also for N = 0, and a product in another order than the kernels'.
    """
    if dtype is None:
        dtype = getattr(x_shape, "dtype", "float32")
    for name, value in (("logits", logits), ("couplings", couplings)):
        if not isinstance(value, (bool, np.bool_)):
            raise TypeError(f"{name} is {shown(value)}; it takes True or False")
    logits, couplings = bool(logits), bool(couplings)
    form = Options(routing, iterations, softmax_over, detach, normalise, lam, epsilon, votes)
    if logits:
        check_given({"logits": logits}, form)
    window = stride, padding, dilation
    problem = Problem(form, algorithm, precision, product, *window)
    of_x, of_w = _shape("x_shape", x_shape), _shape("w_shape", w_shape)
    full = of_w
    if form.is_summed and is_shared(of_x, of_w):
        full = (of_w[0], of_x[1], *of_w[2:])
    computes = "numpy" if problem.name == "numpy" else "fused"
    how = *window, product, computes, "auto", None, ""
    signature = signature_of(of_x, full, _dtype(dtype), *how)
    check_can_be_planned(signature.geometry, parse_product(product))
    signature.check_limits(_PASSES)
    if problem.name == "stored" and form.is_summed:
        check_limits(signature.geometry.of_channels, "fused", _PASSES)
    return RoutingPlan(signature, of_w, problem, logits, couplings)
