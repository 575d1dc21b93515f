"""numbacaps: capsule convolutions on CUDA GPUs, written in Numba.

The public functions are :func:`capsule_conv2d`, :func:`capsule_votes` and :func:`capsule_routing`. Each has its
gradient, whose name ends in ``_backward``. :func:`plan` makes a convolution ready to be run many times and to be
captured into a CUDA graph, :func:`routing_plan` routing; :func:`explain` says which kernels a convolution would run. :func:`warmup` compiles kernels ahead.
:func:`clear_caches` frees what calls have kept. :data:`ALGORITHMS` has the algorithms by name. The steps of the
paper's pipeline, to be run one at a time, are in :mod:`numbacaps.stages`.
"""

from importlib import import_module

from numbacaps.device.target import (
    SIMULATED,
)  # first: it chooses the target before numba is imported
from numbacaps.algorithms.registry import ALGORITHMS, available_algorithms
from numbacaps.api import (
    capsule_conv2d,
    capsule_conv2d_backward,
    capsule_votes,
    capsule_votes_backward,
)
from numbacaps.device.compiling import compile_in_less_time
from numbacaps.device.freeing import allocate_again_after, free_together
from numbacaps.device.keeping import let_go
from numbacaps.device.loading import load_one_at_a_time
from numbacaps.geometry import Geometry
from numbacaps.kept import clear_caches
from numbacaps.plan import Plan
from numbacaps.planning import explain, plan
from numbacaps.product import parse_product
from numbacaps.routing.api import (
    RoutingGradients,
    capsule_routing,
    capsule_routing_backward,
    explain_routing,
)
from numbacaps.routing.plan import RoutingPlan, routing_plan
from numbacaps.version import VERSION
from numbacaps.warmup import warmup

__version__ = VERSION

__all__ = [
    "ALGORITHMS",
    "SIMULATED",
    "Geometry",
    "Plan",
    "RoutingGradients",
    "RoutingPlan",
    "available_algorithms",
    "capsule_conv2d",
    "capsule_conv2d_backward",
    "capsule_routing",
    "capsule_routing_backward",
    "capsule_votes",
    "capsule_votes_backward",
    "clear_caches",
    "explain",
    "explain_routing",
    "parse_product",
    "plan",
    "routing_plan",
    "warmup",
]
_SUBPACKAGES = ("nn", "stages")  # imported when they are first used
_OF_LIBRARIES = ("torch", "jax")  # which take seconds to import, so they are asked for

compile_in_less_time()
load_one_at_a_time()
free_together()
allocate_again_after(let_go)


def __getattr__(name):
    if name in _SUBPACKAGES:
        return import_module(f"numbacaps.{name}")
    if name in _OF_LIBRARIES:
        raise AttributeError(f"numbacaps.{name} is imported by its name: import numbacaps.{name}")
    raise AttributeError(f"module 'numbacaps' has no attribute {name!r}")


def __dir__():
    return [*__all__, *_SUBPACKAGES, "__version__"]
