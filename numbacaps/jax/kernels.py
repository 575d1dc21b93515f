"""numbacaps' kernels as XLA calls them: on its stream, on arrays of its allocator.

What a call decides is kept by its shapes, for the last kinds of calls. Workspaces are numbacaps' own, beside what XLA takes of
the memory when it starts.
"""

import json
from dataclasses import asdict
from functools import lru_cache

import jax

from numbacaps.arrays import Operand
from numbacaps.device.streams import numba_stream
from numbacaps.device.target import cuda
from numbacaps.forms import form_of
from numbacaps.geometry import Geometry
from numbacaps.jax import foreign
from numbacaps.kept import BYTES, PLANS, cleared_too
from numbacaps.last_used import LastUsed
from numbacaps.limits import PASSES
from numbacaps.plan import Plan
from numbacaps.signature import signature_of

_PRODUCT = "gab,gbc->gac"  # of arrays in the kernels' layout
_plans = LastUsed(PLANS, BYTES)
cleared_too(_plans.clear)


def call(name, g, precision, shape, *operands):
    """The result, of a shape, of one of the passes on arrays in the kernels' layout, where a program runs on CUDA."""
    result = jax.ShapeDtypeStruct(shape, operands[0].dtype)
    made = jax.ffi.ffi_call(f"numbacaps_{name}", result, vmap_method="sequential")
    return made(*operands, how=json.dumps({"geometry": asdict(g), "precision": precision}))


def _forward(arguments, results, how, where):
    x, w = arguments
    with cuda.gpus[where.device]:
        operands = _operand("x", x), _operand("w", w), _operand("out", results[0])
        plan = _plan(how, x.dtype, where)
        with plan.alone:
            plan.forward_operands(*operands, numba_stream(where.stream))
        _settle(plan)


def _input_gradient(arguments, results, how, where):
    dy, w = arguments
    with cuda.gpus[where.device]:
        operands = None, _operand("w", w), _operand("dy", dy), _operand("dx", results[0]), None
        _backward(_plan(how, dy.dtype, where), operands, where)


def _kernel_gradient(arguments, results, how, where):
    x, dy = arguments
    with cuda.gpus[where.device]:
        operands = _operand("x", x), None, _operand("dy", dy), None, _operand("dw", results[0])
        _backward(_plan(how, x.dtype, where), operands, where)


def _backward(plan, operands, where):
    with plan.alone:
        plan.backward_operands(*operands, numba_stream(where.stream))
    _settle(plan)


def _settle(plan):
    """Keep few bytes of workspaces behind a call."""
    if plan.growth.grown:
        plan.growth.grown = False
        _plans.fit()


def _operand(name, buffer):
    return Operand(name, buffer, form_of(buffer.shape, None, buffer.dtype), True, buffer.address)


def _plan(how, dtype, where):
    """The plan of calls like this one."""
    return _plans.get((how, dtype, where.device), lambda: _decided(how, dtype))


def _decided(how, dtype):
    g, precision = _geometry_and_precision(how)
    moves = g.stride, g.padding, g.dilation
    s = signature_of(
        *(g.input_shape, g.kernel_shape, dtype, *moves), _PRODUCT, "auto", precision, None, ""
    )
    s.check_limits(PASSES[:3])
    return Plan(s.geometry, s.dtype, s.algorithm, s.precision)


@lru_cache(PLANS)
def _geometry_and_precision(how):
    found = json.loads(how)
    fields = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in found["geometry"].items()
    }
    return Geometry(**fields), found["precision"]


for _name, _function in (
    ("forward", _forward),
    ("input_gradient", _input_gradient),
    ("kernel_gradient", _kernel_gradient),
):
    foreign.register(f"numbacaps_{_name}", _function)
