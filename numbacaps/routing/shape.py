"""What kernels of routing are compiled for, and how threads share the work.

A *team* is some lanes of one warp that have the parents of a position: lane ``p`` has parent ``p``, and ``p + across``,
``p + 2 across``, ... where there are more parents than lanes. Where there are few, ``along`` lanes share a parent, each with
some columns of its capsule. A team takes ``images`` images at once, at the same position, so that a kernel capsule that was
read serves all of them.

What a pass gathers for a parent is a *record*: some capsules, of E elements each, then some single numbers. Its form is the
pair ``(capsules, numbers)``.
"""

from dataclasses import dataclass

import numpy as np

from numbacaps.device.dtypes import sum_dtype
from numbacaps.device.gpu import SHARED_WITHOUT_ASKING
from numbacaps.device.launch import ceil_div
from numbacaps.device.target import SIMULATED
from numbacaps.geometry import Geometry
from numbacaps.made_once import made_once

WARP = 32
TEAM_THREADS = 32 if SIMULATED else 128  # of a block, unless a shape has others
MULTIPROCESSORS = 1 if SIMULATED else 132  # H100's, so that a sum's order is one
_WANTED_WARPS = 4 if SIMULATED else MULTIPROCESSORS * 16  # of a grid
_REGISTERS = 1 << 16  # of a multiprocessor
_MOST_BLOCKS = 3  # that registers are spilled for, if a few are
_FEWEST_CHILDREN = 4  # of a team
_MOST_ELEMENTS = 2 if SIMULATED else 8  # of a capsule that a lane has, if more lanes can share it


@dataclass(frozen=True)
class Shape:
    """A routing problem, its number of images apart.

    Attributes
    ----------
    geometry : numbacaps.geometry.Geometry
        N is 1.
    dtype : numpy.dtype
        Of x and w, or of the votes.
    images : int
        That a team takes at once.
    taps : int
        Products whose sum is a vote: one, or all of a window.
    threads : int
        Of a block.
    """

    geometry: Geometry
    dtype: np.dtype
    images: int = 1
    taps: int = 1
    threads: int = TEAM_THREADS

    @classmethod
    def of(cls, geometry, dtype, is_summed=False):
        """The shape for a geometry; a window that is the whole input becomes channels, unless votes are summed over it."""
        g = geometry if is_summed else geometry.without_window
        few_rows = g.D1 * g.E3 < 32 and not SIMULATED
        images = 4 if few_rows and g.N >= 8 and g.P <= WARP else 1
        return cls(g.of_one_image, dtype, images, g.KH * g.KW if is_summed else 1)

    @property
    def sums(self):
        """The dtype of everything that is added."""
        return sum_dtype(self.dtype)

    @property
    def children(self):
        """Of a position: child i has the taps from ``i * taps`` on of the position's Q."""
        return self.geometry.Q // self.taps

    @property
    def capsules(self):
        """Of an image of the input."""
        g = self.geometry
        return g.C * g.H * g.W

    @made_once
    def across(self):
        """Lanes side by side, a power of two; each has parents of its own."""
        across = 1
        while across < min(self.geometry.P, WARP):
            across *= 2
        return across

    @made_once
    def along(self):
        """Lanes that share a parent, a power of two; each has some of its capsule's columns."""
        g, along = self.geometry, 1
        while (
            g.E3 // along > _MOST_ELEMENTS
            and g.D3 // along % 2 == 0
            and 2 * along * self.across <= WARP
        ):
            along *= 2
        return along

    @property
    def team(self):
        """Lanes of a team."""
        return self.across * self.along

    @property
    def parents(self):
        """Of a lane."""
        return ceil_div(self.geometry.P, self.across)

    @property
    def columns(self):
        """Of a parent's capsule that a lane has."""
        return self.geometry.D3 // self.along

    @property
    def own(self):
        """Elements of a vote that a lane has: rows of ``columns``."""
        return self.geometry.E3 // self.along

    @property
    def elements(self):
        """Elements of a team's votes that a lane has."""
        return self.images * self.parents * self.own

    def fields(self, record):
        """How many numbers a record is in memory: all elements of its capsules, and its single numbers."""
        capsules, numbers = record
        return capsules * self.geometry.E3 + numbers

    def own_fields(self, record):
        """How many of them a lane has: its own elements of the capsules, and all single numbers."""
        capsules, numbers = record
        return capsules * self.own + numbers

    @property
    def scalars(self):
        """Votes of a team that a lane has a part in."""
        return self.images * self.parents

    @property
    def teams(self):
        """Of a block; a multiple of those of a warp."""
        return self.threads // self.team

    def groups(self, N):
        """Groups of images and positions: what a team takes."""
        return ceil_div(N, self.images) * self.geometry.L


def teams_wanted(shape):
    """Of a grid."""
    return _WANTED_WARPS * WARP // shape.team


def bounds(shape, numbers):
    """The launch bounds of a kernel, by how many numbers each lane holds.

    The number of blocks that have to fit a multiprocessor limits the registers of a thread; what does not fit them is spilled to
    memory. The bounds ask for as many blocks as the numbers alone leave room for, but for three at the most.

    Parameters
    ----------
    shape : Shape
    numbers : int
        In the dtype of sums.

    Returns
    -------
    (int, int)
        Threads of a block, and blocks that a multiprocessor has room for.
    """
    registers = numbers * shape.sums.itemsize // 4
    blocks = _REGISTERS // (shape.threads * registers)
    return shape.threads, max(1, min(blocks, _MOST_BLOCKS))


@dataclass(frozen=True)
class Split:
    """How the children of positions are shared by teams.

    Attributes
    ----------
    places, parts : int
        A block has ``places`` groups of images, and for each ``parts`` teams, whose sums meet in shared memory.
    blocks : int
        That share a group of images; their sums meet in device memory.
    children : int
        Of a team.
    """

    places: int
    parts: int
    blocks: int
    children: int

    @classmethod
    def of(cls, shape, N, fields):
        """Few groups of images are shared by many teams, whose lanes have ``fields`` numbers of a parent's record."""
        groups, children = shape.groups(N), shape.children
        wanted = max(1, teams_wanted(shape) // max(1, groups))
        wanted = min(wanted, max(1, children // _FEWEST_CHILDREN))
        record = shape.threads * shape.scalars * fields * shape.sums.itemsize
        most = shape.teams if record <= SHARED_WITHOUT_ASKING else 1
        parts = 1
        while parts < min(wanted, most):
            parts *= 2
        blocks = max(1, wanted // parts)
        return cls(shape.teams // parts, parts, blocks, ceil_div(children, parts * blocks))
