"""The passes on tensor cores made ready for a routing problem: tiles, memory, launches.

A kernel may start before the one in front of it has ended, where that one is of the same call: a pass then has its first
copies under way when the parents' states come. The first pass of a call waits for all that is queued.
"""

from dataclasses import replace
from functools import cache

import numpy as np

from numbacaps.device import gpu
from numbacaps.device.compiled import Compiled, aligned, as_argument, launch_stream
from numbacaps.device.instructions import CHUNK
from numbacaps.device.launch import ceil_div
from numbacaps.device.recorded import Recording
from numbacaps.device.target import SIMULATED
from numbacaps.fused.precision import TERMS
from numbacaps.made_once import made_once
from numbacaps.routing.mma_sync import dynamic, dynamic_ends, em
from numbacaps.routing.mma_sync.fragments import choose_fragments
from numbacaps.routing.mma_sync.sharing import words_of_sharing
from numbacaps.routing.mma_sync.tile import Tile, parts_of, turns_of

_FLOAT32 = np.dtype(np.float32)
_MOST_PARTS = 128  # blocks that share the children of the same places
_WARPS = 2 if SIMULATED else 8  # of a block
# Elements that a lane holds: it has a vote and a sum of each, or a vote and two sums, and backward a vote, four numbers and a part of dw.
ELEMENTS = {"dynamic": 80, "em": 32}
# Steps over a child that it takes to merge one part more: sums are loaded together, EM routing's records are merged one by one.
_MERGING = {"dynamic": 0.05, "em": 0.8}
_MOST_COLUMNS = 4096  # of all parents of a place: their sums lie in shared memory
_MOST_CHILDREN = 1 << 24  # of a position
_MOST_CAPSULES = 1 << 31  # of a batch


def terms_of(precision):
    """Products of the tensor cores for one; None for ordinary arithmetic."""
    return TERMS.get("tf32x3" if precision == "auto" else precision)


def why_not(shape, images, options, precision):
    """Why the passes of a form are not on tensor cores; None where they are.

    Parameters
    ----------
    shape : numbacaps.routing.shape.Shape
    images : int
    options : numbacaps.routing.options.Options
    precision : str
    """
    g = shape.geometry
    if terms_of(precision) is None:
        return f"precision is {precision!r}"
    if shape.dtype != np.float32:
        return f"{shape.dtype.name} is multiplied by ordinary arithmetic"
    if not gpu.current().has_mma_sync:
        return "the GPU has no mma.sync of TF32"
    if options.is_summed:
        return "votes are summed over the window"
    if options.is_em and options.normalise != "window":
        return f"normalised over {options.normalise}"
    if not options.is_em and options.softmax_over != "parents":
        return f"softmax over {options.softmax_over}"
    if g.P * g.E3 > _MOST_COLUMNS:
        return f"{g.P} parents of {g.E3} elements; {_MOST_COLUMNS} together fit"
    if g.Q >= _MOST_CHILDREN or images * shape.capsules >= _MOST_CAPSULES:
        return f"{g.Q} children of a position, {images * shape.capsules} capsules: kernels count with 32 bits"
    fragments, reason = choose_fragments(g, terms_of(precision), ELEMENTS[options.routing])
    if reason:
        return reason
    tile = choose_tile(g, fragments, images * g.L, options)
    if tile.shared_bytes > gpu.current().shared_bytes:
        return f"a block takes {tile.shared_bytes} bytes of shared memory"
    return None


def choose_tile(g, fragments, places, options):
    """The tile of an algorithm for some places.

    Where warps share the parents, blocks of EM routing are small, so that three are on a multiprocessor: while the warps of
    one wait for each other, the other's go on.
    """
    f, is_em = fragments, options.is_em
    warps = max(1, (4 if is_em and f.across > 1 else _WARPS) // f.across)
    rows = 1 if is_em else min(2, warps, ceil_div(places, f.places))
    sets = warps // rows
    tile = Tile(g, f, rows, sets, turns_of(f, rows, sets), runs_of(g, f))
    extra = words_of_sharing(f, rows, sets)
    if is_em:
        extra += 2 * dynamic.words_behind(f, rows)
        return replace(tile, extra=extra, end=em.words_at_end(tile), registers=em.REGISTERS)
    extra += dynamic.words_behind(f, rows)
    return replace(tile, extra=extra, end=dynamic.words_at_end(g, tile.places, sets))


@cache
def _compiled(kernel, arrays, integers, shared, early):
    return Compiled(kernel, (_FLOAT32,) * arrays, integers, shared, early=early)


def run(kernel, grid, threads, arguments, stream, shared=0, early=False):
    """Launch a kernel of float32 arrays, then integers; on a stream or into a recording."""
    arrays = [one for one in arguments if hasattr(one, "dtype")]
    integers = [one for one in arguments if not hasattr(one, "dtype")]
    compiled = _compiled(kernel, len(arrays), len(integers), shared, early)
    launched = compiled.on(grid, threads, shared)
    if isinstance(stream, Recording):
        stream.note(launched, (*arrays, *integers))
    else:
        values = [value for one in arrays for value in as_argument(one)]
        launched(launch_stream(stream), (*values, *integers))


def runs_of(g, fragments):
    """Bytes that one copy takes of x, and of w."""
    f = fragments
    return CHUNK if g.D2 == f.depth else 4, CHUNK if g.D3 == f.width and g.D3 % 4 == 0 else 4


class Warps:
    """Routing of some images: what both algorithms have in common.

    Parameters
    ----------
    shape : numbacaps.routing.shape.Shape
    places : int
        Images times positions.
    options : numbacaps.routing.options.Options
    precision : str
    """

    def __init__(self, shape, places, options, precision):
        g = shape.geometry
        most = ELEMENTS[options.routing]
        fragments, _ = choose_fragments(g, terms_of(precision), most)
        self.geometry, self.places, self._iterations = g, places, options.iterations
        self.tile = choose_tile(g, fragments, places, options)
        blocks = ceil_div(places, self.tile.places)
        how = _MOST_PARTS, _MERGING[options.routing]
        self.parts, self.children = parts_of(self.tile, blocks, g.Q, *how)
        self._grid = blocks, self.parts

    @property
    def is_filled_up(self):
        """There are elements that no parent has: of what lies as lanes hold it they have to be zeros."""
        f = self.tile.fragments
        return f.parents * f.rows * f.width > self.geometry.P * self.geometry.E3

    @property
    def whole(self):
        """Places, with those that fill the last block up."""
        return self._grid[0] * self.tile.places

    @made_once
    def _of_elements(self):
        """The tile whose copies are of one element, for arrays that lie anywhere."""
        return replace(self.tile, runs=(4, 4))

    def _tile_for(self, x, w):
        fits = aligned(CHUNK, as_argument(x), as_argument(w))
        return self.tile if fits else self._of_elements

    def _pass(self, kernel, tile, arguments, t, stream):
        """One pass over the children."""
        how = {"shared": tile.shared_bytes, "early": t > 0}
        run(kernel, self._grid, tile.threads, arguments, stream, **how)

    def __str__(self):
        t, f = self.tile, self.tile.fragments
        return (
            f"mma_sync, {f.terms} terms, {t.rows} x {f.places} places and {t.sets} sets of children a block, "
            f"{f.across} warps share {self.geometry.P} parents, {self.parts} blocks of {self.children} children share places"
        )


class DynamicWarps(Warps):
    """Dynamic routing."""

    states = 2  # that are needed at a time

    @property
    def shapes(self):
        """Workspace by name."""
        return {"partial": self.partial_shape, "summed": self.summed_shape}

    @property
    def partial_shape(self):
        """(parts, N * L, P, E): what the blocks of a pass have gathered."""
        return self.parts, self.places, self.geometry.P, self.geometry.E3

    @property
    def summed_shape(self):
        """(blocks, words): A as lanes hold it."""
        return self._grid[0], dynamic.words_behind(self.tile.fragments, self.tile.rows)

    def forward(self, x, w, prior, states, y, room, stream, keep):
        """Write v and the states.

        Parameters
        ----------
        x, w : device arrays, (N, C, H, W, E1) and (P, I, E2)
        prior : device array (I, P), or None for zeros
        states : device array (states, N * L, fields, P)
            The first is zeros if all are kept.
        y : device array (N, P, L, E)
        room : dict of device arrays
            "partial", and "summed": zeros if there is a prior, or where something is filled up.
        stream : Numba stream
        keep : bool
            Each iteration's state is written to its place. If not, to the first two, in turns.
        """
        g, tile = self.geometry, self._tile_for(x, w)
        has_prior, of_prior = prior is not None, states if prior is None else prior
        for t in range(self._iterations):
            old, new = (t, t + 1) if keep else (t % 2, (t + 1) % 2)
            is_even = t == 0 and not has_prior
            form = dynamic.Even() if is_even else dynamic.Couplings(has_prior)
            kernel = dynamic.make_dynamic_pass(tile, form)
            partial, summed = room["partial"], room["summed"]
            arguments = (x, w, of_prior, summed, partial, self.places, self.children, 1, 0)
            self._pass(kernel, tile, arguments, t, stream)
            kernel = dynamic_ends.make_dynamic_end(tile.fragments, g.L, t == 0)
            numbers = self.places, self.whole, self.parts, old, new
            arguments = (partial, states, y, summed, *numbers)
            run(kernel, self.places, dynamic_ends.END_THREADS, arguments, stream, early=True)


class EMWarps(Warps):
    """EM routing."""

    states = 1

    @property
    def shapes(self):
        """Workspace by name."""
        return {"partial": self.partial_shape}

    @property
    def partial_shape(self):
        """(parts, N * L, fields, P): the records of the blocks of a pass, as the passes of ordinary arithmetic leave them."""
        g = self.geometry
        return self.parts, self.places, 2 * g.E3 + 2, g.P

    def launch(self, x, w, activations, states, partial, state, t, stream):
        """Launch the pass of iteration t, which reads a state of the parents; the first one reads none."""
        tile = self._tile_for(x, w)
        kernel = em.make_em_pass(tile, t == 0)
        arguments = (x, w, activations, states, partial, self.places, self.children, state)
        self._pass(kernel, tile, arguments, t, stream)
