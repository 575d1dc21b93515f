"""The public functions of routing: check, run, deliver."""

from functools import wraps
from math import prod
from typing import NamedTuple

import numpy as np

from numbacaps.api import _check_needs
from numbacaps.arrays import Array
from numbacaps.fused.precision import PRECISIONS
from numbacaps.geometry import Pair
from numbacaps.messages import shown
from numbacaps.planning import _dtype, _shape
from numbacaps.product import parse_product
from numbacaps.routing import host
from numbacaps.routing.call import (
    ALGORITHMS,
    Problem,
    RoutingCall,
    host_array,
    is_shared,
    rung,
)
from numbacaps.routing.options import Options, check_name, options_of
from numbacaps.routing.runner import Runner
from numbacaps.routing.stored import Children
from numbacaps.routing.summed import Summed
from numbacaps.shapes import geometry_of


class RoutingGradients(NamedTuple):
    """What :func:`capsule_routing_backward` returns: gradients by operand, None for one that was not given or wanted."""

    x: Array | None
    w: Array | None
    activations: Array | None = None
    beta_u: Array | None = None
    beta_a: Array | None = None
    logits: Array | None = None


def capsule_routing(
    x: Array,
    w: Array,
    *,
    routing: str = "dynamic",
    iterations: int = 3,
    activations: Array | None = None,
    beta_u: Array | None = None,
    beta_a: Array | None = None,
    logits: Array | None = None,
    softmax_over: str = "parents",
    normalise: str = "window",
    lam: float = 0.01,
    epsilon: float = 1e-6,
    votes: str = "children",
    couplings: bool = False,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    product: str = "ab,bc->ac",
    algorithm: str = "auto",
    precision: str = "auto",
    out: Array | None = None,
    stream: object = None,
) -> Array | tuple[Array, ...]:
    """Parent capsules by routing: each is a weighted sum of votes, whose weights come from how far the votes agree.

    .. code-block:: text

        V[n,p,oh,ow,c,kh,kw] = I[n,c, ...] @ K[p,c,kh,kw]     as numbacaps.capsule_votes; child (c, kh, kw), parent p
        with votes="sum": V[n,p,oh,ow,c] = sum over kh, kw of these; child c
        dynamic:  r times: c = softmax(b); s = sum of c V; v = squash(s); b += <V, v>
        em:       r times: R from the last parents (E step); mean, variance and activation of each parent (M step)

    No vote is stored, unless it is a sum, or all votes take at most 8 MiB: every iteration computes them again.

    Parameters
    ----------
    x : array (N, C, H, W, *T1), float16, bfloat16, float32 or float64
        Poses of the children. All sums are float32, of float64 float64.
    w : array (P, C, KH, KW, *T2), dtype of x
        A window as large as the input gives every child a kernel of its own, as in class layers.
    routing : str
        ``"dynamic"`` (Sabour et al., 2017) or ``"em"`` (Hinton et al., 2018).
    iterations : int
    activations : array (N, C, H, W), optional
        Of the children, from 0 to 1 (arrays on the device are not looked at); EM routing's, ones by default.
    beta_u, beta_a : arrays (P,), optional
        EM routing's cost of a pose and of being active, zeros by default.
    logits : array (P, C, KH, KW), optional
        What dynamic routing's b begins with, zeros by default; (P, C) where ``votes`` is "sum".
    softmax_over : str
        ``"parents"``: each child's couplings add up to 1 at a position, as in the paper; ``"children"``: each parent's.
    normalise : str
        ``"window"``: an assignment is divided by the sum over the parents of its position; ``"all"``: over all parents
        of all windows that cover the child.
    lam : float
        Inverse temperature of EM routing, which is ``lam * (1 - 0.95 ** t)`` in iteration t = 1, 2, ...
    epsilon : float
        Added to EM routing's variances.
    votes : str
        ``"children"``, or, of dynamic routing, ``"sum"``: of an input channel one vote, summed over the window, as in
        SegCaps and DeepCaps; then w may be (P, 1, KH, KW, *T2), shared by all channels.
    couplings : bool
        Return the last iteration's couplings too.
    stride, padding, dilation, product, stream
        As :func:`numbacaps.capsule_conv2d`.
    algorithm : str
        ``"fused"``, votes computed in every pass; ``"stored"``, votes written once, in x's dtype, and read by the same
        passes; ``"numpy"``, on the host; ``"auto"``: ``"fused"``, of votes that are a ``"sum"`` ``"stored"``, and
        ``"numpy"`` where there is no GPU.
    precision : str
        How votes of float32 are multiplied: ``"tf32x3"``, three products of tensor cores for one, about
        as exact as float32's own; ``"tf32"``, one; ``"ieee"``, ordinary arithmetic; ``"auto"``: ``"tf32x3"``, or,
        forward of few positions, ``"ieee"``. Gradients of EM routing take three for ``"tf32"``, too. Where a form has no kernels of
        tensor cores, it is ordinary arithmetic (:func:`explain_routing` says why).
        Stored votes that are a ``"sum"`` are a convolution of that precision (:func:`numbacaps.capsule_conv2d`).
    out : array (N, P, OH, OW, *T3), optional
        Where to write the capsules, as :func:`numbacaps.capsule_conv2d` takes it.

    Returns
    -------
    array (N, P, OH, OW, *T3), or tuple
        Capsules. Behind them, of EM routing, activations (N, P, OH, OW), and, if asked for, couplings (N, P, OH, OW, C,
        KH, KW), of summed votes (N, P, OH, OW, C, 1, 1).

    Raises
    ------
    TypeError, ValueError, RuntimeError, ImportError
        As :func:`numbacaps.capsule_conv2d`; ValueError also for activations outside 0 to 1, an operand of another
        algorithm or shape, a form that is unknown, iterations < 1, capsules that no thread has room for.
    """
    if not isinstance(couplings, (bool, np.bool_)):
        raise TypeError(f"couplings is {shown(couplings)}; it takes True or False")
    problem = Problem(
        Options(routing, iterations, softmax_over, False, normalise, lam, epsilon, votes),
        *(algorithm, precision, product, stride, padding, dilation),
    )
    more = {"activations": activations, "beta_u": beta_u, "beta_a": beta_a, "logits": logits}
    with RoutingCall((x, w), more, problem, stream, out) as call:
        run = _forward_on_host if call.on_host else _forward
        results = run(call, couplings)
        return results[0] if len(results) == 1 else results


def capsule_routing_backward(
    x: Array,
    w: Array,
    dy: Array,
    *,
    routing: str = "dynamic",
    iterations: int = 3,
    activations: Array | None = None,
    beta_u: Array | None = None,
    beta_a: Array | None = None,
    logits: Array | None = None,
    d_activations: Array | None = None,
    softmax_over: str = "parents",
    detach: bool = False,
    normalise: str = "window",
    lam: float = 0.01,
    epsilon: float = 1e-6,
    votes: str = "children",
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    product: str = "ab,bc->ac",
    algorithm: str = "auto",
    precision: str = "auto",
    needs=("input", "kernel"),
    stream: object = None,
) -> RoutingGradients:
    """The gradients of :func:`capsule_routing`. Nothing of the forward pass is needed: it is computed again.

    Parameters
    ----------
    x, w, and the options of routing
        As :func:`capsule_routing`.
    dy : array (N, P, OH, OW, *T3), dtype of x
        Gradient of the capsules.
    d_activations : array (N, P, OH, OW), optional
        Gradient of EM routing's activations, zeros by default.
    detach : bool
        The couplings of the last iteration count as constants, as where votes are detached in all iterations but the last.
    needs : collection of "input" and "kernel"
        With the input's gradient comes the activations', with the kernel's the logits'.

    Returns
    -------
    RoutingGradients
        Gradients by operand, each of its operand's shape and dtype.

    Raises
    ------
    TypeError, ValueError, RuntimeError, ImportError
        As :func:`capsule_routing`.
    """
    problem = Problem(
        Options(routing, iterations, softmax_over, detach, normalise, lam, epsilon, votes),
        *(algorithm, precision, product, stride, padding, dilation),
    )
    needs = _check_needs(needs)
    more = {"activations": activations, "beta_u": beta_u, "beta_a": beta_a, "logits": logits}
    more["d_activations"] = d_activations
    with RoutingCall((x, w, dy), more, problem, stream) as call:
        run = _backward_on_host if call.on_host else _backward
        return run(call, needs)


def explain_routing(x_shape, w_shape, dtype=None, **options) -> str:
    """What :func:`capsule_routing` would run on a GPU, how often it computes votes, and how many bytes they take.

    It says so without a GPU, too; the kernels are those for the simulator then, whose blocks and clusters are smaller.

    Parameters
    ----------
    x_shape, w_shape : tuple of int, or arrays
    dtype : str or numpy.dtype, optional
        By default that of ``x_shape`` if it is an array, else float32.
    options
        Of :func:`capsule_routing` all but arrays and ``couplings``; ``algorithm`` is ``"auto"``, ``"fused"`` or ``"stored"``.

    Raises
    ------
    TypeError, ValueError
        As :func:`capsule_routing`; ValueError also for N = 0.
    """
    if dtype is None:
        dtype = getattr(x_shape, "dtype", "float32")
    window = {
        name: options.pop(name) for name in ("stride", "padding", "dilation") if name in options
    }
    product = parse_product(options.pop("product", "ab,bc->ac"))
    how = {"stride": 1, "padding": 0, "dilation": 1} | window
    algorithm, precision = options.pop("algorithm", "auto"), options.pop("precision", "auto")
    check_name("algorithm", algorithm, ALGORITHMS[:-1])
    check_name("precision", precision, PRECISIONS)
    form = options_of(options)
    of_x, of_w = _shape("x_shape", x_shape), _shape("w_shape", w_shape)
    if form.is_summed and is_shared(of_x, of_w):
        of_w = (of_w[0], of_x[1], *of_w[2:])
    geometry = geometry_of(of_x, of_w, product, **how)
    if geometry.N == 0:
        raise ValueError("x_shape has N = 0; it takes 1 or more")
    name = rung(form) if algorithm == "auto" else algorithm
    how = _dtype(dtype), form, name == "stored", None, precision
    if name == "stored" and form.is_summed:
        return Summed(geometry, how[0], None, lambda band: Runner(band, *how)).explain()
    return Runner(geometry, *how).explain()


# ---- on the device


def _operands(call):
    """What the passes take besides x and w."""
    if call.problem.options.is_em:
        betas = call.operand("beta_u", 0), call.operand("beta_a", 0)
        return call.operand("activations", 1), *betas
    logits = call.operand("logits")
    children = prod(call.children)
    return (None if logits is None else logits.reshape(call.geometry.P, children),)


def _forward(call, couplings):
    """Results by kernels."""
    g, o = call.geometry, call.problem.options
    _check_room(call, gradients=False)
    y, shape = call.call.result("y"), (g.N, g.P, g.OH, g.OW)
    a_out = call.room("activations", shape) if o.is_em else None
    found = call.room("couplings", (*shape, *call.children)) if couplings else None
    if not call.signature.is_empty:
        x, w = _reshaped(call.call.operands(), (g.input_shape, g.kernel_shape))
        operands, results = _operands(call), [y.operand.reshaped((g.N, g.P, g.L, g.E3))]
        if o.is_em:
            results.append(a_out.reshape(g.N, g.P, g.L))
        children = prod(call.children)
        of_couplings = None if found is None else found.reshape(g.N, g.P, g.L, children)
        if _stores_sums(call):
            how = operands, *results, of_couplings, call.stream, call.room
            call.summed().forward(x, w, *how)
        else:
            is_stored = call.problem.name == "stored"
            if is_stored:
                _, x = _stored(call, x, w)
            arguments = x, w, operands, results, of_couplings
            call.runner(g, is_stored).repeated("forward", *arguments, stream=call.stream)
    more = (a_out,) if o.is_em else ()
    more = (*more, found) if couplings else more
    return call.call.deliver(y), *(call.delivered(one) for one in more)


def _stores_sums(call):
    return call.problem.name == "stored" and call.problem.options.is_summed


def _check_room(call, gradients):
    """Refuse what no runner takes, before anything is allocated."""
    if call.signature.is_empty:
        return
    is_stored = call.problem.name == "stored"
    bands = call.summed().bands(gradients) if _stores_sums(call) else ()
    for geometry in [band.geometry for band in bands] or [call.geometry]:
        call.runner(geometry, is_stored)


def _stored(call, x, w):
    """Who makes votes, and the votes."""
    g, made = call.geometry, Children(call.geometry, x, w, call.stream)
    votes = call.room("votes", (g.N, g.P, g.L, prod(call.children), g.E3))
    made.votes_of(votes)
    return made, votes


def _backward(call, needs):
    """Gradients by kernels."""
    g, o = call.geometry, call.problem.options
    _check_room(call, gradients=True)
    dx = call.call.result("x") if "input" in needs else None
    dw = call.call.result("w") if "kernel" in needs else None
    own = {}
    if o.is_em:
        names = "activations", "beta_u", "beta_a"
        own = {name: call.room(name, call.shape_of(name)) for name in names}
    elif call.operand("logits") is not None and dw is not None:
        own = {"logits": call.room("logits", call.shape_of("logits"))}
    if not call.signature.is_empty:
        shapes = g.input_shape, g.kernel_shape, (g.N, g.P, g.L, g.E3)
        *arrays, dy = _reshaped(call.call.operands(), shapes)
        d_results = [dy]
        d_operands = [own["logits"].reshape(g.P, prod(call.children)) if "logits" in own else None]
        if o.is_em:
            d_out = _in_dtype(call)
            d_results.append(d_out.reshape(g.N, g.P, g.L))
            d_operands = list(own.values())
        to = dx and dx.operand.array.reshape(*g.input_shape)
        of_w = dw and dw.operand.array.reshape(*g.kernel_shape)
        operands = _operands(call)
        if _stores_sums(call):
            how = operands, dy, to, of_w, *d_operands, call.stream, call.room
            call.summed().backward(*arrays, *how)
        elif call.problem.name == "stored":
            made, votes = _stored(call, *arrays)
            d_votes = call.room("d_votes", votes.shape)
            arguments = votes, None, operands, d_results, d_votes, None, d_operands
            call.runner(g, True).repeated("backward", *arguments, stream=call.stream)
            made.gradients_of(d_votes, to, of_w)
        else:
            arguments = *arrays, operands, d_results, to, of_w, d_operands
            call.runner(g, False).repeated("backward", *arguments, stream=call.stream)
    elif own:
        own = {name: call.zeros(array.shape) for name, array in own.items()}
    given = {name: array for name, array in own.items() if call.was_given(name)}
    if "input" not in needs:
        given.pop("activations", None)
    more = {name: call.delivered(array) for name, array in given.items()}
    return RoutingGradients(call.call.deliver(dx), call.deliver_w(dw), **more)


def _reshaped(operands, shapes):
    """Operands as Numba device arrays of some shapes, whichever library's they are."""
    return [one.reshaped(shape) for one, shape in zip(operands, shapes)]


def _in_dtype(call):
    """What reaches the activations, in the dtype of x."""
    wide = call.operand("d_activations", 0)
    if wide.dtype == call.signature.dtype:
        return wide
    return call.narrow(wide)


# ---- on the host


def _arrays_on_host(call):
    """x, w and, if there is one, dy in the kernels' layout, and the votes."""
    shapes = call.geometry.input_shape, call.geometry.kernel_shape, call.geometry.output_shape
    arrays = [host_array(one).reshape(shape) for one, shape in zip(call.call.operands(), shapes)]
    return arrays, host.make_votes(call.geometry, *arrays[:2], call.problem.options.votes)


def _children_on_host(call):
    """Activations of children (N, L, I), betas, and which capsule each child is."""
    g, numbers = call.geometry, host.capsules(call.geometry)
    a = call.operand("activations", 1).reshape(g.N, g.C * g.H * g.W)
    a = np.where(numbers >= 0, a[:, np.maximum(numbers, 0)], 0)
    return a, (call.operand("beta_u", 0), call.operand("beta_a", 0)), numbers


def _logits_on_host(call):
    logits = call.operand("logits")
    return None if logits is None else logits.reshape(call.geometry.P, -1)


def _quiet(run):
    """A function on the host. Infinities and NaN go on without a warning, as on the device."""

    @wraps(run)
    def quiet(*arguments):
        with np.errstate(all="ignore"):
            return run(*arguments)

    return quiet


@_quiet
def _forward_on_host(call, couplings):
    """Results by NumPy."""
    g, o = call.geometry, call.problem.options
    y = call.call.result("y")
    if call.signature.is_empty:
        _, V = None, np.empty((0, g.L, prod(call.children), g.P, g.E3))
    else:
        _, V = _arrays_on_host(call)
    if o.is_em:
        how = *_children_on_host(call)[:2], o, host.capsules(g), g.C * g.H * g.W
        found, a_out, c = host.em(V, *how)
    else:
        (found, c), a_out = host.dynamic(V, _logits_on_host(call), o), None
    if y.operand is not None:
        written = host_array(y.operand)
        written[...] = np.moveaxis(found, 2, 1).reshape(written.shape)
    more = [] if a_out is None else [np.moveaxis(a_out, 2, 1).reshape(g.N, g.P, g.OH, g.OW)]
    if couplings:
        more.append(np.moveaxis(c, 3, 1).reshape(g.N, g.P, g.OH, g.OW, *call.children))
    return call.call.deliver(y), *(call.delivered(one) for one in more)


@_quiet
def _backward_on_host(call, needs):
    """Gradients by NumPy."""
    g, o, own = call.geometry, call.problem.options, {}
    dx = call.call.result("x") if "input" in needs else None
    dw = call.call.result("w") if "kernel" in needs else None
    if call.signature.is_empty:
        own = {name: np.zeros(call.shape_of(name)) for name in _GRADIENTS if call.was_given(name)}
    else:
        (x, w, dy), V = _arrays_on_host(call)
        dv = np.moveaxis(np.float64(dy).reshape(g.N, g.P, g.L, g.E3), 1, 2)
        if o.is_em:
            a, betas, numbers = _children_on_host(call)
            d_out = np.moveaxis(call.operand("d_activations", 0).reshape(g.N, g.P, g.L), 1, 2)
            how = o, numbers, g.C * g.H * g.W
            dV, da, d_betas = host.em_backward(V, a, betas, dv, d_out, *how)
            own = {"activations": _to_capsules(da, numbers, (g.N, g.C, g.H, g.W))}
            own |= {"beta_u": d_betas[0], "beta_a": d_betas[1]}
        else:
            dV, d_logits = host.dynamic_backward(V, _logits_on_host(call), dv, o)
            own = {"logits": d_logits.reshape(call.shape_of("logits"))}
        of_x, of_w = host.votes_backward(g, x, w, dV, o.votes)
        if call.shared:  # added here in float64: rounded first, small ones would be lost
            of_w[:, 0] = of_w.sum(1)
            of_w[:, 1:] = 0
        for result, gradient in zip((dx, dw), (of_x, of_w)):
            if result is not None:
                host_array(result.operand)[...] = gradient
    lacking = {"input": "activations", "kernel": "logits"}
    left = {lacking[name] for name in set(lacking) - needs}
    more = {
        name: call.delivered(array)
        for name, array in own.items()
        if call.was_given(name) and name not in left
    }
    return RoutingGradients(call.call.deliver(dx), call.deliver_w(dw), **more)


_GRADIENTS = ("activations", "beta_u", "beta_a", "logits")


def _to_capsules(of_children, numbers, shape):
    """The sums over each capsule's children."""
    found = np.zeros((shape[0], shape[1] * shape[2] * shape[3] + 1))
    for image, children in zip(found, of_children):
        np.add.at(image, numbers, children)
    return found[:, :-1].reshape(shape)
