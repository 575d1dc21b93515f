"""Routing problems made ready: a batch cut into parts, whose workspace is small beside the operands.

A part's images are routed from the first iteration to the last before the next part begins, so that the parents' states
of a part are all that is kept. The gradient computes each part's states again, unless the forward pass has left them
(:func:`kept_states`). Where positions are routed whole (:mod:`numbacaps.routing.whole`) they are kept only if asked for, by clusters.
"""

import threading
import weakref
from copy import copy
from dataclasses import replace
from math import prod

import numpy as np

from numbacaps.device.dtypes import sum_dtype
from numbacaps.device.launch import ceil_div
from numbacaps.device.recorded import Recording, memory_of, stand_ins
from numbacaps.device.target import current_device
from numbacaps.device.workspace import Rooms
from numbacaps.last_used import LastUsed
from numbacaps.routing.dynamic import state_fields
from numbacaps.routing.em_passes import EMPasses
from numbacaps.routing.mma_sync import em_gradient_launcher
from numbacaps.routing.options import check_numbers
from numbacaps.routing.passes import DynamicPasses

WORKSPACE = 28 << 20  # bytes that a part may always take
_SHARE = 4  # or this part of the operands' bytes
_KEPT = 32
BYTES = 1 << 28  # of the kept runners' workspaces, all devices and threads together


class Runner:
    """A routing problem, decided once.

    Parameters
    ----------
    geometry : numbacaps.geometry.Geometry
    dtype : numpy.dtype
    options : numbacaps.routing.options.Options
    stored : bool
        x is votes (N, P, L, I, E), where I is C if they are summed over the window.
    part : int, optional
        Images that are routed at once.
    precision : str
        How the forward pass computes votes (:mod:`numbacaps.fused.precision`).
    keeps : bool
        The gradient is given the states that the forward pass has left.

    Attributes
    ----------
    part, forward_part : int
        Images that are routed at once where gradients are wanted, and where they are not.
    """

    def __init__(
        self, geometry, dtype, options, stored=False, part=None, precision="auto", keeps=False
    ):
        check_numbers(options, sum_dtype(dtype))
        self.geometry, self.dtype, self.options, self.stored = geometry, dtype, options, stored
        self._class = EMPasses if options.is_em else DynamicPasses
        self._precision, self._keeps, self._passes = precision, keeps, {}
        self._of_gradient, self._why_not_gradient = self._choose_of_gradient()
        self.part = part or self._wanted_part()
        whole = self._made(self.part, self._of_gradient)
        self._passes[self.part, self._of_gradient], self._splits = whole, whole.splits
        self.forward_part = part or self._wanted_forward_part()
        # Whether the gradient has the votes that the forward pass had, and so can read its states.
        self._has_same_votes = (
            self._of_gradient == precision or self._of(self.forward_part, precision).warps is None
        )
        self._rooms, self._recordings = Rooms(device=current_device()), {}
        self._most = {}  # bytes of each workspace, of all that is written down
        weakref.finalize(self, self._rooms.drop).atexit = False

    def _choose_of_gradient(self):
        """(the gradient's precision, why it is not on tensor cores).

        EM routing's divides V - mu by variances that may be near epsilon, so the means that it reads are those of the votes
        that it computes itself: where its passes are not on tensor cores, by ordinary arithmetic.
        """
        precision = self._precision
        if self.options.is_em:
            precision = em_gradient_launcher.precision_of(precision)
        one = self._made(1, precision)
        if self.options.is_em and not one.gradient_warps:
            precision = "ieee"
        return precision, one.why_not_gradient

    def _made(self, images, precision, splits=None):
        """The passes of some images."""
        geometry, how = replace(self.geometry, N=images), (self.dtype, self.options, self.stored)
        return self._class(geometry, *how, splits, precision, self.geometry.N)

    def _of(self, images, precision):
        """The same, kept."""
        found = self._passes.get((images, precision))
        if found is None:
            # Threads that make the passes together all take the first ones: their tables stay alive here.
            made = self._made(images, precision, self._splits)
            found = self._passes.setdefault((images, precision), made)
        return found

    def _wanted_part(self):
        """Images whose gradients take as much memory as a part may."""
        N, one = self.geometry.N, self._made(1, self._of_gradient)
        if not one.gradient_warps or not self.options.is_em:
            return min(N, max(1, self._budget // self._bytes(one)))
        # Blocks share the children of a few images more than those of many, so memory is no multiple of an image's.
        for parts in range(1, N + 1):
            images = ceil_div(N, parts)
            some = self._made(images, self._of_gradient)
            if images == 1 or some.backward_nbytes(self._keeps) <= self._budget:
                return images

    def _wanted_forward_part(self):
        """On tensor cores the forward pass takes less memory, and parts that are larger fill the GPU; whole, it takes none."""
        some = self._of(self.part, self._precision)
        if some.warps is None:
            return self.geometry.N if some.is_whole else self.part
        for parts in range(1, self.geometry.N + 1):
            images = ceil_div(self.geometry.N, parts)
            passes = self._of(images, self._precision)
            if images <= self.part or passes.forward_nbytes <= self._budget:
                return images

    @property
    def shape(self):
        """What the kernels are compiled for."""
        return self._passes[self.part, self._of_gradient].shape

    @property
    def _budget(self):
        g = self.geometry
        operands = sum(map(prod, (g.input_shape, g.kernel_shape, g.output_shape)))
        return max(WORKSPACE, operands * self.dtype.itemsize // _SHARE)

    def _bytes(self, passes):
        """That an image takes."""
        shapes = passes.states_shape, passes.slopes_shape, passes.columns_shape
        shapes = *shapes, passes.backward_shapes()["partial"]
        return sum(map(prod, shapes)) * passes.sums.itemsize

    @property
    def nbytes(self):
        """Bytes of workspace that are allocated now."""
        return self._rooms.nbytes

    @property
    def growth(self):
        """Whether workspaces have grown (:class:`numbacaps.device.workspace.Growth`)."""
        return self._rooms.growth

    def release(self):
        """Give back the workspaces, once the streams have passed the calls that are queued."""
        self._rooms.release()

    def within(self, rooms, most=None):
        """The same runner, on workspaces of the caller's.

        Parameters
        ----------
        rooms : numbacaps.device.workspace.Rooms
            Or what has ``rooms.of(stream)[name].arrays({name: shape}, dtype)``.
        most : dict, optional
            Of several runners in these rooms the bytes of each workspace, by name, that any of them has written down.
        """
        found = copy(self)
        found._rooms, found._most = rooms, self._most if most is None else most
        return found

    def repeated(self, method, *arguments, stream=0):
        """Run :meth:`forward` or :meth:`backward` by repeating its launches, which the first call writes down."""
        recording, arrays = self.record(method, *arguments)
        memories = {str(i): memory_of(array) for i, array in enumerate(arrays)}
        # A workspace that is as large as any of them needs is never made anew, for a graph may read it.
        shapes = {name: (self._most[name],) for name in recording.workspaces}
        for name, array in self._workspace(shapes, np.dtype(np.uint8), stream).items():
            memories[name] = memory_of(array)
        recording.repeat(stream, memories)

    def record(self, method, *arguments):
        """(what a method launches on arrays that are alike, those arrays); of stand-ins nothing but compiles it."""
        arrays = []
        arguments = stand_ins(arguments, arrays)
        return self.recording((method, arguments), method, arguments), arrays

    def recording(self, key, method, arguments, states=None):
        """What a method launches on stand-ins (:mod:`numbacaps.device.recorded`).

        Parameters
        ----------
        key : hashable
            The same for stand-ins that are the same.
        method : str
            "forward" or "backward".
        arguments : sequence
            Its positional arguments up to the stream.
        states : numbacaps.device.recorded.StandIn or None

        Returns
        -------
        numbacaps.device.recorded.Recording
        """
        if key not in self._recordings:
            made = Recording()
            getattr(self.within(made), method)(*arguments, stream=made, states=states)
            for name, nbytes in made.workspaces.items():
                self._most[name] = max(nbytes, self._most.get(name, 0))
            self._recordings.setdefault(key, made)
        return self._recordings[key]

    def recorded(self, key):
        """The recording of a key, or None where its launches are not written down."""
        return self._recordings.get(key)

    def votes_nbytes(self):
        """Bytes that the votes would take, if they were stored."""
        g = self.geometry
        shape = g.summed_votes_shape if self.options.is_summed else g.votes_shape
        return prod(shape) * self.dtype.itemsize

    def _parts(self, part, precision):
        """(passes, images) of every part of the batch; ``part`` is its number of images, and ``images`` a slice."""
        for first in range(0, self.geometry.N, part):
            images = slice(first, min(first + part, self.geometry.N))
            yield self._of(images.stop - first, precision), images

    def _arrays(self, passes, shapes, stream):
        """Workspace of passes."""
        return self._workspace(shapes, passes.sums, stream)

    def _workspace(self, shapes, dtype, stream):
        """Arrays of workspace, each by itself: one that grows for a part leaves what lies in the others."""
        room = self._rooms.of(stream)
        return {
            name: room[name].arrays({name: shape}, dtype)[name] for name, shape in shapes.items()
        }

    def _states(self, passes, stream, keep=True, images=None, kept=None):
        """The states, and in EM routing the capsules' norms; or some images' of those that are kept, or None for none."""
        if passes.is_whole and not keep:
            return (None,)
        if kept is not None:
            states = kept[images].reshape(passes.states_shape)
            # States are not kept where there are capsules' norms, so no kernel reads these.
            return (states, states) if self.options.is_em else (states,)
        shapes = {"states": passes.forward_states_shape(keep)}
        if self.options.is_em:
            shapes["norms"] = passes.norms_shape
        return tuple(self._arrays(passes, shapes, stream).values())

    def forward(self, x, w, operands, results, couplings=None, stream=0, states=None):
        """Write the results.

        Parameters
        ----------
        x, w : device arrays, (N, C, H, W, G, D1, D2) and (P, C, KH, KW, G, D2, D3)
            Or votes (N, P, L, I, E), and None.
        operands : tuple
            Of dynamic routing the logits (P, I) or None; of EM routing activations (N, C, H, W),
            beta_u and beta_a (P,), all in the dtype of sums.
        results : tuple of device arrays
            Capsules (N, P, L, E), and in EM routing activations (N, P, L).
        couplings : device array (N, P, L, I), or None
        stream : Numba stream
        states : device array (N, :func:`kept_states`), or None
            To be given to :meth:`backward`.
        """
        states = states if self._has_same_votes else None
        keep = couplings is not None or states is not None
        part = self.part if keep else self.forward_part
        given = operands[0] is not None, couplings is not None, keep
        for passes, images in self._parts(part, self._precision):
            room = self._arrays(passes, passes.forward_shapes(*given), stream)
            out = [result[images] for result in results]
            more = None if couplings is None else couplings[images]
            how = room, stream, keep, more, states
            self._forward(passes, x[images], w, operands, images, out, *how)

    def _forward(
        self, passes, x, w, operands, images, out, room, stream, keep, couplings=None, kept=None
    ):
        states = self._states(passes, stream, keep, images, kept)
        run = {"room": room, "couplings": couplings, "stream": stream, "keep": keep}
        if self.options.is_em:
            activations, *betas = operands
            passes.forward(x, w, (activations[images], *betas), *states, *out, **run)
        else:
            passes.forward(x, w, operands[0], *states, *out, **run)

    def backward(self, x, w, operands, d_results, dx, dw, d_operands, stream=0, states=None):
        """Write gradients.

        Parameters
        ----------
        x, w, operands, stream
            As :meth:`forward`.
        d_results : tuple of device arrays
            What reaches the results.
        dx, dw : device arrays, or None
            With ``dx`` comes the activations' gradient, with ``dw`` (of votes: ``dx``) the logits'.
        d_operands : tuple of device arrays, or None
            Of dynamic routing (d_logits,), of EM routing (d_activations, d_beta_u, d_beta_a).
        states : device array (N, :func:`kept_states`), or None
            What :meth:`forward` has left there of the same operands; else it is computed again.
        """
        has_logits = not self.options.is_em and operands[0] is not None
        states = states if self._has_same_votes else None
        for passes, images in self._parts(self.part, self._of_gradient):
            own, is_whole = x[images], passes.is_whole_backward(has_logits)
            if states is None and not is_whole:
                scratch = self._arrays(passes, self._result_shapes(passes), stream)
                room = self._arrays(passes, passes.forward_shapes(has_logits, False), stream)
                out = [self._in_dtype(array) for array in scratch.values()]
                self._forward(passes, own, w, operands, images, out, room, stream, True)
            how = has_logits, dx is not None, dw is not None, self.part < self.geometry.N
            room = self._arrays(passes, passes.backward_shapes(*how), stream)
            d_out = [gradient[images] for gradient in d_results]
            to = None if dx is None else dx[images]
            run = {"room": room, "more": images.start > 0, "stream": stream}
            found = (None,) if is_whole else self._states(passes, stream, True, images, states)
            if self.options.is_em:
                activations, *betas = operands
                d_activations = None if dx is None else d_operands[0][images]
                some = (activations[images], *betas)
                passes.backward(own, w, some, *found, *d_out, to, d_activations, dw=dw, **run)
            else:
                passes.backward(own, w, operands[0], *found, *d_out, to, dw=dw, **run)
        if dw is not None:
            passes.launch_kernel_gradient(dw, room, stream, has_logits)
        if self.options.is_em:
            passes.launch_betas_gradient(*d_operands[1:], room, stream)
        elif d_operands[0] is not None and (dw is not None or self.stored):
            passes.launch_logits_gradient(d_operands[0], room, stream)

    def _result_shapes(self, passes):
        """Room for results that were not asked for, in the dtype of sums."""
        g = passes.geometry
        shapes = {"y": (g.N, g.P, g.L, g.E3)}
        return shapes | ({"a": (g.N, g.P, g.L)} if self.options.is_em else {})

    def _in_dtype(self, array):
        """The beginning of an array as one of the same size, in the dtype of x."""
        if array.dtype == self.dtype:
            return array
        flat = array.reshape(array.size).view(self.dtype)
        return flat[: array.size].reshape(array.shape)

    @staticmethod
    def _of_teams(passes):
        """How teams share the forward pass."""
        split, shape = passes.split(passes.shape, passes.forward_form), passes.shape
        return (
            f"{shape.team} lanes a team, {shape.images} images a team, {split.parts * split.blocks} teams of "
            f"{split.children} children each share a position"
        )

    def explain(self):
        """What is launched, how often votes are computed, and what they take or would take in memory."""
        o, g, first = self.options, self.geometry, self._of(self.part, self._of_gradient)
        passes = self._of(self.forward_part, self._precision)
        how = f"{self._of_teams(passes)} (ordinary arithmetic: {passes.why_not})"
        how = passes.warps or passes.cluster or ("in one kernel, " if passes.is_whole else "") + how
        form = f"softmax over {o.softmax_over}" if not o.is_em else f"normalised over {o.normalise}"
        is_whole = first.is_whole_backward(has_logits=False)
        states = 0 if is_whole else prod(first.states_shape) * first.sums.itemsize
        owners = "one for the votes" if self.stored else "one for w and x"
        back = f"{o.iterations - 1 - o.first} passes more, then {owners} (ordinary arithmetic: {self._why_not_gradient})"
        if is_whole:
            walks = 2 * o.iterations - o.first
            back = f"{walks} passes over the children, in one kernel; with logits {back}"
        if first.gradient_warps:
            walks = o.iterations - 1 - o.first
            back = f"{walks} {first.gradient_warps}; with logits by ordinary arithmetic"
            if o.is_em:
                back = f"{_passes(walks + 1)}, {first.gradient_warps}"
        forward, backward = first.times
        take = "stored, they take" if self.stored else "stored votes would take"
        return "\n".join(
            (
                f"{o.routing} routing, {o.iterations} iterations, {form}: {first.shape.children} children of each of "
                f"{g.N * g.L} positions for {g.P} parents",
                f"forward: {o.iterations} passes over the children, {how}",
                f"backward: {back}",
                f"votes: computed {forward} times forward and {backward} backward, {g.flop} FLOP each time; {take} "
                f"{self.votes_nbytes()} bytes",
                f"memory: {ceil_div(g.N, self.forward_part)} parts of {self.forward_part} images forward, backward "
                f"{ceil_div(g.N, self.part)} of {self.part}, states {states} bytes",
            )
        )


def kept_states(geometry, options, precision, itemsize=4, images=None):
    """Numbers of an image's states that PyTorch's operator keeps between forward and backward; 0 where it computes them again.

    It keeps them where they take at most a fourth of x; and of EM routing, whose states are larger, where those of all
    ``images`` take at most what a part of a batch may. It keeps none of stored votes, none where there are capsules'
    norms besides, and none where the gradient has votes of its own.
    """
    if options.is_summed:
        return 0
    has_own_votes = em_gradient_launcher.precision_of(precision) != precision
    if options.is_em and (options.normalise == "all" or has_own_votes):
        return 0
    fields = EMPasses.state_fields if options.is_em else state_fields
    numbers = (options.iterations + 1) * geometry.L * geometry.P * fields(geometry.E3)[0]
    if numbers * _SHARE <= prod(geometry.input_shape[1:]):
        return numbers
    is_small = options.is_em and images and images * numbers * itemsize <= WORKSPACE
    return numbers if is_small else 0


def _passes(count):
    return f"{count} pass{'es' if count > 1 else ''}"


runners = LastUsed(_KEPT, BYTES)


def runner_of(geometry, dtype, options, stored=False, part=None, stream=0, precision="auto"):
    """The runner of calls that are alike, of this thread's on a stream of this device; the last few are kept."""
    how = geometry, dtype, options, stored, part, precision
    where = int(stream) if stream else 0, threading.get_ident(), current_device()
    return runners.get((*how, *where), lambda: Runner(*how))


def settle(runner):
    """Give back what a runner of :func:`runner_of` does not keep behind a call: more bytes than are kept."""
    growth = runner.growth
    if growth.grown:
        growth.grown = False
        if runner.nbytes > BYTES:
            runner.release()
        runners.fit()
