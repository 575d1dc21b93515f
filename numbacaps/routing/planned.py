"""What computes the calls of a :class:`numbacaps.routing.plan.RoutingPlan`, whose arrays have been checked: kernels, or NumPy.

Each has ``forward(given, into, stream)`` and ``backward(given, into, stream)``, of operands
(:class:`numbacaps.arrays.Operand`) by name. Gradients have the names of what they are of.
"""

import weakref
from dataclasses import asdict, fields
from math import prod

import numpy as np

from numbacaps.arrays import describe, repeated
from numbacaps.device.dtypes import sum_dtype
from numbacaps.device.linking import linked_side_by_side
from numbacaps.device.recorded import StandIn
from numbacaps.device.strided_copy import gather
from numbacaps.device.target import current_device
from numbacaps.device.upload import uploaded
from numbacaps.device.workspace import Rooms
from numbacaps.made_once import made_once
from numbacaps.plan import Plan
from numbacaps.routing.api import capsule_routing, capsule_routing_backward
from numbacaps.routing.call import children_of, host_array, shapes_of_operands
from numbacaps.routing.passes import widen
from numbacaps.routing.runner import Runner
from numbacaps.routing.stored import Children
from numbacaps.routing.summed import Summed, add_channels, precision_of_sums

OPERANDS = {"dynamic": ("logits",), "em": ("activations", "beta_u", "beta_a")}


class OnDevice:
    """Kernels, with their workspaces and what operands are that are not given.

    Parameters
    ----------
    geometry : numbacaps.geometry.Geometry
    dtype : numpy.dtype
    problem : numbacaps.routing.call.Problem
    is_shared : bool
        All channels share one kernel, and w is (P, 1, KH, KW, G, D2, D3).
    logits, couplings : bool
        What calls of dynamic routing take, what forward calls write.
    """

    def __init__(self, geometry, dtype, problem, is_shared, logits, couplings):
        g, o = self._geometry, self._options = geometry, problem.options
        self._dtype, self._sums, self._is_shared = dtype, sum_dtype(dtype), is_shared
        self._children = prod(children_of(g, o))
        parents = g.N, g.P, g.L
        self._shapes = shapes_of_operands(g, o) | {
            "x": g.input_shape,
            "w": (g.P, 1, *g.kernel_shape[2:]) if is_shared else g.kernel_shape,
            "logits": (g.P, self._children),
            "out": (*parents, g.E3),
            "dy": (*parents, g.E3),
            "out_activations": parents,
            "d_activations": parents,
            "couplings": (*parents, self._children),
        }
        self._names = OPERANDS[o.routing] if o.is_em or logits else ()
        self._has_couplings = couplings
        self._usual = self._made_usual() if o.is_em else {}
        self._rooms = Rooms(held=self._usual, device=current_device())
        weakref.finalize(self, self._rooms.drop).atexit = False
        self._problem = problem

    @made_once
    def _runner(self):
        return self._new_runner(self._geometry)

    def _new_runner(self, geometry, most=None):
        is_stored = self._problem.name == "stored"
        how = geometry, self._dtype, self._options, is_stored, None, self._problem.precision
        return Runner(*how).within(self._rooms, most)

    def _made_usual(self):
        """Device arrays of EM routing's operands that are not given, and of the gradient of its activations."""
        usual = {"activations": 1, "beta_u": 0, "beta_a": 0}
        made = {name: np.full(self._shapes[name], one, self._sums) for name, one in usual.items()}
        made["d_activations"] = np.zeros(self._shapes["d_activations"], self._dtype)
        return {name: uploaded(array) for name, array in made.items()}

    @property
    def nbytes(self):
        """Bytes of workspace that are allocated now."""
        return self._rooms.nbytes

    def explain(self):
        """As :func:`numbacaps.explain_routing`."""
        return self._runner.explain()

    def make_ready(self):
        """Compile the kernels of all passes, for arrays that begin at multiples of 16 bytes."""
        stand_in, record = self._stand_in, self._runner.record
        is_em = self._options.is_em
        operands = [stand_in(name, self._sums) for name in self._names] or [None]
        results, d_results = [stand_in("out")], [stand_in("dy")]
        if is_em:
            results.append(stand_in("out_activations"))
            d_results.append(stand_in("d_activations"))
        couplings = stand_in("couplings") if self._has_couplings else None
        every = [stand_in(name) for name in self._names] or [None]
        x, w = self._read()
        with linked_side_by_side():
            record("forward", x, w, operands, results, couplings)
            for dx, dw in self._written():
                for d_operands in [every] if is_em else [every, [None]]:
                    record("backward", x, w, operands, d_results, dx, dw, d_operands)

    def _stand_in(self, name, dtype=None):
        return StandIn(name, 0, self._shapes[name], dtype or self._dtype)

    def _read(self):
        """Stand-ins of what the passes read of x and w."""
        return self._stand_in("x"), StandIn("w", 0, self._geometry.kernel_shape, self._dtype)

    def _written(self):
        """Stand-ins of where gradients are written, of each that may be left out."""
        x, w = self._read()
        return (x, w), (x, None), (None, w)

    def forward(self, given, into, stream):
        """Write capsules, of EM routing activations, and couplings where they are wanted."""
        x, w, operands = self._given(given, stream)
        results = [self._array(into, name) for name in into if name != "couplings"]
        self._forward(x, w, operands, results, self._array(into, "couplings"), stream)

    def backward(self, given, into, stream):
        """Write the gradients that there are arrays for."""
        x, w, operands = self._given(given, stream)
        d_results = [self._array(given, "dy")]
        if self._options.is_em:
            found = self._array(given, "d_activations")
            d_results.append(self._usual["d_activations"] if found is None else found)
        dx, dw = self._array(into, "x"), self._array(into, "w")
        of_w = dw
        if dw is not None and self._is_shared:
            of_w = self._room(stream)("dw", self._geometry.kernel_shape)
        d_operands = [self._d_operand(into, name, stream) for name in self._names] or [None]
        self._backward(x, w, operands, d_results, dx, of_w, d_operands, stream)
        if of_w is not dw:
            add_channels(of_w, dw, stream, self._room(stream))

    def _forward(self, x, w, operands, results, couplings, stream):
        self._runner.repeated("forward", x, w, operands, results, couplings, stream=stream)

    def _backward(self, x, w, operands, d_results, dx, dw, d_operands, stream):
        arguments = x, w, operands, d_results, dx, dw, d_operands
        self._runner.repeated("backward", *arguments, stream=stream)

    def _given(self, given, stream):
        """x, w, and what the passes take besides."""
        operands = [self._wide(given, name, stream) for name in self._names] or [None]
        return self._array(given, "x"), self._of_channels(self._array(given, "w"), stream), operands

    def _array(self, operands, name):
        """An operand as a device array in the passes' shape; None where it is not given."""
        return operands[name].reshaped(self._shapes[name]) if name in operands else None

    def _wide(self, given, name, stream):
        """An operand in the dtype of sums."""
        array = self._array(given, name)
        if array is None:
            return self._usual[name]
        if array.dtype == self._sums:
            return array
        return widen(array, self._room(stream)(f"wide {name}", array.shape, self._sums), stream)

    def _d_operand(self, into, name, stream):
        """Where an operand's gradient is written: EM routing's always, to a workspace if need be."""
        array = self._array(into, name)
        if array is None and self._options.is_em:
            return self._room(stream)(f"d {name}", self._shapes[name])
        return array

    def _of_channels(self, w, stream):
        """w with a kernel for each channel."""
        if not self._is_shared:
            return w
        g = self._geometry
        found = self._room(stream)("w", g.kernel_shape)
        seen = describe("w", repeated(describe("w", w), 1, g.C))
        gather(seen, tuple(range(seen.rank)), stream, describe("w", found))
        return found

    def _room(self, stream):
        """A function that gives the stream's workspaces by name."""
        named = self._rooms.of(stream)

        def room(name, shape, dtype=self._dtype):
            return named[f"plan's {name}"].arrays({name: tuple(shape)}, dtype)[name]

        return room


class Stored(OnDevice):
    """The same where votes of all children are stored: they are computed once a call, and read in every pass."""

    def __init__(self, geometry, dtype, problem, *how):
        super().__init__(geometry, dtype, problem, *how)
        g = geometry
        self._shapes["votes"] = g.N, g.P, g.L, self._children, g.E3

    def _read(self):
        return self._stand_in("votes"), None

    def _written(self):
        return (self._read(),)

    def _votes(self, x, w, stream):
        """Who makes votes, and the votes."""
        made = Children(self._geometry, x, w, stream)
        votes = self._room(stream)("votes", self._shapes["votes"])
        made.votes_of(votes)
        return made, votes

    def _forward(self, x, w, operands, results, couplings, stream):
        _, votes = self._votes(x, w, stream)
        super()._forward(votes, None, operands, results, couplings, stream)

    def _backward(self, x, w, operands, d_results, dx, dw, d_operands, stream):
        made, votes = self._votes(x, w, stream)
        d_votes = self._room(stream)("d_votes", votes.shape)
        super()._backward(votes, None, operands, d_results, d_votes, None, d_operands, stream)
        made.gradients_of(d_votes, dx, dw)


class StoredSums(OnDevice):
    """The same where votes are summed over the window, and those of a band at a time are stored."""

    def __init__(self, geometry, dtype, problem, *how):
        super().__init__(geometry, dtype, problem, *how)
        self._plans, self._runners, self._most = {}, {}, {}

    @property
    def _summed(self):
        """What runs the calls; it is not held, since it holds this."""
        how = self._geometry, self._dtype, self._plan_of, self._runner_of
        return Summed(*how, stays=True)

    def _plan_of(self, band):
        if band not in self._plans:
            precision = precision_of_sums(self._dtype, self._problem.precision)
            self._plans[band] = Plan(band.of_channels, self._dtype, "fused", precision)
        return self._plans[band]

    def _runner_of(self, band):
        if band not in self._runners:
            self._runners[band] = self._new_runner(band, self._most)
        return self._runners[band]

    @property
    def nbytes(self):
        return super().nbytes + sum(plan.nbytes for plan in self._plans.values())

    def explain(self):
        return self._summed.explain()

    def make_ready(self):
        forward, backward = (
            {band.geometry for band in self._summed.bands(gradients)} for gradients in (False, True)
        )
        with linked_side_by_side():
            for band in forward:
                self._record_forward(band)
            for band in backward:
                self._record_backward(band)
        for band in forward | backward:
            passes = ("forward", "input", "kernel") if band in backward else ("forward",)
            self._plan_of(band).make_ready(passes)

    def _record_forward(self, band):
        couplings = self._part("couplings", band, band.C) if self._has_couplings else None
        votes, out = self._part("votes", band, band.C, band.E3), self._part("out", band, band.E3)
        operands = [self._stand_in(name, self._sums) for name in self._names] or [None]
        self._runner_of(band).record("forward", votes, None, operands, [out], couplings)

    def _record_backward(self, band):
        votes, dy = self._part("votes", band, band.C, band.E3), self._part("dy", band, band.E3)
        operands = [self._stand_in(name, self._sums) for name in self._names] or [None]
        every = [self._stand_in(name) for name in self._names] or [None]
        for to in [every, [None]]:
            how = votes, None, operands, [dy], votes, None, to
            self._runner_of(band).record("backward", *how)

    def _part(self, name, band, *numbers):
        """A stand-in of a band's part of what every parent has."""
        return StandIn(name, 0, (band.N, band.P, band.L, *numbers), self._dtype)

    def _of_channels(self, w, stream):
        """w as if each channel had a kernel: it is read once, when it is laid out beside g."""
        return repeated(describe("w", w), 1, self._geometry.C) if self._is_shared else w

    def _forward(self, x, w, operands, results, couplings, stream):
        self._summed.forward(x, w, operands, *results, couplings, stream, self._room(stream))

    def _backward(self, x, w, operands, d_results, dx, dw, d_operands, stream):
        where = stream, self._room(stream)
        self._summed.backward(x, w, operands, *d_results, dx, dw, *d_operands, *where)


class OnHost:
    """NumPy, which takes NumPy arrays.

    Parameters
    ----------
    problem : numbacaps.routing.call.Problem
    couplings : bool
    """

    nbytes = 0

    def __init__(self, problem, couplings):
        self._couplings = couplings
        self._options = {one.name: getattr(problem, one.name) for one in fields(problem)}
        self._options |= asdict(self._options.pop("options"))
        self._detach = self._options.pop("detach")

    def explain(self):
        """What computes."""
        return "algorithm numpy: votes are computed once a call, and routed by NumPy on the host"

    def make_ready(self):
        """Nothing is compiled."""

    def forward(self, given, into, stream):
        """As :meth:`OnDevice.forward`."""
        arrays = {name: operand.array for name, operand in given.items()}
        found = capsule_routing(**arrays, couplings=self._couplings, **self._options)
        for name, one in zip(into, found if isinstance(found, tuple) else (found,)):
            _write(one, into[name])

    def backward(self, given, into, stream):
        """As :meth:`OnDevice.backward`."""
        arrays = {name: operand.array for name, operand in given.items()}
        options = self._options | {"detach": self._detach}
        needs = [word for word, name in (("input", "x"), ("kernel", "w")) if name in into]
        found = capsule_routing_backward(**arrays, needs=needs, **options)
        for name, operand in into.items():
            _write(getattr(found, name), operand)


def _write(found, operand):
    """Write what a function has returned to a caller's array."""
    host_array(operand)[...] = host_array(describe(operand.name, found))
