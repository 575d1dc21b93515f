"""Three operators that are each other's gradients: their definition, and their rules for autograd and autocast.

A map that is linear in x and in w has two gradients, and the three are the partial derivatives of one trilinear form:

    map(x, w) = y                  x: input_gradient(dy, w)        w: kernel_gradient(x, dy)
    input_gradient(dy, w) = dx     dy: map(ddx, w)                 w: kernel_gradient(ddx, dy)
    kernel_gradient(x, dy) = dw    x: input_gradient(dy, ddw)      dy: map(x, ddw)

So gradients of gradients are these operators again, and the saved tensors are the operands alone.

In eager PyTorch the host's time decides, so a call of ordinary tensors (:func:`ordinary`) goes past the dispatcher: :func:`define`
returns the function. The map's own rule for autograd takes the short way, too: it calls what the
dispatcher would find, forward and backward.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, wraps
from typing import NamedTuple

import torch
from torch._C import (
    _are_functorch_transforms_active,
    _dispatch_keys,
    _is_tracing,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
)
from torch.autograd import forward_ad

_DEVICES = {"CPU": "cpu", "CUDA": "cuda"}
_DTYPES = torch.float16, torch.bfloat16, torch.float32, torch.float64
_TENSORS = torch.Tensor, torch.nn.Parameter  # subclasses may see to their functions themselves
_Keys, _Key = torch._C.DispatchKeySet, torch._C.DispatchKey
_AFTER_AUTOGRAD = torch._C._after_autograd_keyset
# That of forward_ad knows no tangents in what torch.compile has traced.
_unpack_dual = torch._VF._unpack_dual
# Keys of ordinary tensors besides their backend's.
_ORDINARY = (
    *(_Key.BackendSelect, _Key.ADInplaceOrView),
    *(_Key.AutogradCPU, _Key.AutogradCUDA, _Key.AutocastCPU, _Key.AutocastCUDA),
)
_BACKENDS = {_Keys(key).raw_repr(): name for key, name in ((_Key.CPU, "CPU"), (_Key.CUDA, "CUDA"))}


class Kernels(NamedTuple):
    """What computes a kind of call on one backend: of the operators' arguments, the options as one sequence.

    Attributes
    ----------
    forward, input_gradient, kernel_gradient : callable
        ``forward(x, w, how)``, ``input_gradient(dy, w, x_shape, how)``, ``kernel_gradient(x, dy, w_shape, how)``.
    """

    forward: Callable
    input_gradient: Callable
    kernel_gradient: Callable


class Kind(NamedTuple):
    """A kind of call: a map that is linear in x and in w.

    Attributes
    ----------
    names : three str
        The map's operator, its input's gradient and its kernel's.
    given : str
        What the gradient of the map's result is called.
    options : str
        Their schema, of the arguments behind the tensors; those of the gradients have the shape of their result before it.
    shape_of : callable
        ``shape_of(x_shape, w_shape, *options)`` of the result; it refuses what does not fit.
    on : dict of str to Kernels
        For "CPU" and "CUDA".
    """

    names: tuple
    given: str
    options: str
    shape_of: Callable
    on: dict


def check(**tensors):
    """Refuse tensors that do not go together, in PyTorch's manner."""
    check_device(**tensors)
    (first, one), *others = tensors.items()
    if one.dtype not in _DTYPES:
        raise RuntimeError(f"{first} is {one.dtype}; it takes {', '.join(map(str, _DTYPES))}")
    for name, other in others:
        if other.dtype != one.dtype:
            raise RuntimeError(
                f"{first} is {one.dtype} and {name} {other.dtype}; both take one dtype"
            )


def check_device(**tensors):
    """Refuse tensors on several devices."""
    (first, one), *others = tensors.items()
    for name, other in others:
        if other.device != one.device:
            raise RuntimeError(
                f"{first} is on {one.device} and {name} on {other.device}; both take one device"
            )


def check_gradient(kind, dy, x_shape, w_shape, how):
    """Refuse a gradient that is not shaped like the map's result."""
    wanted = tuple(kind.shape_of(x_shape, w_shape, *how))
    if tuple(dy.shape) != wanted:
        raise RuntimeError(f"{kind.given} has shape {tuple(dy.shape)}; it takes {wanted}")


def check_tensors(**given):
    """Refuse arrays of other libraries, and lists."""
    for name, tensor in given.items():
        if not isinstance(tensor, (torch.Tensor, torch.fx.Proxy)):
            raise TypeError(f"{name} is a {type(tensor).__name__}; it takes a torch.Tensor")


def is_number(value):
    """Whether a value is a number, and no bool."""
    if isinstance(value, (bool, str)):
        return False
    # The types first: of a number that torch.compile traces, an attribute cannot be asked for.
    return isinstance(value, (int, float)) or hasattr(value, "__float__")


def _go_together(x, w):
    """Whether :func:`check` would take them."""
    dtype = x.dtype
    return dtype is w.dtype and dtype in _DTYPES and x.get_device() == w.get_device()


def refuse_tangents(**tensors):
    """Refuse forward-mode differentiation, whose tangents operators of ``torch.library`` drop without a word."""
    if not torch.compiler.is_compiling() and forward_ad._current_level >= 0:
        _refuse_tangents(tensors)


def refuse_traced_tangents(**tensors):
    """The same in an operator's rule for autograd, which comes to what torch.compile has traced, too."""
    if forward_ad._current_level >= 0 or _are_functorch_transforms_active():
        _refuse_tangents(tensors)


def _refuse_tangents(tensors):
    for name, tensor in tensors.items():
        if tensor is not None and _unpack_dual(tensor, level=0).tangent is not None:
            raise NotImplementedError(
                f"{name} has a tangent (torch.func.jvp, forward_ad), of which there is no derivative here; "
                "torch.autograd.grad has gradients"
            )


@cache
def _backend(raw):
    """ "CPU" or "CUDA" for a set of keys, as a number, of ordinary tensors; else None."""
    keys = _Keys.from_raw_repr(raw)
    for key in _ORDINARY:
        keys = keys.remove(key)
    return _BACKENDS.get(keys.raw_repr())


def backend_of(tensor):
    """ "CPU" or "CUDA" of an ordinary tensor; None of one that is fake, wrapped or a view with a pending sign, and where a
    mode listens to what operators are called.
    """
    return None if _len_torch_dispatch_stack() else _backend(_dispatch_keys(tensor).raw_repr())


def backend_below(keys):
    """The same by the keys that a rule for autograd is given, or by the backend itself."""
    return keys if type(keys) is str else _backend(keys.raw_repr())


def backend_back(ctx, dy):
    """The backend whose functions compute a gradient without the dispatcher; None where it has to look.

    That takes ordinary operands, which ``ctx.is_ordinary`` says, an ordinary ``dy``, and no derivative of the gradient.
    """
    if not ctx.is_ordinary or torch.is_grad_enabled() or forward_ad._current_level >= 0:
        return None
    return backend_of(dy)


def ordinary(*tensors):
    """ "CPU" or "CUDA" of tensors that no dispatcher need look at; None where something else would come first.

    That is torch.compile, torch.jit.trace, forward-mode differentiation, autocast, a mode, a subclass, or a transform of
    ``torch.func``.
    """
    if torch.compiler.is_compiling() or _is_tracing() or forward_ad._current_level >= 0:
        return None
    if _len_torch_function_stack() or _are_functorch_transforms_active():
        return None
    if _len_torch_dispatch_stack():
        return None
    backend = None
    for tensor in tensors:
        is_known = type(tensor) in _TENSORS
        found = _backend(_dispatch_keys(tensor).raw_repr()) if is_known else None
        if found is None or backend not in (None, found):
            return None
        backend = found
    return None if torch.is_autocast_enabled(_DEVICES[backend]) else backend


def is_autocast(tensor):
    """Whether autocast is on for a tensor's device."""
    device = tensor.device.type
    return device in _DEVICES.values() and torch.is_autocast_enabled(device)


def without_autocast(tensor):
    """A ``with`` block in which operators on a tensor's device compute in the dtypes of their tensors."""
    return (
        torch.autocast(tensor.device.type, enabled=False) if is_autocast(tensor) else nullcontext()
    )


def as_forward(rule):
    """A rule for gradients that computes in its tensors' dtypes where ``backward()`` is called under autocast."""

    @wraps(rule)
    def run(ctx, dy, *others):
        with without_autocast(dy):
            return rule(ctx, dy, *others)

    return run


def no_view(tensor):
    """A tensor in the place of a view; the caller vouches for it that nothing else has the view's memory.

    PyTorch refuses to write in place to a view that a node of autograd returns.
    """
    return torch.ops.aten._unsafe_view(tensor, tensor.shape) if tensor._is_view() else tensor


def redispatched(operator, keys, *arguments):
    """What the dispatcher finds behind autograd's rule."""
    with torch._C._AutoDispatchBelowAutograd():
        return operator.redispatch(keys & _AFTER_AUTOGRAD, *arguments)


def define(kind):
    """Define the three operators of a kind of call.

    Returns
    -------
    (library, which must be held; the map as a function of x, w and the options as a sequence)
    """
    library = torch.library.Library("numbacaps", "FRAGMENT")
    (forward, of_x, of_w), dy, how = kind.names, kind.given, kind.options
    library.define(f"{forward}(Tensor x, Tensor w, {how}) -> Tensor")
    library.define(f"{of_x}(Tensor {dy}, Tensor w, SymInt[] x_shape, {how}) -> Tensor")
    library.define(f"{of_w}(Tensor x, Tensor {dy}, SymInt[] w_shape, {how}) -> Tensor")

    def fake(x, w, *how):
        check(x=x, w=w)
        return x.new_empty(kind.shape_of(x.shape, w.shape, *how))

    def fake_input_gradient(dy, w, x_shape, *how):
        check_gradient(kind, dy, x_shape, w.shape, how)
        return dy.new_empty(x_shape)

    def fake_kernel_gradient(x, dy, w_shape, *how):
        check_gradient(kind, dy, x.shape, w_shape, how)
        return x.new_empty(w_shape)

    for name, shaped in zip(kind.names, (fake, fake_input_gradient, fake_kernel_gradient)):
        torch.library.register_fake(f"numbacaps::{name}", shaped, lib=library)
        operator = getattr(torch.ops.numbacaps, name)
        library.impl(name, _autocast(operator, "cuda"), "AutocastCUDA")
        library.impl(name, _autocast(operator, "cpu"), "AutocastCPU")
    for backend in kind.on:
        for name, operator in zip(kind.names, _checked(kind, backend)):
            library.impl(name, operator, backend)
    return library, _differentiate(library, kind)


def _checked(kind, backend):
    """A backend's operators, which look at their tensors first."""

    def forward(x, w, *how):
        check(x=x, w=w)
        return kind.on[backend].forward(x, w, how)

    def input_gradient(dy, w, x_shape, *how):
        check(**{kind.given: dy, "w": w})
        return kind.on[backend].input_gradient(dy, w, x_shape, how)

    def kernel_gradient(x, dy, w_shape, *how):
        check(x=x, **{kind.given: dy})
        return kind.on[backend].kernel_gradient(x, dy, w_shape, how)

    return forward, input_gradient, kernel_gradient


def _differentiate(library, kind):
    """Register the rules for autograd; the map as a function that goes past the dispatcher where it can."""
    forward, of_x, of_w = (getattr(torch.ops.numbacaps, name).default for name in kind.names)

    def backward_of_input_gradient(ctx, ddx):
        dy, w = ctx.saved_tensors
        _, needs_dy, needs_w, *_ = ctx.needs_input_grad
        of_dy = forward(ddx, w, *ctx.how) if needs_dy else None
        dw = of_w(ddx, dy, w.shape, *ctx.how) if needs_w else None
        return (None, of_dy, dw, None, *[None] * len(ctx.how))

    def backward_of_kernel_gradient(ctx, ddw):
        x, dy = ctx.saved_tensors
        _, needs_x, needs_dy, *_ = ctx.needs_input_grad
        dx = of_x(dy, ddw, x.shape, *ctx.how) if needs_x else None
        of_dy = forward(x, ddw, *ctx.how) if needs_dy else None
        return (None, dx, of_dy, None, *[None] * len(ctx.how))

    rules = backward_of_input_gradient, backward_of_kernel_gradient
    named = (kind.given, "w"), ("x", kind.given)
    for name, tensors, rule in zip(kind.names[1:], named, map(as_forward, rules)):
        _register_rule(library, name, tensors, rule)

    def below(keys, x, w, how):
        """The map of tensors whose gradients are taken care of."""
        backend = backend_below(keys)
        if backend and (backend is keys or _go_together(x, w)):  # looked at before, or now
            return kind.on[backend].forward(x, w, how)
        return redispatched(forward, keys, x, w, *how)

    class Map(torch.autograd.Function):
        @staticmethod
        def forward(ctx, keys, x, w, how):
            ctx.save_for_backward(x, w)
            ctx.how, ctx.is_ordinary = how, backend_below(keys) is not None
            return below(keys, x, w, how)

        @staticmethod
        @as_forward
        def backward(ctx, dy):
            (x, w), how, (_, *wanted, _) = ctx.saved_tensors, ctx.how, ctx.needs_input_grad
            backend = backend_back(ctx, dy)
            if backend:
                _, run_x, run_w = kind.on[backend]
                dx = run_x(dy, w, x.shape, how) if wanted[0] else None
                dw = run_w(x, dy, w.shape, how) if wanted[1] else None
            else:
                dx = of_x(dy, w, x.shape, *how) if wanted[0] else None
                dw = of_w(x, dy, w.shape, *how) if wanted[1] else None
            return None, dx, dw, None

    Map.__name__ = Map.__qualname__ = kind.names[0]

    def wants_gradient(x, w):
        return torch.is_grad_enabled() and (x.requires_grad or w.requires_grad)

    def run(keys, x, w, *how):
        refuse_traced_tangents(x=x, w=w)
        return (Map.apply if wants_gradient(x, w) else below)(keys, x, w, how)

    library.impl(kind.names[0], run, "Autograd", with_keyset=True)

    def call(x, w, how):
        backend = ordinary(x, w)
        if backend and _go_together(x, w):
            if wants_gradient(x, w):
                return Map.apply(backend, x, w, how)
            return kind.on[backend].forward(x, w, how)
        check_tensors(x=x, w=w)
        refuse_tangents(x=x, w=w)
        return forward(x, w, *how)

    return call


def _register_rule(library, name, tensors, backward):
    """Register a gradient operator's rule for autograd; that of ``torch.library.register_autograd`` drops tangents.

    Parameters
    ----------
    library : torch.library.Library
    name : str
        The operator's.
    tensors : two str
        What it calls its tensors, which come first; then the shape of its result, then the options.
    backward : callable
        Of a context with the tensors saved and the options as ``how``, and of what reaches the result; it returns a gradient
        for the dispatcher's keys (None) and for each argument.
    """
    operator = getattr(torch.ops.numbacaps, name).default

    class Gradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx, keys, one, other, shape, *how):
            ctx.save_for_backward(one, other)
            ctx.how = how
            return redispatched(operator, keys, one, other, shape, *how)

    Gradient.backward = staticmethod(backward)
    Gradient.__name__ = Gradient.__qualname__ = name

    def run(keys, one, other, *more):
        refuse_traced_tangents(**dict(zip(tensors, (one, other))))
        if torch.is_grad_enabled() and (one.requires_grad or other.requires_grad):
            return Gradient.apply(keys, one, other, *more)
        return redispatched(operator, keys, one, other, *more)

    library.impl(name, run, "Autograd", with_keyset=True)


def _autocast(operator, device):
    """An operator's rule under autocast: its tensors in the dtype that autocast asks for."""

    def run(one, other, *how):
        wanted = torch.get_autocast_dtype(device)
        one, other = (
            tensor.to(wanted)
            if tensor.is_floating_point() and tensor.dtype != torch.float64
            else tensor
            for tensor in (one, other)
        )
        with torch.autocast(device, enabled=False):
            return operator(one, other, *how)

    return run
