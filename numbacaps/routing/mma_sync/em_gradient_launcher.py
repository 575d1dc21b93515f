"""The gradients of EM routing on tensor cores made ready: a pass for each iteration, and the sum of what blocks have of dw.

What lies between two passes is that of ordinary arithmetic (:mod:`numbacaps.routing.em_ends`).
"""

from numbacaps.device import gpu
from numbacaps.device.launch import ceil_div
from numbacaps.device.target import SIMULATED
from numbacaps.routing.mma_sync import launcher
from numbacaps.routing.mma_sync.em_gradient import (
    GradientPass,
    make_add_parts,
    make_em_gradient,
    words_of_part,
)
from numbacaps.routing.mma_sync.fragments import choose_fragments
from numbacaps.routing.mma_sync.launcher import Warps, run
from numbacaps.routing.mma_sync.tile import Tile, parts_of

_WARPS = 2 if SIMULATED else 8  # of a block: registers leave a multiprocessor no more
_MOST_ROWS = 2
_MOST_TURNS = 4
_MOST_PARTS = 128  # blocks that share the children of the same places
_MERGING = 0.02  # steps over a child that it takes to add the sums of one part more
_PARTS_BYTES = 16 << 20  # that the blocks' parts of dw may take, if they are more than one
_MOST_WORDS = 1 << 31  # of a part of dw, counted with 32 bits
_THREADS = 256


def precision_of(precision):
    """That of the gradient's votes, and of the states that it reads: where tensor cores multiply, in three terms."""
    return "tf32x3" if launcher.terms_of(precision) == 1 else precision


def why_not(shape, images, options, precision):
    """Why the gradients of a form are not on tensor cores; None where they are. As :func:`launcher.why_not`."""
    reason = launcher.why_not(shape, images, options, precision)
    if reason:
        return reason
    g, places = shape.geometry, images * shape.geometry.L
    if launcher.terms_of(precision) != 3:
        return "V - mu is divided by variances that may be near epsilon"
    if choose_tile(g, places, precision) is None:
        return "what is read of the parents, and the kernel capsules, do not fit shared memory"
    if words_of_part(g, fragments_of(g, precision)) >= _MOST_WORDS:
        return f"w of {g.P * g.Q * g.E2} elements: kernels count with 32 bits"
    return None


def fragments_of(g, precision):
    """Those of the forward pass."""
    return choose_fragments(g, launcher.terms_of(precision), launcher.ELEMENTS["em"])[0]


def choose_tile(g, places, precision):
    """The tile of a pass, or None where none fits: most rows first, because each block has a part of dw, then most turns."""
    f = fragments_of(g, precision)
    most = min(_MOST_ROWS, max(1, _WARPS // f.across), ceil_div(places, f.places))
    for rows in range(most, 0, -1):
        sets = max(1, _WARPS // (f.across * rows))
        for turns in range(_MOST_TURNS, 0, -1):
            tile = Tile(g, f, rows, sets, turns, launcher.runs_of(g, f))
            if GradientPass(tile, "whole").shared_bytes <= gpu.current().shared_bytes:
                return tile
    return None


class EMGradient(Warps):
    """The gradients of some images.

    Parameters
    ----------
    shape, places, options, precision
        As :class:`numbacaps.routing.mma_sync.launcher.Warps`.
    """

    def __init__(self, shape, places, options, precision):
        super().__init__(shape, places, options, precision)
        self._options = options
        self.tile = choose_tile(self.geometry, places, precision)
        self._blocks = ceil_div(places, self.tile.places)
        words, how = words_of_part(self.geometry, self.tile.fragments), (_MOST_PARTS, _MERGING)
        at_once = min(self._blocks, max(1, _PARTS_BYTES // (4 * words)))  # of one launch
        self.parts, self.children = parts_of(self.tile, at_once, self.geometry.Q, *how)
        self._grid = at_once, self.parts

    def shapes(self, has_dw, has_more):
        """Workspace by name, where dw is wanted or not; ``has_more`` does not matter here."""
        g, has_sums = self.geometry, self.form_of(self._options.iterations - 1) == "whole"
        words = words_of_part(g, self.tile.fragments)
        return {
            "partial": (self.parts, self.places, 2 * g.E3 + 1, g.P) if has_sums else (1,),
            "d_prior": (self.places, g.Q),
            "parts_of_dw": (self._grid[0], words) if has_dw else (1,),
        }

    def form_of(self, t):
        """That of the pass of iteration t."""
        if t == 0:
            return "even"
        return "detached" if self._options.detach else "whole"

    def launch(self, x, w, activations, states, slopes, columns, room, t, has_dw, stream):
        """Launch the pass of iteration t, of which the last iteration's is the first.

        Parameters
        ----------
        x, w, activations : device arrays, (N, C, H, W, E1), (P, Q, E2) and (N, C, H, W)
        states, slopes : device arrays (iterations + 1, N * L, fields, P) and (iterations, N * L, fields, P)
            All states that the forward pass has had, of the same votes; the slope of iteration t.
        columns : device array (N, L, Q, E1), written or added to
        room : dict of device arrays of ``shapes``
        has_dw : bool
        stream : Numba stream
        """
        tile, (at_once, parts) = self._tile_for(x, w), self._grid
        made, more = GradientPass(tile, self.form_of(t)), t < self._options.iterations - 1
        arrays = x, w, activations, states, slopes, room["partial"], columns
        arrays += room["d_prior"], room["parts_of_dw"]
        kernel, how = make_em_gradient(made), {"shared": made.shared_bytes}
        for before in range(0, self._blocks, at_once):
            grid = min(at_once, self._blocks - before), parts
            numbers = self.places, self.children, t, before
            flags = int(more), int(more or before > 0), int(has_dw)
            run(kernel, grid, tile.threads, (*arrays, *numbers, *flags), stream, **how)

    def add_parts(self, dw, room, more, stream):
        """Add up dw, (P, Q, E2); with ``more`` it goes on from what is there."""
        g, f, parts = self.geometry, self.tile.fragments, room["parts_of_dw"]
        grid = ceil_div(words_of_part(g, f) // 4, _THREADS)
        arguments = parts, dw, self._grid[0], int(more)
        run(make_add_parts(g, f), grid, _THREADS, arguments, stream)

    def __str__(self):
        launches = ceil_div(self._blocks, self._grid[0])
        return (
            f"{super().__str__()}, {launches} launches a pass"
            if launches > 1
            else super().__str__()
        )
