"""The gradients of dynamic routing on tensor cores made ready: passes backward, what lies between them, and the owners of w.

``held`` has what passes and owners read of the parents, for each row of places, as lanes hold it: ds of the first iteration,
where it counts, then A and ds of each of the others.
"""

from dataclasses import replace
from functools import cached_property

from numbacaps.device import gpu
from numbacaps.device.launch import ceil_div
from numbacaps.routing.mma_sync import dynamic, dynamic_ends, launcher
from numbacaps.routing.mma_sync.dynamic_gradient import (
    Owners,
    make_add_splits,
    make_dynamic_gradient,
)
from numbacaps.routing.mma_sync.fragments import choose_fragments
from numbacaps.routing.mma_sync.launcher import Warps, run
from numbacaps.routing.mma_sync.sharing import words_of_totals
from numbacaps.routing.mma_sync.tile import BLOCKS, Tile

_MOST_WARPS = 9  # of a block: a thread has nearly all registers that it can have
_MOST_OWN = 48  # elements of dw that a lane holds, beside a vote
_MOST_SPLITS = 64
_SPLITS_BYTES = 16 << 20  # that all splits of dw may take, if they are more than one
_THREADS = 256
# Steps that it takes an owner to begin and to end, and to write and add another megabyte of splits.
_BEGINNING, _OF_MEGABYTE = 2, 0.3


def why_not(shape, images, options, precision, has_logits=False):
    """Why the gradients of a form are not on tensor cores; None where they are. As :func:`launcher.why_not`."""
    reason = launcher.why_not(shape, images, options, precision)
    if reason:
        return reason
    if options.is_em:
        return "gradients of EM routing divide V - mu by variances that may be near epsilon"
    if has_logits:
        return "logits are given, which have a gradient"
    if choose_owners(shape.geometry, images * shape.geometry.L, options, precision) is None:
        return "what the owners of w read of the parents does not fit a block's memory"
    return None


def owners_of(g, options, precision, children):
    """The owners' kernel for blocks of so many children; None where it takes more registers than there are."""
    fragments, _ = choose_fragments(g, launcher.terms_of(precision), launcher.ELEMENTS["dynamic"])
    tile = Tile(g, fragments, 1, children, 1, launcher.runs_of(g, fragments))
    last = options.iterations - 1
    found = Owners(tile, options.first == 0, last + 1 - max(1, options.first), not options.detach)
    return found if found.own <= _MOST_OWN else None


def choose_owners(g, places, options, precision, splits=None):
    """(owners' kernel, splits of the places) that end first; None where none fits.

    A multiprocessor has one block at once, and works on all its children at the same time.
    """
    best, whole = None, g.P * g.Q * g.E2 * 4
    for children in range(1, _MOST_WARPS + 1):
        owners = owners_of(g, options, precision, children)
        if owners is None or owners.tile.threads > 32 * _MOST_WARPS:
            continue
        if owners.shared_bytes > gpu.current().shared_bytes:
            continue
        rows, blocks = ceil_div(places, owners.tile.places), ceil_div(g.Q, children)
        most = min(rows, _MOST_SPLITS, max(1, _SPLITS_BYTES // whole))
        for some in range(1, most + 1) if splits is None else (min(splits, rows),):
            count = ceil_div(rows, some)
            waves = ceil_div(blocks * ceil_div(rows, count), BLOCKS)
            busy = max(8, owners.tile.threads // 32)  # as long as eight take, two for each scheduler
            takes = waves * (count + _BEGINNING) * busy + some * whole / 1e6 * _OF_MEGABYTE
            if best is None or takes < best[0]:
                best = takes, owners, ceil_div(rows, count)
    return best and best[1:]


class DynamicGradient(Warps):
    """The gradients of some images.

    Parameters
    ----------
    shape, places, options, precision
        As :class:`numbacaps.routing.mma_sync.launcher.Warps`.
    splits : int, optional
        Of dw.
    """

    def __init__(self, shape, places, options, precision, splits=None):
        super().__init__(shape, places, options, precision)
        self._options, f = options, self.tile.fragments
        groups = self.tile.rows * self.tile.sets
        extra = self.tile.extra + dynamic.words_behind(f, self.tile.rows) + words_of_totals(f, groups)
        self.tile = replace(self.tile, extra=extra)
        self._owners, self.splits = choose_owners(
            self.geometry, places, options, precision, splits
        )
        self.splits = splits or self.splits
        self._rows = ceil_div(places, f.places)

    @cached_property
    def shapes(self):
        """Workspace by name."""
        g, f = self.geometry, self.tile.fragments
        rows = self._grid[0] * self.tile.rows
        return {
            "partial": (self.parts, self.places, g.P, g.E3),
            "held": (rows, self._owners.arrays, dynamic.words_behind(f, 1)),
            "later": (self.places, g.P, g.E3),
            "dw": (self.splits, g.P, g.Q, g.E2),
        }

    @property
    def is_filled_up(self):
        """There is room for elements that no parent or no place has: it has to be zeros."""
        f, g = self.tile.fragments, self.geometry
        rows = self._grid[0] * self.tile.rows
        whole = f.parents * f.rows * f.width == g.P * g.E3 and rows * f.places == self.places
        return not whole

    def _first_of(self, t):
        """Where A of iteration t is among the arrays; -1 of the first one, whose A is 0."""
        return 2 * (t - max(1, self._options.first)) + self._owners.has_even if t else -1

    def _slope(self, t, is_last, states, dy, room, stream, early):
        kernel = dynamic_ends.make_dynamic_slope(self.tile.fragments, self.geometry.L, is_last)
        arrays = room["partial"], states, dy, room["later"], room["held"]
        numbers = self.places, self.parts, t, self._owners.arrays, self._first_of(t)
        how = {"early": early}
        run(kernel, self.places, dynamic_ends.END_THREADS, (*arrays, *numbers), stream, **how)

    def launch(self, x, w, states, dy, columns, room, more, stream):
        """Write columns, and what dw comes to of each split into ``room``.

        Parameters
        ----------
        x, w : device arrays, (N, C, H, W, E1) and (P, Q, E2)
        states : device array (iterations + 1, N * L, fields, P)
            All that the forward pass has had.
        dy : device array (N, P, L, E)
        columns : device array (N, L, Q, E1)
        room : dict of device arrays of ``shapes``
            "held" is zeros where something is filled up.
        more : bool
            dw goes on from what is there.
        stream : Numba stream
        """
        last, first, held = self._options.iterations - 1, self._options.first, room["held"]
        tile = self._tile_for(x, w)
        self._slope(last, True, states, dy, room, stream, early=False)
        kernel = dynamic.make_dynamic_pass(tile, dynamic.Slopes())
        for t in range(last, first, -1):
            numbers = self.places, self.children, self._owners.arrays, self._first_of(t)
            arguments = (x, w, states, held, room["partial"], *numbers)
            self._pass(kernel, tile, arguments, 1, stream)
            self._slope(t - 1, False, states, dy, room, stream, early=True)
        owners = replace(self._owners, tile=replace(self._owners.tile, runs=tile.runs))
        count = ceil_div(self._rows, self.splits)
        grid = ceil_div(self.geometry.Q, owners.children), self.splits
        arguments = (x, w, held, columns, room["dw"], self.places, count, int(more))
        how = {"shared": owners.shared_bytes, "early": True}
        run(make_dynamic_gradient(owners), grid, owners.tile.threads, arguments, stream, **how)

    def add_splits(self, dw, room, stream):
        """Write dw (P, Q, E2)."""
        arguments = (room["dw"], dw, dw.size, self.splits)
        run(make_add_splits(), ceil_div(dw.size, _THREADS), _THREADS, arguments, stream)

    def __str__(self):
        owners = self._owners
        return (
            f"passes: {super().__str__()}; owners: {owners.children} children a block, {self.splits} splits of "
            f"{self._rows} rows of {owners.tile.places} places"
        )
