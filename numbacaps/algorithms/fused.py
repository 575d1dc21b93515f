"""The fold as one kernel a pass: operands gathered from capsule layout, nothing but results written.

:mod:`numbacaps.fused` holds the kernels, its :mod:`~numbacaps.fused.choose` says which one; here the passes of a
geometry keep what was chosen, with its tables on the GPU, and launch it.
"""

import time
from functools import lru_cache
from math import prod
from weakref import WeakValueDictionary

import numpy as np

from numbacaps.algorithms.passes import Passes, told
from numbacaps.device.compiled import launch_stream
from numbacaps.device.dtypes import sum_dtype
from numbacaps.device.launch import runs
from numbacaps.device.target import current_device
from numbacaps.fused import implicit_gemm
from numbacaps.fused.choose import Job, choose
from numbacaps.fused.choose_input import choose_input, columns_of_few, is_ordinary
from numbacaps.fused.choose_split_k import choose_split_k
from numbacaps.fused.precision import AUTO, chosen_for
from numbacaps.made_once import made_once

_KEPT = 64  # geometries whose tables stay on the GPU
_FEW_TAPS = 9  # of a window as large as the input, for which the window's own kernels were measured to be fast


class FusedPasses(Passes):
    """The kernels and tables of one geometry, each pass's made when first asked for.

    Parameters
    ----------
    geometry : numbacaps.geometry.Geometry
    dtype : numpy.dtype
    precision : str
    activation : numbacaps.fused.activation.Activation, optional
        What is wanted behind the forward pass, where its kernel can; one that is ``backward``, behind the
        gradient of the input.
    rungs : tuple of (pass, rung, tile or None)
        Rungs that are asked for; see :func:`numbacaps.fused.choose.choose`.
    """

    def __init__(self, geometry, dtype, precision, activation=None, rungs=()):
        # Arrays are runs of elements here. A pixel that the window reads once has one tap of it, and the input's
        # gradient would multiply zeros for all others.
        many = geometry.KH * geometry.KW > _FEW_TAPS
        self.geometry = geometry.without_window if many else geometry
        self.dtype, self.precision = dtype, precision
        self.activation = activation
        self._forced = {wanted: (rung, tile) for wanted, rung, tile in rungs}
        self.seconds = 0.0  # of compiling, or of reading what was compiled before
        self.choices = {}  # pass to list of Choice
        self._made = {}  # pass to what a call of it launches

    def _launchers(self, wanted, chosen):
        """The launchers of some choices, their time counted."""
        start = time.perf_counter()
        made = [one.launcher() for one in chosen]
        self.seconds += time.perf_counter() - start
        self.choices[wanted] = chosen
        return made

    def _job(self, wanted, product, precision, activation=None):
        g, result = self.geometry, prod(self._result_of(wanted))
        which = product, g.N, g.G, self.dtype, precision, activation
        return Job(*which, result=result, looked=self._looked(wanted, precision, activation))

    def _result_of(self, wanted):
        g = self.geometry
        shapes = {"forward": g.output_shape, "backward_input": g.input_shape}
        return shapes.get(wanted, g.kernel_shape)

    def _precision(self, wanted, columns, summed):
        """The word that a pass is computed at."""
        if self.precision != AUTO:
            return self.precision
        rung, tile = self._forced.get(wanted, (None, None))
        found = chosen_for(self.dtype, columns, summed)
        if rung is not None and self.dtype == np.float32:
            found = "ieee" if is_ordinary(rung, tile) else "tf32x3"
        return found

    def _looked(self, wanted, precision, activation=None):
        """The pass and its geometry where its results are looked through; None where they are not."""
        looked = precision == "tf32x3" and activation is None
        return (wanted, self.geometry) if looked else None

    def _is_apart(self, precision):
        """Whether a kernel of its own computes the activation: sums are looked through before it."""
        return self.precision == AUTO and precision == "tf32x3"

    @property
    def _is_backward(self):
        return self.activation is not None and self.activation.backward

    @made_once
    def _forward(self):
        """The forward pass's product, and the word that it is computed at."""
        product = implicit_gemm.forward(self.geometry)
        return product, self._precision("forward", product.N, product.K)

    @made_once
    def forward_launchers(self):
        """The forward pass's product, in a list of one."""
        product, precision = self._forward
        is_apart = self._is_backward or self._is_apart(precision)
        activation = None if is_apart else self.activation
        job = self._job("forward", product, precision, activation)
        return self._launchers("forward", [choose(job, *self._forced.get("forward", ()))])

    @made_once
    def input_launchers(self):
        """The products of the input's gradient, one for each residue of the stride."""
        if self._is_backward:
            made = self._input_launchers(self.activation)
            if all(launcher.epilogue.differentiates for launcher in made):
                return made
        return self._input_launchers(None)

    def _input_launchers(self, activation):
        products = implicit_gemm.backward_input(self.geometry)
        most = max(product.K for product in products)
        forced = self._forced.get("backward_input", ())
        precision = self._precision("backward_input", products[0].N, most)
        activation = None if self._is_apart(precision) else activation
        jobs = [self._job("backward_input", product, precision, activation) for product in products]
        columns = None
        if self.precision == AUTO and precision == "ieee" and not (forced or activation):
            columns = columns_of_few(jobs, self.geometry)
        chosen = [columns] if columns else choose_input(jobs, self.geometry, *forced)
        return self._launchers("backward_input", chosen)

    @made_once
    def kernel_launcher(self):
        """The product of the kernel's gradient."""
        g = self.geometry
        product, size = implicit_gemm.forward(g), g.P * g.Q * g.E2
        precision = self._precision("backward_kernel", product.N, product.M(g.N))
        which = product, g.N, g.G, self.dtype, precision
        job = Job(*which, size=size, looked=self._looked("backward_kernel", precision))
        chosen = choose_split_k(job, *self._forced.get("backward_kernel", ()))
        (made,) = self._launchers("backward_kernel", [chosen])
        return made

    @made_once
    def sums(self):
        """Dtype of the workspaces."""
        return sum_dtype(self.dtype)

    @property
    def activates(self):
        return self.forward_launchers[0].epilogue.activates

    @property
    def differentiates(self):
        return all(launcher.epilogue.differentiates for launcher in self.input_launchers)

    def compile(self, wanted):
        """Compile a pass, "forward", "input" or "kernel"."""
        if wanted == "kernel":
            _ = self.kernel_launcher  # which is compiled when it is made
        else:
            self._launches(wanted)

    def make_ready(self, room, wanted):
        """Compile a pass, and allocate its workspace."""
        if wanted == "kernel":
            room[wanted].arrays(self.kernel_launcher.partial_shape, self.sums)
        else:
            _, shapes = self._launches(wanted)
            room[wanted].arguments(shapes, self.sums)

    def _launches(self, wanted):
        """What a call of a pass, "forward" or "input", launches.

        Returns
        -------
        launchers : list
        shapes : dict
            Of the workspaces of those that pack, by their numbers.
        """
        made = self._made.get(wanted)
        if made is None:
            is_forward = wanted == "forward"
            launchers = self.forward_launchers if is_forward else self.input_launchers
            shapes = {i: (one.packed,) for i, one in enumerate(launchers) if one.packed}
            made = self._made.setdefault(wanted, (launchers, shapes))
        return made

    def packs(self, wanted):
        launchers, shapes = self._launches(wanted)
        return bool(shapes) and all(launchers[i].packs_alone for i in shapes)

    def pack(self, wanted, w, *, stream, room):
        launchers, shapes = self._launches(wanted)
        places, stream = room[wanted].arguments(shapes, self.sums), launch_stream(stream)
        (w,) = runs(self.geometry, w=w)
        for i, place in places.items():
            launchers[i].pack(w, place, stream)

    def forward(self, x, w, out, *, stream, room, packed=False):
        """Write the output; ``packed`` says that :meth:`pack` left the kernel in the same room."""
        x, w, out = runs(self.geometry, x=x, w=w, out=out)
        self._launch("forward", x, w, out, out, stream, room, packed)

    def forward_activated(self, x, w, sums, out, *, stream, room, packed=False):
        """The forward pass and the activation in one, where they ``activate``.

        ``sums`` takes what is before the activation; None where it does not keep them.
        """
        x, w, sums = runs(self.geometry, x=x, w=w, out=out if sums is None else sums)
        (out,) = runs(self.geometry, out=out)
        self._launch("forward", x, w, sums, out, stream, room, packed)

    def backward(self, x, w, dy, dx, dw, *, stream, room, packed=False):
        """Write both gradients; ``dx`` or ``dw`` is None where that one is not wanted."""
        if dx is not None:
            result, kernel, gathered = runs(self.geometry, dx=dx, w=w, dy=dy)
            self._launch("input", gathered, kernel, result, result, stream, room, packed)
        if dw is not None:
            self._reduce(*runs(self.geometry, x=x, dy=dy, dw=dw), stream, room)

    def forward_operands(self, x, w, out, *, stream, room, packed=False):
        x, w, out = x.argument, w.argument, out.argument
        self._launch("forward", x, w, out, out, stream, room, packed)

    def backward_operands(self, x, w, dy, dx, dw, *, stream, room, packed=False):
        dy = dy.argument
        if dx is not None:
            result = dx.argument
            self._launch("input", dy, w.argument, result, result, stream, room, packed)
        if dw is not None:
            self._reduce(x.argument, dy, dw.argument, stream, room)

    def backward_differentiated(self, w, dy, sums, dx, *, stream, room, packed=False):
        """The input's gradient behind that of an activation, where they ``differentiate``.

        The input was what the activation made of ``sums``; ``dx`` is their gradient.
        """
        result, kernel, gathered = runs(self.geometry, dx=dx, w=w, dy=dy)
        (sums,) = runs(self.geometry, dx=sums)
        self._launch("input", gathered, kernel, result, sums, stream, room, packed)

    def _launch(self, wanted, gathered, kernel, result, activated, stream, room, packed):
        """Launch the products of a pass on arguments: first all packing, which goes on side by side."""
        launchers, shapes = self._launches(wanted)
        places, stream = room[wanted].arguments(shapes, self.sums), launch_stream(stream)
        ready = [one.ready_for(gathered, kernel, result, activated) for one in launchers]
        if not packed:
            for i, place in places.items():
                ready[i].pack(kernel, place, stream)
        for i, launcher in enumerate(ready):
            launcher.multiply(gathered, kernel, places.get(i), result, activated, stream, packed)

    def _reduce(self, x, dy, dw, stream, room):
        """Launch the product of the kernel's gradient on arguments."""
        launcher = self.kernel_launcher
        place = room["kernel"].arguments(launcher.partial_shape, self.sums)
        stream = launch_stream(stream)
        launcher.reduce(x, dy, dw, place.get("partial"), stream)

    def explain(self):
        """Each kernel that runs: its tile, why it was chosen, and what forces it; what making them ready took.

        What ``force`` shows is an argument of :func:`numbacaps.plan`.
        """
        launchers = {
            "forward": self.forward_launchers,
            "backward_input": self.input_launchers,
            "backward_kernel": [self.kernel_launcher],
        }
        lines = []
        for wanted, some in launchers.items():
            # Parts are residues of the stride.
            of = f", part {{}} of {len(some)}" if len(some) > 1 else ""
            for i, one in enumerate(zip(some, self.choices[wanted]), 1):
                lines.append(_told(wanted, of.format(i), *one))
        return "\n".join([*lines, f"kernels made ready in {self.seconds:.2f} s"])

    def explain_forward(self):
        kernels = "; ".join(map(str, self.forward_launchers))
        if self.activation is None:
            return f"{kernels}, LeakyReLU apart"
        _, precision = self._forward
        return f"{kernels}, LeakyReLU and squash apart" if self._is_apart(precision) else kernels


def _told(wanted, part, launcher, choice):
    """A launch of a pass, or of a part of it, as :meth:`FusedPasses.explain` tells it."""
    how = str(launcher).removeprefix(choice.rung).replace(f" ({choice.why})", "").strip()
    force = f"rungs={ {wanted: choice.forced} }"
    return told(f"{wanted}{part}: {choice.rung}", how=how, why=choice.why, force=force)


_alive = WeakValueDictionary()


def passes(geometry, dtype, precision="auto", activation=None, rungs=()):
    """The passes of a geometry on this device: the same for as long as somebody holds them, and kept for the last few.

    Who captures calls into a graph holds them as long as the graph, which has the addresses of their tables.
    """
    return kept_passes(current_device(), geometry, dtype, precision, activation, rungs)


@lru_cache(_KEPT)
def kept_passes(device, *key):
    found = _alive.get((device, *key))
    if found is None:
        found = _alive.setdefault((device, *key), FusedPasses(*key))
    return found
