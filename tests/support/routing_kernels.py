"""Every kernel of routing with the types of its arguments, at the sizes of published layers: what the ptx tier compiles.

The passes run on arrays that have a shape and a dtype, and nothing else; what they would launch is written down.
"""

from math import prod
from types import SimpleNamespace

import numpy as np
from numba import from_dtype, int64, types

from numbacaps import Geometry
from numbacaps.device import gpu
from numbacaps.routing import call, em_passes, passes
from numbacaps.routing.mma_sync import em_gradient_launcher, gradient_launcher, launcher
from numbacaps.routing.options import Options
from tests.support.kernels import factories

LAYERS = {
    "digitcaps": Geometry(128, 1152, 10, 1, 1, 1, 1, 1, 1, 8, 16),
    "digitcaps-1": Geometry(1, 1152, 10, 1, 1, 1, 1, 1, 1, 8, 16),
    "em-conv1": Geometry(8, 32, 32, 14, 14, 3, 3, 1, 4, 4, 4, (2, 2)),
    "em-class": Geometry(8, 32, 5, 4, 4, 4, 4, 1, 4, 4, 4),
    "deepcaps": Geometry(128, 32, 32, 8, 8, 3, 3, 1, 1, 8, 8, 1, 1),
    "segcaps": Geometry(1, 16, 4, 128, 128, 5, 5, 1, 1, 32, 32, 1, 2),
}
FORMS = {
    "dynamic": Options(),
    "dynamic over children": Options(softmax_over="children"),
    "dynamic detached": Options(detach=True),
    "dynamic of sums": Options(votes="sum"),
    "dynamic of sums over children": Options(votes="sum", softmax_over="children"),
    "dynamic of sums detached": Options(votes="sum", detach=True),
    "em": Options("em"),
    "em over all": Options("em", normalise="all"),
    "em detached": Options("em", detach=True),
}
OF_SUMS = "deepcaps", "segcaps"  # layers whose votes are summed over the window
OF_CLUSTERS = "digitcaps-1"  # a layer whose one position is routed whole by a cluster
CASES = [
    (layer, form)
    for layer in LAYERS
    for form in FORMS
    if FORMS[form].is_summed == (layer in OF_SUMS) and layer != OF_CLUSTERS
]
ROUTING_FACTORIES = {
    factory for name, factory in factories().items() if name.startswith("numbacaps.routing.")
}


class _Array:
    """An array that is only looked at."""

    device_ctypes_pointer = SimpleNamespace(value=0)  # it begins at a multiple of 16 bytes

    def __init__(self, shape, dtype):
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.size = prod(shape)

    def reshape(self, *shape):
        return _Array(shape, self.dtype)

    def __getitem__(self, index):
        return _Array(self.shape[1:], self.dtype)

    def __iter__(self):
        return (self[i] for i in range(self.shape[0]))


def launched(layer, form, dtype, monkeypatch, is_stored=False):
    """Kernels by name, with their signatures, that a forward and a backward pass launch in ordinary arithmetic."""
    return _launched(layer, form, dtype, monkeypatch, is_stored, "ieee", _all)


def launched_on_tensor_cores(layer, form, monkeypatch, precision="tf32x3"):
    """Those of the passes that are on tensor cores, of a form that has them."""
    found = _launched(layer, form, "float32", monkeypatch, False, precision, _on_tensor_cores)
    return {name: one for name, one in found.items() if "mma_sync" in one[0].py_func.__module__}


def _launched(layer, form, dtype, monkeypatch, is_stored, precision, calls):
    """Those that ``calls`` launch of an algorithm's passes."""
    found = {}

    def note(kernel, grid, threads, arguments, stream, scalars=(), *_, **how):
        kinds = [
            types.Array(from_dtype(one.dtype), 1, "C") if hasattr(one, "dtype") else int64
            for one in arguments
        ]
        kinds += [from_dtype(one.dtype) for one in scalars]
        found[f"{kernel.py_func.__name__} {id(kernel)}"] = kernel, tuple(kinds)

    for module in (passes, em_passes, call, launcher, gradient_launcher, em_gradient_launcher):
        monkeypatch.setattr(module, "run", note)
    monkeypatch.setattr(gpu, "current", lambda: gpu.H100)
    monkeypatch.setattr(launcher.Warps, "_tile_for", lambda self, *arrays: self.tile)
    g, o = LAYERS[layer], FORMS[form]
    make = em_passes.EMPasses if o.is_em else passes.DynamicPasses
    calls(make(g, np.dtype(dtype), o, is_stored, precision=precision), dtype)
    return found


def _on_tensor_cores(p, dtype):
    """Calls of a forward pass, dynamic routing's with and without logits, and of the gradients, if they are there."""
    assert p.warps, p.why_not
    g, o = p.geometry, p.options

    def made(*shape):
        return _Array(shape, dtype)

    x, w, y, a = made(*g.input_shape), made(*g.kernel_shape), made(*g.output_shape), made(g.N, g.P)
    states, room = made(*p.forward_states_shape(False)), p.forward_shapes()
    room = {name: made(*shape) for name, shape in room.items()}
    how = {"room": room, "keep": False}
    back = {name: made(*shape) for name, shape in p.backward_shapes(has_logits=False).items()}
    if o.is_em:
        prior = made(g.N, p.shape.capsules)
        operands, kept = (prior, made(g.P), made(g.P)), made(*p.states_shape)
        p.forward(x, w, operands, states, made(1), y, a, **how)
        if p.gradient_warps:
            p.backward(x, w, operands, kept, made(1), y, a, x, prior, room=back, dw=w)
        return
    for logits in (None, made(g.P, p.shape.children)):
        p.forward(x, w, logits, states, y, **how)
    p.backward(x, w, None, made(*p.states_shape), y, x, room=back, dw=w)


def _all(p, dtype):
    """Calls of everything that passes do."""
    g, o, is_stored = p.geometry, p.options, p.stored

    def made(shape, dtype=dtype):
        return _Array(tuple(shape), dtype)

    room = {name: made(shape, p.sums) for name, shape in p.forward_shapes().items()}
    back = {name: made(shape, p.sums) for name, shape in p.backward_shapes().items()}
    states, y, children = made(p.states_shape, p.sums), made(g.output_shape), p.shape.children
    x = made((g.N, g.P, g.L, children, g.E3)) if is_stored else made(g.input_shape)
    w, couplings = made(g.kernel_shape), made((g.N, g.P, g.L, children))
    if o.is_em:
        operands = made((g.N, p.shape.capsules), p.sums), made((g.P,), p.sums), made((g.P,), p.sums)
        some = operands, states, made(p.norms_shape, p.sums)
        a = made((g.N, g.P, g.L))
        p.forward(x, w, *some, y, a, room=room, couplings=couplings)
        p.backward(x, w, *some, y, a, x, made((g.N, p.shape.capsules)), room=back)
        p.launch_betas_gradient(made((g.P,)), made((g.P,)), back, 0)
    else:
        logits = made((g.P, children), p.sums)
        p.forward(x, w, logits, states, y, room=room, couplings=couplings)
        for given in (logits, None):
            p.forward(x, w, given, states, y, room=room, keep=False)
        for given in (logits, None):
            p.backward(x, w, given, states, y, x, room=back)
        p.launch_logits_gradient(logits, back, 0)
    if not is_stored:
        p.launch_kernel_gradient(w, back, 0)
