"""How warps share a block, and blocks the children.

A warp has the places of one row of fragments. Of a block, ``across`` warps share the parents, ``rows`` have places of
their own, and ``sets`` take children in turns; what sets gather is merged at the end. Blocks share the children, too.
"""

from dataclasses import dataclass

from numbacaps.device.gpu import H100
from numbacaps.device.launch import ceil_div
from numbacaps.device.target import SIMULATED
from numbacaps.geometry import Geometry
from numbacaps.routing.mma_sync.fragments import Fragments, round_up

_STAGE_BYTES = 32 * 1024  # about
_MOST_STAGES = 3
BLOCKS = 4 if SIMULATED else H100.multiprocessors  # one GPU's, so that a sum's order is one


@dataclass(frozen=True)
class Tile:
    """What a pass is compiled for.

    Attributes
    ----------
    geometry : numbacaps.geometry.Geometry
        N is 1.
    fragments : numbacaps.routing.mma_sync.fragments.Fragments
    rows, sets : int
    turns : int
        Children of a set in a stage.
    runs : tuple of int
        Bytes that one copy takes of x, and of w.
    extra : int
        Words of shared memory behind the stages.
    end : int
        Words that the end of a pass takes in place of the stages.
    registers : int
        That a thread takes at the most.
    """

    geometry: Geometry
    fragments: Fragments
    rows: int
    sets: int
    turns: int
    runs: tuple
    extra: int = 0
    end: int = 0
    registers: int = 256

    @property
    def threads(self):
        """Of a block."""
        return 32 * self.fragments.across * self.rows * self.sets

    @property
    def places(self):
        """Of a block."""
        return self.rows * self.fragments.places

    @property
    def children(self):
        """Of a stage."""
        return self.sets * self.turns

    @property
    def stage(self):
        """Words of a stage: the kernel's, then the input's."""
        return self.children * (self.fragments.of_child + self.places * self.fragments.pitch)

    @property
    def stages(self):
        """That are under way or in use."""
        return _MOST_STAGES

    @property
    def ring(self):
        """Words of the stages, or of what takes their place."""
        return max(self.stages * self.stage, self.end)

    @property
    def shared_bytes(self):
        """Shared memory of a block."""
        return 4 * (self.ring + self.extra)

    @property
    def blocks_at_once(self):
        """On a multiprocessor, about: by registers, and shared memory."""
        by_memory = H100.shared_bytes // (self.shared_bytes + 1024)
        return max(1, min(by_memory, H100.registers // (self.registers * self.threads)))


def turns_of(fragments, rows, sets):
    """Children of a set in a stage."""
    child = 4 * (fragments.of_child + rows * fragments.places * fragments.pitch)
    return max(1, min(4, _STAGE_BYTES // (child * sets)))


def parts_of(tile, groups, children, most, merging):
    """(parts, children of each): blocks that share the children of the same places.

    Of the numbers of parts up to ``most`` the one whose blocks end first, if each multiprocessor takes the next that is
    left. To begin takes a block about as long as six children of a set, to merge one part more ``merging`` of them.
    """
    at_once = BLOCKS * tile.blocks_at_once
    best = None
    for parts in range(1, min(most, ceil_div(children, tile.sets)) + 1):
        each = round_up(ceil_div(children, parts), tile.sets)
        parts = ceil_div(children, each)
        waves = ceil_div(groups * parts, at_once)
        takes = waves * (each // tile.sets + 6) + parts * merging
        if best is None or takes < best[0]:
            best = takes, parts, each
    return best[1:]
