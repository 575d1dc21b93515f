"""The gradients of dynamic routing on tensor cores made ready: passes backward, what lies between them, and the owners of w.

``held`` has what passes and owners read of the parents, for each row of places, as lanes hold it: ds of the first iteration,
where it counts, then A and ds of each of the others.
"""

from dataclasses import replace
from math import gcd

from numbacaps.device import gpu
from numbacaps.device.launch import ceil_div
from numbacaps.routing.mma_sync import dynamic, dynamic_ends, launcher
from numbacaps.routing.mma_sync.dynamic_gradient import (
    Owners,
    make_add_parts,
    make_dynamic_gradient,
)
from numbacaps.routing.mma_sync.fragments import choose_fragments, round_up
from numbacaps.routing.mma_sync.launcher import Warps, run
from numbacaps.routing.mma_sync.sharing import words_of_totals
from numbacaps.routing.mma_sync.tile import BLOCKS, Tile

_MOST_WARPS = 12  # of a block
_MOST_HELD = 184  # numbers of a vote, of dw and of the couplings that a lane holds
_PARTS_BYTES = 32 << 20  # that the blocks' parts of dw may take, if they are more than one
_MOST_TURNS = 8  # iterations with a softmax, each of which has code of its own
_MOST_STEPS = 1 << 31  # which are counted with 32 bits
_THREADS = 256
_CHANGING = 2  # steps that it takes to go from some children to the next


def why_not(shape, images, options, precision):
    """Why the gradients of a form are not on tensor cores; None where they are. As :func:`launcher.why_not`."""
    reason = launcher.why_not(shape, images, options, precision)
    if reason:
        return reason
    g, places = shape.geometry, images * shape.geometry.L
    if choose_owners(g, places, options, precision) is None:
        return "what the owners of w hold of it, or read of the parents, does not fit"
    fragments, _ = choose_fragments(g, launcher.terms_of(precision), launcher.ELEMENTS["dynamic"])
    tile = of_pass(launcher.choose_tile(g, fragments, places, options))
    if tile.shared_bytes > gpu.current().shared_bytes:
        return f"a block of a pass backward takes {tile.shared_bytes} bytes of shared memory"
    return None


def of_pass(tile):
    """The tile of a pass backward, where a forward pass has a tile: it reads ds beside A, and warps meet once more."""
    f, rows = tile.fragments, tile.rows
    more = dynamic.words_behind(f, rows) + words_of_totals(f, rows * tile.sets)
    return replace(tile, extra=tile.extra + more)


def owners_of(g, options, precision, children):
    """The owners' kernel for blocks with that number of children; None where a lane would need too many registers."""
    fragments, _ = choose_fragments(g, launcher.terms_of(precision), launcher.ELEMENTS["dynamic"])
    tile = Tile(g, fragments, 1, children, 1, launcher.runs_of(g, fragments))
    last = options.iterations - 1
    found = Owners(tile, options.first == 0, last + 1 - max(1, options.first), not options.detach)
    held = fragments.elements + fragments.own + 2 * found.turns * fragments.scalars
    return found if found.turns <= _MOST_TURNS and held <= _MOST_HELD else None


def choose_owners(g, places, options, precision):
    """(owners' kernel, steps of a block) that end first; None where none fits.

    A multiprocessor has one block at once. Two warps of each of its four schedulers work on their children at the same time, nearly as
    fast as one.
    """
    best = None
    for children in range(1, _MOST_WARPS + 1):
        owners = owners_of(g, options, precision, children)
        if owners is None or owners.tile.threads > 32 * _MOST_WARPS:
            continue
        if owners.shared_bytes > gpu.current().shared_bytes:
            continue
        rows, groups = ceil_div(places, owners.tile.places), ceil_div(g.Q, children)
        busy = max(6, round_up(owners.tile.threads // 32, 4))
        if rows * groups >= _MOST_STEPS:
            continue
        for each in (ceil_div(rows * groups, BLOCKS), ceil_div(groups, BLOCKS) * rows):
            parts = parts_of_dw(rows, each)
            if parts > 1 and parts * g.P * g.Q * g.E2 * 4 > _PARTS_BYTES:
                continue
            takes = (each + ceil_div(each, rows) * _CHANGING + parts) * busy
            if best is None or takes < best[0]:
                best = takes, owners, each
    return best and best[1:]


def parts_of_dw(rows, each):
    """Blocks that have a part of the same children's dw, at the most: children take ``rows`` steps, and a block has ``each``."""
    latest = each - gcd(rows, each)  # of a block's steps, where children can begin
    return (latest + rows - 1) // each + 1


class DynamicGradient(Warps):
    """The gradients of some images.

    Parameters
    ----------
    shape, places, options, precision
        As :class:`numbacaps.routing.mma_sync.launcher.Warps`.
    """

    def __init__(self, shape, places, options, precision):
        super().__init__(shape, places, options, precision)
        self._options, f = options, self.tile.fragments
        self.tile = of_pass(self.tile)
        self._owners, self._each = choose_owners(self.geometry, places, options, precision)
        self._rows = ceil_div(places, f.places)
        self._groups = ceil_div(self.geometry.Q, self._owners.children)

    @property
    def of_dw(self):
        """Parts of dw."""
        return parts_of_dw(self._rows, self._each)

    def shapes(self, has_dw, has_more):
        """Workspace by name, where dw is wanted or not, and goes on from sums that it holds or not."""
        g, f = self.geometry, self.tile.fragments
        rows, parts = self._grid[0] * self.tile.rows, self.of_dw - (not has_more) if has_dw else 0
        return {
            "partial": (self.parts, self.places, g.P, g.E3),
            "held": (rows, self._owners.arrays, dynamic.words_behind(f, 1)),
            "later": (self.places, g.P, g.E3),
            "parts_of_dw": (parts, g.P, g.Q, g.E2) if parts else (1,),
        }

    def _first_of(self, t):
        """Where A of iteration t is among the arrays; -1 of the first one, whose A is 0."""
        return 2 * (t - max(1, self._options.first)) + self._owners.has_even if t else -1

    def _slope(self, t, is_last, states, dy, room, stream, early):
        kernel = dynamic_ends.make_dynamic_slope(self.tile.fragments, self.geometry.L, is_last)
        arrays = room["partial"], states, dy, room["later"], room["held"]
        numbers = self.places, self.whole, self.parts, t, self._owners.arrays, self._first_of(t)
        how = {"early": early}
        run(kernel, self.places, dynamic_ends.END_THREADS, (*arrays, *numbers), stream, **how)

    def launch(self, x, w, states, dy, columns, dw, room, more, stream):
        """Write columns and dw.

        Parameters
        ----------
        x, w : device arrays, (N, C, H, W, E1) and (P, Q, E2)
        states : device array (iterations + 1, N * L, fields, P)
            All that the forward pass has had.
        dy : device array (N, P, L, E)
        columns : device array (N, L, Q, E1)
        dw : device array (P, Q, E2), or None
        room : dict of device arrays of ``shapes``
            "held" is zeros where something is filled up. The first part lies in dw where that is written anew.
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
        grid, parts = ceil_div(self._rows * self._groups, self._each), room["parts_of_dw"]
        in_dw = int(dw is not None and not more)
        to = dw if in_dw else parts
        kept = 0 if dw is None else self.of_dw
        arguments = (x, w, held, columns, to, parts, self.places, self._each, in_dw, kept)
        how = {"shared": owners.shared_bytes, "early": True}
        run(make_dynamic_gradient(owners), grid, owners.tile.threads, arguments, stream, **how)
        if dw is not None and self.of_dw > in_dw:
            g, kernel = self.geometry, make_add_parts(self.geometry, owners.children)
            arguments = (parts, dw, self._rows, self._each, in_dw, int(more or in_dw))
            grid = ceil_div(dw.size // gcd(g.E2, 4), _THREADS)
            run(kernel, grid, _THREADS, arguments, stream)

    def __str__(self):
        owners = self._owners
        return (
            f"passes more, {super().__str__()}, then owners: {owners.children} children a block, {self._each} steps of "
            f"{owners.tile.places} places"
        )
